import pytest
import torch

from fedgraph.clients.scaffold import ScaffoldClient, gradient_weight
from fedgraph.support.settings import parse
from fedgraph.training.settings import TrainSettings

SETTINGS = {
    "plain": {},
    "decay": {"learning-rate-decay": 0.5},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.7, "nesterov": True},
    "schedule": {"momentum": 0.9, "nesterov": True, "warmup-epochs": 0.5, "final-learning-rate": 0.001},
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_weight_is_the_way_where_the_gradient_is_one(one_node, kind):
    """torch.optim.SGD along a slope of 1, a step at a time, with the rates of the cohort's own schedule."""
    settings = parse(TrainSettings, {"learning-rate": 0.2, "batch-size": 4, "local-epochs": 2, **SETTINGS[kind]}, "t")
    counts, steps = torch.tensor([10, 3, 0, 17]), torch.tensor([6, 2, 0, 10])
    got = gradient_weight(settings, counts, steps, round=3)
    assert got[2] == 0
    for client, number in enumerate(steps.tolist()):
        v = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.SGD([v], settings.rate(3), settings.momentum, nesterov=settings.nesterov)
        for step in range(1, number + 1):
            if kind == "schedule":
                rise = number / 4  # half an epoch of two
                fall = (step - rise) / (number - rise)
                optimiser.param_groups[0]["lr"] = 0.2 * step / rise if step < rise else 0.2 + fall * (0.001 - 0.2)
            v.grad = torch.ones(1, dtype=torch.float64)
            optimiser.step()
        torch.testing.assert_close(got[client], -v.detach()[0], rtol=1e-5, atol=0)


def test_weighted_mean_of_the_gradients_of_a_quadratic():
    """Not only of ones: (x - y) / weight is a mean of the gradients met on the way, so within their range."""
    settings = parse(TrainSettings, {"learning-rate": 0.05, "momentum": 0.8, "local-steps": 6}, "t")
    v = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser, met = torch.optim.SGD([v], 0.05, 0.8), []
    for _ in range(6):
        met.append(v.item() - 1)
        v.grad = torch.tensor([met[-1]], dtype=torch.float64)
        optimiser.step()
    shares = [sum(0.8**k for k in range(6 - j)) for j in range(6)]
    mean = sum(a * g for a, g in zip(shares, met, strict=True)) / sum(shares)
    weight = gradient_weight(settings, torch.tensor([9]), torch.tensor([6]), round=1)
    assert (-v.item() / weight).item() == pytest.approx(mean)


def control(node, seed):
    return torch.randn(node.layout.num_trainable, generator=torch.Generator().manual_seed(seed)) * 0.01


def test_control_variates_take_part_from_the_next_round_on(one_node):
    node = one_node(ScaffoldClient)
    x, c = node.model(), torch.zeros(node.layout.num_trainable)
    first = node.ask(1, {"parameters": x, "control": c})
    kept = node.remembered("control-variates", control=c)["control"]
    assert torch.equal(kept, first.stacked["control"])
    steps = node.cohort.train(x.expand(2, -1), 1).steps
    torch.testing.assert_close(kept, (x - first.stacked["parameters"]) / (0.1 * steps[:, None]))
    c = control(node, 1)
    second = node.ask(2, {"parameters": x, "control": c})
    plain = node.cohort.train(x.expand(2, -1), 2, lambda v, clients, weight: (c - kept)[clients])
    assert torch.equal(second.stacked["parameters"], plain.parameters)
    expected = kept - c + (x - plain.parameters) / (0.1 * steps[:, None])
    torch.testing.assert_close(second.stacked["control"], expected)


def test_correction_is_that_of_the_rows_in_training(one_node):
    node = one_node(ScaffoldClient)
    c, own = control(node, 1), torch.stack([control(node, 2), control(node, 3)])
    served = node.served(2, {"parameters": node.model(), "control": c})
    served.controls = own
    for clients in (slice(1, 2), torch.tensor([1, 0])):
        term = served.gradient_term()(own[clients], clients, torch.ones(2))
        torch.testing.assert_close(term, c - own[clients])


def test_who_shares_a_request_is_of_no_matter(one_node):
    node = one_node(ScaffoldClient)
    shared = {"parameters": node.model(), "control": control(node, 1)}
    both = node.ask(1, shared)
    again = node.ask(2, shared)
    alone = node.ask(2, shared, clients=("client-1",))
    torch.testing.assert_close(alone.stacked["control"][0], again.stacked["control"][1], rtol=1e-4, atol=1e-6)
    assert not torch.allclose(both.stacked["control"], again.stacked["control"], rtol=1e-3)


@pytest.mark.parametrize("trouble", ["diverged", "untrained"])
def test_a_client_that_diverged_or_did_not_train_keeps_its_control_variate(one_node, first_client_fails, trouble):
    node = one_node(ScaffoldClient)
    shared = {"parameters": node.model(), "control": control(node, 1)}
    first = node.ask(1, shared).stacked["control"]
    first_client_fails(ScaffoldClient, trouble)
    second = node.ask(2, shared).stacked["control"]
    assert torch.equal(second[0], first[0])
    assert not torch.equal(second[1], first[1])
    assert torch.equal(node.remembered("control-variates", control=shared["control"])["control"], second)
