import pytest
import tomli_w
from typer.testing import CliRunner

from fedgraph.commands import cli

pytestmark = pytest.mark.usefixtures("leave_no_trace")

CLIENT = """
from fedgraph.clients.sfl import SFLClient


class Louder(SFLClient):
    trained = 0

    def start(self):
        Louder.trained += 1
        return self.models * (1 + 0.01 * Louder.trained)
"""


def call(*arguments):
    return CliRunner().invoke(cli.app, ["check", *[str(argument) for argument in arguments]])


def test_a_client_class_with_an_experiment_of_its_own(digits_tables, tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "louder.py").write_text(CLIENT)
    (folder / "small.toml").write_text(tomli_w.dumps(digits_tables))
    told = call("louder:Louder", "--experiment", folder / "small.toml", "--set", "data.clients=2")
    assert told.exit_code == 1, told.output
    lines = [line.split() for line in told.output.splitlines()]
    found = {line[1]: line[0] for line in lines if line and line[0] in ("pass", "fail", "skipped", "expected")}
    assert (found["finishes"], found["node-restart"]) == ("pass", "fail")
    assert "louder:Louder, a client class, with sfl on digits" in told.output
    assert "belongs in its node's state folder (CohortClient.remember" in " ".join(told.output.split())
    assert "2 clients" in told.output


def test_expected_failures_are_none(tmp_path):
    told = call("centralised")
    assert told.exit_code == 0, told.output
    assert "5 passed, 4 skipped, 1 failed as expected" in told.output
    assert "it pools the data of all clients" in told.output


def test_what_cannot_be_checked_is_one_message():
    for arguments, message in (
        (("slf",), "'slf' is no built-in method"),
        (("no_such_module:X",), "cannot import 'no_such_module'"),
        (("sfl", "--experiment", "nowhere.toml"), "no experiment file 'nowhere.toml'"),
        (("sfl", "--set", "sfl.hop=2"), "[sfl] has no key 'hop'"),
    ):
        told = call(*arguments)
        assert told.exit_code == 1
        assert told.stderr.startswith("Error: ")
        assert message in told.stderr
