import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from fedgraph.graphical.scores.sample_quality import sample_quality
from fedgraph.support.errors import DataError


def test_rows_of_the_same_table_cannot_be_told_apart(mixed):
    schema, rows = mixed(4000)
    found = sample_quality(schema, rows, mixed(4000, seed=1)[1])
    assert max(found.marginal.values()) < 0.04
    assert found.correlation[0] < 0.05
    assert found.auc == pytest.approx(0.5, abs=0.03)


def test_marginal_distances_are_those_of_scipy_and_of_shares(mixed):
    schema, rows = mixed(300)
    others = mixed(200, seed=1)[1]
    others[:, 0] = others[:, 0] ** 2
    others[:5, 5] = torch.nan
    found = sample_quality(schema, rows, others).marginal
    assert found["size"] == pytest.approx(ks_2samp(rows[:, 0], others[:, 0]).statistic)
    assert found["age"] == pytest.approx(ks_2samp(rows[:, 5], others[5:, 5]).statistic)
    assert found["ill"] == pytest.approx(abs(float(rows[:, 1].mean() - others[:, 1].mean())))
    assert found["place"] == pytest.approx(float((rows[:, 2:5].mean(0) - others[:, 2:5].mean(0)).abs().sum() / 2))


def test_lost_dependence_is_seen_in_correlations_and_by_the_classifier(chain, numbers):
    rows, others = chain(3000, 3), chain(3000, 3, seed=1)
    shuffled = torch.stack(
        [rows[torch.randperm(3000, generator=torch.Generator().manual_seed(f)), f] for f in range(3)]
    )
    found = sample_quality(numbers(3), shuffled.T, others)
    assert max(found.marginal.values()) < 0.05
    wanted = np.abs(np.corrcoef(shuffled) - np.corrcoef(others.T))[np.triu_indices(3, 1)]
    assert found.correlation == pytest.approx((wanted.max(), wanted.mean()), abs=1e-5)
    assert found.auc > 0.75
    assert "largest" in found.as_text()
    assert f"{found.auc:.3f}" in found.as_text()


def test_gaps_do_not_give_samples_away(chain, numbers):
    rows, others = chain(3000, 3), chain(3000, 3, seed=1)
    others[torch.rand(3000, 3, generator=torch.Generator().manual_seed(0)) < 0.4] = torch.nan
    others[:, 2] = 0.5
    rows[:, 2] = 0.5
    found = sample_quality(numbers(3), rows, others)
    assert found.auc == pytest.approx(0.5, abs=0.03)
    # What does not vary has no correlation.
    assert found.correlation[0] < 0.06


def test_too_few_rows_are_refused(chain, numbers):
    with pytest.raises(DataError, match="at least 10 rows of 3 units"):
        sample_quality(numbers(3), chain(9, 3), chain(20, 3))
