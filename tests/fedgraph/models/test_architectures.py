import pytest
import torch

from fedgraph.models import build
from fedgraph.models.architectures import Architectures
from fedgraph.models.base import TaskSpec
from fedgraph.models.choice import ModelChoice
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator

TASK = TaskSpec("classification", (4,), (3,))
NAMES = ("a", "b", "c", "d", "e")
SMALL, LARGE = {"name": "mlp", "hidden": [2]}, {"name": "mlp", "hidden": [6]}
SMALL_SIZE, LARGE_SIZE = 4 * 2 + 2 + 2 * 3 + 3, 4 * 6 + 6 + 6 * 3 + 3


def architectures(*variants, model=LARGE, names=NAMES):
    return Architectures.of(ModelChoice.of({**model, "variants": list(variants)}), TASK, names)


MIXED = architectures({**SMALL, "clients": ["b", "[de]"]})


def test_groups_and_width():
    assert [(group.number, group.positions.tolist(), group.size) for group in MIXED.groups] == [
        (0, [0, 2], LARGE_SIZE),
        (1, [1, 3, 4], SMALL_SIZE),
    ]
    assert MIXED.is_mixed
    assert MIXED.layout.num_parameters == MIXED.layout.num_trainable == MIXED.width == LARGE_SIZE


def test_the_width_does_not_depend_on_who_is_here():
    here = architectures({**SMALL, "clients": ["b", "[de]"]}, names=("b", "e"))
    assert [group.number for group in here.groups] == [1]
    assert here.width == MIXED.width


def test_one_architecture_is_the_plain_layout_and_the_usual_initial_model():
    single = architectures()
    model = build(LARGE, TASK)
    expected = model.initial(generator(3, "initial model"))
    assert not single.is_mixed
    assert single.layout == model.layout
    arrays = single.initial(3)
    assert list(arrays) == list(model.layout.names)
    assert torch.equal(single.repeated(arrays), expected.repeat(len(NAMES), 1))
    assert list(single.stacked(single.repeated(arrays))) == list(model.layout.names)


def test_every_architecture_starts_as_if_it_were_the_only_one():
    rows = MIXED.repeated(MIXED.initial(3))
    assert rows.shape == (5, LARGE_SIZE)
    for table, members in ((LARGE, [0, 2]), (SMALL, [1, 3, 4])):
        alone = build(table, TASK).initial(generator(3, "initial model"))
        for row in members:
            assert torch.equal(rows[row, : len(alone)], alone)
            assert (rows[row, len(alone) :] == 0).all()


def test_rows_as_tensors_of_each_group():
    rows = torch.arange(5 * LARGE_SIZE).float().reshape(5, LARGE_SIZE)
    stacked = MIXED.stacked(rows)
    assert stacked["0/hidden.0.weight"].shape == (2, 6, 4)
    assert stacked["1/hidden.0.weight"].shape == (3, 2, 4)


@pytest.mark.parametrize("value", [1e-30, -1.0, float("nan"), float("inf")])
def test_rows_that_hold_more_than_the_model_are_named(value):
    rows = MIXED.repeated(MIXED.initial(0))
    assert MIXED.padding_violations(NAMES, rows) == {}
    rows[3, -1] = value
    rows[1, SMALL_SIZE] = value
    assert set(MIXED.padding_violations(NAMES, rows)) == {"b", "d"}
    problems = MIXED.padding_violations(("c", "d"), rows[[2, 3]])
    assert problems == {"d": "its parameters go on behind the 19 that its model has, where zeros are expected"}
    assert MIXED.padding_violations(("a", "c"), rows[[0, 2]]) == {}


def test_a_variant_that_does_not_fit_the_data_is_named():
    with pytest.raises(ExperimentError, match=r"^\[\[model.variants\]\] number 1: .*'cnn' reads images"):
        architectures({"name": "cnn", "clients": ["a"]})
    with pytest.raises(ExperimentError, match=r"^\[model\] name: 'cnn' reads images"):
        architectures({**SMALL, "clients": ["a"]}, model={"name": "cnn"})
