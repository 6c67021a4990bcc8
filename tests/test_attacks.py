"""What a hostile server gets from nodes that were started as the guide says: no command, no row, no further release.

Each site has agreed to one experiment; the server asks every site for everything, in honest messages of other
experiments and in messages that the agreed ones do not need.
"""

import json

import pytest
import tomli_w

from fedgraph.experiment import parse_experiment
from fedgraph.runs import RunFolder
from fedgraph.simulations.benchmarks.real_nodes import FederationOnThisMachine

ROWS = 60

APP = {
    "client_app.py": """
        from flwr.clientapp import ClientApp
        app = ClientApp()
        """,
    "server_app.py": """
        import json, time
        import torch
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.serverapp import ServerApp
        from fedgraph.messages import from_record, read_error, to_record

        app = ServerApp()

        @app.main()
        def main(grid, context):
            wanted = json.load(open(context.run_config["attacks"]))
            while len(nodes := list(grid.get_node_ids())) < wanted["nodes"]:
                time.sleep(0.5)
            found = []
            for attack in wanted["attacks"]:
                content = RecordDict({"config": ConfigRecord(attack["config"])})
                for name, arrays in attack["arrays"].items():
                    filled = {key: torch.full(shape, attack["value"]) for key, shape in arrays.items()}
                    content[name] = to_record(filled)
                messages = [Message(content, node, attack["kind"]) for node in nodes]
                replies = grid.send_and_receive(messages, timeout=120)
                found.append([read_error(reply) or answer(reply.content) for reply in replies])
            json.dump(found, open(context.run_config["out"], "w"))

        def answer(content):
            arrays = {name: {key: each.flatten().tolist()[:200] for key, each in from_record(record).items()}
                      for name, record in content.array_records.items()}
            config = {key: str(value)[:5000] for key, value in content.config_records["config"].items()}
            return {"config": config, **arrays}
        """,
}  # fmt: skip


def tables(method, **more):
    """An experiment of a method on the table of a site."""
    data = {"categories": {"long": ["no", "yes"]}, "label": "long", "shares": [0.6, 0.2, 0.2]}
    found = {
        "experiment": {"name": "stays", "method": method, "rounds": 1},
        "data": {"set": "table", "features": ["age", "salary"], **data},
        "clients": {"expect": ["mercy"]},
        "model": {"name": "mlp", "hidden": [2]},
        "graph": {"source": "complete"},
    }
    if method == "f3":
        found["data"] = {
            "set": "table-columns",
            "key-column": "patient",
            "owners": {"mercy": ["age", "salary"]},
            **data,
        }
        found["f3"] = {"noise": {"clip-norm": 1.0, "noise-multiplier": 10.0}}
        del found["graph"]
    if method == "fedngm":
        found["data"] = {"set": "mixed-table", "shares": [0.6, 0.2, 0.2]}
        found["fedngm"] = {"recovery": {"source": "summed-statistics"}, "scaling": {"source": "shared-ranges"}}
        del found["graph"], found["model"]
    if method == "ipa":
        found["ipa"] = {"privacy": {"clip-norm": 1.0, "noise-multiplier": 10.0, "releases": 1}}
    for name, table in more.items():
        found[name.replace("_", "-")] = {**found.get(name, {}), **table}
    return found


CLIENTS = {
    "sfl": "fedgraph.clients.sfl:SFLClient",
    "ipa": "fedgraph.clients.ipa:IPAClient",
    "f3": "fedgraph.clients.f3:F3Client",
    "fedngm": "fedgraph.clients.fedngm:FedNGMClient",
}
PARAMETERS = 2 * 2 + 2 + 2 * 2 + 2


def attack(method, asked=None, run="run", client=None, value=0.1, number=1, change=None, **config):
    """A message of a run of ``method``, with ``asked`` as its experiment; ``change`` edits the nodes' part of it."""
    experiment = parse_experiment(asked or tables(method))
    part = json.loads(experiment.client_part(experiment.method_settings.as_table(nulls=True)))
    if change is not None:
        change(part)
    head = {
        "fedgraph-client": client or CLIENTS[method], "fedgraph-experiment": json.dumps(part), "fedgraph-run": run,
    }  # fmt: skip
    rounds = {
        "server-round": number, "clients": ["mercy"], "evaluate": [], "train": True, "keep-from": 0, "predict": False,
        "mean": False,
    }  # fmt: skip
    row = {"parameters": [1, PARAMETERS]}
    arrays = {"sfl": {"stacked": row, "shared": {}}, "f3": {}, "fedngm": {"shared": {}}}
    arrays["ipa"] = {"stacked": row, "shared": {"others": row["parameters"], "weights": [1], "there": [1]}}
    kinds = {"f3": "query.embed", "fedngm": "query"}
    own = {"f3": {"splits": ["train", "test"], "embeddings": True, "owners": [], "fingerprints": []},
           "fedngm": {"phase": "schema", "round": 1}}  # fmt: skip
    return {
        "kind": kinds.get(method, "train"), "config": {**head, **own.get(method, rounds), **config},
        "arrays": arrays[method], "value": value,
    }  # fmt: skip


def opening(method, **config):
    """The opening query."""
    found = attack(method, **config)
    return {**found, "kind": "query.identify", "arrays": {}}


def dotted(key, value):
    """A change of a key of the nodes' part of an experiment."""

    def change(part):
        *tables, last = key.split(".")
        for name in tables:
            part = part[name]
        part[last] = value

    return change


FORBIDDEN = {
    "a command": attack("f3", change=dotted("model", {"name": "scikit-learn", "estimator": "subprocess:Popen"})),
    "a function": attack("sfl", change=dotted("train.function", "os:system")),
    "a module": attack("sfl", change=dotted("model.name", "os:system")),
    "a data set": attack("sfl", change=dotted("data.set", "subprocess:Popen")),
    "a client class": attack("sfl", client="subprocess:Popen"),
    "another client class": attack("sfl", client="fedgraph.clients.engine.base:CohortClient"),
    "another method": attack("sfl", change=dotted("terms", "fedgraph.clients.ditto:DittoClient")),
    "another label": attack("sfl", change=dotted("data.label", "hiv")),
    "patients as classes": attack("sfl", change=dotted("data.categories", {"patient": ["P0001", "P0002"]})),
    "another column": attack("sfl", change=dotted("data.features", ["age", "hiv"])),
    "predictions": attack("sfl", predict=True, train=False),
    "one row for training": attack("sfl", change=dotted("data.shares", [1 / ROWS, 0.2, 0.8 - 1 / ROWS])),
    "all rows for testing": attack("sfl", change=dotted("data.shares", [0.02, 0.0, 0.98])),
    "another split": attack("sfl", change=dotted("data.partition-seed", 1)),
    "metrics of training": attack("sfl", evaluate=["train"], train=False),
    "counts of labels": opening("sfl", **{"label-counts": True}),
    "a round more": attack("sfl", number=2),
    "other training": attack("sfl", change=dotted("train.batch-size", 1)),
    "another key column": attack("f3", change=dotted("data.key-column", "age")),
    "nearly the same clip norm": attack("f3", change=dotted("method.noise.clip-norm", 1.0000001)),
    "no noise": attack("f3", change=dotted("method.noise", None)),
    "new samples": attack("f3", splits=["new"]),
    "an earlier model": attack("f3", owners=["mercy"], fingerprints=["0" * 64]),
    "no privacy": attack("ipa", change=dotted("method.privacy", None)),
    "more releases": attack("ipa", change=dotted("method.privacy.releases", 40)),
    "sums over a row less": attack("fedngm", phase="sums", change=dotted("data.shares", [0.55, 0.2, 0.25])),
    "another quantile": attack("fedngm", phase="statistics", change=dotted("method.scaling.quantile", 1 / 58)),
    "rare categories": attack("fedngm", change=dotted("data.table-schema.least-rows", 1)),
    "vertical learning": attack("f3", client="fedgraph.clients.vfl:VerticalClient"),
    "forecasts": attack("sfl", client="fedgraph.clients.f3_forecast:F3ForecastClient"),
}  # fmt: skip


@pytest.mark.process
@pytest.mark.xdist_group("nodes")
def test_a_hostile_server_gets_what_was_agreed_and_nothing_else(write_patients, write_flower_app, tmp_path):
    table = tmp_path / "mercy.csv"
    write_patients(table, ROWS)
    honest = {method: attack(method, tables(method)) for method in CLIENTS}
    again = attack("ipa", run="another", value=0.2)
    twice = attack("sfl", value=0.2, run="another")
    attacks = {**honest, **FORBIDDEN, "another run": again, "another model": twice}
    names = [*CLIENTS, "nothing"]
    with FederationOnThisMachine(tmp_path / "federation", names) as federation:
        nodes = []
        for method in CLIENTS:
            agreed = tmp_path / f"{method}.toml"
            agreed.write_text(tomli_w.dumps(tables(method)))
            own = ["--client", "mercy", "--data", str(table), "--state-dir", str(tmp_path / method)]
            nodes.append(federation.start_site(method, agreed, *own))
        federation.start_node("nothing", {"clients": "mercy", "data": str(table), "agreement": ""})
        app = write_flower_app(tmp_path / "attacks", APP, 'attacks = ""\nout = ""')
        wanted, out = tmp_path / "attacks.json", tmp_path / "replies.json"
        wanted.write_text(json.dumps({"nodes": len(names), "attacks": list(attacks.values())}))
        submitted = federation.submit_app(app, f'attacks="{wanted}" out="{out}"')
        submitted.process.wait(500)
        assert out.is_file(), federation.log.read_text(errors="replace")[-5000:]
    replies = dict(zip(attacks, json.loads(out.read_text()), strict=True))
    for method in honest:
        answers = [reply for reply in replies[method] if isinstance(reply, dict)]
        assert len(answers) == 1, f"{method}: {replies[method]}"
    for name in attacks.keys() - honest.keys():
        assert all(isinstance(reply, str) for reply in replies[name]), f"{name}: {replies[name]}"
        assert sum("has agreed to no experiment" in reply for reply in replies[name]) == 1
        refused = [reply for reply in replies[name] if "has agreed to no experiment" not in reply]
        assert not any("P00" in reply and "patient" not in name for reply in refused), refused


@pytest.mark.process
@pytest.mark.xdist_group("nodes")
def test_a_changed_experiment_is_refused_read_and_agreed_to(write_patients, tmp_path):
    table, agreed = tmp_path / "mercy.csv", tmp_path / "stays.toml"
    write_patients(table, ROWS)
    agreed.write_text(tomli_w.dumps(tables("sfl")))
    changed = tables("sfl", train={"batch-size": 7}, experiment={"name": "changed", "wait": 5.0})
    own = ["--client", "mercy", "--data", str(table), "--state-dir", str(tmp_path / "state")]
    with FederationOnThisMachine(tmp_path / "federation", ["mercy"]) as federation:
        node = federation.start_site("mercy", agreed, *own)
        folder = RunFolder.create(parse_experiment(changed), tmp_path / "runs")
        said = federation.run(folder)
        assert not folder.is_finished
        why = "this site has agreed to another experiment: train.batch-size is 32, and the run asks for 7"
        assert f"refused: {why}" in said, "on the node's log"
        assert said.count(why) > 1, "on the server's log too"
        node.end()
        agreed.write_text(tomli_w.dumps(changed))
        assert federation.start_site("mercy", agreed, *own).process.wait(60) == 1, "nobody has agreed to it"
        said = federation.log.read_text(errors="replace")
        assert "train.batch-size: 32, now 7" in said
        assert "accept it with --agree" in said
        federation.start_site("mercy", agreed, *own, "--agree")
        again = RunFolder.create(parse_experiment(changed), tmp_path / "runs")
        said = federation.run(again)
        assert again.is_finished, said[-4000:]
