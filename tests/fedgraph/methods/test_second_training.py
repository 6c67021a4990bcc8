import pytest

from fedgraph.methods.second_training import cohort_with, second_training
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse
from fedgraph.training.cohort import Cohort
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


def test_cohorts_are_built_once(data_dir):
    from fedgraph.data import open_source, parse_data
    from fedgraph.models import build

    source = open_source(parse_data({"set": "digits", "clients": 3, "limit": 100}), data_dir)
    data = source.load(source.client_names())
    cohort = Cohort(build({"name": "mlp", "hidden": []}, data.task), data, train(), seed=1)
    assert cohort_with(cohort, train(), 1) is cohort
    other = cohort_with(cohort, train(**{"local-steps": 3}), 2)
    assert (other.settings.local_steps, other.seed, other.data) == (3, 2, data)
    assert cohort_with(cohort, train(**{"local-steps": 3}), 2) is other
