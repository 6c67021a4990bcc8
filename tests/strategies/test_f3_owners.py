"""Owners that are missing, send nonsense or disagree; and what Flower expects of a strategy."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedgraph import strategies
from fedgraph.algorithms.f3 import F3
from fedgraph.algorithms.f3_settings import F3Settings
from fedgraph.algorithms.phases import PhaseRun
from fedgraph.clients.app import app as client_app
from fedgraph.strategies.engine.phases import PhasesPlan, PhasesRun
from fedgraph.support.errors import DataError, FedgraphError, IdentityError, RunError

NAMES = ("patch-0-0", "patch-0-1", "patch-1-0", "patch-1-1")
APART = [{"clients": name} for name in NAMES]


def with_nan(content, name="embeddings"):
    arrays = {each: array.numpy().copy() for each, array in content["stacked"].items()}
    arrays[name][0, 5, 1] = np.nan
    content["stacked"] = ArrayRecord({each: Array(array) for each, array in arrays.items()})
    return content


def malformed(content):
    content["config"]["sizes"] = [77]
    return content


def with_other_label(content):
    labels = content["samples"]["labels"].numpy().copy()
    labels[3] = (labels[3] + 1) % 10
    content["samples"] = ArrayRecord({**dict(content["samples"].items()), "labels": Array(labels)})
    return content


def with_other_classes(content):
    content["config"]["classes"] = [f"digit {number}" for number in range(10)]
    return content


def as_another(content):
    content["config"]["clients"] = ["patch-0-1"]
    return content


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (with_nan, RunError, "patch-0-0: .*NaN.*on-missing"),
        (lambda content: with_nan(content, "predictions"), RunError, "patch-0-0: its predictions hold NaN"),
        (malformed, IdentityError, r"^array 'embeddings' has the shape"),
        ("the disk is full", IdentityError, "^the disk is full"),
        (lambda content: RecordDict(), IdentityError, "^the answer .*malformed"),
        (with_other_label, DataError, "label of sample 'image-00003'"),
        (with_other_classes, DataError, "'patch-0-0' and 'patch-0-1' .*classes"),
        (as_another, IdentityError, "'patch-0-1' .*node 100. .*node 100"),
    ],
)
def test_the_run_ends_with_who_and_why(patches_tables, run_experiment, change, error, message, spoiling):
    with pytest.raises(error, match=message):
        run_experiment(patches_tables, node_configs=APART, client=spoiling("patch-0-0", change))


def with_other_split(content):
    split = content["samples"]["split"].numpy().copy()
    split[:50] = (split[:50] + 1) % 3
    content["samples"] = ArrayRecord({**dict(content["samples"].items()), "split": Array(split)})
    return content


@pytest.mark.parametrize("change", [with_nan, malformed, "the disk is full", with_other_label, with_other_split])
def test_the_run_goes_on_without_an_owner_where_it_may(patches_tables, run_experiment, change, spoiling):
    patches_tables["experiment"] |= {"on-missing": "skip"}
    patches_tables["data"]["lacking-share"] = 0.2
    folder = run_experiment(patches_tables, node_configs=APART, client=spoiling("patch-0-1", change))
    without = run_experiment(patches_tables, node_configs=[APART[0], *APART[2:]])
    assert folder.summary()["weights_sha256"] == without.summary()["weights_sha256"]
    assert folder.summary()["clients"] == 3
    for name in ("predictions.csv", "entropies.csv"):
        assert (folder.path / name).read_text() == (without.path / name).read_text()


def test_who_is_left_out_for_contradicting_the_others_is_told(patches_tables, run_experiment, caplog, spoiling):
    patches_tables["experiment"] |= {"on-missing": "skip"}
    run_experiment(patches_tables, node_configs=APART, client=spoiling("patch-0-1", with_other_label))
    assert "nothing usable from owner patch-0-1: contradicts most owners on the label of 1 samples" in caplog.text
    nodes = [{"clients": ",".join(NAMES[:2])}, {"clients": ",".join(NAMES[2:])}]
    folder = run_experiment(patches_tables, node_configs=nodes, client=spoiling("patch-0-1", with_other_label))
    assert "1 samples are left out, because owners disagree on their label" in caplog.text, "two against two"
    assert "image-00003" not in (folder.path / "predictions.csv").read_text()
    patches_tables["experiment"]["on-missing"] = "fail"
    with pytest.raises(DataError, match="label of sample 'image-00003'"):
        run_experiment(patches_tables, node_configs=nodes, client=spoiling("patch-0-1", with_other_label))


def test_one_bad_owner_does_not_cost_the_others_of_its_node(patches_tables, run_experiment, spoiling):
    patches_tables["experiment"] |= {"on-missing": "skip"}
    nodes = [{"clients": ",".join(NAMES[:2])}, {"clients": ",".join(NAMES[2:])}]
    folder = run_experiment(patches_tables, node_configs=nodes, client=spoiling("patch-0-0", with_nan))
    assert set(folder.summary()["per_client"]["test"]["accuracy"]) == set(NAMES[1:])


def with_other_ids(content):
    config = content["config"]
    if "keys" in config:
        config["keys"] = [f"{config['clients'][0]}: {key}" for key in config["keys"]]
    return content


@pytest.mark.parametrize("method", ["f3", "vfl"])
def test_owners_whose_samples_have_other_ids_are_told(patches_tables, run_experiment, spoiling, method):
    patches_tables["experiment"] |= {"method": method}
    patches_tables["vfl"] = {"epochs": 2}
    folder = run_experiment(patches_tables, node_configs=APART, client=spoiling("patch-0-1", with_other_ids))
    (note,) = (note for note in folder.summary()["notes"] if "shares no labelled sample" in note)
    assert note.startswith("owner 'patch-0-1' shares no labelled sample with other owners; it has ")
    assert "such as 'patch-0-1: image-0" in note
    assert " are held by several owners; " in folder.summary()["measured"]
    everybody = spoiling(lambda message, context: True, with_other_ids)
    with pytest.raises(DataError, match=r"no two owners share a labelled sample.*'patch-0-0' has .*the same id"):
        run_experiment(patches_tables, node_configs=APART, client=everybody)


def test_fewer_owners_than_there_must_be(patches_tables, run_experiment, spoiling):
    patches_tables["experiment"] |= {"on-missing": "skip", "min-clients": 4}
    with pytest.raises(RunError, match=r"\[experiment\] min-clients.*patch-0-0"):
        run_experiment(patches_tables, node_configs=APART, client=spoiling("patch-0-0", with_nan))
    with pytest.raises(IdentityError, match="only 3 of .*node 1000: the disk is full"):
        run_experiment(patches_tables, node_configs=APART, client=spoiling("patch-0-0", "the disk is full"))
    with pytest.raises(IdentityError, match="^only 2 of at least 4"):
        run_experiment(patches_tables, node_configs=APART[:2])


@pytest.mark.parametrize("share", [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]])
def test_too_few_samples_are_told(patches_tables, run_experiment, share):
    patches_tables["data"]["shares"] = share
    with pytest.raises(FedgraphError) as raised:
        run_experiment(patches_tables)
    assert "sample" in str(raised.value) or "shares" in str(raised.value)


def test_variants_for_nobody_are_told(patches_tables, run_experiment):
    patches_tables["model"]["variants"] = [{"clients": ["patch-7-*"], "name": "mlp", "hidden": [3]}]
    with pytest.raises(FedgraphError, match=r"'patch-7-\*'"):
        run_experiment(patches_tables)


def test_flowers_own_loop_has_nothing_to_call():
    strategy = strategies.F3()
    record = RecordDict({"config": ConfigRecord()})
    for step in (
        lambda: strategy.configure_train(1, ArrayRecord(), record, None),
        lambda: strategy.aggregate_train(1, []),
        lambda: strategy.configure_evaluate(1, ArrayRecord(), record, None),
        lambda: strategy.aggregate_evaluate(1, []),
    ):
        with pytest.raises(RunError, match="F3 has its own loop: call start"):
            step()


def test_what_the_server_has_learned_comes_out(patches_tables, tmp_path, data_dir):
    from fedgraph.data import open_source
    from fedgraph.experiment.experiment import parse_experiment
    from fedgraph.federation.grids.in_process import LocalGrid
    from fedgraph.federation.roll_call import RollCall
    from fedgraph.fusion.model_file import FittedFusion
    from fedgraph.runs.folder import RunFolder

    experiment = parse_experiment(patches_tables)
    settings = F3Settings.model_validate(patches_tables["f3"])
    folder = RunFolder.create(experiment, tmp_path / "runs")
    run = PhaseRun(0, experiment.data, lambda: open_source(experiment.data, data_dir), tolerant=False)
    part = experiment.client_part(settings.as_table())
    plan = PhasesPlan("fedgraph.clients.f3:F3Client", part, RollCall(1, 1.0), 60.0, folder, run)
    grid = LocalGrid.of_partitions(client_app, 2, state_dir=str(tmp_path / "state"), data_dir=str(data_dir))
    outcome = PhasesRun(F3(settings), plan).run(grid)
    found = FittedFusion.read(folder.path / "fusion.safetensors")
    for name, value in found.network.state_dict().items():
        assert torch.equal(outcome.arrays[name], value), name
    assert set(outcome.metrics) >= {"test/accuracy", "test/accuracy-local"}
