from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph.algorithms.sfl_cold_start import SFLColdStart, SFLColdStartSettings
from fedgraph.data import open_source, parse_data
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.models import build
from fedgraph.runs.result_files import load_models
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse
from fedgraph.training.cohort import Cohort, TrainSettings

NAMES = ("a", "b", "c", "d", "e")
COUNTS = torch.tensor([100, 120, 5, 90, 0])
GRAPH = ClientGraph.from_lists(NAMES, ["a", "b", "c", "c"], ["b", "d", "a", "b"], [1.0, 2.0, 0.5, 0.1], directed=False)


@pytest.fixture(scope="session")
def strategy(serve):
    def of(graph=GRAPH, **table):
        algorithm = SFLColdStart(parse(SFLColdStartSettings, table, "[sfl-cold-start]"))
        hosts = {7: torch.arange(3), 8: torch.arange(3, 5)}
        return serve(algorithm, COUNTS, {"w": torch.zeros(4), "b": torch.zeros(2)}, graph=graph, hosts=hosts)

    return of


def asked(served):
    return served.algorithm.ask(served.clients, served.state)


def replies(theta, graph=GRAPH, rows=(0, 1, 2, 3, 4)):
    rows = list(rows)
    names = tuple(NAMES[row] for row in rows)
    return Replies(torch.tensor(rows), names, {"parameters": theta[rows]}, {}, graph.subgraph(names), COUNTS[rows])


def walk(graph):
    a = graph.dense().numpy().astype(float)
    np.fill_diagonal(a, np.where(a.diagonal() > 0, a.diagonal(), 1))  # self loops where missing
    return a / a.sum(1)[:, None]


def test_cold_clients_get_the_warm_models_of_their_neighbourhood(strategy, aggregated):
    theta = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    served = strategy(everybody=0.7, alpha=0.4)
    assert served.algorithm.cold(served.clients).tolist() == [False, False, True, False, True]
    got = aggregated(served, 1, replies(theta)).numpy()
    n, p, models = COUNTS.numpy().astype(float), walk(GRAPH), theta.numpy()
    warm = n * (n > 10)
    for row in (2, 4):
        g = (p[row] + 0.7 / 5) * warm
        np.testing.assert_allclose(got[row], g @ models / g.sum(), rtol=1e-4, atol=1e-5)
    for row in (0, 1, 3):
        g = (0.6 * np.eye(5)[row] + 0.4 * p[row]) * n
        np.testing.assert_allclose(got[row], g @ models / g.sum(), rtol=1e-4, atol=1e-5)


def test_everybody_trains_from_the_mean_by_examples(strategy, aggregated):
    theta = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    served = strategy()
    aggregated(served, 1, replies(theta))
    wanted = (COUNTS[:, None] * theta).sum(0) / COUNTS.sum()
    torch.testing.assert_close(asked(served).shared["global"], wanted)
    again = strategy()
    again.load(served.saved())
    torch.testing.assert_close(asked(again).shared["global"], wanted)
    assert torch.equal(asked(again).stacked["prior"], asked(served).stacked["prior"])


def test_candidates_travel_only_to_nodes_that_choose_and_only_to_measure(strategy, aggregated):
    theta = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    served = strategy()
    assert "prior" not in asked(served).stacked
    aggregated(served, 1, replies(theta))
    choosing, other = served.federation.hosts[7], served.federation.hosts[8]
    assert torch.equal(asked(served).further(choosing, True)["candidates"], theta[[0, 1, 3]])
    assert asked(served).further(choosing, False) == {}
    assert asked(served).further(other, True) == {}, "e has nothing to choose by"
    prior = asked(served).stacked["prior"]
    assert prior.any(dim=1).tolist() == [False, False, True, False, False]
    torch.testing.assert_close(prior[2].sum(), torch.tensor(1.0))
    assert not served.restorable
    by_graph = strategy(temperature=0)
    aggregated(by_graph, 1, replies(theta))
    assert asked(by_graph).further is None
    assert by_graph.restorable


def test_with_absent_clients_the_others_go_on(strategy, aggregated):
    theta = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    served = strategy()
    present = (0, 2, 3)
    got = aggregated(served, 1, replies(theta, rows=present))
    p, n = walk(GRAPH.subgraph(("a", "c", "d"))), COUNTS[list(present)].numpy() * [1, 0, 1]
    g = (p[1] + 1 / 3) * n
    np.testing.assert_allclose(got[1].numpy(), g @ theta[list(present)].numpy() / g.sum(), rtol=1e-4, atol=1e-5)
    prior = asked(served).stacked["prior"]
    assert prior.shape == (5, 2)
    only_cold = aggregated(served, 2, replies(theta, rows=(2, 4)))
    torch.testing.assert_close(only_cold, theta[[2, 2]], msg="those with examples are all there is to average")


def test_settings_that_do_not_fit_are_refused(strategy):
    for table in ({"mixes": "updates"}, {"personal-layers": ["w"]}):
        with pytest.raises(ExperimentError, match="gives cold clients"):
            strategy(**table)


def test_a_cold_client_is_measured_with_its_choice(run_experiment, digits_tables):
    data = {"set": "synthetic-traffic", "sensors": 5, "days": 4}
    names = open_source(parse_data(data), Path()).client_names()
    cold = {**data, "cold-clients": names[:2], "cold-steps": 60}
    tables = {
        "experiment": {"name": "cold", "method": "sfl-cold-start", "rounds": 2},
        "data": cold,
        "model": {"name": "rnn", "hidden": 4},
        "train": {"learning-rate": 0.05, "local-steps": 5, "batch-size": 16},
        "graph": {"source": "data"},
    }
    measured = {}
    for temperature in (0.0, 0.05):
        # With alpha 0 warm clients end with the models they trained, which are the candidates.
        folder = run_experiment({**tables, "sfl-cold-start": {"temperature": temperature, "alpha": 0.0}})
        measured[temperature] = folder.summary()["per_client"]["test"]["mae"]
    assert [measured[0.0][name] != measured[0.05][name] for name in names] == [True, True, False, False, False]

    models, _ = load_models(folder.models)
    source = open_source(parse_data(cold), Path())
    p = walk(read_graph(folder.path / "graph.npz").reindex(names))
    loaded = source.load(names[:2])
    stacked = build(tables["model"], loaded.task)
    cohort = Cohort(stacked, loaded, TrainSettings(), 0)
    warm = torch.stack([stacked.layout.row(models[name]) for name in names[2:]])
    weights = []
    for row in range(2):
        losses = [cohort.evaluate(one.repeat(2, 1), "train")["mae"][row].item() for one in warm]
        g = p[row, 2:] + 1 / 5  # all warm ones have equally many examples
        weights.append(g * np.exp(-(np.array(losses) / min(losses) - 1) / 0.05))
        weights[row] /= weights[row].sum()
    chosen = torch.from_numpy(np.stack(weights)).float() @ warm
    wanted = cohort.evaluate(chosen, "test")["mae"]
    got = [measured[0.05][name] for name in names[:2]]
    assert got == pytest.approx(wanted.tolist(), rel=1e-4)


def test_where_nobody_is_cold_it_says_so(caplog, strategy):
    with caplog.at_level("WARNING", logger="fedgraph"):
        strategy()
        assert not caplog.records
        strategy(cold_below=0.01)
    assert "none is cold" not in caplog.text, "e has no examples at all"
