"""Hashed integers against SplitMix64 in Python's own integers."""

from __future__ import annotations

import torch

from fedgraph.support.hashing import drawn, hashed

MASK = 2**64 - 1


def splitmix64(value):
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


VALUES = [0, 1, -1, 12345, 2**63 - 1, -(2**63)]


def test_equals_splitmix64():
    found = [value & MASK for value in hashed(torch.tensor(VALUES)).tolist()]
    assert found == [splitmix64(value & MASK) for value in VALUES]
    assert splitmix64(0) == 0xE220A8397B1DCDAF, "published"


def test_draws_are_the_upper_half_scaled():
    for which, count in ((0, 2), (3, 9), (1, 2**31 - 1)):
        expected = [((splitmix64((value & MASK) ^ which) >> 32) * count) >> 32 for value in VALUES]
        assert drawn(torch.tensor(VALUES), which, count).tolist() == expected


def test_draws_are_equally_likely():
    counts = torch.bincount(drawn(torch.arange(9000), 2, 9), minlength=9)
    # The 0.01 % point of chi square with 8 degrees is 31.8.
    assert ((counts - 1000.0).square() / 1000).sum() < 31.8
