import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.runs.callbacks import Evaluation
from fedgraph.runs.fairness import Fairness, fairness, stand_alone_values
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import load_state, save_state

# ---- the correlation


def named(values):
    return {f"client-{number}": value for number, value in enumerate(values)}


def test_a_hundred_times_the_correlation():
    alone, federated = [0.3, 0.5, 0.9, 0.1], [0.6, 0.9, 0.8, 0.7]
    x, y = np.array(alone) - np.mean(alone), np.array(federated) - np.mean(federated)
    by_hand = 100 * (x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum())
    assert fairness(named(alone), named(federated)) == pytest.approx(by_hand, rel=1e-12)
    assert 0 < by_hand < 100


def test_clients_go_by_name_and_count_where_both_values_are_there():
    alone = {"a": 0.1, "b": 0.2, "c": 0.4, "d": None, "e": 0.9, "f": 0.3}
    federated = {"g": 0.0, "e": math.inf, "d": 0.7, "c": 0.5, "b": 0.9, "a": 0.2}
    expected = 100 * np.corrcoef([0.1, 0.2, 0.4], [0.2, 0.9, 0.5])[0, 1]
    assert fairness(alone, federated) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("alone", "federated"),
    [
        ([], []),
        ([0.5], [0.5]),
        ([0.5, 0.6], [0.5, None]),
        ([0.5, 0.5], [0.1, 0.2]),
        ([0.1, 0.2], [0.0, 0.0]),
        ([0.1, 0.2, 0.3], [0.7, 0.7 + 1e-9, 0.7]),
    ],
)
def test_no_correlation_of_too_few_clients_or_of_values_that_are_all_the_same(alone, federated):
    assert math.isnan(fairness(named(alone), named(federated)))


@pytest.mark.parametrize("unit", [1e-300, 1e-150, 1.0, 1e150, 1e307])
def test_any_unit(unit):
    alone, federated = [1.0, 2.0, 4.0], [3.0, 1.0, 5.0]
    expected = fairness(named(alone), named(federated))
    assert fairness(named([unit * value for value in alone]), named(federated)) == pytest.approx(expected)


# Values that lie apart: what rounding makes of others is tested above.
VALUES = st.lists(st.integers(0, 1000), min_size=2, max_size=20).filter(lambda values: max(values) > min(values))


@given(VALUES, VALUES, st.floats(0.01, 100), st.floats(-100, 100))
def test_invariant_to_positive_affine_maps_and_bounded(alone, federated, factor, shift):
    number = min(len(alone), len(federated))
    alone, federated = named(alone[:number]), named(federated[:number])
    found = fairness(alone, federated)
    if math.isnan(found):
        assert min(len(set(alone.values())), len(set(federated.values()))) == 1
        return
    assert -100 <= found <= 100
    mapped = {name: factor * value + shift for name, value in federated.items()}
    assert fairness(alone, mapped) == pytest.approx(found, abs=1e-5)
    assert fairness(alone, {name: -value for name, value in mapped.items()}) == pytest.approx(-found, abs=1e-5)
    assert fairness(federated, alone) == pytest.approx(found, abs=1e-9)
    assert fairness(alone, alone) == pytest.approx(100)


# ---- the callback

NAMES = ("a", "b", "c")
ALONE = {"c": 2.0, "a": 0.0, "b": 1.0}
VALUES_OF = {100: [0.0, 1.0, 2.0], 50: [0.0, 2.0, 1.0], -50: [2.0, 0.0, 1.0], -100: [2.0, 1.0, 0.0], None: [1.0] * 3}


def evaluation(server_round, value, restored=False):
    models = torch.full((3, 2), float(server_round))
    metrics = {"test/accuracy": torch.tensor(VALUES_OF[value], dtype=torch.float64)}
    return Evaluation(server_round, NAMES, metrics, models, restored=restored)


def fed(callback, course, first=0):
    return [callback.on_evaluation(evaluation(first + number, value)) for number, value in enumerate(course)]


def test_stops_once_it_falls_with_the_last_models_that_were_fair():
    callback = Fairness("test/accuracy", ALONE, stop_below=49)
    assert fed(callback, [-100, -50, 100, None, 50, None, -50]) == [False] * 6 + [True]
    assert callback.stopped
    assert callback.final_round == 4
    assert torch.equal(callback.final_models(), torch.full((3, 2), 4.0))
    callback.on_evaluation(evaluation(6, 100))
    assert callback.final_round == 4, "it has stopped"
    callback.on_evaluation(evaluation(6, 50, restored=True))
    found = callback.summary()["fairness"]
    assert found == {"metric": "test/accuracy", "last": pytest.approx(50), "best": pytest.approx(100), "best_round": 2}


def test_without_a_value_to_stop_at_it_goes_on_with_the_last_models():
    callback = Fairness("test/accuracy", ALONE)
    assert not any(fed(callback, [100, -100, None]))
    assert callback.final_models() is None
    assert callback.summary()["fairness"]["last"] is None
    fair = Fairness("test/accuracy", ALONE, stop_below=49)
    assert not any(fed(fair, [-50, 100, 50, None]))
    assert fair.final_models() is None, "it has not fallen"


def test_models_are_kept_by_value():
    callback, seen = Fairness("test/accuracy", ALONE, stop_below=49), evaluation(1, 100)
    callback.on_evaluation(seen)
    seen.models.zero_()
    callback.on_evaluation(evaluation(2, -50))
    assert torch.equal(callback.final_models(), torch.ones(3, 2))


def test_a_line_for_every_evaluation():
    lines = []
    callback = Fairness("test/accuracy", ALONE, write=lines.append)
    fed(callback, [50, None])
    callback.on_evaluation(evaluation(1, -100, restored=True))
    about = {"phase": "fairness", "split": "test", "metric": "accuracy"}
    assert lines == [
        {"round": 0, **about, "fairness": pytest.approx(50)},
        {"round": 1, **about, "fairness": None},
        {"round": 1, **about, "fairness": pytest.approx(-100), "restored": True},
    ]
    assert callback.best_round is None, "models that nobody has trained"
    with pytest.raises(ExperimentError, match=r"\[fairness\] metric 'test/f1' was not measured; measured: test/acc"):
        fed(Fairness("test/f1", ALONE), [100])


@pytest.mark.parametrize("cut", range(6))
def test_state_survives_a_resume(tmp_path, cut):
    course = [-50, 100, 50, None, -50]
    whole, before, after = (Fairness("test/accuracy", ALONE, stop_below=0) for _ in range(3))
    expected = fed(whole, course)
    first = fed(before, course[:cut])
    save_state(tmp_path / "s", before.state())
    after.load_state(load_state(tmp_path / "s"))
    assert first + fed(after, course[cut:], first=cut) == expected
    assert (after.stopped, after.final_round, after.summary()) == (True, 2, whole.summary())
    assert torch.equal(after.final_models(), whole.final_models())


# ---- runs


@pytest.fixture
def tables():
    """Four clients that know 1, 4, 7 and 10 classes and are all tested on the same examples."""
    return {
        "experiment": {"name": "fair", "method": "ipa", "rounds": 8},
        "data": {
            "set": "digits", "clients": 4, "partition": "class-imbalance", "examples-per-client": 60,
            "test": "shared", "validation-share": 0.0, "layout": "flat",
        },
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 20, "local-epochs": 1, "workers": 1},
        "evaluation": {"splits": ["test"]},
        "ipa": {"power": 2.0, "lambda-alignment": 0.1},
    }  # fmt: skip


@pytest.fixture
def alone(tables, run_experiment):
    return run_experiment({**tables, "experiment": {"name": "alone", "method": "local", "rounds": 6}})


def lines(folder, phase):
    read = [json.loads(line) for line in (folder.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in read if line["phase"] == phase]


def by_round(folder):
    return {line["round"]: line["fairness"] for line in lines(folder, "fairness") if not line.get("restored")}


def with_fairness(tables, alone, **table):
    return {**tables, "fairness": {"stand-alone": str(alone.path), **table}}


def test_fairness_of_a_run_by_round(tables, alone, run_experiment):
    folder = run_experiment(with_fairness(tables, alone, metric="test/loss"))
    reached = alone.summary()["per_client"]["test"]["loss"]
    expected = {
        line["round"]: 100 * np.corrcoef(list(reached.values()), list(line["per_client"]["loss"].values()))[0, 1]
        for line in folder.evaluations("test")
    }
    found = by_round(folder)
    assert found == pytest.approx(expected, abs=1e-6)
    assert list(found) == list(range(9))
    best = max(found, key=lambda number: found[number])
    summary = folder.summary()
    at_the_end = fairness(reached, summary["per_client"]["test"]["loss"])
    assert at_the_end != found[8], "the turns of others have moved a peer since it was measured"
    assert summary["fairness"] == {
        "metric": "test/loss", "last": at_the_end, "best": found[best], "best_round": best,
    }  # fmt: skip
    plain = run_experiment(tables).summary()
    assert plain["weights_sha256"] == folder.summary()["weights_sha256"], "to look on changes nothing"
    assert "fairness" not in plain


def of(tables, **experiment):
    return {**tables, "experiment": {**tables["experiment"], **experiment}}


@pytest.mark.parametrize("method", ["ipa", "local"])
def test_a_run_ends_when_it_is_fair_no_more_and_gives_back_the_fair_models(tables, alone, run_experiment, method):
    tables = of(with_fairness(tables, alone, metric="test/loss"), method=method)
    whole = by_round(run_experiment(tables))
    fair = max(list(whole)[1:-1], key=lambda number: whole[number])
    tables["fairness"]["stop-below"] = (whole[fair] + whole[fair + 1]) / 2
    folder = run_experiment(tables)
    assert by_round(folder) == {number: whole[number] for number in range(fair + 2)}
    summary = folder.summary()
    assert summary["rounds"] == fair + 1 < 8
    assert summary["fairness"]["best_round"] == fair > 0
    short = run_experiment(of(tables, rounds=fair)).summary()
    assert summary["weights_sha256"] == short["weights_sha256"]
    *_, last = lines(folder, "fairness")
    assert last["restored"]
    reached = alone.summary()["per_client"]["test"]["loss"]
    assert summary["fairness"]["last"] == last["fairness"] == fairness(reached, summary["per_client"]["test"]["loss"])

    # One that was stopped while it was fair goes on from there, to the same models.
    part = run_experiment(of(tables, rounds=fair))
    (part.path / "summary.json").unlink()
    (part.path / "experiment.toml").write_text(parse_experiment(tables).as_toml())
    again = run_experiment(None, folder=RunFolder.open(part.path))
    assert by_round(again) == by_round(folder)
    for key in ("weights_sha256", "fairness", "per_client", "rounds"):
        assert again.summary()[key] == summary[key]


def test_a_run_that_was_killed_after_it_had_stopped_gives_back_the_same_models(tables, alone, run_experiment):
    tables = with_fairness(tables, alone, metric="test/loss")
    whole = by_round(run_experiment(tables))
    fair = max(list(whole)[1:-1], key=lambda number: whole[number])
    tables["fairness"]["stop-below"] = (whole[fair] + whole[fair + 1]) / 2
    folder = run_experiment(tables)
    summary = folder.summary()
    (folder.path / "summary.json").unlink()
    again = run_experiment(None, folder=RunFolder.open(folder.path)).summary()
    for key in ("weights_sha256", "fairness", "per_client", "rounds"):
        assert again[key] == summary[key]


def test_clients_that_keep_a_part_of_their_models_cannot_be_brought_back(tables, alone, run_experiment):
    tables = of(with_fairness(tables, alone, **{"stop-below": 50}), method="fedper")
    with pytest.raises(
        ExperimentError, match=r"\[fairness\] stop-below may end with .* 'fedper' cannot restore.*; leave it out"
    ):
        run_experiment({**tables, "fedper": {"personal-layers": ["head.*"]}})


# ---- the stand-alone run


def test_what_is_wrong_with_the_stand_alone_run(tables, alone, tmp_path):
    def refused(message, clients=4, **changes):
        experiment = parse_experiment({**with_fairness(tables, alone), **changes})
        with pytest.raises(ExperimentError, match=r"\[fairness\] stand-alone: .*" + message):
            stand_alone_values(experiment.fairness, experiment, tuple(named(range(clients))))

    refused("no run folder", fairness={"stand-alone": str(tmp_path / "nowhere")})
    refused(
        "has not measured 'test/mae'; measured: test/acc.*, test/loss",
        fairness={"stand-alone": str(alone.path), "metric": "test/mae"},
    )
    refused("has other clients; in only one of the two runs: client-4$", clients=5)
    refused("client-6 and 3 more$", clients=12)
    data = {**tables["data"], "test": "matched", "partition-seed": 1}
    name = alone.path.name
    refused(
        rf"other \[data\]: partition-seed is 0 in {name} and 1 in this experiment; test is 'shared' in {name} and "
        "'matched' in this experiment",
        data=data,
    )
    (alone.path / "summary.json").unlink()
    refused("is not finished")


def test_values_of_the_stand_alone_run(tables, alone):
    experiment = parse_experiment(with_fairness(tables, alone))
    values = stand_alone_values(experiment.fairness, experiment, tuple(named(range(4))))
    assert values == alone.summary()["per_client"]["test"]["accuracy"]
    assert len(set(values.values())) == 4
