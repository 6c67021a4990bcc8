from collections import Counter, OrderedDict

import numpy as np
import pytest
import torch

from fedgraph.algorithms import check_state
from fedgraph.support.errors import RunError
from fedgraph.support.files import load_state, save_state

KEPT = {
    "number": 1.5,
    "count": np.float64(2.0),
    "none": None,
    "words": ["a", ["b", True]],
    "named": OrderedDict(weight=torch.ones(2), nested={"0": {"deep": torch.zeros(1)}}),
    "lines": [{"round": 1}],
}


def test_what_is_kept_comes_back_as_it_is(tmp_path):
    check_state("Mine.init returned", KEPT)
    save_state(tmp_path / "state", KEPT)
    found = load_state(tmp_path / "state")
    assert torch.equal(found["named"].pop("weight"), torch.ones(2))
    assert torch.equal(found["named"]["nested"]["0"].pop("deep"), torch.zeros(1))
    assert found == {**KEPT, "named": {"nested": {"0": {}}}}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({0: 1.0}, r'state\["it"\] with the key 0 of type int.*use strings as keys'),
        ((1, 2), r'state\["it"\] of type tuple.*use a list'),
        ({"a": [1, (2, 3)]}, r'state\["it"\]\["a"\]\[1\] of type tuple'),
        ({"a"}, r'state\["it"\] of type set.*use a list, sorted'),
        (np.zeros(2), r'state\["it"\] of type ndarray.*use a tensor, torch.as_tensor'),
        (np.float32(1), r'state\["it"\] of type float32.*use a number, .item'),
        ([torch.zeros(1)], r'state\["it"\]\[0\] of type Tensor.*torch.stack.* in place of the list'),
        (Counter("a"), r'state\["it"\] of type Counter.*use a plain dict'),
        (object(), r'state\["it"\] of type object.*use only tensors, numbers, strings, lists and dicts'),
    ],
)
def test_what_would_not_come_back_as_it_is_is_refused_by_place_and_type(value, words):
    with pytest.raises(RunError, match="Mine.round returned " + words):
        check_state("Mine.round returned", {"models": torch.zeros(2, 2), "it": value})
