"""A strategy written as a user would, in a folder outside the repository, run by dotted path."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

GUIDE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "strategy.md"


def code_block(language, contains):
    """The guide's own example, so that what it shows is what is tested."""
    blocks = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    found = [block for block in blocks if contains in block]
    assert len(found) == 1, f"the guide has {len(found)} {language} blocks with {contains!r}"
    return found[0]


@pytest.fixture
def plugin_folder(tmp_path):
    folder = tmp_path / "my_project"
    folder.mkdir()
    (folder / "trimmed.py").write_text(code_block("python", "class TrimmedNeighbourMean"))
    (folder / "trimmed.toml").write_text(code_block("toml", "TrimmedNeighbourMean"))
    return folder


def run(folder, *arguments):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [Path(sys.executable).parent / "fedgraph", "run", "trimmed.toml", *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    summaries = json.loads((folder / "out.json").read_text())
    return summaries if "--compare" in arguments else summaries[0]


@pytest.mark.process
def test_runs_by_dotted_path(plugin_folder):
    summary = run(plugin_folder, "--json", "out.json")
    assert summary["method"] == "TrimmedNeighbourMean"
    assert summary["metrics"]["test"]["accuracy"]["mean"] > 0.6
    other = run(plugin_folder, "--json", "out.json", "--set", "TrimmedNeighbourMean.trim=0.0")
    assert other["weights_sha256"] != summary["weights_sha256"]


@pytest.mark.process
def test_keeps_the_contract(plugin_folder, monkeypatch):
    from fedgraph.commands.checking import check_strategy

    monkeypatch.syspath_prepend(plugin_folder)
    results = check_strategy("trimmed:TrimmedNeighbourMean", plugin_folder / "trimmed.toml", ["data.clients=3"])
    assert {result.status for result in results} == {"pass"}


@pytest.mark.xdist_group("flower")
@pytest.mark.process
def test_runs_by_dotted_path_on_ray(plugin_folder):
    here = run(plugin_folder, "--json", "out.json", "--set", "experiment.rounds=2")
    ray = run(plugin_folder, "--json", "out.json", "--set", "experiment.rounds=2", "--grid", "flower")
    assert ray["weights_sha256"] == here["weights_sha256"]


def test_the_trimmed_mean_is_a_trimmed_mean(plugin_folder, monkeypatch):
    import numpy as np

    from fedgraph.algorithms import Answers
    from fedgraph.graph import ClientGraph

    monkeypatch.syspath_prepend(plugin_folder)
    module = __import__("trimmed")
    names = tuple("abcde")
    weights = torch.ones(5, 5)
    weights[0, 4] = weights[4, 0] = 0
    graph = ClientGraph.from_dense(names, weights, directed=False)
    theta = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
    algorithm = module.TrimmedNeighbourMean(module.TrimSettings(trim=0.2))
    everybody = torch.ones(5, dtype=torch.bool)
    answers = Answers(torch.arange(5), names, {"parameters": theta}, torch.ones(5), graph, everybody)
    got = algorithm.aggregate(None, {}, answers).numpy()
    for client in range(5):
        rows = np.sort(theta.numpy()[weights[client].numpy() > 0], axis=0)
        cut = int(0.2 * len(rows))
        np.testing.assert_allclose(got[client], rows[cut : len(rows) - cut].mean(axis=0), rtol=1e-5, atol=1e-6)


@pytest.mark.process
def test_compared_with_a_built_in(plugin_folder):
    summaries = run(plugin_folder, "--json", "out.json", "--compare", "local", "--set", "experiment.rounds=1")
    assert [summary["method"] for summary in summaries] == ["TrimmedNeighbourMean", "local"]


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_a_folder_of_the_same_name_does_not_hide_ours_on_ray(plugin_folder):
    (plugin_folder / "clients").mkdir()
    (plugin_folder / "clients" / "__init__.py").write_text("")
    summary = run(plugin_folder, "--json", "out.json", "--set", "experiment.rounds=1", "--grid", "flower")
    assert summary["rounds"] == 1


def test_the_means_of_classes_are_those_of_all_clients_together(tmp_path, monkeypatch):
    """The guide's method of phases, beside scikit-learn on the pooled data."""
    import numpy as np
    from sklearn.neighbors import NearestCentroid

    import fedgraph
    from fedgraph.data import open_source, parse_data

    (tmp_path / "means.py").write_text(code_block("python", "class ClassMeans"))
    monkeypatch.syspath_prepend(tmp_path)

    def run(nodes):
        return fedgraph.run(
            "sfl/digits.toml", strategy="means:ClassMeans", nodes=nodes, out=tmp_path / "runs", progress=False
        )

    found = run(3)
    assert (found.summary["exchanges"], found.summary["clients"]) == (3, 20)
    assert run(2).summary["weights_sha256"] == found.summary["weights_sha256"]
    source = open_source(parse_data(found.folder.tables["data"]), tmp_path)
    splits = source.load(found.summary["per_client"]["test"]["accuracy"]).splits

    def rows(split, client):
        one = splits[split].select(slice(client, client + 1))
        batch = one.batch(torch.arange(int(one.num_examples[0]))[None])
        return batch.inputs[0].flatten(1).numpy(), batch.targets[0].numpy()

    pooled = [np.concatenate(each) for each in zip(*(rows("train", client) for client in range(20)), strict=True)]
    nearest = NearestCentroid().fit(*pooled)
    expected = [nearest.score(*rows("test", client)) for client in range(20)]
    np.testing.assert_allclose(found.clients["test/accuracy"], expected, atol=1e-6)


@pytest.mark.process
def test_the_method_of_phases_of_the_guide_keeps_the_contract(tmp_path, monkeypatch):
    from fedgraph.commands.checking import check_strategy

    (tmp_path / "means.py").write_text(code_block("python", "class ClassMeans"))
    monkeypatch.syspath_prepend(tmp_path)
    assert {result.status for result in check_strategy("means:ClassMeans")} == {"pass"}


A_METHOD_OF_PHASES = '''
"""counting.py: how many rows of training data the clients have together, in one exchange and without a model."""

from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, RecordDict

from fedgraph.algorithms.phases import Opening, Outcome, PhasedAlgorithm
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.data.tables import client_table_source
from fedgraph.messages import Request
from fedgraph.support.settings import Configured, Settings


class CountingSettings(Settings):
    times: int = 1


@dataclass(frozen=True)
class Counted:
    clients: tuple[str, ...]
    partition: tuple[int, int]
    rows: list[int]
    data = "rows"

    def pack(self):
        return RecordDict({"config": ConfigRecord({key: list(value) for key, value in vars(self).items()})})

    @classmethod
    def unpack(cls, content):
        config = content.config_records["config"]
        return cls(tuple(config["clients"]), tuple(config["partition"]), list(config["rows"]))


class Counting(PhasedAlgorithm[CountingSettings]):
    default_client = "counting:CountingClient"
    own_models = True

    def phases(self, run):
        answers = yield Opening(Request(), Counted.unpack)
        rows = {name: count for one in answers.values() for name, count in zip(one.clients, one.rows, strict=True)}
        counts = torch.tensor([rows[name] for name in sorted(rows)], dtype=torch.float64)
        return Outcome(tuple(sorted(rows)), "counts", {"train/rows": counts}, counts.float())


class CountingClient(Configured[CountingSettings]):
    sends = ("how many rows each client has",)

    @classmethod
    def handle(cls, message, node):
        assignment = Assignment.of(Request.read_header(message.content["config"])["experiment"])
        settings = assignment.method_as(cls.settings_type)
        source = client_table_source(node.source(assignment), "counting")
        clients = node.hosted(assignment)
        rows = [settings.times * len(source.load_table(name).rows("train")) for name in clients]
        return Counted(clients, node.partition(), rows).pack()
'''


def test_a_method_of_phases_edits_no_other_file(tmp_path, monkeypatch, table_tables, run_experiment):
    """Strategy, settings, messages and client class are one file of the user's."""
    (tmp_path / "counting.py").write_text(A_METHOD_OF_PHASES)
    monkeypatch.syspath_prepend(tmp_path)
    own = table_tables["experiment"].pop("method")
    table_tables.pop(own, None)
    table_tables["experiment"]["strategy"] = "counting:Counting"
    counted = run_experiment(table_tables, nodes=2).summary()
    assert (counted["method"], counted["exchanges"], counted["clients"]) == ("Counting", 1, 3)
    table_tables["Counting"] = {"times": 2}
    twice = run_experiment(table_tables, nodes=3).summary()["per_client"]["train"]["rows"]
    assert twice == {name: 2 * rows for name, rows in counted["per_client"]["train"]["rows"].items()}
    assert min(twice.values()) > 0
    table_tables["Counting"] = {"tims": 2}
    with pytest.raises(Exception, match=r"\[Counting\] .*'tims'; .*times"):
        run_experiment(table_tables)
