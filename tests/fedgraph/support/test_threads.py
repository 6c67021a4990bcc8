import os
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.support import threads as module
from fedgraph.support.threads import available_cores, column_blocks, over_blocks, pinned_threads, side_by_side


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_pinned_within_and_restored_after(count):
    with pinned_threads(count):
        assert torch.get_num_threads() == count
    assert torch.get_num_threads() == 2


def test_restored_after_an_error_and_when_nested():
    with pinned_threads(1):
        with pytest.raises(ZeroDivisionError), pinned_threads(3):
            assert torch.get_num_threads() == 3 / 0
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_a_run_trains_with_the_threads_of_the_experiment_and_restores_them(digits_tables, run_experiment):
    from fedgraph.clients.app import app as client_app

    seen = []

    def serve(message, context):
        seen.append(torch.get_num_threads())
        return client_app(message, context)

    digits_tables["experiment"]["rounds"] = 0
    run_experiment(digits_tables, client=serve)
    assert set(seen) == {1}
    assert torch.get_num_threads() == 2


def test_cores_are_what_is_granted_else_what_there_are(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_cores() == 3
    for nothing in ("", "0", "many"):
        monkeypatch.setenv("OMP_NUM_THREADS", nothing)
        assert 1 <= available_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("workers", [1, 2, 7])
def test_results_come_in_order_from_threads_that_are_pinned(workers):
    seen = set()

    def job(item):
        seen.add((threading.get_ident(), torch.get_num_threads()))
        time.sleep(0.01 * (3 - item % 3))
        return item * item

    assert side_by_side(job, range(12), workers, threads=1) == [item * item for item in range(12)]
    assert {count for _, count in seen} == {1}
    assert len(seen) <= workers
    assert torch.get_num_threads() == 2


def test_jobs_run_side_by_side():
    meeting = threading.Barrier(2, timeout=10)
    side_by_side(lambda item: meeting.wait(), range(2), workers=2, threads=1)


def test_a_job_may_have_jobs_of_its_own_done_side_by_side():
    def outer(item):
        return sum(side_by_side(lambda factor: item * factor, range(4), workers=2, threads=1))

    done = []
    # A thread of its own, which a deadlock would leave behind instead of stopping the tests.
    runner = threading.Thread(target=lambda: done.append(side_by_side(outer, range(4), 2, threads=1)), daemon=True)
    runner.start()
    runner.join(10)
    assert done == [[0, 6, 12, 18]]


def test_an_error_is_raised_once_nothing_runs_any_more():
    running, started = [], []

    def job(item):
        started.append(item)
        if item == 0:
            raise ZeroDivisionError("job 0")
        running.append(item)
        time.sleep(0.2)
        running.remove(item)

    with pytest.raises(ZeroDivisionError, match="job 0"):
        side_by_side(job, range(50), workers=2, threads=1)
    assert running == []
    assert len(started) < 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_starts_its_own_threads():
    side_by_side(str, range(4), workers=2, threads=1)
    child = os.fork()
    if child == 0:
        os._exit(0 if side_by_side(str, range(4), workers=2, threads=1) == ["0", "1", "2", "3"] else 1)
    deadline = time.monotonic() + 20
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, 9)
        time.sleep(0.01)
    assert ended == (child, 0)


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
