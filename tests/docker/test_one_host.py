"""``compose.yaml`` as its page says: a SuperLink and three SuperNodes, one of which is killed in a run."""

import pytest
from containers import Project
from containers.restrictions import broken

from fedgraph.federation.grids.local_flower import free_port

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def one_host(engine, image, tmp_path_factory):
    """All services, healthy."""
    folder = tmp_path_factory.mktemp("one-host")
    project = Project(engine, "fedgraph-test", "compose", image, folder, {"FEDGRAPH_PORT": str(free_port())})
    try:
        project.down()  # of what tests that were killed have left
        project.up()
        yield project
    finally:
        project.down()


@pytest.mark.parametrize("service", ["superlink", "node-0"])
def test_containers_can_write_nowhere_and_have_no_privileges(one_host, service):
    assert broken(one_host, service) == []


def test_nodes_reach_the_superlink_and_nothing_else(one_host):
    reach = "import socket; socket.create_connection(('{}', {}), 5)"
    one_host.execute("node-0", "python", "-c", reach.format("superlink", 8000))
    with pytest.raises(AssertionError, match="unreachable|timed out"):
        one_host.execute("node-0", "python", "-c", reach.format("192.0.2.1", 443))


def test_a_run_outlives_a_supernode_that_is_killed(one_host, tmp_path):
    # What it has fetched and not answered is waited for until the time of an exchange is over.
    settings = ["experiment.name=killed", "experiment.rounds=1", "experiment.on-missing=skip", "experiment.timeout=120"]
    settings += ["data.clients=3", "train.local-epochs=1"]
    run = one_host.submit(tmp_path / "log", set=" ".join(settings))
    run.until_said("after round 0")
    one_host.crash("node-1")
    said = run.until_it_ends()
    assert one_host.summary("killed")["rounds"] == 1, said
    one_host.until_healthy("node-1")
