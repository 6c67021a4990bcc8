from __future__ import annotations

import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedgraph.graph.propagation as propagation
from fedgraph.graph import ClientGraph
from fedgraph.support import threads as column_blocks
from fedgraph.support.errors import GraphError
from fedgraph.support.threads import pinned_threads

quick = settings(max_examples=40, derandomize=True)
weights = st.sampled_from([0.0, 0.0, float(np.float32(1e-40)), 0.25, 1.0, 3.0])
matrices = st.integers(1, 7).flatmap(lambda n: arrays(np.float32, (n, n), elements=weights))


def named(count: int) -> list[str]:
    return [f"client-{at}" for at in range(count)]


def graph_of(matrix) -> ClientGraph:
    return ClientGraph.from_dense(named(len(matrix)), matrix, directed=True)


def random_graph(count: int, density: float, seed: int = 0) -> ClientGraph:
    random = np.random.default_rng(seed)
    matrix = np.triu(random.random((count, count)) * (random.random((count, count)) < density), 1)
    return ClientGraph.from_dense(named(count), matrix + matrix.T, directed=False)


def numpy_normalised(matrix, kind, self_loops):
    """The paper's equation, a self loop only where there is none, isolated clients left to themselves."""
    a = matrix.astype(np.float64)
    if self_loops:
        a = a + np.diag(np.diag(a) == 0)
    if kind == "none":
        return a
    a = a + np.diag(np.abs(a).sum(1) == 0)
    d = np.abs(a).sum(1)
    return np.diag(d**-0.5) @ a @ np.diag(d**-0.5) if kind == "symmetric" else np.diag(1 / d) @ a


@pytest.mark.parametrize("kind", ["symmetric", "random-walk", "none"])
@pytest.mark.parametrize("self_loops", [True, False])
@quick
@given(matrix=matrices)
def test_normalised_and_its_powers_equal_numpy(kind, self_loops, matrix):
    operator = graph_of(matrix).normalised(kind, self_loops)
    expected = numpy_normalised(matrix, kind, self_loops)
    np.testing.assert_allclose(operator.dense().numpy(), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(operator.sparse().to_dense().numpy(), operator.dense().numpy())
    stacked = torch.randn(len(matrix), 3, 2, generator=torch.Generator().manual_seed(0))
    for hops in (0, 1, 3):
        wanted = np.einsum("ij,jkl->ikl", np.linalg.matrix_power(expected, hops), stacked.numpy())
        result = operator.apply(stacked, hops)
        assert result.shape == stacked.shape
        assert result.dtype == torch.float32
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-4)
        assert torch.equal(result, graph_of(matrix).propagate(stacked, hops, kind, self_loops))


@quick
@given(matrices, st.booleans())
def test_random_walk_rows_sum_to_one(matrix, self_loops):
    rows = graph_of(matrix).normalised("random-walk", self_loops).dense().sum(1)
    np.testing.assert_allclose(rows.numpy(), 1, rtol=1e-5)


def test_without_a_normalisation_it_is_the_mean_of_each_neighbourhood():
    """A star with weights: degrees differ, so that symmetric normalisation is no mean."""
    matrix = torch.tensor([[0, 1.0, 1.0, 2.0], [1.0, 0, 0, 0], [1.0, 0, 0, 0], [2.0, 0, 0, 0]])
    graph = graph_of(matrix)
    values = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
    expected = torch.tensor([(1 + 2 + 4 + 2 * 8) / 5, (1 + 2) / 2, (1 + 4) / 2, (2 * 1 + 8) / 3])
    torch.testing.assert_close(graph.propagate(values).flatten(), expected)
    torch.testing.assert_close(graph.propagate(torch.ones(4, 3), hops=4), torch.ones(4, 3))
    torch.testing.assert_close(graph.normalised().dense() @ values, graph.propagate(values))
    assert not torch.allclose(graph.propagate(torch.ones(4, 1), normalisation="symmetric"), torch.ones(4, 1))


def test_symmetric_normalisation_is_that_of_pytorch_geometric():
    from torch_geometric.nn.conv.gcn_conv import gcn_norm
    from torch_geometric.utils import to_dense_adj

    graph = random_graph(12, 0.4).with_self_loops(0.5)
    index, values = gcn_norm(graph.edge_index, graph.weights, num_nodes=12)
    expected = to_dense_adj(index, edge_attr=values, max_num_nodes=12)[0]
    torch.testing.assert_close(graph.normalised("symmetric").dense(), expected)


def test_a_self_loop_already_present_is_not_doubled():
    looped = torch.tensor([[1.0, 1.0], [1.0, 1.0]])
    bare = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert torch.equal(graph_of(looped).normalised().dense(), graph_of(bare).normalised().dense())


@pytest.mark.parametrize("kind", ["symmetric", "random-walk"])
@pytest.mark.parametrize("self_loops", [True, False])
def test_isolated_clients_keep_themselves(kind, self_loops):
    matrix = torch.tensor([[0, 1.0, 0], [1.0, 0, 0], [0, 0, 0]])
    stacked = torch.tensor([[1.0], [2.0], [7.0]])
    assert graph_of(matrix).propagate(stacked, 5, kind, self_loops)[2].item() == 7


def test_negative_weights_never_give_nan():
    matrix = torch.tensor([[0, 1.0, -1.0], [1.0, 0, -2.0], [-1.0, -2.0, 0]])
    graph = ClientGraph.from_dense("abc", matrix, directed=False, allow_negative=True)
    for kind in ("symmetric", "random-walk"):
        expected = numpy_normalised(matrix.numpy(), kind, True)
        np.testing.assert_allclose(graph.normalised(kind).dense().numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("columns", [1, 70, 1300])
def test_dense_and_sparse_products_agree(columns, monkeypatch):
    graph = random_graph(520, 0.01)
    stacked = torch.randn(520, columns, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(propagation, "_SPARSE_BLOCK_ENTRIES", 520 * 100)  # several column blocks
    assert not graph.normalised().multiplies_densely(3)
    sparse = graph.propagate(stacked, 3)
    monkeypatch.setattr(propagation, "SPARSE_ENTRY_COST", 1e9)
    dense_operator = random_graph(520, 0.01).normalised()
    assert dense_operator.multiplies_densely(3)
    by_power = dense_operator.apply(stacked, 3)
    torch.testing.assert_close(sparse, by_power, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(propagation, "_POWER_UP_TO_CLIENTS", 100)
    hop_by_hop = random_graph(520, 0.01).normalised()
    torch.testing.assert_close(hop_by_hop.apply(stacked, 3), by_power, rtol=1e-5, atol=1e-5)
    assert set(hop_by_hop._cache) == {(torch.device("cpu"), torch.float32, 1)}, "the power was made all the same"


@pytest.mark.parametrize(("clients", "density"), [(90, 0.5), (520, 0.01)])
def test_the_number_of_cores_and_of_pinned_threads_changes_no_bit(clients, density, monkeypatch):
    operator = random_graph(clients, density).normalised()
    assert operator.multiplies_densely(2) == (clients == 90)
    stacked = torch.randn(clients, 2003, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(column_blocks, "_WORTH_A_THREAD", 1)
    results = []
    for cores, threads in ((1, 1), (2, 1), (3, 2)):
        monkeypatch.setattr(column_blocks, "available_cores", lambda cores=cores: cores)
        with pinned_threads(threads):
            results.append(operator.apply(stacked, 2))
            assert torch.get_num_threads() == threads
    assert all(torch.equal(result, results[0]) for result in results[1:])


def test_entries_and_hops_decide_the_kind_of_product():
    sparse, dense = random_graph(400, 0.02).normalised(), random_graph(400, 0.5).normalised()
    assert not sparse.multiplies_densely(3)
    assert sparse.multiplies_densely(9), "many sparse hops cost more than one dense product"
    assert dense.multiplies_densely(1)
    assert random_graph(10, 0.01).normalised().multiplies_densely(1)


def test_a_sparse_matrix_stays_sparse(monkeypatch):
    monkeypatch.setattr(propagation.PropagationMatrix, "dense", None)
    operator = random_graph(520, 0.01).normalised("random-walk")
    stacked = torch.ones(520, 3)
    torch.testing.assert_close(operator.apply(stacked, 3), torch.ones(520, 3))


def test_peak_memory_of_many_clients_is_input_and_result():
    """5,000 clients of 4,000 parameters: 80 MB in, 80 MB out, and little in between."""
    script = (
        "import resource, torch\n"
        "from fedgraph.graph import ClientGraph\n"
        "n, columns = 5000, 4000\n"
        "start = torch.arange(n).repeat_interleave(10)\n"
        "step = torch.arange(1, 11).repeat(n) * 97\n"
        "edges = torch.stack([start, (start + step) % n])\n"
        "graph = ClientGraph(tuple(map(str, range(n))), edges, torch.ones(10 * n), True)\n"
        "stacked = torch.ones(n, columns)\n"
        "graph.propagate(stacked[:, :64], 3)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert graph.propagate(stacked, 3).shape == (n, columns)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    result_size = 5000 * 4000 * 4 / 2**20
    assert float(found.stdout) < 1.5 * result_size


def test_inputs_are_left_alone_and_cast():
    graph = random_graph(80, 0.03)
    stacked = torch.randn(80, 4, dtype=torch.float64)
    before = stacked.clone()
    assert graph.propagate(stacked).dtype == torch.float64
    assert torch.equal(stacked, before)
    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.int64):
        assert graph.propagate(stacked.to(kind)).dtype == torch.float32
    for hops in (1, 3):
        exact = graph.normalised().dense().double().matrix_power(hops) @ stacked
        torch.testing.assert_close(graph.propagate(stacked, hops), exact, rtol=1e-6, atol=1e-7)
    same = graph.propagate(before.float(), 0)
    assert torch.equal(same, before.float())
    assert graph.propagate(torch.zeros(80, 0)).shape == (80, 0)
    assert graph.propagate(torch.ones(80)).shape == (80,)


def test_no_warnings_reach_the_user():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        random_graph(80, 0.03).propagate(torch.ones(80, 3))


def test_errors():
    graph = random_graph(5, 0.5)
    with pytest.raises(GraphError, match=r"\[4, 2\] .*5 clients"):
        graph.propagate(torch.ones(4, 2))
    with pytest.raises(GraphError, match="0 or more; got -1"):
        graph.propagate(torch.ones(5, 2), hops=-1)
    with pytest.raises(GraphError, match="'symmetric', .*'row'"):
        graph.normalised("row")  # type: ignore[arg-type]


def test_thousands_of_clients_take_time_in_proportion_to_edges():
    count = 4000
    start = torch.arange(count).repeat_interleave(10)
    step = torch.arange(1, 11).repeat(count) * 97
    graph = ClientGraph(tuple(named(count)), torch.stack([start, (start + step) % count]), torch.ones(10 * count), True)
    stacked = torch.randn(count, 200)
    operator = graph.normalised("random-walk")
    assert not operator.multiplies_densely(2)
    began = time.perf_counter()
    mixed = operator.apply(stacked, 2)
    assert time.perf_counter() - began < 2, "a sparse product takes tens of milliseconds"
    heard = torch.cat([torch.arange(count)[:, None], graph.edge_index[1].reshape(count, 10)], dim=1)
    torch.testing.assert_close(mixed, stacked[heard].mean(1)[heard].mean(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("count", "density"), [(7, 0.5), (100, 0.01)], ids=["dense", "sparse"])
@pytest.mark.parametrize("hops", [1, 3])
def test_values_in_double_precision_are_mixed_in_double_precision(count, density, hops):
    graph = random_graph(count, density)
    assert graph.normalised().multiplies_densely(hops) == (count == 7)
    alike = torch.full((count, 3), 1 / 3, dtype=torch.float64)
    np.testing.assert_allclose(graph.propagate(alike, hops).numpy(), alike.numpy(), rtol=1e-15 * 8)
    symmetric = graph.propagate(torch.eye(count, dtype=torch.float64), hops, "symmetric").numpy()
    wanted = np.linalg.matrix_power(numpy_normalised(graph.dense().double().numpy(), "symmetric", True), hops)
    np.testing.assert_allclose(symmetric, wanted, atol=1e-15)


def test_hops_may_be_a_number_of_numpy():
    values = torch.eye(5)
    graph = random_graph(5, 0.5)
    assert torch.equal(graph.propagate(values, np.int64(2)), graph.propagate(values, 2))
    with pytest.raises(GraphError, match="hops"):
        graph.propagate(values, 1.5)
