import numpy as np
import pytest
import torch

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.network.heads import Heads, normalised, sample_one_hot

SCHEMA = Schema(
    (
        Feature("kind", "categorical", ("a", "b", "c")),
        Feature("size", "real"),
        Feature("ill", "binary", ("no", "yes")),
        Feature("colour", "categorical", ("r", "g")),
    )
)
TARGETS = torch.tensor([[1.0, 0, 0, 0.3, 1, 0, 1], [0, 0, 1, 0.9, 0, 1, 0]]).T[None]
OUTPUTS = torch.randn(1, 7, 2, generator=torch.Generator().manual_seed(0)) * 3


def softmax(scores):
    return np.exp(scores) / np.exp(scores).sum(0)


def test_predictions_are_numbers_and_probabilities():
    found = Heads(SCHEMA, cross_entropy=True).predictions(OUTPUTS)[0].numpy()
    raw = OUTPUTS[0].numpy()
    assert found[:3] == pytest.approx(softmax(raw[:3]), rel=1e-5)
    assert (found[3] == raw[3]).all()
    assert found[4] == pytest.approx(1 / (1 + np.exp(-raw[4])), rel=1e-5)
    assert found[5:] == pytest.approx(softmax(raw[5:]), rel=1e-5)


def test_losses_are_cross_entropies_and_squares():
    found = Heads(SCHEMA, cross_entropy=True).losses(OUTPUTS, TARGETS, None)[0]
    raw, wanted = OUTPUTS[0].numpy(), TARGETS[0].numpy()
    chance = 1 / (1 + np.exp(-raw[4]))
    assert found.tolist() == pytest.approx(
        [
            -(wanted[:3] * np.log(softmax(raw[:3]))).sum(),
            ((raw[3] - wanted[3]) ** 2).sum(),
            -(wanted[4] * np.log(chance) + (1 - wanted[4]) * np.log(1 - chance)).sum(),
            -(wanted[5:] * np.log(softmax(raw[5:]))).sum(),
        ],
        rel=1e-5,
    )


def test_the_paper_squares_the_errors_of_all_units():
    found = Heads(SCHEMA, cross_entropy=False).losses(OUTPUTS, TARGETS, None)[0]
    squares = ((OUTPUTS - TARGETS)[0].numpy() ** 2).sum(1)
    assert found.tolist() == pytest.approx([squares[:3].sum(), squares[3], squares[4], squares[5:].sum()], rel=1e-5)


def test_what_is_not_observed_does_not_count():
    observed = torch.ones_like(TARGETS)
    observed[0, :3, 1] = observed[0, 3, 0] = observed[0, 4, 1] = 0
    heads = Heads(SCHEMA, cross_entropy=True)
    first, second = (heads.losses(OUTPUTS[..., [row]], TARGETS[..., [row]], None)[0] for row in (0, 1))
    wanted = torch.stack([first[0], second[1], first[2], first[3] + second[3]])
    assert torch.allclose(heads.losses(OUTPUTS, TARGETS, observed)[0], wanted)


@pytest.mark.parametrize("cross_entropy", [True, False])
def test_slopes_and_errors_make_the_gradient(cross_entropy):
    heads, outputs = Heads(SCHEMA, cross_entropy), OUTPUTS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(heads.losses(outputs, TARGETS, None).sum(), outputs)
    errors = heads.predictions(OUTPUTS) - TARGETS
    assert torch.allclose(gradient, errors * heads.slopes[:, None], atol=1e-6)


def test_marginals_are_what_means_predict_and_lose():
    heads = Heads(SCHEMA, cross_entropy=True)
    mean = torch.tensor([[0.2, 0.3, 0.5, 0.6, 0.9, 0.4, 0.6]])
    assert torch.allclose(heads.predictions(heads.marginal(mean)[:, :, None])[..., 0], mean)
    found = heads.marginal_losses(mean, torch.full((1, 7), 0.1))[0]
    kind, ill, colour = (-(p * np.log(p)).sum() for p in map(np.array, ([0.2, 0.3, 0.5], [0.1, 0.9], [0.4, 0.6])))
    assert found.tolist() == pytest.approx([kind, 0.01, ill, colour], rel=1e-5)
    squared = Heads(SCHEMA, cross_entropy=False).marginal_losses(mean, torch.full((1, 7), 0.1))[0]
    assert squared.tolist() == pytest.approx([0.16 + 0.21 + 0.25, 0.01, 0.09, 0.48], rel=1e-5)


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
    drawn = sample_one_hot(probabilities, OWNER, torch.tensor(uniform).expand(2, -1, -1))
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
    drawn = sample_one_hot(shares, owner, torch.full((1, 3, 4000), 1 - 2**-24))
    assert (drawn.unflatten(1, (3, 20)).sum(2) == 1).all()
