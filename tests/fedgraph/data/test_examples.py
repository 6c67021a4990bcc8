from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.data.examples import ExampleSplit, row_table

PIXELS = torch.randint(0, 256, (30, 1, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
LABELS = torch.arange(30) % 7
ROWS = [np.array([5, 3, 8]), np.array([11]), np.array([0, 29, 2, 4, 6])]


def images(**options):
    return ExampleSplit(PIXELS, LABELS, row_table(ROWS), **options)


def test_batch_equals_plain_indexing():
    split = images(scale=torch.tensor(1 / 255.0))
    batch = split.batch(torch.tensor([[2, 0], [0, 0], [4, 1]]))
    wanted = np.array([[8, 5], [11, 11], [6, 29]])
    assert torch.equal(batch.inputs, PIXELS.float()[wanted] * (1 / 255.0))
    assert torch.equal(batch.targets, LABELS[wanted])
    assert batch.inputs.dtype == torch.float32
    assert batch.targets.dtype == torch.int64
    assert batch.weights.shape == (3, 2)
    assert batch.weights.min() == 1
    assert split.num_examples.tolist() == [3, 1, 5]


def test_scale_and_shift_broadcast_over_channels():
    colours = torch.randint(0, 256, (5, 3, 2, 2), dtype=torch.uint8)
    mean, deviation = torch.tensor([0.1, 0.2, 0.3])[:, None, None], torch.tensor([0.5, 0.6, 0.7])[:, None, None]
    split = ExampleSplit(
        colours, torch.zeros(5).long(), row_table([np.arange(5)]), 1 / 255 / deviation, -mean / deviation
    )
    wanted = (colours.float() / 255 - mean) / deviation
    assert torch.allclose(split.batch(torch.arange(5)[None]).inputs[0], wanted, atol=1e-6)


def test_padding_is_zero_and_has_no_weight():
    split = images(shift=torch.tensor(9.0))
    indices = torch.tensor([[0, -1, 1], [-1, -1, -1], [3, 4, 5]])
    batch = split.batch(indices)
    padding = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)
    assert torch.equal(batch.weights, (~padding).float())
    assert batch.inputs[padding].abs().sum() == 0
    assert batch.targets[padding].sum() == 0
    assert torch.equal(batch.inputs[0, 2], PIXELS[3].float() + 9)
    assert torch.equal(split.inputs, PIXELS)  # storage is left alone


def test_index_beyond_a_clients_examples_is_padding_and_never_another_clients_example():
    batch = images().batch(torch.tensor([[3], [1], [99]]))
    assert batch.weights.sum() == 0
    assert batch.inputs.sum() == 0


def test_regression_targets_and_weights_have_one_number_per_example():
    targets = torch.randn(30, 1)
    split = ExampleSplit(torch.randn(30, 6), targets, row_table(ROWS))
    batch = split.batch(torch.tensor([[0, 1], [0, -1], [1, 2]]))
    assert batch.targets.shape == batch.weights.shape == (3, 2, 1)
    assert torch.equal(batch.targets[2, :, 0], targets[[29, 2], 0])
    assert batch.weights[1, :, 0].tolist() == [1, 0]


def test_float_storage_is_not_changed_by_a_batch():
    stored = torch.randn(30, 6)
    before = stored.clone()
    ExampleSplit(stored, LABELS, row_table(ROWS), torch.tensor(2.0), torch.tensor(1.0)).batch(
        torch.tensor([[0], [-1], [1]])
    )
    assert torch.equal(stored, before)


def test_block_is_a_view_of_the_same_clients():
    split = images()
    block = split.select(slice(1, 3))
    indices = torch.tensor([[0, -1], [4, 1]])
    assert torch.equal(
        block.batch(indices).inputs, split.batch(torch.cat([torch.tensor([[0, 0]]), indices])).inputs[1:]
    )
    assert block.num_examples.tolist() == [1, 5]
    assert block.inputs.data_ptr() == split.inputs.data_ptr()
    assert block.rows.data_ptr() == split.rows[1:].data_ptr()


@pytest.mark.parametrize("width", [0, 2])
def test_split_without_examples(width):
    split = ExampleSplit(PIXELS, LABELS, row_table([np.empty(0, dtype=np.int64)] * 2))
    assert split.num_examples.tolist() == [0, 0]
    batch = split.batch(torch.full((2, width), -1))
    assert batch.inputs.shape == (2, width, 1, 4, 4)
    assert batch.weights.sum() == 0
