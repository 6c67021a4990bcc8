from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sympy import ZZ
from sympy.polys.matrices import DomainMatrix

from fedgraph.privacy.secret import first_stage
from fedgraph.privacy.secret.field import LARGEST
from fedgraph.privacy.secret.first_stage import (
    FirstStage,
    check_leaks,
    error_bound,
    outcome,
    project,
    quantised,
)
from fedgraph.privacy.secret.shamir import ShareSettings, encode, reconstruct, split
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.randomness import generator

OWNERS, SAMPLES, SIZE, HIDDEN, DRAWS = 6, 20, 16, 8, 3
NAMES = [f"owner-{number}" for number in range(OWNERS)]


def _mixing(source: torch.Generator, draws: int = DRAWS, owners: int = OWNERS) -> torch.Tensor:
    """A_hat + I of random soft graphs."""
    edges = torch.rand(draws, owners, owners, generator=source).triu(1)
    adjacency = edges + edges.transpose(1, 2) + torch.eye(owners)
    scale = adjacency.sum(-1).clamp(min=1).rsqrt()
    return adjacency * scale[:, :, None] * scale[:, None, :] + torch.eye(owners)


def _projections(source: torch.Generator, hidden: int = HIDDEN, owners: int = OWNERS) -> torch.Tensor:
    return project(
        0.5 * torch.randn(owners, SIZE, SIZE, generator=source), 0.3 * torch.randn(SIZE, hidden, generator=source)
    )


def _stage(seed: int, hidden: int = HIDDEN, settings: ShareSettings | None = None) -> FirstStage:
    source = generator(seed, "stage")
    sizes = [SIZE] * OWNERS
    return quantised(_mixing(source), _projections(source, hidden), sizes, settings or ShareSettings())


def on_shares(stage: FirstStage, shares: torch.Tensor) -> torch.Tensor:
    """Of samples that all meet the same graphs."""
    return first_stage.on_shares(stage.mixing[None], stage.projections, torch.zeros(shares.shape[1]), shares)


def refuse(stages: list[FirstStage], settings: ShareSettings) -> None:
    check_leaks([stage.projections for stage in stages], stages[0].sizes, settings, NAMES)


def revealed(projections: list[torch.Tensor], sizes: list[int]) -> list[int]:
    """The rank of each owner's projections of all stages under one another, exactly."""
    matrices = [torch.cat([each[owner, :, :size] for each in projections]) for owner, size in enumerate(sizes)]
    return [DomainMatrix(matrix.tolist(), matrix.shape, ZZ).to_field().rank() for matrix in matrices]


def numbers_revealed(stages: list[FirstStage]) -> list[int]:
    return revealed([stage.projections for stage in stages], stages[0].sizes)


def test_projection_is_alignment_and_weight_in_one():
    source = generator(0, "project")
    alignments, weight = torch.randn(3, 5, 4, generator=source), torch.randn(5, 2, generator=source)
    embeddings = torch.randn(3, 4, generator=source).double().numpy()
    for owner, matrix in enumerate(project(alignments, weight).double().numpy()):
        aligned = alignments[owner].double().numpy() @ embeddings[owner]
        np.testing.assert_allclose(matrix @ embeddings[owner], aligned @ weight.double().numpy(), rtol=1e-5)


def test_stage_on_shares_is_the_layer_within_its_bound():
    settings, source = ShareSettings(largest=4.0), generator(1, "layer")
    mixing, projections = _mixing(source), _projections(source)
    mixing[:, 0, 1:] *= 0.5  # a graph may be directed
    sizes = [16, 16, 9, 16, 5, 16]
    embeddings = (2 * torch.randn(OWNERS, SAMPLES, SIZE, generator=source)).clamp(-4, 4)
    for owner, size in enumerate(sizes):
        embeddings[owner, :, size:] = 0
    embeddings[2, 7] = 0
    stage = quantised(mixing, projections, sizes, settings)
    assert not bool(stage.projections[4, :, 5:].any())
    # The mixing has all bits that the field has room for: the largest result has between 59 and 60.
    per_row = mixing.double().numpy() @ np.abs(stage.projections.double().numpy()).sum(-1) * 2.0**stage.mixing_bits
    assert 59 < np.log2(per_row.max() * 4.0 * settings.scale) < 60
    encoded = encode(embeddings, settings)
    for owner, size in enumerate(sizes):
        encoded[owner, :, size:] = 0
    shares = split(encoded, 4, 3)
    replies = torch.stack([on_shares(stage, shares[one]) for one in (3, 0, 2)])
    result = outcome(reconstruct(replies, [4, 1, 3], 3), stage, settings).numpy()
    assert result.shape == (DRAWS, OWNERS, SAMPLES, HIDDEN)
    expected = np.zeros(result.shape)
    for draw in range(DRAWS):
        for owner in range(OWNERS):
            for other in range(OWNERS):
                rows = embeddings[other].double().numpy() @ projections[other].double().numpy().T
                expected[draw, owner] += float(mixing[draw, owner, other]) * rows
    error = np.abs(result - expected)
    assert bool((error <= error_bound(stage, settings).numpy()[:, :, None, :]).all())
    assert error.max() < 0.05
    assert expected.std() > 0.5
    # No single reply has anything to do with the outcome.
    single = outcome(replies[0], stage, settings).numpy()
    assert abs(np.corrcoef(single.ravel(), expected.ravel())[0, 1]) < 0.1


def test_worst_embeddings_stay_within_the_bound_and_the_bound_is_not_idle():
    # No room for more bits of the mixing.
    settings = ShareSettings(largest=2.0**15, map_bits=4, fractional_bits=20, random_bits=20)
    # All weights lie just below the middle between two steps, and all embeddings at the edge.
    mixing, projections = torch.full((1, 3, 3), 1.49 / 16), torch.full((3, 2, 5), 2.49 / 16)
    embeddings = torch.full((3, 1, 5), 2.0**15)
    stage = quantised(mixing, projections, [5] * 3, settings)
    assert stage.mixing_bits == 4
    result = outcome(on_shares(stage, encode(embeddings, settings)), stage, settings)
    error = abs(float(result[0, 0, 0, 0]) - 15 * 2.0**15 * 1.49 / 16 * 2.49 / 16)
    bound = float(error_bound(stage, settings)[0, 0, 0])
    assert 0.5 * bound < error <= bound


def test_results_that_could_wrap_around_are_refused_and_those_that_just_fit_are_right():
    settings = ShareSettings(largest=1.0, fractional_bits=20, random_bits=16, map_bits=11)
    weights, ones = torch.full((1, 1, 1), 2.0), torch.full((1, 1, 1), 0.999)
    stage = quantised(weights, 0.999 * weights, [1], settings)
    for sign in (1, -1):
        result = outcome(on_shares(stage, encode(sign * ones, settings)), stage, settings)
        assert float(result) == pytest.approx(sign * 4 * 0.999**2, abs=1e-2)
    with pytest.raises(ExperimentError, match="may be 1 bits too long"):
        quantised(weights, weights, [1], settings)
    # The random bits count as well: here they are half as large as the embedding.
    settings = ShareSettings(largest=1.0, fractional_bits=1, random_bits=8, map_bits=24)
    stage = quantised(weights, 1.3 * weights, [1], settings)
    result = outcome(on_shares(stage, encode(torch.ones(1, 50, 1), settings)), stage, settings)
    assert bool(((result - 5.2).abs() <= 5.2 * 0.25 + 1e-6).all())
    with pytest.raises(ExperimentError, match="may be 1 bits too long"):
        quantised(weights, 1.6 * weights, [1], settings)
    with pytest.raises(RunError, match="not finite"):
        quantised(weights, torch.full((1, 1, 1), torch.nan), [1], settings)


def test_the_graphs_have_as_many_bits_as_fit():
    # Few bits are left, so that what rounding adds up to may decide.
    settings = ShareSettings(largest=1.0, fractional_bits=20, random_bits=16, map_bits=2)
    room, owners, by_rounding, refused = LARGEST * (1 - 1e-9), 12, 0, 0
    for case in range(60):
        source = torch.Generator().manual_seed(case)
        mixing = 0.38 + 0.1 * torch.rand(2, owners, owners, generator=source).double()
        size = 2.0 ** (15 + case / 20)
        projections = size * torch.rand(owners, 2, 3, generator=source)
        largest = (projections.double() * 2**2).round().sum(-1) * (settings.scale + 2.0**16)
        reach = {bits: float(((mixing * 2.0**bits).round() @ largest).max()) for bits in range(2, 31)}
        unrounded = float((mixing @ largest).max())
        by_rounding += any((unrounded * 2.0**bits <= room) != (reach[bits] <= room) for bits in reach)
        fitting = [bits for bits in reach if reach[bits] <= room]
        if fitting:
            stage = quantised(mixing, projections, [3] * owners, settings)
            assert stage.mixing_bits == max(fitting)
            assert torch.equal(stage.mixing, (mixing * 2.0 ** max(fitting)).round().long())
        else:
            refused += 1
            with pytest.raises(ExperimentError, match=f"may be {math.ceil(math.log2(reach[2] / room))} bits too long"):
                quantised(mixing, projections, [3] * owners, settings)
    assert by_rounding
    assert 0 < refused < 60


def _determined(matrix: np.ndarray, columns: slice) -> int:
    """Independent functionals of some columns' unknowns that equations with this matrix fix, from scratch."""
    others = np.delete(matrix, np.arange(matrix.shape[1])[columns], axis=1)
    return int(np.linalg.matrix_rank(matrix) - np.linalg.matrix_rank(others))


def _whole(stage: FirstStage) -> np.ndarray:
    """All draws under one another as one matrix ``[draws * owners * hidden, owners * size]``."""
    whole = torch.einsum("dij,jhs->dihjs", stage.mixing, stage.projections)
    return whole.reshape(-1, len(stage.sizes) * stage.projections.shape[-1]).double().numpy()


def test_draws_reveal_the_projections_and_not_more():
    stage = _stage(2)
    matrix = _whole(stage)
    found = [_determined(matrix, slice(owner * SIZE, (owner + 1) * SIZE)) for owner in range(OWNERS)]
    assert found == numbers_revealed([stage]) == [HIDDEN] * OWNERS
    refuse([stage], ShareSettings())


def test_a_product_quantised_whole_would_reveal_more_with_every_draw():
    stage = _stage(2)
    coarse = np.round(_whole(stage) / 2**9)
    assert _determined(coarse, slice(0, SIZE)) == SIZE


def test_a_second_model_on_the_same_samples_is_refused():
    stages = [_stage(2), _stage(3)]
    matrix = np.concatenate([_whole(stage) for stage in stages])
    assert _determined(matrix, slice(0, SIZE)) == SIZE == numbers_revealed(stages)[0]
    with pytest.raises(ExperimentError, match="'owner-0': 16 independent"):
        refuse(stages, ShareSettings())
    refuse([stages[0], stages[0]], ShareSettings())


def test_a_hidden_layer_as_large_as_the_embedding_is_refused():
    source = generator(4, "small")
    sizes = [16, 16, 16, 16, 8, 16]
    stage = quantised(_mixing(source), _projections(source), sizes, ShareSettings())
    assert numbers_revealed([stage]) == [8] * OWNERS
    with pytest.raises(ExperimentError, match="'owner-4': 8 independent"):
        refuse([stage], ShareSettings())


def test_rank_is_exact_where_floats_are_not():
    # Determinant 1, but float64 takes the rows for parallel.
    projections = torch.tensor([[[2**30, 2**30 + 1, 0], [2**30 - 1, 2**30, 0], [0, 0, 0]]])
    assert np.linalg.matrix_rank(projections[0].double().numpy()) == 1
    assert revealed([projections], [3]) == [2]
    flat = torch.tensor([[[0, 2, 4], [0, 3, 6], [0, 0, 0]]])
    assert revealed([flat], [3]) == [1]
    # Columns beyond an owner's size meet no embedding.
    assert revealed([flat], [1]) == [0]


def _lattice_attack(matrix: torch.Tensor, numbers: torch.Tensor, size_of_numbers: int) -> list[int] | None:
    """Bounded whole numbers that ``matrix @ numbers`` comes from, by lattice reduction from that product alone."""
    rows, columns = matrix.shape
    product = [sum(a * b for a, b in zip(row, numbers.tolist(), strict=True)) for row in matrix.tolist()]
    basis = [
        [int(i == j) for j in range(columns)] + [0] + [2**60 * int(matrix[k, i]) for k in range(rows)]
        for i in range(columns)
    ]
    basis.append([0] * columns + [size_of_numbers] + [-(2**60) * value for value in product])
    for row in DomainMatrix(basis, (columns + 1, columns + 1 + rows), ZZ).lll().to_Matrix().tolist():
        if abs(row[columns]) == size_of_numbers and not any(row[columns + 1 :]):
            sign = 1 if row[columns] > 0 else -1
            return [int(sign * value) for value in row[:columns]]
    return None


def test_exact_results_without_random_bits_give_the_embedding_away_and_are_refused():
    settings = ShareSettings(map_bits=16, random_bits=0)
    stage = _stage(5, settings=settings)
    with pytest.raises(ExperimentError, match="random-bits is 0.*'owner-0'"):
        refuse([stage], settings)
    numbers = encode(torch.randn(SIZE, generator=generator(0, "h")), settings)
    numbers = torch.where(numbers > 2**60, numbers - (2**61 - 1), numbers)
    assert _lattice_attack(stage.projections[0], numbers, 2**10) == numbers.tolist()


def test_random_bits_leave_the_attack_with_a_guess():
    settings = ShareSettings()
    stage = _stage(5)
    refuse([stage], settings)
    embedding = torch.randn(SIZE, generator=generator(0, "h"))
    numbers = encode(embedding, settings, generator(1, "low"))
    numbers = torch.where(numbers > 2**60, numbers - (2**61 - 1), numbers)
    found = _lattice_attack(stage.projections[0], numbers, 2**30)
    assert found is not None
    error = torch.tensor(found).double() / settings.scale - embedding
    # As far off as the least-squares guess, which knows the projection as real numbers.
    matrix = stage.projections[0].double()
    guess = torch.linalg.pinv(matrix) @ (matrix @ embedding.double())
    assert float(error.norm()) > 0.95 * float((guess - embedding).norm()) > 1.0


def test_ranks_of_numbers_that_are_not_whole_are_not_known():
    half = torch.eye(4, dtype=torch.float64)[None] / 2
    with pytest.raises(TypeError, match="int64"):
        check_leaks([half], [4], ShareSettings(), ["a"])
