from __future__ import annotations

import pytest

from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse
from fedgraph.training.settings import TrainSettings


def test_one_local_epoch_unless_told_otherwise():
    assert TrainSettings().local_epochs == 1
    assert TrainSettings().as_table()["local-epochs"] == 1
    assert TrainSettings(local_steps=0).local_epochs is None
    assert parse(TrainSettings, {"local-epochs": 0}, "[train]").local_epochs == 0
    assert parse(TrainSettings, TrainSettings(local_steps=3).as_table(), "[train]") == TrainSettings(local_steps=3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"local-epochs": 1, "local-steps": 2}, "local-steps: .*either local-epochs or local-steps, not both"),
        ({"nesterov": True}, "nesterov: .*needs a momentum above 0"),
        ({"learning-rate": 0}, "learning-rate: .*greater than 0"),
        ({"lr": 0.1}, "has no key 'lr'; known keys: .*learning-rate"),
        ({"local-steps": 5, "warmup-epochs": 1}, "warmup-epochs: .*use local-epochs"),
        ({"final-learning-rate": -0.1}, "final-learning-rate: .*greater than or equal to 0"),
        ({"betas": [0.9, 1.0]}, r"betas.1: .*less than 1"),
    ],
)
def test_messages(table, message):
    with pytest.raises(ExperimentError, match=message):
        parse(TrainSettings, table, "[train]")


def test_cuda_without_a_device_is_refused(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ExperimentError, match="no CUDA device"):
        TrainSettings(device="cuda").torch_device()
    assert TrainSettings(device="auto").torch_device().type == "cpu"


def test_learning_rate_decays_from_the_second_round():
    settings = TrainSettings(learning_rate=0.4, learning_rate_decay=0.5)
    assert [settings.rate(round) for round in (1, 2, 3)] == [0.4, 0.2, 0.1]


def test_a_factor_of_the_learning_rate_changes_with_the_round():
    table = {"learning-rate": 0.4, "learning-rate-decay": 0.5, "learning-rate-factor": [[1, 1.0], [3, 0.25]]}
    settings = parse(TrainSettings, table, "[train]")
    assert [settings.rate(round) for round in (0, 1, 2, 3, 4)] == [0.4, 0.4, 0.2, 0.025, 0.0125]
    with pytest.raises(ExperimentError, match=r"\[train\] learning-rate-factor.*ascending rounds, starting at 1"):
        parse(TrainSettings, {"learning-rate-factor": [[2, 0.5]]}, "[train]")


# ---- a second training


def training(**table):
    return parse(TrainSettings, {"momentum": 0.9, **table}, "[train]")


def test_what_is_not_given_for_a_second_training_is_that_of_the_first():
    settings = training(**{"local-steps": 7, "learning-rate-decay": 0.5, "clip-norm": 2.0})
    assert settings.second("[x]") == settings


def test_a_length_takes_the_place_of_either():
    assert training(**{"local-epochs": 3}).second("[x]", local_steps=5) == training(**{"local-steps": 5})
    assert training(**{"local-steps": 5}).second("[x]", local_epochs=0) == training(**{"local-epochs": 0})


def test_a_rate_holds_in_every_round():
    changing = training(
        **{"learning-rate": 0.5, "learning-rate-decay": 0.5, "learning-rate-factor": [[1, 1.0], [5, 0.1]]}
    )
    settings = changing.second("[x]", learning_rate=0.3)
    assert (settings.rate(1), settings.rate(9)) == (0.3, 0.3)


def test_both_lengths_are_refused():
    with pytest.raises(ExperimentError, match=r"\[x\] local-steps: set either local-epochs or local-steps"):
        training().second("[x]", local_epochs=1, local_steps=1)
