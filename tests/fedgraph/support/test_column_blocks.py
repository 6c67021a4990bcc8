import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.support import column_blocks as module
from fedgraph.support.column_blocks import column_blocks, over_blocks


@settings(max_examples=50, derandomize=True)
@given(st.integers(0, 5000), st.integers(0, 3000), st.integers(1, 2**16), st.sampled_from([1, 16, 64]))
def test_blocks_cover_every_column_once_in_order(rows, columns, entries, narrowest):
    blocks = column_blocks(rows, columns, entries, narrowest)
    assert [column for block in blocks for column in range(block.start, block.stop)] == list(range(columns))
    widths = {block.stop - block.start for block in blocks[:-1]}
    assert len(widths) <= 1
    assert all(width >= narrowest and (width % 16 == 0 or width == narrowest) for width in widths)


@pytest.fixture
def cores(monkeypatch):
    def set_to(count):
        monkeypatch.setattr(module, "available_cores", lambda: count)

    return set_to


@pytest.mark.parametrize("count", [1, 3])
def test_results_come_in_order_without_gradients_and_with_one_thread_within_an_operation(cores, count):
    cores(count)
    before = torch.get_num_threads()
    seen = set()

    def job(block):
        seen.add((threading.get_ident(), torch.get_num_threads(), torch.is_grad_enabled()))
        return block.start

    blocks = column_blocks(1, 1000, 16, 16)
    assert over_blocks(job, blocks, products=1e12) == [block.start for block in blocks]
    assert {settings[1:] for settings in seen} == {(1, False)}
    assert torch.get_num_threads() == before
    assert torch.is_grad_enabled()
    if count == 1:
        assert {ident for ident, _, _ in seen} == {threading.get_ident()}


def test_no_threads_for_little_work(cores):
    cores(3)
    seen = set()
    over_blocks(lambda block: seen.add(threading.get_ident()), column_blocks(1, 1000, 16, 16), products=1e6)
    assert seen == {threading.get_ident()}


def test_the_first_exception_reaches_the_caller(cores):
    cores(2)

    def job(block):
        if block.start == 32:
            raise ValueError("at 32")

    with pytest.raises(ValueError, match="at 32"):
        over_blocks(job, column_blocks(1, 100, 16, 16), products=1e12)
