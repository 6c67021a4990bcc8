import json

import pytest
import torch

from fedgraph.federation.traffic import Traffic
from fedgraph.runs.callbacks import (
    AverageLast,
    Callback,
    EarlyStopping,
    Evaluation,
    LocalWork,
    RoundsToTarget,
    Training,
)
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import load_state, save_state
from fedgraph.training.settings import TrainSettings

NAMES = ("a", "b")


def evaluation(server_round, *values, metric="validation/loss"):
    return Evaluation(server_round, NAMES, {metric: torch.tensor(values)}, torch.full((2, 3), float(server_round)))


def fed(stopping, values, metric="validation/loss", first=0):
    return [stopping.on_evaluation(evaluation(first + i, v, v, metric=metric)) for i, v in enumerate(values)]


def test_stops_after_patience_evaluations_without_a_better_mean():
    stopping = EarlyStopping("validation/loss", patience=2)
    assert fed(stopping, [3.0, 2.0, 2.5, 1.0, 1.0, 1.5]) == [False, False, False, False, False, True]
    assert (stopping.best, stopping.best_round) == (1.0, 3)
    assert torch.equal(stopping.final_models(), torch.full((2, 3), 3.0))


def test_higher_is_better_for_accuracy():
    stopping = EarlyStopping("test/accuracy", patience=1)
    assert fed(stopping, [0.1, 0.5, 0.4], "test/accuracy") == [False, False, True]
    assert stopping.best_round == 1


def test_absent_clients_do_not_count():
    stopping = EarlyStopping("validation/loss", patience=1)
    assert not stopping.on_evaluation(evaluation(0, 2.0, 4.0))
    assert not stopping.on_evaluation(evaluation(1, 2.5, float("nan")))
    assert stopping.best == 2.5


def test_an_evaluation_without_any_value_is_no_improvement():
    stopping = EarlyStopping("validation/loss", patience=2)
    assert fed(stopping, [1.0, float("nan"), 0.5, float("nan"), float("nan")]) == [False, False, False, False, True]
    assert stopping.best == 0.5


def test_any_number_is_better_than_a_first_value_of_nan():
    stopping = EarlyStopping("validation/loss", patience=2)
    fed(stopping, [float("nan"), 1.0, 0.9])
    assert stopping.best == pytest.approx(0.9)


def test_last_models_when_the_best_are_not_asked_for():
    stopping = EarlyStopping("validation/loss", patience=1, restore_best=False)
    fed(stopping, [1.0, 2.0])
    assert stopping.final_models() is None


def test_the_best_models_are_kept_by_value():
    stopping, seen = EarlyStopping("validation/loss", 3), evaluation(0, 1.0, 1.0)
    stopping.on_evaluation(seen)
    seen.models.zero_().sub_(1)
    assert torch.equal(stopping.final_models(), torch.zeros(2, 3))


def test_unmeasured_and_unknown_metric():
    with pytest.raises(ExperimentError, match="monitor 'validation/mae' was not measured; measured: validation/loss"):
        fed(EarlyStopping("validation/mae", 1), [1.0])
    with pytest.raises(ExperimentError, match="unknown metric"):
        fed(EarlyStopping("validation/beauty", 1), [1.0], "validation/beauty")


@pytest.mark.parametrize("cut", range(6))
def test_state_survives_a_resume(tmp_path, cut):
    values = [3.0, 2.0, 2.5, 2.6, 1.0, 1.1]
    whole, before, after = (EarlyStopping("validation/loss", 3) for _ in range(3))
    expected = fed(whole, values)
    first = fed(before, values[:cut])
    save_state(tmp_path / "s", before.state())
    after.load_state(load_state(tmp_path / "s"))
    assert first + fed(after, values[cut:], first=cut) == expected
    assert (after.best, after.best_round, after.waited) == (whole.best, whole.best_round, whole.waited)
    assert torch.equal(after.final_models(), whole.final_models())


def test_a_callback_that_overrides_nothing_changes_nothing():
    callback = Callback()
    callback.on_training(Training(1, NAMES, torch.zeros(2), {}, 0.0))
    callback.on_round_end(1, dict)
    callback.load_state(callback.state())
    assert callback.on_evaluation(evaluation(0, 1.0, 1.0)) is False
    assert callback.final_models() is None
    assert callback.summary() == {}


def test_models_measured_at_the_end_are_no_further_evaluation():
    stopping = EarlyStopping("validation/loss", patience=2)
    fed(stopping, [3.0, 2.0])
    after = Evaluation(1, NAMES, {"validation/loss": torch.ones(2)}, torch.zeros(2, 3), restored=True)
    assert not stopping.on_evaluation(after)
    assert (stopping.best, stopping.waited) == (2.0, 0)


def trained(server_round, absent=()):
    models = torch.tensor([[1.0], [10.0]]) * server_round
    return Training(server_round, NAMES, torch.ones(2), dict.fromkeys(absent, "gone"), 0.0, models=models)


@pytest.mark.parametrize("cut", range(6))
def test_the_mean_of_the_last_models_survives_a_resume(tmp_path, cut):
    before, after = AverageLast(3, rounds=5), AverageLast(3, rounds=5)
    for server_round in range(1, cut + 1):
        before.on_training(trained(server_round))
    save_state(tmp_path / "s", before.state())
    after.load_state(load_state(tmp_path / "s"))
    for server_round in range(cut + 1, 6):
        assert after.final_models() is None, "a run that ends early keeps its last models"
        after.on_training(trained(server_round))
    assert after.final_models().tolist() == [[4.0], [40.0]]
    assert after.final_round == 5


def test_no_more_models_than_rounds_are_averaged():
    with pytest.raises(ExperimentError, match="average-last = 4 is more than the 3 rounds"):
        AverageLast(4, rounds=3)


def test_minibatches_and_passes_over_the_data():
    epochs = LocalWork(torch.tensor([100, 250]), TrainSettings(batch_size=50, local_epochs=2))
    epochs.on_training(trained(1))
    assert epochs.summary() == {"training": {"minibatches": 14, "passes": 2.0}}
    epochs.on_training(trained(2, absent="b"))
    assert epochs.summary()["training"]["minibatches"] == 14 + 4
    steps = LocalWork(torch.tensor([100, 250, 0]), TrainSettings(batch_size=50, local_steps=40))
    steps.load_state(epochs.state())
    steps.on_training(Training(1, ("a", "b", "c"), torch.ones(3), {}, 0.0))
    assert steps.summary() == {"training": {"minibatches": 18 + 80, "passes": 98 / 7}}
    epochs.on_training(Training(3, NAMES, torch.ones(2), {}, 0.0, present=torch.tensor([False, True])))
    assert epochs.summary()["training"]["minibatches"] == 18 + 10, "a client that is not drawn is not absent either"


def test_rounds_until_the_mean_and_the_first_client_reach_a_target():
    targets = RoundsToTarget({"test/accuracy": 0.8, "test/loss": 0.3})
    courses = [(0.1, 0.2, 1.0, 1.0), (0.5, 0.8, 0.2, 0.5), (0.9, 0.75, 0.2, 0.35), (0.1, 0.1, 0.9, 0.9)]
    for number, (a, b, c, d) in enumerate(courses):
        found = Evaluation(
            number, NAMES, {"test/accuracy": torch.tensor([a, b]), "test/loss": torch.tensor([c, d])}, torch.ones(2, 3)
        )
        assert not targets.on_evaluation(found)
    assert targets.summary()["rounds_to_target"] == {
        "test/accuracy": {"target": 0.8, "mean": 2, "first": 1},
        "test/loss": {"target": 0.3, "mean": 2, "first": 1},
    }
    again = RoundsToTarget({"test/accuracy": 0.8, "test/f1": 0.5})
    again.load_state(targets.state())
    assert again.summary()["rounds_to_target"]["test/accuracy"] == {"target": 0.8, "mean": 2, "first": 1}
    assert again.summary()["rounds_to_target"]["test/f1"] == {"target": 0.5, "mean": None, "first": None}


@pytest.mark.parametrize("measured_first", [False, True])
def test_bytes_of_a_client_and_seconds_until_a_target_is_reached(measured_first):
    """Whether a round is measured after it was told that it is over, or just before, as by IPA; and over a resume."""
    clock = iter([1.5, 3.0, 4.5])
    targets = RoundsToTarget({"test/accuracy": 0.8, "test/f1": 0.9}, seconds=lambda: next(clock))
    for number, values in enumerate([(0.1, 0.9), (0.9, 0.9), (0.9, 0.9)], 1):
        found = {"test/accuracy": torch.tensor(values), "test/f1": torch.zeros(2)}
        # In nodes of several clients less is sent, of which nothing is to be seen here.
        traffic = Traffic(1, 5, 5, 1000 * number, 200)
        training = Training(number, NAMES, torch.zeros(2), {}, 0.1, traffic)
        evaluation = Evaluation(number, NAMES, found, torch.ones(2, 3))
        if measured_first:
            targets.on_evaluation(evaluation)
        targets.on_training(training)
        if not measured_first:
            targets.on_evaluation(evaluation)
        again = RoundsToTarget(targets.targets, seconds=lambda: next(clock))
        again.load_state(json.loads(json.dumps(targets.state())))
        targets = again
    summary = targets.summary()
    never = {"mean": None, "first": None}
    assert summary["bytes_to_target"] == {
        "test/accuracy": {"mean": (1200 + 2200) / 2, "first": 1200 / 2}, "test/f1": never
    }  # fmt: skip
    assert summary["seconds_to_target"] == {"test/accuracy": {"mean": 3.0, "first": 1.5}, "test/f1": never}


@pytest.mark.parametrize(("stop_at", "ends"), [("first", 1), ("mean", 2), (None, None)])
def test_a_target_ends_the_run_where_that_is_wanted(stop_at, ends):
    targets = RoundsToTarget({"test/accuracy": 0.75}, stop_at)
    stopped = [targets.on_evaluation(evaluation(r, v, w, metric="test/accuracy")) for r, (v, w) in
               enumerate([(0.1, 0.2), (0.3, 0.9), (0.8, 0.9), (0.9, 0.9)])]  # fmt: skip
    assert stopped == [ends is not None and number >= ends for number in range(4)]
    assert targets.stopped == (ends is not None)


def test_clients_that_did_not_answer_reach_nothing():
    targets = RoundsToTarget({"test/accuracy": 0.75})
    targets.on_evaluation(evaluation(1, float("nan"), float("nan"), metric="test/accuracy"))
    targets.on_evaluation(evaluation(2, float("nan"), 0.8, metric="test/accuracy"))
    assert targets.summary()["rounds_to_target"]["test/accuracy"] == {"target": 0.75, "mean": 2, "first": 2}
    with pytest.raises(ExperimentError, match="targets 'test/f1' was not measured; measured: test/accuracy"):
        RoundsToTarget({"test/f1": 1.0}).on_evaluation(evaluation(1, 0.5, 0.5, metric="test/accuracy"))
