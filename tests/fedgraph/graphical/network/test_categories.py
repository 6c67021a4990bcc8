import numpy as np
import torch

from fedgraph.graphical.network.categories import normalised, one_of_each

OWNER = torch.tensor([0, 1, 1, 1, 2, 3, 3])


def test_estimates_become_probabilities():
    estimates = torch.tensor([1.2, 0.5, -0.3, 1.5, 0.3, -1.0, -2.0])[None, :, None]
    found = normalised(estimates, OWNER)[0, :, 0]
    assert torch.allclose(found, torch.tensor([1.0, 1 / 3, 0.0, 2 / 3, 0.3, 0.5, 0.5]))


def test_categories_are_those_of_numpys_inverse():
    random = np.random.default_rng(0)
    shares = [np.array([0.3]), random.dirichlet([1, 1, 1]), np.array([0.9]), np.array([0.0, 1.0])]
    uniform = random.random((4, 500))
    probabilities = torch.tensor(np.concatenate(shares)).expand(2, 500, -1).transpose(1, 2)
    drawn = one_of_each(probabilities, OWNER, torch.tensor(uniform).expand(2, -1, -1))
    wanted = [uniform[:1] < 0.3]
    for feature in (1, 2, 3):
        if len(shares[feature]) == 1:
            wanted.append(uniform[[feature]] < shares[feature])
            continue
        chosen = np.searchsorted(shares[feature].cumsum(), uniform[feature], "right")
        wanted.append(np.arange(len(shares[feature]))[:, None] == chosen)
    assert (drawn == torch.tensor(np.concatenate(wanted))).all()


def test_every_feature_has_one_category_whatever_rounding_does():
    shares = torch.rand(1, 60, 4000, generator=torch.Generator().manual_seed(0))
    owner = torch.arange(60) // 20
    shares = normalised(shares, owner)
    drawn = one_of_each(shares, owner, torch.full((1, 3, 4000), 1 - 2**-24))
    assert (drawn.unflatten(1, (3, 20)).sum(2) == 1).all()
