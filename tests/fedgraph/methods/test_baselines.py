import pytest

from fedgraph.methods.baselines import second_training
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse
from fedgraph.training.settings import TrainSettings


def train(**table):
    return parse(TrainSettings, {"momentum": 0.9, **table}, "[train]")


def test_what_is_not_given_is_that_of_train():
    settings = train(**{"local-steps": 7, "learning-rate-decay": 0.5, "clip-norm": 2.0})
    assert second_training(settings, "[x]") == settings


def test_a_length_takes_the_place_of_either():
    assert second_training(train(**{"local-epochs": 3}), "[x]", local_steps=5) == train(**{"local-steps": 5})
    assert second_training(train(**{"local-steps": 5}), "[x]", local_epochs=0) == train(**{"local-epochs": 0})


def test_a_rate_holds_in_every_round():
    changing = train(**{"learning-rate": 0.5, "learning-rate-decay": 0.5, "learning-rate-factor": [[1, 1.0], [5, 0.1]]})
    settings = second_training(changing, "[x]", learning_rate=0.3)
    assert (settings.rate(1), settings.rate(9)) == (0.3, 0.3)


def test_both_lengths_are_refused():
    with pytest.raises(ExperimentError, match=r"\[x\] local-steps: give either local-epochs or local-steps"):
        second_training(train(), "[x]", local_epochs=1, local_steps=1)
