"""The commands `fedgraph node`, `fedgraph server` and `fedgraph test-credentials`, as far as they check."""

import re
import shlex
import socket

import numpy as np
import pytest
import tomli_w
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from typer.testing import CliRunner

from fedgraph.commands import cli
from fedgraph.commands.deployment import node_command
from fedgraph.commands.deployment.connection import Route
from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.commands.deployment.foreground import run_to_the_end
from fedgraph.data import open_source, parse_data
from fedgraph.federation.grids import free_port

pytestmark = pytest.mark.usefixtures("leave_no_trace")


def call(*arguments):
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def refused(*arguments):
    result = call(*arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    return " ".join(result.stderr.split())


@pytest.fixture
def file(digits_tables, tmp_path):
    digits_tables["clients"] = {"expect": ["client-1", "client-3"]}
    (tmp_path / "small.toml").write_text(tomli_w.dumps(digits_tables))
    return tmp_path / "small.toml"


@pytest.fixture
def made(tmp_path):
    return make_test_credentials(tmp_path / "credentials", ["127.0.0.1"], ["client-1"])


def command_of(result, program):
    line = next(line for line in result.output.splitlines() if line.startswith(program))
    return shlex.split(line)


def test_a_node_sees_what_it_has_what_leaves_and_the_command_that_starts_it(file, made, tmp_path, told_config):
    result = call(
        "node", file, "--client", "client-1", "--client", "client-2", "--check", "--superlink", "lab.example:8000",
        "--root-certificates", made.authority, "--private-key", made.private_key("client-1"), "--data-dir", tmp_path,
        "--config", "full-errors=1",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    said = result.output
    assert "This node hosts client-1." in said
    assert "client-2: not expected by the run, which expects client-3, client-1" in said
    assert "client-1: " in said.partition("What leaves")[0]
    assert "the parameters of each client's model" in said.partition("What leaves")[2].partition("What stays")[0]
    assert '[graph] source = "labels"' in said
    command = command_of(result, "fedgraph supervise flower-supernode")
    assert command[command.index("--superlink") + 1] == "lab.example:8000"
    assert command[command.index("--root-certificates") + 1] == str(made.authority)
    assert command[command.index("--auth-supernode-private-key") + 1] == str(made.private_key("client-1"))
    assert "--insecure" not in command
    assert told_config(command[-1]) == {
        "clients": "client-1,client-2",
        "data-dir": str(tmp_path),
        "private-key": str(made.private_key("client-1")),
        "full-errors": 1,
        "agreement": str(file),
    }
    assert "Checked, not started." in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "does not know which clients it hosts"),
        (["--client", "client-9"], "names client-9, which this node's data does not have; it has client-"),
        (["--client", "cleint-3"], "names cleint-3, which this node's data does not have; it has client-3, client-"),
        (["--client", "client-0"], "is to host client-0, and hosts none of the expected clients: client-3, client-1"),
        (["--client", "client-1", "--private-key", "nowhere"], "--private-key: nowhere does not exist"),
        (["--client", "client-1", "--config", "x"], "--config 'x' must be key=value"),
    ],
)
def test_a_node_that_could_not_take_part_is_told_before_it_joins(file, arguments, message):
    assert message in refused("node", file, "--check", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--root-certificates", "nope.crt"], "nope.crt is not a certificate of an authority"),
        (["--root-certificates", "{key}"], "is not a certificate of an authority"),
        (["--insecure", "--superlink", "lab"], "'lab' must be host:port"),
        (["--insecure", "--superlink", "lab:99999"], "a port of 1 to 65535"),
        (["--superlink", "lab"], "'lab' must be host:port"),
        (["--insecure", "--state-dir", "/proc/x"], "--state-dir /proc/x cannot be written to"),
        (["--insecure", "--config", "state-dir=/proc/x"], "--state-dir /proc/x cannot be written to"),
        (
            ["--insecure", "--log", "/proc/x/node.log"],
            "cannot write --log /proc/x/node.log: its folder is missing or not",
        ),
        (["--insecure", "--log", "/proc"], "cannot write --log /proc: it is a folder"),
    ],
)
def test_a_check_refuses_what_the_start_of_a_node_would(file, made, arguments, message):
    arguments = [argument.format(key=made.private_key("client-1")) for argument in arguments]
    assert message in refused("node", file, "--client", "client-1", "--check", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--host", "192.0.2.1"], "--host 192.0.2.1 is no address of this machine"),
        (["--database", "/proc/superlink.db"], "cannot write --database /proc/superlink.db: its folder is missing or"),
        (["--database", "{folder}"], "it is a folder"),
        (["--ready", "{folder}/none/ready"], "none/ready: its folder is missing or not writable"),
        (
            ["--log", "/proc/x/server.log"],
            "cannot write --log /proc/x/server.log: its folder is missing or not writable",
        ),
    ],
)
def test_a_check_refuses_what_the_start_of_a_server_would(tmp_path, arguments, message):
    arguments = [argument.format(folder=tmp_path) for argument in arguments]
    assert message in refused("server", "--insecure", "--check", *arguments)


def test_a_check_of_a_server_writes_nothing(tmp_path):
    names = {"--database": "superlink.db", "--ready": "ready", "--log": "logs/server.log"}
    files = [part for option, name in names.items() for part in (option, tmp_path / name)]
    result = call("server", "--insecure", "--check", "--host", "localhost", *files)
    assert result.exit_code == 0, result.output
    assert not list(tmp_path.iterdir())
    assert call("server", "--insecure", "--check", *files[:-1], "/dev/null").exit_code == 0


def test_ports_and_addresses_that_cannot_be_are_refused(file):
    for command in (("node", file, "--client", "client-1", "--insecure"), ("server", "--insecure")):
        for port in ("0", "70000"):
            result = call(*command, "--port", port)
            assert result.exit_code == 2
            assert "1<=x<=65535" in result.stderr
    assert "--host not.a.host is no address" in refused("server", "--insecure", "--check", "--host", "not.a.host")


def test_the_public_half_of_a_key_is_no_private_one(file, tmp_path):
    made = make_test_credentials(tmp_path / "keys", ["127.0.0.1"], ["client-1"])
    public = next((made.authority.parent / "public-keys").glob("client-1*"))
    text = refused("node", file, "--check", "--client", "client-1", "--private-key", public)
    assert "is the public half of a key: name the private one" in " ".join(text.split())
    (tmp_path / "other").write_text("no key")
    assert "cannot read" in refused(
        "node", file, "--check", "--client", "client-1", "--private-key", tmp_path / "other"
    )


def test_a_site_sees_what_graph_it_has(blocks_tables, tmp_path):
    node = torch.arange(20)
    ring = torch.cat([torch.stack([node, node.roll(1)]), torch.stack([node.roll(1), node])], 1)
    torch.save({"x": torch.ones(20, 3), "edge_index": ring, "y": node % 2}, tmp_path / "mine.pt")
    tables = {**blocks_tables, "data": {"set": "graphs", "classes": ["no", "yes"]}, "graph": {"source": "complete"}}
    tables["agreement"] = {"least-rows": 1}
    place = tmp_path / "graphs.toml"
    place.write_text(tomli_w.dumps(tables))
    own = ("node", place, "--client", "mercy", "--insecure", "--check", "--data", tmp_path / "mine.pt")
    said = " ".join(call(*own).output.split())
    assert "own data, 1 client with a graph of 20 nodes, classes of nodes" in said
    assert "classification of nodes with 3 features" in said
    assert "mercy: 14 train, 2 validation, 4 test examples; training examples by class: no: " in said
    torch.save({"x": torch.ones(6, 1), "edge_index": torch.zeros(2, 0).long(), "y": node[:6] % 2}, tmp_path / "few.pt")
    few = " ".join(call(*own[:-1], tmp_path / "few.pt").output.split())
    assert "1 client has no edges" in few
    assert "of nodes with 1 feature classes: no, yes mercy: 4 train, 1 validation, 1 test example;" in few
    torch.save({"x": torch.ones(20, 3), "edge_index": ring + 1, "y": node % 2}, tmp_path / "bad.pt")
    assert "an edge has the node 20, and there are 20 nodes, counted from 0" in refused(*own[:-1], tmp_path / "bad.pt")


def test_data_can_be_checked_before_there_is_a_server(file):
    said = call("node", file, "--client", "client-1", "--check").output
    assert "Checked, not started. To start it, give --root-certificates" in said
    assert "give either --root-certificates, the certificate of" in refused("node", file, "--client", "client-1")


def test_names_with_commas_and_places_with_spaces_reach_the_node(file, tmp_path, told_config):
    result = call("node", file, "--client", "client-1", "--insecure", "--check", "--state-dir", tmp_path / "a folder")
    config = told_config(command_of(result, "fedgraph supervise flower-supernode")[-1])
    assert config == {"clients": "client-1", "state-dir": str(tmp_path / "a folder"), "agreement": str(file)}


def test_a_node_without_a_server_says_so(file, made):
    arguments = ("--client", "client-1", "--root-certificates", made.authority, "--superlink", "127.0.0.1:1")
    assert "cannot reach the server 127.0.0.1:1" in refused("node", file, *arguments)


def test_the_servers_command(made, tmp_path):
    keys = ("--certificate", made.certificate, "--key", made.key, "--authority", made.authority)
    result = call("server", *keys, "--public-keys", made.public_keys, "--check", "--port", 8443)
    assert result.exit_code == 0, result.output
    assert "The certificate is for 127.0.0.1." in result.output
    assert "Nodes that may join: client-1." in result.output
    command = command_of(result, "flower-superlink")
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    assert command[-4:] == ["--port", "8443", "--database", "superlink.db"]
    assert "--enable-supernode-auth" not in command_of(call("server", "--insecure", "--check"), "flower-superlink")


def test_certificates_that_nodes_would_refuse_are_refused_at_once(made, tmp_path):
    other = make_test_credentials(tmp_path / "other", ["127.0.0.1"], ["client-1"])
    outside = make_test_credentials(tmp_path / "outside", ["fed.example"], ["client-1"])
    expired = make_test_credentials(tmp_path / "expired", ["127.0.0.1"], ["client-1"], days=-2)
    keys = ("--public-keys", made.public_keys, "--check")

    def start(certificate, key, authority):
        return refused("server", "--certificate", certificate, "--key", key, "--authority", authority, *keys)

    assert "is not the key of" in start(made.certificate, other.key, made.authority)
    assert "is not signed by" in start(made.certificate, made.key, other.authority)
    assert "is not for 127.0.0.1, the address at which Flower" in start(
        outside.certificate, outside.key, outside.authority
    )
    assert "expired on" in start(expired.certificate, expired.key, expired.authority)
    assert "cannot read the server's certificates" in start(made.authority, tmp_path / "nowhere", made.authority)
    assert "give --certificate, --key" in refused("server", "--certificate", made.certificate, "--check")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused(
            "server", "--insecure", "--host", "127.0.0.1", "--port", port, "--database", made.folder / "x.db"
        )
        assert f"cannot listen on port {port} of 127.0.0.1: it is in use" in said
    assert "cannot write --database" in refused("server", "--insecure", "--check", "--database", "no/folder/x.db")


def test_credentials_for_testing_say_that_they_are(tmp_path):
    result = call("test-credentials", tmp_path / "new", "--node", "mercy", "--host", "superlink.example")
    assert result.exit_code == 0, result.output
    assert "These are for testing" in result.output
    assert "is not empty" in refused("test-credentials", tmp_path / "new", "--node", "mercy")


def test_a_program_in_the_foreground_ends_with_its_own_status_and_when_its_start_fails(monkeypatch):
    monkeypatch.setattr("fedgraph.federation.grids.program", lambda name: name)
    assert run_to_the_end(["sh", "-c", "exit 3"], {"PATH": "/usr/bin:/bin"}) == 3
    started = []

    def fails(process):
        started.append(process)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        run_to_the_end(["sleep", "60"], {"PATH": "/usr/bin:/bin"}, fails)
    assert started[0].poll() is not None


def test_a_node_that_is_not_let_in_tries_again_for_a_while(file, tmp_path, monkeypatch):
    """As when the server takes the one that was killed for alive yet."""
    statuses, tried = [1, 1, 0], []
    monkeypatch.setattr(node_command, "_PAUSE", 0.01)
    monkeypatch.setattr(node_command, "check_superlink", lambda address, authority: Route(address))
    monkeypatch.setattr(
        node_command, "run_to_the_end", lambda command, environment, screen: tried.append(command[0]) or statuses.pop(0)
    )
    arguments = ("node", file, "--client", "client-1", "--insecure", "--log", tmp_path / "logs" / "node.log")
    result = call(*arguments)
    assert result.exit_code == 0
    assert tried == ["flower-supernode"] * 3
    assert result.output.count("Trying again") == 2
    statuses += [1, 0]
    assert call(*arguments, "--retry", "0").exit_code == 1


def test_a_node_names_the_proxy_and_a_port_that_is_in_use(file, tmp_path, monkeypatch):
    route = Route("fed.example:8443", [("10.0.0.1", 3128)])
    monkeypatch.setenv("https_proxy", "http://someone:secret@10.0.0.1:3128")
    monkeypatch.setattr(node_command, "check_superlink", lambda address, authority: route)
    monkeypatch.setattr(node_command, "run_to_the_end", lambda command, environment, screen: 0)
    arguments = ("node", file, "--client", "client-1", "--insecure", "--log", tmp_path / "node.log", "--port")
    result = call(*arguments, free_port())
    assert result.exit_code == 0, result.output
    assert "The server is reached through the proxy 10.0.0.1:3128 (https_proxy)." in result.output
    assert "secret" not in result.output
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"the node cannot listen on port {port} of 127.0.0.1: it is in use" in refused(*arguments, port)


def test_a_model_that_the_clients_have_is_opened_and_tried(tmp_path):
    io = pytest.importorskip("skops.io")
    source = open_source(parse_data({"set": "table-columns", "bundled": "breast-cancer", "num-owners": 3}), tmp_path)
    data = source.load_owners(("owner-0",))
    training = data.present[0] & (data.split == 0)
    rows, labels = data.inputs[0][training].numpy(), np.array(data.tasks[0].classes)[data.labels[training].numpy()]
    io.dump(make_pipeline(PCA(4), LogisticRegression()).fit(rows, labels), tmp_path / "own.skops")
    io.dump(LogisticRegression().fit(rows, labels), tmp_path / "bare.skops")

    def checked(model):
        arguments = ("f3/breast-cancer.toml", "--client", "owner-0", "--model", tmp_path / model)
        return call("node", *arguments, "--check", "--insecure")

    told = " ".join(checked("own.skops").output.split())
    assert f"its model {tmp_path / 'own.skops'}: embeddings of 4 numbers" in told
    assert "features, in order: mean radius, mean texture" in told
    assert "classes, in order: benign, malignant" in told
    assert re.search(r"accuracy on its training samples: 9\d%", told)
    refusal = checked("bare.skops")
    assert refusal.exit_code == 1
    assert "so its embedding would be the sample" in refusal.stderr


def test_a_changed_experiment_is_shown_and_agreed_to(file, tmp_path, monkeypatch):
    monkeypatch.setattr(node_command, "check_superlink", lambda address, authority: Route(address))
    monkeypatch.setattr(node_command, "run_to_the_end", lambda command, environment, screen: 0)
    arguments = ("node", file, "--client", "client-1", "--insecure", "--state-dir", tmp_path / "state")
    first = call(*arguments, "--port", free_port())
    assert first.exit_code == 0, first.output
    assert "Not as agreed" not in first.output
    answers = first.output.partition("What this node will answer, and nothing else")[2]
    assert "at most 2 rounds" in answers
    assert "open: nothing but the name of the run" in answers
    text = file.read_text().replace("learning-rate = 0.1", "learning-rate = 0.2")
    assert text != file.read_text()
    file.write_text(text + '\n[agreement]\nopen = ["experiment.rounds <= 9"]\n')
    checked = call(*arguments, "--check").output
    assert 'agreement.open: [], now ["experiment.rounds <= 9"]' in checked
    assert "train.learning-rate: 0.1, now 0.2" in checked
    assert "accept it with --agree" in refused(*arguments, "--port", free_port())
    assert call(*arguments, "--check", "--agree").exit_code == 0
    again = call(*arguments, "--port", free_port())
    assert again.exit_code == 0
    assert "Not as agreed" not in again.output
