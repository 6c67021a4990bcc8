"""What was released stays what was released, and counts for the rows that it is about."""

import itertools
import os
import stat
import threading

import pytest
import torch

from fedgraph.privacy.ledger import ONCE, Budget, Ledger, kept_secret
from fedgraph.support.errors import ReplyError


def ids(*rows):
    return torch.tensor(rows, dtype=torch.int64)


def drawing(calls, size=2, dtype=torch.float32):
    """Draws that differ at every call, and a list of what was asked for."""

    def draw(places):
        calls.append(places.tolist())
        return (torch.arange(len(places) * size).reshape(-1, size) + 1000 * len(calls)).to(dtype)

    return draw


def budget(loss, promised, agreed=None):
    return Budget((loss,), (promised,), None if agreed is None else (agreed,))


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "releases", "mercy", "embeddings")


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_asked_twice_the_answer_is_the_same(ledger, dtype):
    calls = []
    first = ledger.rows(ids(5, 7), ["noise", 1], ONCE, drawing(calls, dtype=dtype))
    again = Ledger(ledger.folder, "mercy", "embeddings").rows(
        ids(5, 7), ["noise", 1], ONCE, drawing(calls, dtype=dtype)
    )
    assert first.dtype == dtype
    assert torch.equal(first, again)
    assert calls == [[0, 1], []]
    assert first.tolist() == [[1000, 1001], [1002, 1003]]


def test_other_rows_are_drawn_beside_those_that_were_released(ledger):
    calls = []
    first = ledger.rows(ids(2, 4), "p", ONCE, drawing(calls))
    second = ledger.rows(ids(5, 4, 1), "p", ONCE, drawing(calls))
    assert calls == [[0, 1], [0, 2]]
    assert torch.equal(second[1], first[1])
    third = ledger.rows(ids(1, 2, 4, 5), "p", ONCE, drawing(calls))
    assert torch.equal(third, torch.stack([second[2], first[0], first[1], second[0]]))
    assert calls[2] == []
    assert ledger.rows(ids(), "p", ONCE, drawing(calls)).shape == (0, 2)
    assert len(ledger.rows(ids(9, 9), "p", ONCE, drawing(calls)).unique(dim=0)) == 1, "a row is a row"


def test_another_release_of_a_row_is_paid_for_by_this_row_alone(ledger):
    calls = []
    ledger.rows(ids(1, 2), "p", budget(1.0, 2.0), drawing(calls))
    ledger.rows(ids(2, 3), "q", budget(1.0, 2.0), drawing(calls))
    with pytest.raises(ReplyError, match="no such embeddings are sent of mercy: .*than was promised"):
        ledger.rows(ids(3, 2), "r", budget(1.0, 2.0), drawing(calls))
    assert len(calls) == 2, "nothing is drawn"
    ledger.rows(ids(1, 3), "r", budget(1.0, 2.0), drawing(calls))
    assert ledger.rows(ids(2), "p", budget(1.0, 2.0), drawing(calls)).tolist() == [[1002, 1003]], "sent again"
    for other in (Ledger(ledger.folder, "county", "embeddings"), Ledger(ledger.folder, "mercy", "updates")):
        other.rows(ids(2), "r", budget(1.0, 1.0), drawing(calls))


@pytest.mark.parametrize("later", [budget(1.0, 400.0), budget(1e-3, 1e9), budget(float("inf"), float("inf"))])
def test_a_larger_promise_is_no_larger_budget(ledger, later):
    ledger.rows(ids(1), "p", budget(1.0, 1.0), drawing([]))
    with pytest.raises(ReplyError):
        ledger.rows(ids(1), "q", later, drawing([]))
    ledger.rows(ids(2), "q", later, drawing([]))


def test_the_limit_of_the_site_takes_the_place_of_promises(ledger):
    ledger.rows(ids(1), "p", budget(1.0, 9.0, 2.0), drawing([]))
    ledger.rows(ids(1), "q", budget(1.0, 1.0, 2.0), drawing([]))
    with pytest.raises(ReplyError):
        ledger.rows(ids(1), "r", budget(1.0, 9.0, 2.0), drawing([]))
    with pytest.raises(ReplyError):
        ledger.rows(ids(2), "r", budget(3.0, 9.0, 2.0), drawing([]))
    with pytest.raises(ReplyError):
        ledger.rows(ids(2), "r", budget(float("nan"), 9.0, 2.0), drawing([]))


def test_decimal_fractions_add_up(ledger):
    for number in range(3):
        ledger.once(ids(1), number, Budget((0.1, 1e-6), (0.3, 3e-6)), lambda: {"told": 1})
    with pytest.raises(ReplyError):
        ledger.once(ids(1), 3, Budget((0.0, 1e-6), (0.3, 3e-6)), lambda: {"told": 1})


def test_what_is_released_of_rows_together_is_drawn_once(ledger):
    calls = itertools.count()
    ask = lambda rows: ledger.once(rows, "sums", budget(1.0, 2.0), lambda: torch.tensor([next(calls)]))  # noqa: E731
    assert [ask(ids(1, 2)).item(), ask(ids(2, 1)).item(), ask(ids(1, 2, 3)).item()] == [0, 0, 1]
    with pytest.raises(ReplyError):
        ask(ids(1, 3))
    assert ask(ids(4, 3)).item() == 2, "which is new to one of them, and the second of the other"


def test_updates_are_counted_over_runs(ledger):
    assert [ledger.count(budget(1.0, 3.0), run, number) for run, number in (("a", 4), ("b c", 1), ("a", 2))] == [
        -1,
        -1,
        4,
    ]
    for run in ("a", "b c", "d"):
        with pytest.raises(ReplyError, match="as many as was promised"):
            ledger.count(budget(1.0, 3.0), run, 1)


# ---- exact statistics


def test_exact_statistics_of_rows_are_told_once(ledger):
    ledger.exact(torch.arange(40), "ranges", 10)
    ledger.exact(torch.arange(40).flip(0), "ranges", 10)
    for number in range(30):
        with pytest.raises(ReplyError, match="no such embeddings are sent of mercy: others of the same rows"):
            ledger.exact(torch.arange(40), f"ranges at quantile {number}/58", 10)
    ledger.exact(torch.arange(100, 140), "other ranges", 10)


@pytest.mark.parametrize(
    "later",
    [
        range(39),
        range(41),
        range(31),
        range(1, 41),
        [*range(20), *range(60, 80), 90],
        [*range(30), *range(41, 50)],
        range(9),
    ],
)
def test_sets_of_rows_that_differ_in_few_are_refused(ledger, later):
    ledger.exact(torch.arange(40), "sums", 10)
    ledger.exact(torch.arange(60, 80), "sums", 10)
    with pytest.raises(ReplyError, match="tell of fewer than 10 rows"):
        ledger.exact(torch.tensor(list(later)), "sums", 10)
    ledger.exact(torch.arange(40), "sums", 10)


def test_no_combination_of_several_sets_tells_of_few_rows(ledger):
    """P and one row, Q, and P with Q differ by pairs in many rows, and together tell of the one."""
    ledger.exact(torch.arange(21), "sums", 10)
    ledger.exact(torch.arange(21, 41), "sums", 10)
    with pytest.raises(ReplyError, match="fewer than 10"):
        ledger.exact(torch.tensor([*range(20), *range(21, 41)]), "sums", 10)
    ledger.exact(torch.arange(60), "sums", 10)  # the table has grown by nineteen rows
    with pytest.raises(ReplyError, match="by themselves they tell of fewer than 10"):
        Ledger(ledger.folder, "county", "sums").exact(torch.arange(9), "sums", 10)


# ---- files


def test_a_draw_that_fails_leaves_nothing(ledger):
    def fail(places):
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        ledger.rows(ids(1), "p", ONCE, fail)
    assert not ledger.path.exists()
    ledger.rows(ids(1), "q", ONCE, drawing([]))


def test_a_ledger_is_its_users_own(ledger):
    before = os.umask(0)
    try:
        ledger.rows(ids(1), "p", ONCE, drawing([]))
        assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(ledger.folder.stat().st_mode) == 0o700
    finally:
        os.umask(before)


def test_a_secret_is_made_once(tmp_path):
    found = kept_secret(tmp_path / "new" / "secret.key", 32, lambda: os.urandom(32))
    assert kept_secret(tmp_path / "new" / "secret.key", 32, lambda: os.urandom(32)) == found
    assert stat.S_IMODE((tmp_path / "new" / "secret.key").stat().st_mode) == 0o600
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["secret.key"]


def test_two_at_once_release_the_same(ledger):
    start, results = threading.Barrier(4), {}

    def work(number):
        start.wait()
        rows = torch.arange(number, 60, 1 + number % 2)
        found = ledger.rows(rows, "p", ONCE, lambda places: torch.rand(len(places), 2))
        results[number] = dict(zip(rows.tolist(), found, strict=True))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for row in results[0]:
        assert all(torch.equal(found[row], results[0][row]) for found in results.values() if row in found)
