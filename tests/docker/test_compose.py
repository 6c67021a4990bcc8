"""The image is built as the pages say, and ``compose.yaml``, as it is, runs an experiment to its end."""

import json
import shutil
from pathlib import Path

import pytest

from fedgraph.federation.grids.local_flower import free_port

pytestmark = pytest.mark.docker

REPOSITORY = Path(__file__).resolve().parents[2]
# Not those of a user.
IMAGE, PROJECT = "fedgraph-tested", "fedgraph-test"
SECRET = "what-nobody-else-may-read"
# Folders in which an operator keeps keys, and what else of a checkout does not belong in the image.
SECRET_PLACES = ("docker/credentials/server/server.key", "docker/.env", ".git/config", ".venv/key", "runs/1/key")
# What docker/README.md says that a container may not do.
FORBIDDEN = """
test "$(id -u)" = 10001 || echo "the user is $(id -u)"
grep -q '^CapBnd:.0000000000000000' /proc/self/status || echo "it has capabilities"
grep -q '^NoNewPrivs:.1' /proc/self/status || echo "it may gain privileges"
for place in / /opt /var/lib/fedgraph; do
    touch $place/written 2>/dev/null && echo "it can write to $place"
done
touch /tmp/written || echo "it cannot write to /tmp"
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """What the image is built from, with keys in it."""
    checkout = tmp_path_factory.mktemp("checkout")
    rules = (REPOSITORY / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    for name in ["docker", *(rule[1:] for rule in rules if rule.startswith("!"))]:
        source, target = REPOSITORY / name, checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(
                source, target, ignore=shutil.ignore_patterns("__pycache__", "credentials", ".env"), dirs_exist_ok=True
            )
        else:
            shutil.copy(source, target)
    for place in SECRET_PLACES:
        (checkout / place).parent.mkdir(parents=True, exist_ok=True)
        (checkout / place).write_text(f"KEY={SECRET}\n")
    return checkout


@pytest.fixture(scope="module")
def compose(engine, checkout):
    """``compose(command...)``: Compose with all services healthy, under a name and on a port of the tests' own."""
    file, renamed = checkout / "docker" / "compose.yaml", checkout / "renamed.json"
    environment = {**engine.environment, "FEDGRAPH_PORT": str(free_port())}

    def run(*command, files=(file, renamed), seconds=600):
        options = ["--project-name", PROJECT, *(f"--file={path}" for path in files)]
        return engine.docker("compose", *options, *command, env=environment, seconds=seconds)

    services = json.loads(run("config", "--format", "json", files=[file]))["services"]
    renamed.write_text(json.dumps({"services": {name: {"image": IMAGE} for name in services}}))
    run("build", seconds=3600)
    try:
        run("down", "--volumes")  # of tests that were killed
        run("up", "--detach", "--wait")
        yield run
    finally:
        run("down", "--volumes", "--timeout", "5")


def test_no_key_of_the_checkout_is_in_the_image(engine, compose):
    search = (
        f"grep --recursive --files-with-matches --exclude-dir=proc --exclude-dir=sys {SECRET} / 2>/dev/null; ls /opt"
    )
    inside = ["--rm", "--network", "none", "--user", "0", IMAGE, "sh", "-c"]
    assert engine.docker("run", *inside, search).split() == ["fedgraph", "venv"]


@pytest.mark.parametrize("service", ["superlink", "node-0"])
def test_containers_can_write_nowhere_and_have_no_privileges(compose, service):
    assert compose("exec", "-T", service, "sh", "-c", FORBIDDEN) == ""


def test_an_experiment_runs_to_its_end(compose):
    settings = "experiment.name=smoke experiment.rounds=2 data.clients=3 train.local-epochs=1"
    here = ["exec", "-T", "superlink"]
    said = compose(*here, "flwr", "run", "/opt/fedgraph", "here", "--stream", "-c", f'set="{settings}"')
    summary = compose(*here, "sh", "-c", "cat /var/lib/fedgraph/runs/smoke*/summary.json")
    assert json.loads(summary)["rounds"] == 2, said
