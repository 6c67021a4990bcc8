"""Nodes that must not take part, and servers that must not be trusted, with real processes."""

import subprocess
import sys
from contextlib import contextmanager

import pytest
import tomli_w

from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.local_flower import free_port
from fedgraph.federation.grids.programs import flower_environment
from fedgraph.runs.folder import RunFolder
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("nodes")]


@pytest.fixture
def small(digits_tables, tmp_path):
    """An experiment of two clients, as tables; and as the file ``small.toml``."""
    digits_tables["experiment"] |= {"rounds": 1, "wait": 40.0}
    digits_tables["data"]["clients"] = 2
    digits_tables["graph"] = {"source": "complete"}
    (tmp_path / "small.toml").write_text(tomli_w.dumps(digits_tables))
    return digits_tables


@contextmanager
def federation_in(tmp_path, days=1.0):
    with FederationOnThisMachine(tmp_path / "federation", ["client-0", "client-1"], days=days) as federation:
        yield federation


def join(tmp_path, federation, authority, private_key):
    """``fedgraph node`` as the operator of a site would type it; returns what it said before it ended."""
    command = [
        sys.executable, "-c", "from fedgraph.commands.cli import app; app()", "node", str(tmp_path / "small.toml"),
        "--client", "client-0", "--superlink", federation.address, "--root-certificates", str(authority),
        "--private-key", str(private_key), "--port", str(free_port()), "--retry", "0",
    ]  # fmt: skip
    done = subprocess.run(
        command, env=flower_environment(tmp_path / "home"), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


def test_a_key_that_the_server_does_not_know(small, tmp_path):
    stranger = make_test_credentials(tmp_path / "stranger", ["127.0.0.1"], ["client-0"])
    with federation_in(tmp_path) as federation:
        said = join(tmp_path, federation, federation.credentials.authority, stranger.private_key("client-0"))
    assert "Failed to activate SuperNode" in said
    assert "ask its operator to register the public key of --private-key" in said


def test_a_server_of_another_authority(small, tmp_path):
    other = make_test_credentials(tmp_path / "other", ["127.0.0.1"], ["client-0"])
    with federation_in(tmp_path) as federation:
        said = join(tmp_path, federation, other.authority, federation.credentials.private_key("client-0"))
    assert "is not trusted" in said
    assert "the server's certificate is from another authority than yours" in said


def test_a_server_whose_certificate_has_expired(small, tmp_path):
    with federation_in(tmp_path, days=-1.0) as federation:
        own = federation.credentials
        said = join(tmp_path, federation, own.authority, own.private_key("client-0"))
    assert "certificate has expired; ask the operator of the server for a new one" in said


def test_a_node_that_claims_the_client_of_another(small, tmp_path):
    """It is let in, as the server knows its key, and may speak for its own client only."""
    with federation_in(tmp_path) as federation:
        small["clients"] = {
            "expect": ["client-0", "client-1"],
            "public-keys": str(federation.credentials.public_keys),
        }
        folder = RunFolder.create(parse_experiment(small), tmp_path / "runs")
        federation.start_node("client-0", {"clients": "client-0"})
        federation.start_node("client-1", {"clients": "client-0"})
        log = federation.run(folder)
    assert not folder.is_finished
    assert "it says that it hosts client 'client-0' and does not have the private key of 'client-0'" in log
    assert "nobody hosts client-1" in log
