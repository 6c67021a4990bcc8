import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import softmax

from fedgraph.graph import pairwise
from fedgraph.graph.pairwise import (
    absolute_distances,
    attention_from_distances,
    cosine_similarity,
    squared_distances,
)
from fedgraph.support import threads as column_blocks
from fedgraph.support.errors import FedgraphError

quick = settings(max_examples=40, derandomize=True)
numbers = st.floats(-8, 8, width=32)
pairs = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(
        arrays(np.float32, (shape[0], shape[2]), elements=numbers),
        arrays(np.float32, (shape[1], shape[2]), elements=numbers),
    )
)


def models(count, parameters=3000, spread=1e-4, seed=0):
    """Models that differ by ``spread`` relative to their values, as those of clients do after a round."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(parameters, generator=draw) * (1 + spread * torch.randn(count, parameters, generator=draw))


def numpy_squared(rows, others):
    first, second = rows.double().numpy(), others.double().numpy()
    return ((first[:, None] - second[None]) ** 2).sum(-1)


def relative_error(result, expected):
    return float(np.max(np.abs(result.double().numpy() - expected) / np.where(expected == 0, 1, expected)))


# ---- distances


@quick
@given(pairs)
def test_squared_distances_equal_numpy(matrices):
    rows, others = map(torch.from_numpy, matrices)
    size = 1 + float(rows.abs().max()) ** 2 + float(others.abs().max()) ** 2
    np.testing.assert_allclose(
        squared_distances(rows, others), numpy_squared(rows, others), rtol=1e-4, atol=1e-6 * size
    )
    own = squared_distances(rows)
    np.testing.assert_allclose(own, numpy_squared(rows, rows), rtol=1e-4, atol=1e-6 * size)
    assert torch.equal(own, own.T)
    assert bool((own.diagonal() == 0).all())
    assert bool((own >= 0).all())


def test_absolute_distances_equal_numpy_over_several_blocks(monkeypatch):
    monkeypatch.setattr(pairwise, "_BLOCK_ENTRIES", 2**10)
    rows = models(5, parameters=1500)
    first = rows.double().numpy()
    found = absolute_distances(rows)
    np.testing.assert_allclose(found, np.abs(first[:, None] - first[None]).sum(-1), rtol=1e-12)
    assert found.dtype == torch.float64
    assert torch.equal(found, found.T)
    assert absolute_distances(rows[:, :0]).tolist() == torch.zeros(5, 5).tolist()
    with pytest.raises(FedgraphError, match="a row per client"):
        absolute_distances(rows[0])


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
def test_models_that_hardly_differ_keep_their_distances(spread):
    rows = models(30, spread=spread)
    expected = numpy_squared(rows, rows)
    assert relative_error(squared_distances(rows), expected) < 1e-5
    others = models(20, spread=spread)[10:]
    assert relative_error(squared_distances(rows, others), numpy_squared(rows, others)) < 1e-5
    norms = rows.square().sum(1)
    shortcut = norms[:, None] + norms - 2 * rows @ rows.T
    assert spread > 1e-3 or relative_error(shortcut, expected) > 0.1, "the shortcut would do"


def test_clusters_far_apart_keep_the_distances_within():
    rows = models(20)
    rows[10:] += 1
    assert relative_error(squared_distances(rows), numpy_squared(rows, rows)) < 1e-5


def test_models_that_are_the_same_are_no_distance_apart():
    assert not squared_distances(models(1).repeat(4, 1)).any()
    rows = models(6)
    rows[3] = rows[1]
    distances = squared_distances(rows)
    assert float(distances[1, 3]) <= 1e-12 * float(distances.max())


@pytest.mark.parametrize("cores", [1, 3])
def test_tiles_blocks_and_cores_change_nothing(monkeypatch, cores):
    rows, others = models(23, 1000), models(11, 1000, seed=1)
    monkeypatch.setattr(column_blocks, "_WORTH_A_THREAD", 1)
    monkeypatch.setattr(column_blocks, "available_cores", lambda: 1)
    monkeypatch.setattr(pairwise, "_TILE_ROWS", 5)
    monkeypatch.setattr(pairwise, "_BLOCK_ENTRIES", 40 * 23)
    monkeypatch.setattr(pairwise, "_NARROWEST", 16)
    functions = (squared_distances, cosine_similarity)
    alone = [function(rows, others) for function in functions] + [squared_distances(rows), cosine_similarity(rows)]
    monkeypatch.setattr(column_blocks, "available_cores", lambda: cores)
    shared = [function(rows, others) for function in functions] + [squared_distances(rows), cosine_similarity(rows)]
    assert all(torch.equal(a, b) for a, b in zip(alone, shared, strict=True))
    assert relative_error(alone[0], numpy_squared(rows, others)) < 1e-5
    assert relative_error(alone[2], numpy_squared(rows, rows)) < 1e-5
    assert torch.equal(alone[2], alone[2].T)
    assert torch.equal(alone[3], alone[3].T)


def test_types_and_empty_matrices():
    rows = models(3, 10)
    assert squared_distances(rows.double()).dtype == torch.float64
    assert squared_distances(rows).dtype == squared_distances(rows.bfloat16()).dtype == torch.float32
    assert squared_distances(rows[:0], rows).shape == (0, 3)
    assert squared_distances(rows, rows[:0]).shape == (3, 0)
    assert torch.equal(squared_distances(rows[:, :0]), torch.zeros(3, 3))


# ---- similarities


@quick
@given(pairs)
def test_cosine_similarity_equals_numpy(matrices):
    rows, others = (torch.from_numpy(np.round(matrix, 2)) for matrix in matrices)
    a, b = rows.double().numpy(), others.double().numpy()
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    expected = np.divide(a @ b.T, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    np.testing.assert_allclose(cosine_similarity(rows, others), expected, atol=1e-6)
    own = cosine_similarity(rows)
    assert torch.equal(own, own.T)
    assert own.diagonal().tolist() == [float(row.any()) for row in a]
    assert float(own.abs().max()) <= 1


# ---- attention


def test_attention_from_distances_prefers_the_near_and_below_zero_the_far():
    distances = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 1.0]])
    np.testing.assert_allclose(attention_from_distances(distances, 2.0), softmax(-distances.numpy() / 2, axis=1), 1e-6)
    np.testing.assert_allclose(attention_from_distances(distances, -1.0), softmax(distances.numpy(), axis=1), 1e-6)


def test_masked_clients_get_nothing_and_the_rest_sums_to_one():
    distances = torch.randn(3, 4)
    mask = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    weights = attention_from_distances(distances, 1.0, mask)
    assert not weights[~mask].any()
    torch.testing.assert_close(weights.sum(1), torch.tensor([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(weights[0, :2], softmax(-distances[0, :2].numpy()), rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: squared_distances(x, x[:, :2]), "got [4, 3] and others [4, 2]"),
        (lambda x: cosine_similarity(x[0]), "got [3]"),
        (
            lambda x: attention_from_distances(x @ x.T, mask=torch.ones(4, 3, dtype=torch.bool)),
            "a mask [4, 3] does not fit",
        ),
        (lambda x: attention_from_distances(x, 0.0), "is not 0; got 0.0"),
    ],
)
def test_errors(call, message):
    with pytest.raises(FedgraphError, match=re.escape(message)):
        call(torch.ones(4, 3))
