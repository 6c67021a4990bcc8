from __future__ import annotations

import torch

from fedgraph.support.randomness import derive_seed, drawn, generator, hashed


def test_keys_do_not_run_into_each_other():
    keys = [(1, "a", "b"), (1, "ab"), (1, "b", "a"), (1, "a", 1), (1, "a", "1"), (11, "a"), (1, "a", 1, 1)]
    seeds = {derive_seed(*key) for key in keys}
    assert len(seeds) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeds_stay_the_same_from_version_to_version():
    assert derive_seed(0, "batches", "a", 1) == 2998719901226379741


def test_generator_draws_again_and_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    first, second = (torch.rand(3, generator=generator(7, "x", 2)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


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
