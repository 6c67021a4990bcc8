"""Draws of a forward pass that are hashes of a client's key."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from fedgraph.models.hashed_draws import HashedDraws
from fedgraph.support.randomness import hashed

KEYS = hashed(torch.arange(3))
DRAWS = {
    "dropout": ((6, 7), lambda v: functional.dropout(v, 0.3)),
    "dropout in place": ((6, 7), lambda v: functional.dropout(v.clone(), 0.3, inplace=True)),
    "dropout1d": ((9, 40, 2), functional.dropout1d),
    "dropout2d": ((9, 8, 2, 2), functional.dropout2d),
    "dropout3d": ((9, 8, 2, 2, 1), functional.dropout3d),
    "alpha_dropout": ((6, 7), nn.AlphaDropout(0.3)),
    "feature_alpha_dropout": ((9, 8, 2), nn.FeatureAlphaDropout(0.5)),
    "rand": ((5,), lambda v: torch.rand(len(v), 3)),
    "rand of a size": ((5,), lambda v: torch.rand(size=(len(v), 1, 3), dtype=torch.float64)),
    "randn": ((5,), lambda v: torch.randn((len(v), 4))),
    "rand_like": ((6, 3), torch.rand_like),
    "randn_like": ((6, 3), lambda v: torch.randn_like(v, dtype=torch.float64)),
    "bernoulli": ((6, 7), lambda v: torch.bernoulli(v.sigmoid())),
    "bernoulli of a method": ((6, 7), lambda v: v.bernoulli(p=0.4)),
    "bernoulli_": ((6, 7), lambda v: v.new_empty(len(v), 30).bernoulli_(0.5)),
    "uniform_": ((6, 7), lambda v: torch.empty_like(v).uniform_(-1, 1)),
    "normal_": ((6, 7), lambda v: v.clone().normal_(std=2.0)),
}


def drawn(call, *given, key=KEYS[0]):
    with HashedDraws(key):
        return call(*given)


@pytest.mark.parametrize(("shape", "draw"), DRAWS.values(), ids=DRAWS)
def test_draws_are_those_of_the_key_alone_together_or_apart_padded_or_not(shape, draw):
    values = 1 + torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()

    def twice(values, key):
        with HashedDraws(key):
            return draw(values), draw(values)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # such as that an operation is computed client by client
        together = vmap(twice, randomness="error")(values, KEYS)
    for client, key in enumerate(KEYS):
        apart = twice(values[client], key)
        assert all(torch.equal(many[client], one) for many, one in zip(together, apart, strict=True))
        assert not torch.equal(*apart)
        few = twice(values[client][:4], key)
        assert all(torch.equal(whole[:4], part) for whole, part in zip(apart, few, strict=True))
    assert not torch.equal(drawn(draw, values[0]), drawn(draw, values[0], key=KEYS[1]))
    assert torch.equal(torch.get_rng_state(), before)


def test_every_axis_may_be_padded():
    whole = drawn(torch.rand, 5, 6, 7)
    for part in ((3, 6, 7), (5, 2, 7), (5, 6, 4), (4, 3, 1)):
        assert torch.equal(drawn(torch.rand, part), whole[tuple(map(slice, part))])


def test_dropout_is_that_of_torch_in_law_and_in_its_gradient():
    values = torch.arange(1.0, 100_001, requires_grad=True)
    dropped = drawn(nn.Dropout(0.25), values)
    dropped.sum().backward()
    kept = dropped != 0
    assert abs(float(kept.float().mean()) - 0.75) < 0.005
    torch.testing.assert_close(dropped[kept], values[kept] / 0.75)
    torch.testing.assert_close(values.grad, kept / 0.75)


@pytest.mark.parametrize("p", [1e-3, 0.1, 0.5, 0.9, 0.999])
def test_the_share_of_what_is_kept(p):
    kept = drawn(functional.dropout, torch.ones(1000, 1000), p) != 0
    assert abs(float(kept.float().mean()) - (1 - p)) < 4.5 * (p * (1 - p)) ** 0.5 / 1000


def test_neighbours_clients_steps_and_draws_are_independent():
    """Correlations of masks of a million elements are below 4.5 standard errors."""

    def masks(key):
        with HashedDraws(key):
            return torch.stack([functional.dropout(torch.ones(1000, 1000), 0.5) for _ in range(2)])

    one, other = (masks(key) - 1 for key in KEYS[:2])
    far = masks(KEYS[0] + 1) - 1  # keys may differ in one bit
    pairs = {
        "clients": (one[0], other[0]),
        "near keys": (one[0], far[0]),
        "draws": (one[0], one[1]),
        "a draw and the next of another": (one[1], other[0]),
        "examples": (one[0, 1:], one[0, :-1]),
        "places": (one[0, :, 1:], one[0, :, :-1]),
        "halves of hashes": (one[0, :, ::2], one[0, :, 1::2]),
        "rows and columns": (one[0], one[0].t()),
    }
    for name, (first, second) in pairs.items():
        assert abs(float((first * second).mean())) < 4.5 / first.numel() ** 0.5, name


def test_the_laws_of_numbers():
    uniform = drawn(torch.rand, 1000, 1000).flatten()
    assert float(uniform.min()) >= 0
    assert float(uniform.max()) < 1
    points = (torch.arange(1_000_000) + 0.5) / 1_000_000
    assert float((uniform.sort().values - points).abs().max()) < 2e-3  # Kolmogorov and Smirnov: once in 1,000
    normal = drawn(torch.randn, 1000, 1000).flatten()
    assert normal.isfinite().all()
    distances = (torch.special.ndtr(normal.sort().values) - points).abs()
    assert float(distances.max()) < 2e-3
    shares = drawn(torch.bernoulli, torch.tensor([0.0, 0.2, 1.0]).expand(100_000, 3)).mean(0)
    assert shares[0] == 0
    assert abs(float(shares[1]) - 0.2) < 0.006
    assert shares[2] == 1
    bounded = drawn(lambda: torch.empty(100_000).uniform_(2, to=4))
    assert 2 <= float(bounded.min()) < 2.001
    assert 3.999 < float(bounded.max()) <= 4
    assert float(drawn(lambda: torch.rand(100_000, dtype=torch.bfloat16)).max()) < 1


def test_alpha_dropout_keeps_mean_and_variance():
    values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    dropped = drawn(lambda: functional.alpha_dropout(values, 0.4, training=True))
    assert abs(float(dropped.mean())) < 0.01
    assert abs(float(dropped.std()) - 1) < 0.01
    assert abs(float((dropped == dropped.mode().values).float().mean()) - 0.4) < 0.01


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.Dropout1d, (40, 9)), (nn.Dropout1d, (50, 20, 9)), (nn.Dropout2d, (50, 20, 3, 3)),
     (nn.Dropout3d, (1000, 1, 3, 3)), (nn.Dropout3d, (50, 20, 1, 3, 3))],
)  # fmt: skip
def test_whole_channels_are_dropped_together(layer, shape):
    batched = len(shape) == {nn.Dropout1d: 3, nn.Dropout2d: 4, nn.Dropout3d: 5}[layer]
    dropped = drawn(layer(0.5), torch.ones(shape)).flatten(2 if batched else 1)
    assert ((dropped == 0).all(-1) | (dropped == 2).all(-1)).all()
    assert 0.25 < float((dropped == 0).float().mean()) < 0.75


def test_evaluation_and_probabilities_of_0_and_1():
    values = torch.ones(5)
    with HashedDraws(KEYS[0]):
        for drop in (functional.dropout, functional.dropout2d, functional.alpha_dropout):
            assert drop(values, 0.5, training=False) is values
            assert drop(values, 0.0, training=True) is values
            assert not drop(values, 1.0, training=True).any()
        changed = values.clone()
        assert functional.dropout(changed, 0.9, inplace=True) is changed
        changed = values.clone()
        assert functional.alpha_dropout(changed, 0.9, True, True) is changed


@pytest.mark.parametrize("draw", [torch.rand, torch.randn])
def test_complex_numbers_are_not_drawn(draw):
    with pytest.raises(TypeError, match="complex64"):
        drawn(lambda: draw(3, dtype=torch.cfloat))


def test_a_generator_that_is_given_is_drawn_from():
    found = drawn(lambda: torch.rand(3, generator=torch.Generator().manual_seed(1)))
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(1)))


def test_numbers_need_no_operation_that_some_pytorch_computes_client_by_client():
    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.add(func)
            return func(*args, **(kwargs or {}))

    called = set()
    with Watching():
        drawn(lambda: torch.rand(3, 5))
    assert called
    assert torch.ops.aten.view.dtype not in called
