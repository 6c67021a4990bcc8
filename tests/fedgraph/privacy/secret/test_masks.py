"""Masks that cancel in a sum."""

import pytest
import torch

from fedgraph.privacy.secret.masks import masked
from fedgraph.privacy.secret.sealed import KeyPair
from fedgraph.support.errors import ReplyError

NAMES = ("east", "north", "west")


@pytest.fixture
def keys():
    return {name: KeyPair.create() for name in NAMES}


@pytest.fixture
def public(keys):
    return {name: pair.public.hex() for name, pair in keys.items()}


def test_the_sum_is_right_and_nothing_else_can_be_seen(keys, public):
    values = {name: torch.arange(-500, 500) * place for place, name in enumerate(NAMES, 1)}
    told = {name: masked(values[name], name, keys[name], public, "run") for name in NAMES}
    assert torch.equal(sum(told.values()), sum(values.values()))
    for name in NAMES:
        # Of uniform numbers below 2^64 hardly one is below 2^53.
        assert (told[name].double().abs() > 2**53).double().mean() > 0.95
    assert not torch.equal(told["east"], masked(values["east"], "east", keys["east"], public, "other run"))
    pair = told["east"] + told["north"]
    assert (pair.double().abs() > 2**53).double().mean() > 0.95, "two of three still hide behind the third"


def test_keys_that_cannot_be(keys, public):
    values = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ReplyError, match="client 'east'"):
        masked(values, "east", keys["east"], {**public, "east": public["west"]}, "run")
    with pytest.raises(ReplyError, match="need two clients at least"):
        masked(values, "east", keys["east"], {"east": public["east"]}, "run")
    for wrong in ("zz", "00", "00" * 32):
        with pytest.raises(ReplyError, match="key of client 'west'"):
            masked(values, "east", keys["east"], {**public, "west": wrong}, "run")
