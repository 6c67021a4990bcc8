from __future__ import annotations

import torch

from fedgraph.support.seeding import derive_seed, generator


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
