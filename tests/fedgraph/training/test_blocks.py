"""Blocks of clients are even, and shrink where a GPU has no room."""

import pytest
import torch

from fedgraph.training.blocks import even_slices, shrinking


def test_a_block_that_does_not_fit_into_a_gpu_is_halved(caplog):
    tried = []

    def job(block):
        tried.append((block.start, block.stop))
        if block.stop - block.start > 3:
            raise torch.OutOfMemoryError("too large")
        return block.start

    with caplog.at_level("WARNING", logger="fedgraph"):
        assert shrinking(job, clients=10, size=100) == [0, 3, 6, 9]
    assert tried == [(0, 10), (0, 5), (0, 3), (3, 6), (6, 9), (9, 10)]
    assert "going on with 3 clients at a time" in caplog.text
    with pytest.raises(torch.OutOfMemoryError):
        shrinking(lambda block: job(slice(0, 9)), clients=2, size=2)


def test_blocks_are_even():
    sizes = {
        (clients, size): [b.stop - b.start for b in even_slices(clients, size)]
        for clients, size in ((207, 49), (3, 2), (5, 9))
    }
    assert sizes == {(207, 49): [34, 35, 34, 35, 34, 35], (3, 2): [1, 2], (5, 9): [5]}
    assert [b.stop for b in even_slices(3, 1)] == [1, 2, 3]
