import json

import numpy as np
import pytest
import torch

from fedgraph.algorithms.sfl import SFL, SFLSettings
from fedgraph.algorithms.sfl_cold_start import SFLColdStart
from fedgraph.algorithms.sfl_star import SFLStar
from fedgraph.clients.sfl import distance_gradient
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.runs.result_files import load_models
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse
from fedgraph.training.client_state import ClientState

NAMES = ("a", "b", "c", "d")
INITIAL = {"w": torch.zeros(5)}


def ring():
    weights = torch.zeros(4, 4)
    for i in range(4):
        weights[i, (i + 1) % 4] = weights[(i + 1) % 4, i] = 1 + i
    return ClientGraph.from_dense(NAMES, weights, directed=False)


@pytest.fixture(scope="session")
def strategy(serve):
    def of(graph=None, buffers=(), on_missing="fail", **table):
        algorithm, graph = SFL(parse(SFLSettings, table, "[sfl]")), ring() if graph is None else graph
        initial = {"w": torch.zeros(5), **{name: torch.zeros(2) for name in buffers}}
        return serve(algorithm, [3, 1, 1, 1], initial, buffers, graph, on_missing=on_missing)

    return of


def replies(theta, graph, absent=()):
    reasons = dict.fromkeys(absent, "no reply in time")
    return Replies(torch.arange(4), NAMES, {"parameters": theta}, {}, graph, torch.ones(4), reasons)


@pytest.mark.parametrize(("alpha", "hops"), [(1.0, 3), (0.3, 1), (0.0, 2), (1.0, 0)])
@pytest.mark.parametrize("normalisation", ["symmetric", "random-walk"])
def test_aggregation_is_the_formula(alpha, hops, normalisation, strategy, aggregated):
    theta = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    a = ring().dense().numpy().astype(float) + np.eye(4)
    d = a.sum(axis=1)
    a_hat = a / np.sqrt(np.outer(d, d)) if normalisation == "symmetric" else a / d[:, None]
    expected = (1 - alpha) * theta.numpy() + alpha * np.linalg.matrix_power(a_hat, hops) @ theta.numpy()
    got = aggregated(strategy(alpha=alpha, hops=hops, normalisation=normalisation), 1, replies(theta, ring()))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("used", [{"lambda-global": 0.1}, {"start": "read-out"}, {"lambda-personal": 0.1}, {}])
def test_the_read_out_is_sent_where_clients_use_it(strategy, used):
    served = strategy(**used)
    served.replace_models(torch.arange(20.0).reshape(4, 5))
    assert torch.equal(served.readout(), served.models.mean(dim=0))
    ask = served.algorithm.ask(served.clients, served.state)
    assert torch.equal(ask.stacked["parameters"], served.models)
    assert ("global" in ask.shared) == ("lambda-global" in used or "start" in used)
    if ask.shared:
        assert torch.equal(ask.shared["global"], served.models.mean(dim=0))


def test_released_settings_stand_for_others():
    settings = parse(SFLSettings, {"released": True}, "[sfl]")
    assert (settings.lambda_global, settings.lambda_personal, settings.start) == (0.0, 0.0, "read-out")


def test_a_graph_is_needed(serve):
    with pytest.raises(ExperimentError, match=r"SFL .*\[graph\] source"):
        serve(SFL(SFLSettings()), [3, 1, 1, 1], INITIAL)


@pytest.mark.parametrize("squared", [False, True])
def test_distance_gradient_by_finite_differences(squared):
    random = torch.Generator().manual_seed(1)
    v = torch.randn(3, 6, dtype=torch.float64, generator=random)
    u = torch.randn(3, 6, dtype=torch.float64, generator=random)
    w = torch.randn(6, dtype=torch.float64, generator=random)

    def objective(x):
        powers = (2 if squared else 1, 0.5 if squared else 1.0)
        return sum(0.3 * powers[1] * torch.linalg.vector_norm(x - c, dim=1) ** powers[0] for c in (w, u))

    gradient = 0.3 * distance_gradient(v, w, squared) + 0.3 * distance_gradient(v, u, squared)
    step = 1e-6
    for column in range(6):
        shift = torch.zeros(6, dtype=torch.float64)
        shift[column] = step
        slope = (objective(v + shift) - objective(v - shift)) / (2 * step)
        torch.testing.assert_close(gradient[:, column], slope, rtol=1e-5, atol=1e-7)


def test_distance_gradient_is_zero_where_models_coincide():
    v = torch.ones(2, 3)
    assert torch.equal(distance_gradient(v, torch.ones(3), squared=False), torch.zeros(2, 3))


def final_models(folder):
    from safetensors.torch import load_file

    tensors = load_file(str(folder.path / "models.safetensors"))
    return torch.cat(
        [t.reshape(t.shape[0], -1) for name, t in sorted(tensors.items()) if name.startswith("clients/")], 1
    )


def test_no_distance_term_is_plain_sgd_and_any_is_not(digits_tables, run_experiment):
    digits_tables["sfl"] |= {"alpha": 0.0, "lambda-global": 0.0, "lambda-personal": 0.0}
    plain = final_models(run_experiment(digits_tables))
    local = final_models(run_experiment({**digits_tables, "experiment": {"method": "local", "rounds": 2}}))
    assert torch.equal(plain, local)
    pulled = run_experiment({**digits_tables, "sfl": {"alpha": 0.0, "lambda-global": 5.0, "lambda-personal": 0.0}})
    assert (final_models(pulled).var(dim=0).sum() < 0.95 * plain.var(dim=0).sum()).item()


def test_sfl_beats_fedavg_on_clients_with_two_classes(digits_tables, run_experiment):
    digits_tables["data"]["clients"] = 20
    digits_tables["train"] |= {"batch-size": 16, "local-epochs": 3}
    means = {}
    for method in ("sfl", "fedavg"):
        folder = run_experiment({**digits_tables, "experiment": {"method": method, "rounds": 12}})
        summary = json.loads((folder.path / "summary.json").read_text())
        means[method] = summary["metrics"]["test"]["accuracy"]["mean"]
    assert means["sfl"] > means["fedavg"] + 0.02, means
    assert means["sfl"] > 0.8, means


def test_dropout_does_not_depend_on_the_packing(digits_tables, run_experiment, tmp_path, monkeypatch):
    code = (
        "from torch import nn\n\n"
        "class Drop(nn.Sequential):\n"
        "    def __init__(self, input_shape, output_shape):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, output_shape[0]))\n"
    )
    (tmp_path / "drop_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    digits_tables["model"] = {"name": "drop_module:Drop"}
    one, three = (final_models(run_experiment(digits_tables, nodes=nodes)) for nodes in (1, 3))
    torch.testing.assert_close(one, three, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("method", "shared"), [("sfl-per", "hidden"), ("sfl-lg", "head")])
def test_private_layers_do_not_go_over_the_graph(digits_tables, run_experiment, method, shared):
    """What is seen and mixed is one part of the models; the other is trained as if the client were alone."""
    digits_tables |= {"experiment": {"method": method, "rounds": 1}, "graph": {"source": "complete"}}
    terms = {"lambda-global": 0.0, "lambda-personal": 0.0}
    folder = run_experiment({**digits_tables, method: {"hops": 1, **terms}})
    local = load_models(run_experiment({**digits_tables, "experiment": {"method": "local", "rounds": 1}}).models)[0]
    names = sorted(local)
    graph = read_graph(folder.path / "graph.npz")
    a = graph.dense().double() + torch.eye(len(names))
    a /= a.sum(1, keepdim=True)
    models, _ = load_models(folder.models)
    private = []
    for tensor in ("hidden.0.weight", "hidden.0.bias", "head.weight", "head.bias"):
        rows = torch.stack([local[name][tensor] for name in names]).flatten(1)
        if not tensor.startswith(shared):
            private.append(rows)
            assert tensor not in models[names[0]]
            continue
        mixed = torch.stack([models[name][tensor] for name in names]).flatten(1)
        torch.testing.assert_close(mixed.double(), a @ rows.double(), rtol=1e-4, atol=1e-6)
        assert not torch.allclose(mixed, rows, atol=1e-4)
    expected = torch.cat(private, 1)
    state = ClientState(folder.path / "nodes", folder.run, "personal-layers")
    kept = state.load(names, 2, {"personal": torch.zeros(expected.shape[1])})["personal"]
    torch.testing.assert_close(kept, expected, rtol=1e-5, atol=1e-6)


def test_updates_over_the_graph_keep_clients_different(strategy, aggregated):
    served = strategy(mixes="updates", alpha=1.0, hops=1, server_learning_rate=0.5, server_momentum=0.9)
    draws = torch.Generator().manual_seed(0)
    served.replace_models(torch.randn(4, 5, generator=draws))
    a = ring().dense().numpy().astype(float) + np.eye(4)
    s, velocity, models = a / a.sum(1)[:, None], np.zeros((4, 5)), served.models.numpy().copy()
    for server_round in (1, 2):
        theta = torch.randn(4, 5, generator=draws)
        velocity = 0.9 * velocity + s @ (theta.numpy() - models)
        models = theta.numpy() + 0.5 * velocity
        aggregated(served, server_round, replies(theta, ring()))
        np.testing.assert_allclose(served.models.numpy(), models, rtol=1e-5, atol=1e-5)
    again = strategy(mixes="updates", alpha=1.0, hops=1, server_learning_rate=0.5)
    again.load(served.saved())
    torch.testing.assert_close(
        aggregated(again, 3, replies(theta, ring())), aggregated(served, 3, replies(theta, ring()))
    )


@pytest.mark.parametrize("start", ["personalised", "read-out"])
def test_updates_of_running_statistics_are_not_mixed(start, strategy, aggregated):
    draws = torch.Generator().manual_seed(0)
    whole = strategy(buffers=("norm.running_var",), mixes="updates", start=start)
    part = strategy(mixes="updates", start=start)
    for _ in range(3):
        theta = torch.cat([torch.randn(4, 5, generator=draws), torch.rand(4, 2, generator=draws)], dim=1)
        aggregated(whole, 1, replies(theta, ring()))
        aggregated(part, 1, replies(theta[:, :5], ring()))
        assert torch.equal(whole.models[:, 5:], theta[:, 5:])
        torch.testing.assert_close(whole.models[:, :5], part.models)


@pytest.mark.parametrize("start", ["personalised", "read-out"])
def test_an_absent_client_takes_part_with_its_last_update(start, strategy, aggregated):
    table = {"mixes": "updates", "start": start, "server_learning_rate": 0.5, "server_momentum": 0.9, "hops": 1}
    served = strategy(ClientGraph.complete(NAMES), on_missing="keep-last", **table)
    draws = torch.Generator().manual_seed(0)
    updates, velocity, last = torch.randn(4, 5, generator=draws), torch.zeros(5), None
    for absent in ((), ("d",), ("d",)):
        began = served.models if start == "personalised" else served.readout()
        updates = torch.cat([torch.randn(3, 5, generator=draws), updates[3:]])
        theta = began + updates
        theta = theta if last is None else torch.cat([theta[:3], last])
        last, velocity = theta[3:], 0.9 * velocity + updates.mean(dim=0)
        got = aggregated(served, 1, replies(theta, ClientGraph.complete(NAMES), absent))
        torch.testing.assert_close(got, theta + 0.5 * velocity)
        state, served = served.saved(), strategy(ClientGraph.complete(NAMES), on_missing="keep-last", **table)
        served.load(state)


def test_means_need_weights_that_are_not_below_zero(strategy, serve):
    weights = torch.tensor([[0.0, 1, -1, 0], [1, 0, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 0]])
    graph = ClientGraph.from_dense(NAMES, weights, directed=False, allow_negative=True)
    for kind, table in (
        (SFL, {"weighting": "examples"}),
        (SFL, {"everybody": 0.1}),
        (SFLStar, {}),
        (SFLColdStart, {"weighting": "none"}),
    ):
        with pytest.raises(ExperimentError, match=r"\[graph\] has negative weights"):
            serve(kind(parse(kind.settings_type, table, "[x]")), [3, 1, 1, 1], INITIAL, graph=graph)
    strategy(graph)


def test_means_need_rows_that_sum_to_one(strategy):
    for table in ({"weighting": "examples"}, {"everybody": 0.1}):
        with pytest.raises(ExperimentError, match="random-walk"):
            strategy(normalisation="symmetric", **table)
