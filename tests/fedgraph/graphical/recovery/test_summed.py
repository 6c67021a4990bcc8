"""One graph from sums over the rows of many clients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.recovery import RecoverySettings
from fedgraph.graphical.recovery.correlation import correlation, moments, standardised
from fedgraph.graphical.recovery.summed import STEPS, UnitSums, recover_from_sums, with_noise
from fedgraph.privacy.noise.counts import CountNoiseSettings
from fedgraph.support.errors import ReplyError

SCHEMA = Schema(
    (
        Feature("weight", "real"),
        Feature("ward", "categorical", ("a", "b", "c")),
        Feature("dead", "binary", ("n", "y")),
        Feature("age", "integer"),
        Feature("scan", "embedding", size=2),
    )
)


def rows(count=3000, seed=0, missing=0.1):
    """Weight decides on death, which is rare; the ward on age. Units ``[rows, 8]`` with gaps."""
    random = np.random.default_rng(seed)
    weight = random.random(count)
    dead = random.random(count) < 0.6 * np.maximum(0, 0.2 - weight)
    ward = random.integers(0, 3, count)
    age = np.clip(ward / 3 + random.normal(0, 0.1, count), 0, 1.2)
    scan = random.random((count, 2))
    blocks = [weight[:, None], np.eye(3)[ward], dead[:, None], age[:, None], scan]
    for block in blocks:
        block[random.random(count) < missing] = np.nan
    return torch.from_numpy(np.concatenate(blocks, 1)).float()


def summed(tables):
    flat = torch.stack([UnitSums.of(table, SCHEMA).flat() for table in tables]).sum(0)
    return UnitSums.from_flat(flat, SCHEMA)


def test_sums_of_clients_are_those_of_pooled_rows_and_their_graph_is_that_of_pooled_rows():
    table = rows()
    pooled = UnitSums.of(table, SCHEMA)
    dealt = list(table[torch.randperm(len(table), generator=torch.Generator().manual_seed(1))].chunk(30))
    together, other_order = summed(dealt), summed(dealt[::-1])
    for name in ("counts", "sums", "products"):
        assert torch.equal(getattr(together, name), getattr(pooled, name))
        assert torch.equal(getattr(other_order, name), getattr(pooled, name))
    found = [recover_from_sums(RecoverySettings(), SCHEMA, sums) for sums in (pooled, together, other_order)]
    assert found[0].graph == found[1].graph == found[2].graph
    assert torch.equal(found[0].strengths, found[1].strengths)
    assert {("weight", "dead"), ("ward", "age")} == set(found[0].graph.edges)
    alone = [recover_from_sums(RecoverySettings(), SCHEMA, UnitSums.of(part, SCHEMA)).graph for part in dealt]
    assert sum(("weight", "dead") in graph.edges for graph in alone) < 5, "hardly anybody has five deaths"


def test_correlations_are_those_of_the_rows_where_both_are_known():
    table = rows(missing=0.3).clamp(0, 1)
    steps = (table * STEPS).round() / STEPS
    found, variance = UnitSums.of(table, SCHEMA).moments(SCHEMA)
    by_rows = moments(standardised(steps))
    torch.testing.assert_close(correlation(found), correlation(by_rows), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.counts, by_rows.counts)
    np.testing.assert_allclose(variance, np.nanvar(steps.double().numpy(), 0), rtol=1e-5)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda sums: sums.counts.__setitem__((0, 1), 5000),
        lambda sums: sums.counts.__setitem__((0, 1), -1),
        lambda sums: sums.sums.__setitem__((0, 0), STEPS * 4000),
        lambda sums: sums.products.__setitem__((0, 0), -5),
    ],
)
def test_what_no_rows_add_up_to_is_refused(spoil):
    table = rows()
    UnitSums.of(table, SCHEMA).check(SCHEMA, len(table))
    with pytest.raises(ReplyError, match="impossible for 2,999 rows"):
        UnitSums.of(rows(missing=0), SCHEMA).check(SCHEMA, 2999)
    spoilt = UnitSums.of(table, SCHEMA)
    spoil(spoilt)
    with pytest.raises(ReplyError, match="impossible for 3,000 rows"):
        spoilt.check(SCHEMA, len(table))


def test_sums_of_another_length_or_type_are_refused():
    flat = UnitSums.of(rows(10), SCHEMA).flat()
    assert flat.shape == (UnitSums.width(SCHEMA),)
    for wrong in (flat[1:], flat.double()):
        with pytest.raises(ReplyError, match="the sums are"):
            UnitSums.from_flat(wrong, SCHEMA)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_noise_is_as_large_as_a_row_in_the_place_of_another_wants(mechanism):
    noise = CountNoiseSettings(mechanism=mechanism, epsilon=2.0)
    sums = UnitSums.of(rows(), SCHEMA)
    told = with_noise(sums, SCHEMA, noise, torch.Generator().manual_seed(0))
    assert torch.equal(told.products, told.products.T)
    # Six numbers that a row has: the embedding has two.
    if mechanism == "gaussian":
        from dp_accounting import get_sigma_gaussian

        wanted = get_sigma_gaussian(2.0, 1e-6) * math.sqrt(6) * 6
    else:
        wanted = math.sqrt(2) * 6 * 36 / 2.0
    off = (told.sums - sums.sums).double() / STEPS
    assert off.std() == pytest.approx(wanted, rel=0.35)
    off = (told.products - sums.products).double().triu() / STEPS**2
    assert off[off != 0].std() == pytest.approx(wanted, rel=0.35)
    recover_from_sums(RecoverySettings(), SCHEMA, told)


def test_no_row_moves_sums_further_than_noise_is_made_for():
    """The largest change that two rows bring about, among extreme ones."""
    random = np.random.default_rng(0)
    most = 0.0
    for _ in range(200):
        pair = []
        for _ in range(2):
            ward = np.eye(3)[random.integers(3)]
            row = np.concatenate([random.integers(0, 2, 1), ward, random.integers(0, 2, 4)]).astype(np.float32)
            if random.random() < 0.5:
                row[:] = np.nan
            sums = UnitSums.of(torch.from_numpy(row[None]), SCHEMA)
            parts = [
                sums.counts.triu().flatten(),
                sums.sums.flatten() / STEPS,
                sums.products.triu().flatten() / STEPS**2,
            ]
            pair.append(torch.cat([part.double() for part in parts]))
        most = max(most, float((pair[0] - pair[1]).norm()))
        assert float((pair[0] - pair[1]).abs().sum()) <= 6 * 36
    assert most <= math.sqrt(6) * 6


def test_targets_get_neighbours_where_nothing_is_beyond_the_thresholds():
    few = UnitSums.of(rows(60, seed=2), SCHEMA)
    assert not recover_from_sums(RecoverySettings(), SCHEMA, few, ["weight"]).graph.subgraph(["weight", "scan"]).edges
    found = recover_from_sums(RecoverySettings(target_neighbours=2), SCHEMA, few, ["weight"]).graph
    assert sum("weight" in edge for edge in found.edges) == 2
