import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.series.scale_transfer import cold_rows, inferred_scales, neighbourhoods, reference_rows
from fedgraph.graph import ClientGraph
from fedgraph.support.errors import FedgraphError

NAN = float("nan")


def made_up(clients, cold, seed=0):
    """Recent and lasting moments that are about on a line, lasting ones unknown for the clients ``cold``."""
    random = np.random.default_rng(seed)
    lasting = np.stack([random.uniform(40, 70, clients), random.uniform(3, 12, clients)], axis=1)
    recent = lasting * [1.1, 0.4] + random.normal(0, 0.3, (clients, 2))
    moments = np.concatenate([recent, lasting], axis=1)
    moments[list(cold), 2:] = np.nan
    return torch.from_numpy(moments)


def ring(clients, seed=0):
    """Everybody listens to the next one, a few pairs to each other, by random weights."""
    random = np.random.default_rng(seed)
    matrix = np.triu(random.random((clients, clients)) * (random.random((clients, clients)) < 0.2), 1)
    matrix[np.arange(clients), np.roll(np.arange(clients), -1)] = random.random(clients)
    return ClientGraph.from_dense([f"c{i}" for i in range(clients)], torch.from_numpy(matrix), directed=True)


def by_hand(moments, matrix, cold, references, everybody=0.3):
    """Client by client, the line from NumPy's own weighted fit."""
    clients, found = len(moments), []
    smallest = 0.01 * np.median(moments[references, 3])
    for i in cold:
        row = matrix[i] + np.eye(clients)[i] * (matrix[i, i] == 0)
        k = np.array([row[j] / row.sum() + everybody / clients for j in references])
        scale = []
        for kind in (0, 1):
            x, y, own = moments[references, kind], moments[references, kind + 2], moments[i, kind]
            if kind == 1:
                x, y, own = (np.log(np.maximum(values, smallest)) for values in (x, y, own))
            slope, start = np.polyfit(x, y, 1, w=np.sqrt(k))
            scale.append(np.clip(start + slope * own, min(own, y.min()), max(own, y.max())))
        found.append([scale[0], np.exp(scale[1])])
    return np.array(found)


@settings(max_examples=15, derandomize=True)
@given(st.integers(8, 20), st.integers(1, 4), st.integers(0, 50))
def test_it_is_a_weighted_line_for_every_client(clients, cold, seed):
    chosen = sorted(np.random.default_rng(seed).permutation(clients)[:cold].tolist())
    moments, graph = made_up(clients, chosen, seed), ring(clients, seed)
    references = [row for row in range(clients) if row not in chosen]
    found = inferred_scales(moments, neighbourhoods(graph, moments))
    expected = by_hand(moments.numpy(), graph.dense().numpy().astype(np.float64), chosen, references)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_weights_are_the_random_walk_and_a_share_of_everybody():
    graph = ClientGraph.from_lists("abcd", "aab", "bcd", [3.0, 1.0, 1.0], directed=False)
    moments = made_up(4, [0, 3])
    # The self loop and cold clients get a part of the walk, but nothing is known of them.
    expected = torch.tensor([[3 / 5 + 0.05, 1 / 5 + 0.05], [1 / 2 + 0.05, 0.05]], dtype=torch.float64)
    weights = neighbourhoods(graph, moments, everybody=0.2)
    torch.testing.assert_close(weights, expected / expected.sum(dim=1, keepdim=True), rtol=1e-6, atol=0)
    present = graph.with_self_loops(3.0)
    expected[0] = torch.tensor([3 / 7 + 0.05, 1 / 7 + 0.05])
    weights = neighbourhoods(present, moments, everybody=0.2)
    torch.testing.assert_close(weights[0], expected[0] / expected[0].sum(), rtol=1e-6, atol=0)


def test_without_a_graph_with_a_complete_one_and_all_alone_everybody_counts_alike():
    names, moments = [f"c{i}" for i in range(9)], made_up(9, [2, 5])
    plain = inferred_scales(moments)
    for graph in (ClientGraph.complete(names), ClientGraph.empty(names)):
        torch.testing.assert_close(inferred_scales(moments, neighbourhoods(graph, moments)), plain, rtol=1e-6, atol=0)
    assert not torch.allclose(inferred_scales(moments, neighbourhoods(ring(9), moments)), plain, rtol=1e-3)


def test_neighbours_with_the_same_shift_are_believed():
    """Two towns; in one the recent day was slow and calm, in the other it was as always."""
    lasting = torch.tensor([[60.0, 8.0], [66.0, 12.0], [62.0, 10.0]]).repeat(2, 1)
    recent = lasting.clone()
    recent[:3] = recent[:3] * torch.tensor([0.8, 0.5])
    moments = torch.cat([recent, lasting], dim=1).double()
    moments[[2, 5], 2:] = torch.nan
    towns = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3))
    graph = ClientGraph.from_dense([f"c{i}" for i in range(6)], towns, directed=False)
    found = inferred_scales(moments, neighbourhoods(graph, moments, everybody=1e-9))
    torch.testing.assert_close(found, torch.tensor([[62.0, 10.0], [62.0, 10.0]]).double(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("seed", range(5))
def test_equal_recent_moments_tell_nothing_but_the_mean(seed):
    """Weighted means of equal numbers are off by rounding, which must not be taken for their spread."""
    moments = made_up(12, [3, 6], seed)
    moments[:, :2] = torch.tensor([50.1, 3.3])
    moments[[3, 6], :2] = torch.tensor([45.0, 5.0]).double()
    weights = neighbourhoods(ring(12, seed), moments)
    known = moments[reference_rows(moments), 2:]
    expected = torch.stack([weights @ known[:, 0], (weights @ known[:, 1].log()).exp()], dim=1)
    torch.testing.assert_close(inferred_scales(moments, weights), expected, rtol=1e-9, atol=0)


def test_one_reference_is_taken_as_it_is():
    moments = torch.tensor([[50.0, 2.0, 60.0, 8.0], [40.0, 3.0, NAN, NAN], [70.0, 1.0, NAN, NAN]]).double()
    torch.testing.assert_close(inferred_scales(moments), torch.tensor([[60.0, 8.0]]).double().expand(2, 2))


def test_a_client_that_knows_nothing_gets_the_mean_and_is_no_reference():
    whole = made_up(6, [1])
    whole[1, :2] = torch.nan
    whole[4, :2] = torch.nan
    assert cold_rows(whole).tolist() == [False, True, False, False, False, False]
    assert reference_rows(whole).tolist() == [True, False, True, True, False, True]
    known = whole[reference_rows(whole)]
    expected = torch.stack([known[:, 2].mean(), known[:, 3].log().mean().exp()])
    torch.testing.assert_close(inferred_scales(whole)[0], expected)


def test_constant_readings_end_in_a_deviation_above_zero():
    moments = made_up(6, [0])
    moments[0, 1], moments[3, 1], moments[4, 3] = 0.0, 0.0, 0.0
    found = inferred_scales(moments)
    assert found.isfinite().all()
    assert float(found[0, 1]) > 0
    moments[:, 1] = 0.0
    moments[1:, 3] = 0.0
    torch.testing.assert_close(inferred_scales(moments)[0, 1], torch.tensor(1.0).double())


def test_a_line_is_not_trusted_beyond_what_was_seen():
    """Two references with nearly the same recent moments make a line as steep as one likes."""
    moments = torch.tensor(
        [[50.0, 2.0, 60.0, 8.0], [50.01, 2.001, 70.0, 4.0], [40.0, 3.0, NAN, NAN], [55.0, 0.5, NAN, NAN]]
    ).double()
    expected = torch.tensor([[40.0, 3.0], [70.0, 8.0]]).double()
    torch.testing.assert_close(inferred_scales(moments), expected)


def test_neither_order_nor_unit_matters():
    moments, graph = made_up(12, [3, 7, 8]), ring(12)
    found = inferred_scales(moments, neighbourhoods(graph, moments))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    names = [graph.names[row] for row in order.tolist()]
    turned = inferred_scales(moments[order], neighbourhoods(graph.reindex(names), moments[order]))
    cold = [name for name, unknown in zip(names, cold_rows(moments[order]).tolist(), strict=True) if unknown]
    back = [cold.index(f"c{row}") for row in (3, 7, 8)]
    torch.testing.assert_close(turned[back], found, rtol=1e-9, atol=0)
    scaled = inferred_scales(1e-4 * moments, neighbourhoods(graph, moments))
    torch.testing.assert_close(1e4 * scaled, found, rtol=1e-9, atol=0)


def test_nobody_to_infer_from():
    with pytest.raises(FedgraphError, match="recent and .*long-run scale"):
        inferred_scales(made_up(3, [0, 1, 2]))
