from __future__ import annotations

import torch
from scipy import stats

from fedgraph.privacy.noise import entropy
from fedgraph.privacy.noise.entropy import random_integers, standard_laplace, standard_normal
from fedgraph.support.randomness import generator


def test_bits_are_uniform_and_never_the_same():
    drawn = random_integers((40, 500), 62)
    assert drawn.shape == (40, 500)
    assert int(drawn.min()) >= 0
    assert len(drawn.unique()) == drawn.numel()
    ones = torch.stack([(drawn >> bit & 1).sum() for bit in range(62)]).double()
    # Each count is binomial with deviation 70.7; one in 1e9 runs has a bit eight deviations off.
    assert float((ones - 10_000).abs().max()) < 8 * 70.8
    assert int(random_integers((1000,), 3).max()) == 7


def test_global_seed_has_no_say_but_a_given_generator_has():
    torch.manual_seed(1)
    first = random_integers((8,), 60)
    torch.manual_seed(1)
    assert not torch.equal(first, random_integers((8,), 60))
    again = [standard_normal((5,), generator(3, "noise")) for _ in range(2)]
    assert torch.equal(again[0], again[1])


def test_normal_numbers_are_normal():
    drawn = standard_normal((200_000,), generator(0, "normal"))
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-3
    assert abs(float(drawn.var()) - 1) < 0.02
    assert bool(standard_normal((100_000,)).isfinite().all())


def test_normal_numbers_are_finite_and_symmetric_to_the_very_ends(monkeypatch):
    monkeypatch.setattr(entropy, "random_integers", lambda *_: torch.tensor([0, 2**51 - 1, 2**51, 2**52 - 1]))
    low, below, above, high = standard_normal((4,)).tolist()
    assert -8.3 < low < -8.1
    assert high == -low
    assert -1e-15 < below < 0 < above == -below


def test_laplace_numbers_are_laplace():
    drawn = standard_laplace((2, 100_000), generator(0, "laplace"))
    assert drawn.shape == (2, 100_000)
    assert stats.kstest(drawn.flatten().numpy(), "laplace").pvalue > 1e-3


def test_nothing_to_draw():
    assert random_integers((0, 3), 61).shape == (0, 3)
