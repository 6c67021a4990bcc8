from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.privacy.secret import field
from fedgraph.privacy.secret.field import LARGEST, PRIME
from fedgraph.support.errors import FedgraphError, ReplyError
from fedgraph.support.randomness import generator

EDGES = [0, 1, 2, 2**30, 2**31 - 1, 2**31, 2**60, LARGEST, LARGEST + 1, PRIME - 2, PRIME - 1]
elements = st.one_of(st.sampled_from(EDGES), st.integers(0, PRIME - 1))


@settings(max_examples=50)
@given(elements, elements)
def test_sums_and_products(a, b):
    left, right = torch.tensor([a]), torch.tensor([b])
    assert int(field.add(left, right)) == (a + b) % PRIME
    assert int(field.multiply(left, right)) == a * b % PRIME
    assert int(field.multiply(left, b - PRIME)) == a * b % PRIME


def test_all_edges_times_each_other():
    edges = torch.tensor(EDGES)
    expected = [[a * b % PRIME for b in EDGES] for a in EDGES]
    assert field.multiply(edges[:, None], edges[None]).tolist() == expected


@settings(max_examples=50)
@given(st.integers(-LARGEST, LARGEST))
def test_signs_come_back(number):
    element = field.from_signed(torch.tensor([number]))
    assert int(element) == number % PRIME
    assert int(field.to_signed(element)) == number


@pytest.mark.parametrize("number", [LARGEST + 1, -LARGEST - 1])
def test_too_large_a_number_is_refused(number):
    with pytest.raises(FedgraphError, match="too large"):
        field.from_signed(torch.tensor([0, number]))


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.sampled_from([1, 2**9, 2**20, 2**30, 2**44]))
def test_matrix_product_is_exact(seed, largest):
    source = generator(seed, "matrices")
    left = field.random_elements((2, 3, 5), source)
    left[0, 0] = PRIME - 1
    right = torch.randint(-largest, largest + 1, (2, 5, 4), generator=source)
    right[1, :, 0] = largest
    expected = [
        [[sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) % PRIME for column in b.T] for row in a]
        for a, b in zip(left, right, strict=True)
    ]
    assert field.matmul(left, right).tolist() == expected


def test_weights_too_large_for_exactness_are_refused():
    weights = torch.full((8, 1), 2**45)
    assert int(field.matmul(torch.ones(1, 7, dtype=torch.int64), weights[:7])) == 7 * 2**45
    with pytest.raises(FedgraphError, match="multiplied exactly"):
        field.matmul(torch.ones(1, 8, dtype=torch.int64), weights)


def test_bytes_come_back_and_wrong_ones_are_refused():
    values = field.random_elements((3, 4))
    assert torch.equal(field.from_bytes(field.to_bytes(values.T), (4, 3)), values.T)
    assert field.from_bytes(b"", (0, 4)).shape == (0, 4)
    with pytest.raises(ReplyError, match="96 bytes, but 88 came"):
        field.from_bytes(field.to_bytes(values)[8:], (3, 4))
    for wrong in (PRIME, -1):
        with pytest.raises(ReplyError, match="no elements"):
            field.from_bytes(field.to_bytes(torch.tensor([wrong])), (1,))


def test_the_prime_itself_is_never_drawn(monkeypatch):
    draws = iter([torch.tensor([PRIME, 5, PRIME]), torch.tensor([PRIME, 7]), torch.tensor([9])])
    monkeypatch.setattr(field, "random_integers", lambda *_: next(draws))
    assert field.random_elements((3,)).tolist() == [9, 5, 7]
