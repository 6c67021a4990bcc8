import numpy as np
import torch
from scipy.stats import norm, rankdata

from fedgraph.graphical.recovery.correlation import (
    collapsed,
    correlation,
    moments,
    normal_scores,
    partial_correlations,
    positive_definite,
    standardised,
    varying_units,
)


def with_gaps(rows=300, share=0.2, seed=0):
    draw = torch.Generator().manual_seed(seed)
    units = torch.randn(rows, 4, generator=draw) @ torch.tensor(
        [[1.0, 0.5, 0, 0], [0, 1, 0.5, 0], [0, 0, 1, 0.5], [0, 0, 0, 1]]
    )
    gone = torch.rand(rows, 4, generator=draw) < share
    return units * 3 + 100, torch.where(gone, torch.nan, units * 3 + 100)


def test_without_gaps_it_is_the_correlation_matrix():
    complete, _ = with_gaps()
    found = correlation(moments(standardised(complete)))
    np.testing.assert_allclose(found, np.corrcoef(complete.numpy().T), atol=1e-6)
    np.testing.assert_allclose(positive_definite(found), found, atol=1e-12)


def test_with_gaps_it_takes_the_rows_that_have_both():
    _, gaps = with_gaps()
    units = standardised(gaps)
    np.testing.assert_allclose(np.nanmean(units.numpy(), 0), 0, atol=1e-6)
    np.testing.assert_allclose(np.nanstd(units.numpy(), 0), 1, atol=1e-6)
    sums = moments(units)
    values, expected = units.double().numpy(), np.eye(4)
    for i in range(4):
        for j in range(4):
            both = ~np.isnan(values[:, i]) & ~np.isnan(values[:, j])
            assert sums.counts[i, j] == both.sum()
            if i != j:
                expected[i, j] = (values[both, i] * values[both, j]).mean()
    found = correlation(sums)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Nearly what it would be without gaps, where a mean in each gap would make it a fifth smaller.
    truth = np.corrcoef(with_gaps()[0].numpy().T)
    assert abs(found[0, 1] - truth[0, 1]) < 0.05 < 0.15 * truth[0, 1] * 1.2


def test_blocks_of_rows_add_up():
    units = standardised(with_gaps()[1])
    rest = moments(units).without(moments(units[:100]))
    for found, expected in zip(rest, moments(units[100:]), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-3)


def test_pairs_that_are_never_seen_together_and_units_that_are_equal():
    units = torch.tensor(
        [[1.0, torch.nan, 1], [-1, torch.nan, -1], [torch.nan, 1, torch.nan], [torch.nan, -1, torch.nan]]
    )
    found = correlation(moments(units))
    np.testing.assert_allclose(found, [[1, 0, 1], [0, 1, 0], [1, 0, 1]], atol=1e-12)
    raised = positive_definite(found)
    assert torch.equal(raised, raised.T)
    np.testing.assert_allclose(raised.diagonal(), 1)
    assert 5e-4 < float(torch.linalg.eigvalsh(raised)[0]) < 2e-3
    np.testing.assert_allclose(raised, found, atol=2e-3)


def test_correlations_of_different_rows_become_positive_definite():
    impossible = torch.tensor([[1.0, 0.9, -0.9], [0.9, 1, 0.9], [-0.9, 0.9, 1]]).double()
    assert float(torch.linalg.eigvalsh(impossible)[0]) < 0
    both = positive_definite(torch.stack([impossible, torch.eye(3).double()]))
    assert bool((torch.linalg.eigvalsh(both)[0] > 1e-4).all())
    np.testing.assert_allclose(both[1], np.eye(3), atol=1e-12)


def test_normal_scores_are_quantiles_of_ranks():
    _, gaps = with_gaps(rows=50)
    found = normal_scores((gaps - 100).exp())
    for column in range(4):
        present = ~gaps[:, column].isnan()
        values = gaps[present, column].numpy()
        np.testing.assert_allclose(found[present, column], norm.ppf(rankdata(values) / (len(values) + 1)), atol=1e-6)
        assert bool(found[~present, column].isnan().all())
    binary = torch.tensor([[0.0], [1], [1], [0], [1], [torch.nan]])
    np.testing.assert_allclose(standardised(normal_scores(binary))[:5], standardised(binary)[:5], atol=1e-6)


def test_units_that_hardly_vary_and_a_category_of_each_feature_are_left_out():
    rows = 20
    units = torch.zeros(rows, 9)
    units[:, 0] = torch.arange(rows)  # a number
    units[:4, 1] = 1  # true in 4 rows
    units[:, 2] = torch.nan
    units[4:, 3] = torch.nan  # equal where it is there
    codes = torch.tensor([0] * 9 + [1] * 6 + [2] * 5)
    units[:, 4:7] = torch.nn.functional.one_hot(codes, 3).float()
    units[:, 7:9] = torch.nn.functional.one_hot((codes > 0).long(), 2).float()
    units[0, 7:9] = torch.nan
    feature = torch.tensor([0, 1, 2, 3, 4, 4, 4, 5, 5])
    assert varying_units(units, feature, 5).tolist() == [True, False, False, False, False, True, True, True, False]
    assert varying_units(units, feature, 4).tolist()[1] is True
    assert varying_units(units, feature, 6).tolist()[4:7] == [False, True, False]
    assert varying_units(units[:, :0], feature[:0], 1).tolist() == []


def test_partial_correlations_are_those_of_residuals():
    units = np.random.default_rng(0).normal(size=(500, 4)) @ np.array(
        [[1, 0.5, 0, 0.2], [0, 1, -0.5, 0], [0, 0, 1, 0.5], [0, 0, 0, 1]]
    )
    units -= units.mean(0)
    found = partial_correlations(torch.from_numpy(np.linalg.inv(np.cov(units.T))))
    for i in range(4):
        for j in range(i):
            others = np.delete(units, [i, j], 1)
            rest = [units[:, k] - others @ np.linalg.lstsq(others, units[:, k], rcond=None)[0] for k in (i, j)]
            np.testing.assert_allclose(found[i, j], np.corrcoef(*rest)[0, 1], atol=1e-10)
    assert found.diagonal().tolist() == [1, 1, 1, 1]
    assert partial_correlations(torch.tensor([[4.0, -2], [-2, 4]])).tolist() == [[1, 0.5], [0.5, 1]]
    assert partial_correlations(torch.tensor([[4.0, -2], [-2, 0]])).tolist() == [[1, 0], [0, 1]]


def test_collapsing_takes_the_largest_of_every_pair_of_features():
    values = torch.rand(5, 5, generator=torch.Generator().manual_seed(0))
    values = values + values.T
    feature = torch.tensor([0, 0, 1, 3, 3])
    found = collapsed(values, feature, 4)
    expected = np.zeros((4, 4))
    for i in range(4):
        for j in range(4):
            part = values.numpy()[np.ix_(feature.numpy() == i, feature.numpy() == j)]
            expected[i, j] = part.max() if part.size and i != j else 0
    np.testing.assert_array_equal(found, expected.astype(np.float32))
    assert found[2].tolist() == [0, 0, 0, 0], "feature 2 has no units"
