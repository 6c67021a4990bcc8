import numpy as np
import pytest
import torch

from fedgraph.fusion.forecasting import (
    ForecastFusion,
    ForecastFusionSettings,
    OwnerWindows,
    fit_forecasts,
    forecasts,
    graph_weights,
)
from fedgraph.support.errors import DataError, RunError

OWNERS, SIZE, OUTPUTS = 4, 5, 3
SMALL = {"aligned_size": 3, "hidden": 6, "steps": 60, "evaluate_every": 20, "batch_size": 32}
RING = torch.tensor([[0.0, 1, 0, 3], [1, 0, 1, 0], [0, 2, 5, 2], [1, 0, 0, 0]])


def built(given=None, seed=0, **keys):
    settings = ForecastFusionSettings(**{**SMALL, **keys})
    return ForecastFusion(
        OWNERS,
        SIZE,
        OUTPUTS,
        settings,
        graph_weights(settings.graph, given, OWNERS, 0),
        torch.Generator().manual_seed(seed),
    )


def by_hand(network, embeddings, present, matrices):
    """One window, owner by owner."""
    state = {name: value.detach().double().numpy() for name, value in network.state_dict().items()}
    aligned = []
    for owner in range(OWNERS):
        z = np.maximum(embeddings[owner] @ state["alignment"][owner] + state["alignment_bias"][owner, 0], 0)
        aligned.append(z if present[owner] else np.zeros(3))
    found = []
    for owner in range(OWNERS):
        parts = [aligned[owner]]
        for matrix in matrices:
            weights = [matrix[owner, other] * present[other] for other in range(OWNERS)]
            mixed = sum(weight * z for weight, z in zip(weights, aligned, strict=True))
            parts.append(mixed / sum(weights) if sum(weights) else np.zeros(3))
        hidden = np.maximum(np.concatenate(parts) @ state["first"][owner] + state["first_bias"][owner, 0], 0)
        found.append(hidden @ state["second"][owner] + state["second_bias"][owner, 0])
    return np.array(found)


@pytest.mark.parametrize("graph", ["learned", "given", "none"])
def test_forecasts_are_those_of_a_plain_loop(graph):
    network = built(RING, graph=graph)
    random = np.random.default_rng(0)
    embeddings = random.standard_normal((OWNERS, 6, SIZE))
    present = random.random((OWNERS, 6)) < 0.6
    found = network(torch.tensor(embeddings).float(), torch.tensor(present)).detach().numpy()
    matrices = []
    if graph == "learned":
        edges = np.exp(network.edges.detach().double().numpy())
        matrices = list(edges / edges.sum(2, keepdims=True))
    elif graph == "given":
        step = RING.numpy() * (1 - np.eye(OWNERS))
        step = step / step.sum(1, keepdims=True)
        matrices = [step, step @ step]
    for window in range(6):
        expected = by_hand(network, embeddings[:, window], present[:, window], matrices)
        np.testing.assert_allclose(found[:, window], expected, rtol=1e-4, atol=1e-5)


def relayed(windows, seed=0, delay=True):
    """What owner i forecasts is what owner i - 1 has in its embedding; of owner 0 nobody knows."""
    random = torch.Generator().manual_seed(seed)
    embeddings = torch.randn(OWNERS, windows, SIZE, generator=random)
    targets = torch.randn(OWNERS, windows, OUTPUTS, generator=random)
    if delay:
        targets[1:] = embeddings[:-1, :, :OUTPUTS]
    there = torch.ones(OWNERS, windows, dtype=torch.bool)
    return OwnerWindows(torch.arange(windows), there, embeddings, targets, there[..., None].expand(-1, -1, OUTPUTS))


def errors(network, windows):
    return (forecasts(network, windows) - windows.targets).abs().mean((1, 2))


@pytest.mark.process
def test_a_learned_graph_finds_who_knows_the_future():
    training, validation, test = relayed(2000), relayed(300, 1), relayed(300, 2)
    keys = {"steps": 1500, "evaluate_every": 100, "hidden": 24, "aligned_size": 12, "learning_rate": 0.01}
    found = {}
    for graph in ("learned", "none"):
        settings = ForecastFusionSettings(**{**SMALL, **keys}, graph=graph)
        fit = fit_forecasts(settings, training, validation, None, seed=0)
        found[graph] = errors(fit.network, test)
        if graph == "learned":
            mixing = fit.network.mixing().detach().max(0).values
            assert mixing[1:].argmax(1).tolist() == [0, 1, 2]
    assert bool((found["learned"][1:] < 0.5 * found["none"][1:]).all())
    assert float(found["learned"][0]) > 0.7


def test_a_learned_graph_has_a_learning_rate_of_its_own():
    """With a few steps, it has found who knows the future, which at the network's rate it has not."""
    training, validation = relayed(2000), relayed(300, 1)
    keys = {"steps": 60, "evaluate_every": 20, "hidden": 24, "aligned_size": 12, "learning_rate": 0.01}

    def weight(rate):
        settings = ForecastFusionSettings(**{**SMALL, **keys, "graph_rate": rate})
        mixing = fit_forecasts(settings, training, validation, None, seed=0).network.mixing().detach().max(0).values
        return float(mixing[1:].diagonal().mean())

    assert weight(30.0) > weight(1.0) + 0.2


def test_the_network_of_the_best_look_is_kept():
    looks = []
    settings = ForecastFusionSettings(**{**SMALL, "steps": 50, "learning_rate": 0.05})
    training, validation = relayed(40, delay=False), relayed(40, 1, delay=False)
    fit = fit_forecasts(settings, training, validation, None, 0, lambda *look: looks.append(look))
    assert [step for step, _, _ in looks] == [20, 40, 50]
    best = min(looks, key=lambda look: look[2])
    assert (fit.step, fit.validation_loss) == (best[0], best[2])
    found = errors(fit.network, validation).mean()
    assert float(found) == pytest.approx(fit.validation_loss, rel=1e-5)
    again = fit_forecasts(settings, training, validation, None, 0)
    assert all(torch.equal(*pair) for pair in zip(fit.network.parameters(), again.network.parameters(), strict=True))


def test_readings_that_are_missing_do_not_count():
    training, validation = relayed(200), relayed(50, 1)
    hidden = torch.rand(training.known.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    settings = ForecastFusionSettings(**SMALL)

    def parameters(filling):
        targets = training.targets.masked_fill(hidden, filling)
        some = OwnerWindows(training.keys, training.present, training.embeddings, targets, training.known & ~hidden)
        return fit_forecasts(settings, some, validation, None, 0).network.parameters()

    assert all(torch.equal(*pair) for pair in zip(parameters(0.0), parameters(1e3), strict=True))


def test_what_cannot_be_learned_is_refused():
    windows = relayed(20)
    nothing = OwnerWindows(
        windows.keys, windows.present, windows.embeddings, windows.targets, torch.zeros_like(windows.known)
    )
    with pytest.raises(DataError, match="no validation windows with readings"):
        fit_forecasts(ForecastFusionSettings(**SMALL), windows, nothing, None, 0)
    with pytest.raises(DataError, match=r"source of \[graph\]"):
        fit_forecasts(ForecastFusionSettings(**SMALL, graph="given"), windows, windows, None, 0)
    huge = OwnerWindows(windows.keys, windows.present, 1e38 * windows.embeddings, windows.targets, windows.known)
    with pytest.raises(RunError, match="diverged .*learning-rate"):
        fit_forecasts(ForecastFusionSettings(**SMALL), huge, huge, None, 0)
