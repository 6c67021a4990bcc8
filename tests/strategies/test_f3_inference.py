"""Inference after a run of F3: the same frozen models, one exchange, predictions with their spread."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgraph.algorithms.f3_inference import unchanged
from fedgraph.algorithms.phases import Without
from fedgraph.clients.app import app as client_app
from fedgraph.fusion import JoinedSamples
from fedgraph.fusion.model_file import FittedFusion
from fedgraph.support.errors import DataError, ExperimentError, IdentityError, RunError
from fedgraph.support.files import load_state

NAMES = ("patch-0-0", "patch-0-1", "patch-1-0", "patch-1-1")


@pytest.fixture
def nodes(tmp_path):
    """A node per owner, all with one folder of frozen models."""
    return [{"clients": name, "model-dir": str(tmp_path / "models")} for name in NAMES]


@pytest.fixture
def later(patches_tables, run_experiment, nodes):
    """``later(run, ...)`` predicts with the fusion model of a run."""

    def later(run, node_configs=nodes, client=client_app, experiment=None, data=None, **table):
        tables = {key: value for key, value in patches_tables.items() if key != "f3"}
        tables["experiment"] = {"method": "f3-inference", **(experiment or {})}
        tables["data"] = {**tables["data"], **(data or {})}
        tables["f3-inference"] = {"run": str(run.path), "draws": 2, **table}
        return run_experiment(tables, node_configs=node_configs, client=client)

    return later


def lines(folder):
    with (folder.path / "predictions.csv").open(newline="") as stream:
        return {line["key"]: line for line in csv.DictReader(stream)}


def probabilities(line):
    return [float(line[f"probability {digit}"]) for digit in range(10)]


def test_a_split_is_predicted_as_at_the_end_of_training(patches_tables, run_experiment, nodes, later):
    patches_tables["data"]["lacking-share"] = 0.2
    run = run_experiment(patches_tables, node_configs=nodes)
    again = later(run, samples="test")
    before, after = lines(run), lines(again)
    assert set(after) == {key for key, line in before.items() if line["split"] == "test"}
    for key, line in after.items():
        for heading, value in line.items():
            if heading.startswith(("probability", "deviation")):
                # The samples of one split are multiplied in other batches than all of them, which may round otherwise.
                assert float(value) == pytest.approx(float(before[key][heading]), abs=2e-6)
            else:
                assert value == before[key][heading]
    summary = again.summary()
    assert summary["exchanges"] == 1
    assert summary["predictions"] == len(after)
    for metric, statistics in run.summary()["metrics"]["test"].items():
        assert summary["metrics"]["test"][metric] == pytest.approx(statistics, abs=1e-6), metric
    assert summary["weights_sha256"] == run.summary()["weights_sha256"]


def test_new_samples_are_predicted_without_labels(patches_tables, run_experiment, nodes, later):
    patches_tables["data"]["new-share"] = 0.2
    run = run_experiment(patches_tables, node_configs=nodes)
    found = lines(later(run))
    assert not set(found) & set(lines(run))
    assert {(line["split"], line["label"]) for line in found.values()} == {("new", "")}
    assert max(float(line["deviation 0"]) for line in found.values()) > 0


def test_owners_that_are_missing_are_masked(patches_tables, run_experiment, nodes, later):
    patches_tables["data"]["new-share"] = 0.1
    patches_tables["model"]["variants"] = [{"clients": ["patch-0-0"], "name": "mlp", "hidden": [9]}]
    run = run_experiment(patches_tables, node_configs=nodes)
    whole = lines(later(run))
    with pytest.raises(RunError, match="patch-0-0: no answer"):
        later(run, nodes[1:])
    fewer = lines(later(run, nodes[1:], experiment={"on-missing": "skip"}))
    assert {line["owners"] for line in whole.values()} == {"4"}
    assert {line["owners"] for line in fewer.values()} == {"3"}
    assert list(fewer) == list(whole)
    change = np.array([np.subtract(probabilities(fewer[key]), probabilities(whole[key])) for key in whole])
    assert 0.001 < np.abs(change).max() < 1


def test_models_that_are_gone_are_not_trained_anew(patches_tables, run_experiment, nodes, later, tmp_path):
    run = run_experiment(patches_tables, node_configs=nodes)
    elsewhere = [*nodes[:3], {**nodes[3], "model-dir": str(tmp_path / "empty")}]
    with pytest.raises(IdentityError, match="'patch-1-1' .*frozen model"):
        later(run, elsewhere, samples="test")


@pytest.mark.parametrize("on_missing", ["fail", "skip"])
def test_embeddings_by_another_model_are_refused_whatever_the_node_says(
    patches_tables, run_experiment, nodes, later, on_missing, spoiling
):
    def change(content):
        content["config"]["fingerprints"] = ["0a1b"]
        return content

    run, client = run_experiment(patches_tables, node_configs=nodes), spoiling("patch-0-1", change)
    if on_missing == "skip":
        folder = later(run, samples="test", experiment={"on-missing": on_missing}, client=client)
        told = (folder.path / "logs" / "run.log").read_text()
        assert "nothing usable from owner patch-0-1: its embeddings are by other models than those" in told
        return
    with pytest.raises(DataError, match="patch-0-1 .*model-dir"):
        later(run, samples="test", experiment={"on-missing": on_missing}, client=client)


def test_who_must_have_sent_embeddings_and_who_need_not(patches_tables, run_experiment, nodes):
    run = run_experiment(patches_tables, node_configs=nodes)
    fusion = FittedFusion.read(run.path / "fusion.safetensors")
    joined = JoinedSamples.of_state(load_state(run.checkpoint)["samples"])
    assert left_out(fusion, joined, sent=True) is None
    nothing = torch.tensor([6, 0, 6, 6])
    lacking = replace(joined, sizes=nothing, fingerprints=(joined.fingerprints[0], "", *joined.fingerprints[2:]))
    assert left_out(fusion, lacking) is None
    without = left_out(fusion, lacking, sent=True)
    assert list(without.lost) == ["patch-0-1"]
    assert str(without.error).startswith("embeddings of patch-0-1 differ in length")
    absent = joined.present.clone()
    absent[:, 1] = False
    assert left_out(fusion, replace(lacking, present=absent), sent=True) is None
    other = replace(joined, fingerprints=("x", joined.fingerprints[1], "y", joined.fingerprints[3]))
    for sent in (True, False):
        without = left_out(fusion, other, sent)
        assert list(without.lost) == ["patch-0-0", "patch-1-0"]
        assert str(without.error).startswith("embeddings of patch-0-0, patch-1-0 are by other models")
        without = left_out(fusion, replace(joined, sizes=torch.tensor([6, 6, 6, 5])), sent)
        assert str(without.error).startswith("embeddings of patch-1-1 differ in length")


def left_out(fusion, joined, sent=False):
    """Who is left out, or nobody."""
    phase = unchanged(fusion, joined, "test", sent)
    try:
        step = next(phase)
    except StopIteration:
        return None
    assert isinstance(step, Without)
    with pytest.raises(StopIteration) as end:
        phase.send(None)
    assert not end.value.value.present[:, [joined.owners.index(owner) for owner in step.lost]].any()
    return step


def test_what_it_cannot_work_with_is_told(patches_tables, run_experiment, nodes, later):
    run = run_experiment(patches_tables, node_configs=nodes)
    with pytest.raises(DataError, match="sample of the split"):
        later(run)
    patches_tables["f3"]["fusion"] = "vote"
    with pytest.raises(ExperimentError, match="has no fusion model"):
        later(run_experiment(patches_tables, node_configs=nodes), samples="test")
