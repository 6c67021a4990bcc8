import sys
import textwrap

import pytest
from typer.testing import CliRunner

from fedgraph.commands.cli import app

pytestmark = pytest.mark.usefixtures("leave_no_trace")

PYPROJECT = """
[tool.flwr.app.components]
serverapp = "{name}:server"
clientapp = "{name}:client"

[tool.flwr.app.config]
rounds = 2
fail = "never"
wanted = 0
"""

APP = """
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

server, client = ServerApp(), ClientApp()


@client.query()
def query(message, context):
    partition = context.node_config["partition-id"]
    if context.run_config["fail"] in ("all", str(partition)):
        raise ValueError(f"bad data of {partition}")
    return Message(RecordDict({"config": ConfigRecord({"partition": partition})}), reply_to=message)


@server.main()
def main(grid, context):
    wanted = context.run_config["wanted"]
    if wanted:
        FedAvg(min_available_nodes=wanted).start(grid, ArrayRecord())
    for number in range(context.run_config["rounds"]):
        replies = grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])
        print(f"round {number}:", *(r.content["config"]["partition"] for r in replies if r.has_content()))
"""


@pytest.fixture
def simulate(tmp_path):
    """``simulate("--nodes", "3")``: the command on an app; its result."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name="only_module"))
    (folder / "only_module.py").write_text(textwrap.dedent(APP))
    return lambda *options: CliRunner().invoke(app, ["simulate", str(folder), *options])


def test_a_folder_is_simulated_with_the_options_of_flwr_run(simulate):
    result = simulate("--nodes", "3", "-c", "rounds=1")
    assert result.exit_code == 0, result.output
    assert "round 0: 0 1 2\n" in result.output
    assert "round 1" not in result.output
    assert "only_module" not in sys.modules
    assert "round 1: 0 1\n" in simulate().output


def test_nodes_are_told_who_they_are(simulate):
    result = simulate("--node-config", "partition-id=7 client='mercy'", "--node-config", "beds=3", "-c", "rounds=1")
    assert result.exit_code == 0, result.output
    assert "round 0: 7 1\n" in result.output
    result = simulate("--node-config", "client", "--node-config", "beds=3")
    assert "'client' of node_configs[0] is not a key=value pair" in result.output
    result = simulate("--node-config", "beds=3", "--nodes", "2")
    assert "num_nodes is 2, but node_configs has 1" in result.output


def test_exceptions_of_clients_are_shown_and_counted(simulate):
    result = simulate("--nodes", "3", "--run-config", 'fail="1"')
    assert result.exit_code == 0
    assert "round 1: 0 2\n" in result.output
    assert "node 1001 (partition 1), message 'query':\nTraceback" in result.output
    assert "ValueError: bad data of 1" in result.output
    assert "2 of 6 messages ended in an exception of the ClientApp" in result.output
    assert simulate("--run-config", 'fail="all"').exit_code == 1


def test_the_first_exception_is_raised_on_demand(simulate):
    result = simulate("--run-config", 'fail="0"', "--on-error", "raise")
    assert isinstance(result.exception, ValueError)
    assert "round 0" not in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-c", "round=1"], "the run config of app has no key 'round'; did you mean 'rounds' for 'round'?"),
        (["-c", "wanted=7", "--nodes", "4"], "the ServerApp waits for 7 nodes, but there are 4"),
        (["--on-error", "ignore"], "on_error is 'reply' or 'raise'"),
        (["-c", "oops"], "'oops' of the run config is not a key=value pair"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(simulate, options, message):
    result = simulate(*options)
    assert result.exit_code == 1
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_folder_that_is_no_app_is_said_to_be_that(tmp_path):
    result = CliRunner().invoke(app, ["simulate", str(tmp_path)])
    assert result.exit_code == 1
    assert "it has no pyproject.toml" in result.output
