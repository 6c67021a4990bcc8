import numpy as np
import torch

from fedgraph.graphical.recovery.partial_correlations import collapsed, partial_correlations


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
