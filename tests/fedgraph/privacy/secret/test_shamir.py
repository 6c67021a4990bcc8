from __future__ import annotations

import math
from itertools import combinations, permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedgraph.privacy.secret import field
from fedgraph.privacy.secret.field import PRIME
from fedgraph.privacy.secret.shamir import ShareSettings, decode, encode, odd_one_out, reconstruct, split
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import parse

secrets = st.lists(st.one_of(st.sampled_from([0, 1, PRIME - 1]), st.integers(0, PRIME - 1)), min_size=1, max_size=6)


@settings(max_examples=50)
@given(secrets, st.integers(2, 5), st.integers(0, 3))
def test_any_k_shares_give_the_secret(values, threshold, extra):
    secret = torch.tensor(values)
    number = threshold + extra
    shares = split(secret, number, threshold)
    assert shares.shape == (number, len(values))
    for some in combinations(range(number), threshold):
        assert torch.equal(reconstruct(shares[list(some)], [one + 1 for one in some], threshold), secret)
    assert torch.equal(reconstruct(shares, range(1, number + 1), threshold), secret)


def test_order_of_shares_does_not_matter():
    secret = field.random_elements((4, 2))
    shares = split(secret, 3, 3)
    for order in permutations(range(3)):
        assert torch.equal(reconstruct(shares[list(order)], [one + 1 for one in order], 3), secret)


@pytest.mark.parametrize("secret", [0, 1, 12345, PRIME - 1])
@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_two_shares_of_three_needed_are_uniform_together(secret, pair):
    shares = split(torch.full((40_000,), secret), 3, 3, generator(0, "split", secret))
    top, low = (shares[list(pair)] >> 58), (shares[list(pair)] & 7)
    for cells in (top[0] * 8 + top[1], low[0] * 8 + low[1]):
        assert stats.chisquare(cells.bincount(minlength=64)).pvalue > 1e-4


def test_fewer_shares_than_needed_miss_the_secret():
    secret = torch.zeros(1000, dtype=torch.int64)
    shares = split(secret, 3, 3)
    assert bool((reconstruct(shares[:2], [1, 2], 2) != secret).all())


@settings(max_examples=50)
@given(secrets, st.integers(-(2**40), 2**40), st.integers(-(2**40), 2**40))
def test_sums_and_products_of_shares_are_shares(values, first, second):
    a, b = torch.tensor(values), torch.tensor(values[::-1])
    of_a, of_b = split(a, 4, 3), split(b, 4, 3)
    shares = field.add(field.multiply(of_a, first), field.multiply(of_b, second))
    expected = [(x * first + y * second) % PRIME for x, y in zip(values, values[::-1], strict=True)]
    assert reconstruct(shares[1:], [2, 3, 4], 3).tolist() == expected


def test_a_wrong_share_shows_when_more_than_needed_came():
    shares = split(field.random_elements((5,)), 3, 2)
    for wrong in range(3):
        changed = shares.clone()
        changed[wrong, 2] = (changed[wrong, 2] + 1) % PRIME
        with pytest.raises(RunError, match=r"\[1, 2, 3\] contradict"):
            reconstruct(changed, [1, 2, 3], 2)


def test_two_shares_more_than_needed_tell_which_one_is_wrong():
    secret = field.random_elements((5,))
    for threshold, number in ((2, 4), (3, 6)):
        shares, points = split(secret, number, threshold), list(range(1, number + 1))
        assert odd_one_out(shares, points, threshold) is None
        for wrong in range(number):
            changed = shares.clone()
            changed[wrong, 3] = (changed[wrong, 3] + 1) % PRIME
            assert odd_one_out(changed, points, threshold) == wrong
            with pytest.raises(RunError, match=f"with {threshold + 2} or more"):
                reconstruct(changed, points, threshold)
        changed[0] = (changed[0] + 1) % PRIME
        assert odd_one_out(changed, points, threshold) is None, "two of them are wrong"
    assert odd_one_out(changed[:4], points[:4], 3) is None, "only one more than needed"


def test_too_few_or_doubled_shares_are_refused():
    shares = split(field.random_elements((5,)), 3, 2)
    with pytest.raises(RunError, match="2 shares are needed, but only 1"):
        reconstruct(shares[:1], [1], 2)
    with pytest.raises(RunError, match="may give one share"):
        reconstruct(shares[:2], [1, 1], 2)
    with pytest.raises(RunError, match="may give one share"):
        reconstruct(shares[:2], [0, 1], 2)


def test_polynomials_come_from_the_operating_system():
    secret = torch.zeros(4, dtype=torch.int64)
    torch.manual_seed(0)
    first = split(secret, 2, 2)
    torch.manual_seed(0)
    assert not torch.equal(first, split(secret, 2, 2))


@settings(max_examples=50)
@given(st.floats(-16, 16), st.integers(0, 20), st.integers(0, 20))
def test_encoded_numbers_are_close_and_of_the_right_sign(value, fractional_bits, random_bits):
    settings = ShareSettings(fractional_bits=fractional_bits, random_bits=random_bits)
    back = decode(encode(torch.tensor([value], dtype=torch.float64), settings), settings.scale)
    assert abs(float(back) - value) <= 2.0**-fractional_bits


def test_random_bits_are_below_the_point_kept_and_spread():
    settings = ShareSettings(fractional_bits=4, random_bits=12)
    numbers = field.to_signed(encode(torch.full((50_000,), -1.5), settings, generator(0, "low")))
    low = numbers + 24 * 2**12 + 2**11
    assert int(low.min()) >= 0
    assert int(low.max()) < 2**12
    assert stats.chisquare((low >> 6).bincount(minlength=64)).pvalue > 1e-4


@pytest.mark.parametrize(("value", "text"), [(16.5, "magnitude 16.5"), (-17.0, "magnitude 17"), (math.nan, "finite")])
def test_nothing_wraps_around(value, text):
    with pytest.raises(DataError, match=text):
        encode(torch.tensor([0.0, value]), ShareSettings())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"aggregators": 3, "threshold": 4}, "only 3 aggregators"),
        ({"fractional-bits": 30, "random-bits": 11}, "40 at most"),
    ],
)
def test_settings_that_cannot_be_are_refused(keys, message):
    with pytest.raises(ExperimentError, match=message):
        parse(ShareSettings, keys, "[shares]")
