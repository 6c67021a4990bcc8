"""``server.yaml`` and three times ``site.yaml`` as their pages say: what the door refuses, and what a run outlives."""

import ssl
from http.client import HTTPSConnection

import pytest
from containers.federation import EXPERIMENT, OUTSIDE, ServerAndSites
from containers.project import RUNS
from containers.restrictions import broken

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def deployment(engine, image, tmp_path_factory):
    """A server and three sites, healthy."""
    found = ServerAndSites(engine, image, tmp_path_factory.mktemp("deployment"))
    try:
        found.up()
        yield found
    finally:
        found.down()


def answer(deployment, method, path):
    """Status with which the door answers somebody who trusts the authority outside, and knows the name of the host."""

    class Door(HTTPSConnection):
        def connect(self):
            self.host, name = "127.0.0.1", self.host
            super(HTTPSConnection, self).connect()
            self.sock = self._context.wrap_socket(self.sock, server_hostname=name)

    door = Door(OUTSIDE, deployment.door, timeout=20, context=ssl.create_default_context(cafile=deployment.authority))
    door.request(method, path)
    return door.getresponse().status


def test_the_door_passes_on_what_nodes_ask(deployment):
    assert answer(deployment, "GET", "/health") == 200
    # By Flower, which is asked for nothing that it understands.
    assert answer(deployment, "POST", "/v1/fleet/activate-node") == 415


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v1/control/register-node",
        "/v1/control/start-run",
        "/v1/runtime/push-messages",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet//x",
        "/v1/fleet/..%2fcontrol%2flist-runs",
    ],
)
def test_the_door_refuses_everything_else(deployment, path):
    assert answer(deployment, "POST", path) == 403


def test_containers_can_write_nowhere_and_have_no_privileges(deployment):
    assert broken(deployment.server, "superlink") == []
    assert broken(deployment.sites["mercy"], "node") == []


def test_a_site_can_look_before_it_joins(deployment):
    mercy, experiment = deployment.sites["mercy"], "/run/fedgraph/EXPERIMENT.toml"
    said = mercy.compose(
        "run", "--rm", "-T", "--volume", f"{deployment.files}/{EXPERIMENT}.toml:{experiment}:ro", "node",
        "fedgraph", "node", experiment, "--client", "mercy", "--superlink", f"{OUTSIDE}:1",
        "--root-certificates", "/run/fedgraph/ca.crt", "--private-key", "/run/fedgraph/key",
        "--data", "/data/visits.csv", "--check",
    )  # fmt: skip
    assert "150" in said, "its rows"


def test_a_run_outlives_the_door_and_is_resumed_when_the_superlink_was_killed(deployment):
    """With nothing lost: the weights are those of a run that nobody disturbed."""
    two_rounds = "experiment.rounds=2"
    server = deployment.server
    run = deployment.submit("begun", experiment=f"/files/{EXPERIMENT}.toml", set=two_rounds)
    run.until_said("after round 0")
    server.crash("door")
    run.until_said("round 1/2")
    server.crash("superlink")
    run.until_it_ends()
    server.until_healthy("superlink")
    deployment.until_sites_are_back(180)

    (name,) = server.execute("superlink", "ls", RUNS).split()
    folder = f"{RUNS}/{name}"
    assert "summary.json" not in server.execute("superlink", "ls", folder)
    resumed = deployment.submit("resumed", experiment=f"{folder}/experiment.toml", set=f"output.resume={folder}")
    said = resumed.until_it_ends()
    assert "going on after round" in said
    summary, undisturbed = server.summary(name), deployment.in_one_process(two_rounds)
    assert summary["rounds"] == 2
    assert summary["weights_sha256"] == undisturbed["weights_sha256"]
    assert summary["per_client"] == undisturbed["per_client"]
