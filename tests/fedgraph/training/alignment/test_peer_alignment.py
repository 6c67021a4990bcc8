import pytest
import torch
from torch.nn.functional import cross_entropy, relu

from fedgraph.support.settings import parse
from fedgraph.training.alignment.peer_alignment import (
    Distance,
    FixedAlignment,
    PeerAlignment,
    alignment,
    alignment_pull,
)
from fedgraph.training.optimisers import Optimiser, fresh_state
from fedgraph.training.settings import TrainSettings

SHAPES = ((6, 5), (5,), (5, 4), (4,), (4, 3), (3,))
SIZE = sum(torch.Size(shape).numel() for shape in SHAPES)


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def loss_of(theta, inputs, labels):
    """The summed loss of a net of three layers whose parameters are one vector."""
    parts = [part.view(shape) for part, shape in zip(theta.split([torch.Size(s).numel() for s in SHAPES]), SHAPES,
                                                     strict=True)]  # fmt: skip
    for weight, bias in zip(parts[0:4:2], parts[1:4:2], strict=True):
        inputs = relu(inputs @ weight + bias)
    return cross_entropy(inputs @ parts[4] + parts[5], labels, reduction="sum")


@pytest.mark.parametrize("power", [1, 1.5, 2, 3])
def test_pull_is_the_gradient_by_autograd(power):
    own, others, weights = drawn(SIZE).requires_grad_(), drawn(4, SIZE, seed=1).requires_grad_(), torch.rand(4)
    alignment(own, others, weights, power).backward()
    pull = alignment_pull(own.detach(), others.detach(), weights, power)
    torch.testing.assert_close(pull.sum(0), own.grad)
    torch.testing.assert_close(-pull, others.grad)
    assert not alignment_pull(own.detach(), own.detach()[None], weights[:1], power).any()


@pytest.mark.parametrize("power", [1, 1.5, 2])
def test_of_peers_that_stay_several_are_computed_at_once(power):
    own, peers = drawn(3, SIZE), drawn(5, SIZE, seed=1)
    weights = torch.rand(4, 5, generator=torch.Generator().manual_seed(2))
    clients, examples = torch.tensor([3, 0, 1]), torch.tensor([7.0, 2.0, 5.0])
    for of_sum in (True, False):
        added = FixedAlignment(peers, weights, Distance(0.5, of_sum, power))(own, clients, examples)
        for row, client in enumerate(clients.tolist()):
            scale = 0.5 / examples[row] if of_sum else 0.5
            torch.testing.assert_close(
                added[row], scale * alignment_pull(own[row], peers, weights[client], power).sum(0)
            )


TRAIN = {
    "adam": {"optimizer": "adam", "learning-rate": 0.01},
    "momentum": {"optimizer": "sgd", "learning-rate": 0.01, "momentum": 0.9},
    "schedule": {"optimizer": "adam", "learning-rate": 0.01, "warmup-epochs": 1, "final-learning-rate": 0.001,
                 "local-epochs": 2},
}  # fmt: skip


@pytest.mark.parametrize("kind", TRAIN)
@pytest.mark.parametrize("power", [1, 2])
def test_all_move_as_under_one_optimiser_of_pytorch(kind, power):
    """Over the parameters of all peers, of the summed loss and the distances; four minibatches of 10 examples."""
    settings = parse(TrainSettings, {"batch-size": 10, **TRAIN[kind]}, "t")
    own, others, weights = drawn(1, SIZE) * 0.3, drawn(3, SIZE, seed=1) * 0.3, torch.tensor([0.5, 0.2, 0.3])
    inputs, labels = drawn(4, 10, 6, seed=2), torch.randint(3, (4, 10), generator=torch.Generator().manual_seed(3))
    parameters = [own[0].clone().requires_grad_(), others.clone().requires_grad_()]
    if kind == "momentum":
        optimiser = torch.optim.SGD(parameters, 0.01, momentum=0.9)
    else:
        # Of the mean loss, so that Adam's epsilon is alike.
        optimiser = torch.optim.Adam(parameters, 0.01)
    moments, mine = fresh_state(settings, 3, SIZE), fresh_state(settings, 1, SIZE)
    term = PeerAlignment(
        others.clone(), weights, Distance(0.7, True, power), True, settings, 1, moments, torch.tensor([20])
    )
    stepped, trained = Optimiser(settings, 0.01, mine), own.clone()
    rates = {1: 0.005, 2: 0.01, 3: 0.0055, 4: 0.001}
    for step in range(4):
        if kind == "schedule":
            optimiser.param_groups[0]["lr"] = rates[step + 1]
        optimiser.zero_grad()
        whole = loss_of(parameters[0], inputs[step], labels[step])
        whole = whole + 0.7 * alignment(parameters[0], parameters[1], weights, power)
        (whole / 10).backward()
        optimiser.step()
        v = trained[0].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(v, inputs[step], labels[step]) / 10, v)
        gradient = gradient[None] + term(trained, slice(0, 1), torch.tensor([10.0]))
        stepped.step(trained, gradient, torch.tensor([rates[step + 1]]) if kind == "schedule" else None)
    torch.testing.assert_close(trained[0], parameters[0].detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(term.others, parameters[1].detach(), rtol=1e-4, atol=1e-5)


def test_others_that_do_not_move_stay():
    settings, others = TrainSettings(), drawn(3, SIZE, seed=1)
    term = PeerAlignment(
        others.clone(), torch.ones(3), Distance(1.0, False, 1), False, settings, 1, {}, torch.tensor([20])
    )
    own = drawn(1, SIZE)
    torch.testing.assert_close(term(own, slice(0, 1), torch.tensor([10.0]))[0], (own - others).sign().sum(0))
    assert torch.equal(term.others, others)
