"""Bounds, Krum and robust averages, against a few lines of NumPy each."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.defence import (
    bounded,
    bounded_counts,
    bounded_embeddings,
    counts_notes,
    krum_scores,
    lengths,
    robust_average,
)


def test_only_longer_rows_are_scaled():
    rows = torch.tensor([[3.0, 4.0], [30.0, 40.0], [0.0, 3e38]])
    found = bounded(rows, 10.0)
    torch.testing.assert_close(found, torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 10.0]]))
    assert torch.equal(found[0], rows[0])
    assert bounded(rows, torch.tensor([5.0, 50.0, 4e38])) is rows
    assert lengths(rows)[2].item() == pytest.approx(3e38)


@pytest.mark.parametrize(("clients", "times"), [(3, 3), (10, 10 / 3), (30, 10), (300, 50)])
def test_a_claim_counts_as_a_third_of_the_clients_at_most(clients, times):
    counts = torch.full((clients,), 120)
    counts[1] = 2**40
    found = bounded_counts(counts)
    assert found.dtype == torch.int64
    assert found.tolist() == [120, int(120 * times), *[120] * (clients - 2)]
    assert bounded_counts(counts.double() / 7)[1].item() == pytest.approx(120 * times / 7)


def test_claims_of_several_clients_are_bounded_alike_while_they_are_fewer_than_the_others():
    counts = torch.tensor([2**40, 2**39, 2**38, 2**37, 10, 10, 10, 10, 10, 0, 0, 0])
    assert bounded_counts(counts).tolist() == [30, 30, 30, 30, 10, 10, 10, 10, 10, 0, 0, 0]
    assert bounded_counts(counts, 2.5).tolist()[:5] == [25, 25, 25, 25, 10]


@pytest.mark.parametrize(
    "counts",
    [
        [19, 23, 28, 30, 31, 32, 36, 60, 88, 93],  # the hospitals of sfl/breast-cancer.toml, Dirichlet 0.3
        [255, 300, 416, 500, 580],  # those of fedngm/hospitals.toml
        [2**40, 1],  # of two, neither is most
        [5],
        [0, 0, 0],
        [],
    ],
)
def test_numbers_of_honest_clients_stay_as_they_are(counts):
    counts = torch.tensor(counts, dtype=torch.int64)
    assert bounded_counts(counts) is counts


def test_many_clients_may_differ_as_much_as_users_of_phones():
    counts = torch.linspace(0, 1, 200).square().square().mul(49).add(1).mul(20).long()
    assert counts.max() > 10 * counts.median()
    assert bounded_counts(counts) is counts


def test_there_is_no_bound_at_0_and_a_note_on_who_is_bounded():
    counts = torch.tensor([7, 2**40, 7, 7])
    assert bounded_counts(counts, 0) is counts
    assert counts_notes("abcd", counts, counts) == []
    (note,) = counts_notes("abcd", counts, bounded_counts(counts))
    assert note.startswith("'b' counted as 21 examples each, and not as the up to 1,099,511,627,776 that they claim")


@pytest.mark.parametrize("seed", range(5))
def test_krum_scores_are_sums_over_the_nearest(seed):
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
    apart = ((rows[:, None] - rows[None]) ** 2).sum(-1).numpy()
    expected = [np.sort(np.delete(apart[i], i))[: 9 - 2 - 2].sum() for i in range(9)]
    np.testing.assert_allclose(krum_scores(rows, 2).numpy(), expected, rtol=1e-5)


def test_krum_tells_absurd_updates():
    rows = torch.cat([torch.randn(7, 3), torch.full((2, 3), 1e30)])
    rows[8] = -3e38
    assert set(krum_scores(rows, 2).argsort()[-2:].tolist()) == {7, 8}


@pytest.mark.parametrize("clients", [4, 5])
def test_with_equal_weights_averages_are_those_of_statistics(clients):
    rows = torch.randn(clients, 7)
    equal = torch.ones(1, clients)
    np.testing.assert_allclose(robust_average(rows, equal, "median")[0], np.median(rows, axis=0), atol=1e-5)
    ordered = np.sort(rows.numpy(), axis=0)
    trimmed = robust_average(rows, equal, "trimmed-mean", 1 / clients)[0]
    np.testing.assert_allclose(trimmed, ordered[1:-1].mean(axis=0), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31), st.floats(0.05, 0.45))
def test_a_minority_moves_nothing_out_of_the_range_of_the_others(clients, targets, seed, trim):
    draw = torch.Generator().manual_seed(seed)
    weights = torch.rand(targets, clients, generator=draw) + 0.1
    rows = torch.randn(clients, 3, generator=draw)
    # A client with less than the share that is dropped says anything at all.
    weights = torch.cat([weights, 0.9 * trim * weights.sum(1, keepdim=True)], dim=1)
    rows = torch.cat([rows, torch.full((1, 3), -3e38)])
    for average in ("median", "trimmed-mean"):
        found = robust_average(rows, weights, average, trim)
        low, high = rows[:-1].min(0).values, rows[:-1].max(0).values
        assert (found >= low - 1e-5).all()
        assert (found <= high + 1e-5).all()


def test_clients_without_weight_do_not_count():
    rows = torch.tensor([[1.0], [2.0], [torch.finfo(torch.float32).max]])
    weights = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert robust_average(rows, weights, "median").tolist() == [[1.5], [2.0]]
    assert robust_average(rows, weights, "trimmed-mean", 0.1).tolist() == [[1.5], [2.0]]


def test_columns_in_blocks(monkeypatch):
    rows, weights = torch.randn(5, 11), torch.rand(3, 5)
    whole = robust_average(rows, weights, "median")
    monkeypatch.setattr("fedgraph.defence.aggregation._BLOCK", 30)
    assert torch.equal(robust_average(rows, weights, "median"), whole)


def test_embeddings_have_bounds_per_owner():
    embeddings = torch.randn(50, 4, 8, generator=torch.Generator().manual_seed(0))
    present = torch.ones(50, 4, dtype=torch.bool)
    present[0, 1] = False
    embeddings[0, 1] = 0.0
    assert bounded_embeddings(embeddings, present, 5.0) is embeddings
    attacked = embeddings.clone()
    attacked[:, 2] *= 1e30
    attacked[7, 3] *= 1e6
    found = bounded_embeddings(attacked, present, 5.0)
    typical = embeddings.norm(dim=2).median()
    # An owner that is too long in all is scaled by one factor, and a single sample to its owner's length.
    assert found[:, 2].norm(dim=1).median() < 6 * typical
    torch.testing.assert_close(found[:, 2] / found[:, 2].norm(), embeddings[:, 2] / embeddings[:, 2].norm())
    assert found[7, 3].norm() < 6 * typical
    untouched = torch.ones(50, 4, dtype=torch.bool)
    untouched[:, 2] = untouched[7, 3] = False
    assert torch.equal(found[untouched], embeddings[untouched])
