"""Embeddings that hold the samples themselves are refused; those that are made of them are not."""

import pytest
import torch

from fedgraph.fusion.owner_models.raw import refuse_raw
from fedgraph.support.errors import ExperimentError

SAMPLES = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(0))
ROWS = SAMPLES.flatten(1)
CONSTANT = torch.cat([ROWS, torch.full((40, 1), 7.0)], 1)


@pytest.mark.parametrize(
    ("inputs", "embeddings"),
    [
        (SAMPLES, ROWS),
        (SAMPLES, SAMPLES),
        (SAMPLES, ROWS[:, [3, 1, 0, 2, 5, 4]]),
        (SAMPLES, torch.cat([ROWS.tanh(), ROWS], 1)),
        (CONSTANT, ROWS),
        (ROWS.relu(), torch.where(ROWS > 0, ROWS, -0.0)),
        (ROWS[:1], ROWS[:1]),
    ],
    ids=["rows", "shape", "order", "more", "constant", "negative-zero", "one"],
)
def test_the_sample_itself(inputs, embeddings):
    with pytest.raises(ExperimentError, match="owner a, b: .*must not leave its owner; do this"):
        refuse_raw(inputs, embeddings, ["a", "b"], "do this")


@pytest.mark.parametrize(
    ("inputs", "embeddings"),
    [
        (SAMPLES, ROWS.tanh()),
        (SAMPLES, ROWS.relu()),
        (SAMPLES, ROWS[:, :5].tanh()),
        (SAMPLES, ROWS.flip(0)),
        (SAMPLES, torch.zeros(40, 6)),
        (ROWS[:0], ROWS[:0]),
        (ROWS[:1], 2 * ROWS[:1]),
    ],
    ids=["tanh", "relu", "fewer", "other-samples", "nothing", "no-samples", "one"],
)
def test_what_is_made_of_it(inputs, embeddings):
    refuse_raw(inputs, embeddings, ["a"], "do this")
