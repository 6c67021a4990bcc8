"""What was released stays what was released."""

import threading

import pytest
import torch

from fedgraph.privacy.released import Released
from fedgraph.support.errors import RunError


def drawing(calls, size=2, dtype=torch.float32):
    """Draws that differ at every call, and a list of what was asked for."""

    def draw(places):
        calls.append(places.tolist())
        return (torch.arange(len(places) * size).reshape(-1, size) + 1000 * len(calls)).to(dtype)

    return draw


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_asked_twice_the_answer_is_the_same(tmp_path, dtype):
    calls = []
    first = Released(tmp_path, "a", ["noise", 1]).rows(["x", "y"], drawing(calls, dtype=dtype))
    again = Released(tmp_path, "a", ["noise", 1]).rows(["x", "y"], drawing(calls, dtype=dtype))
    assert first.dtype == dtype
    assert torch.equal(first, again)
    assert calls == [[0, 1], []]
    assert first.tolist() == [[1000, 1001], [1002, 1003]]


def test_other_samples_are_drawn_beside_those_that_were_released(tmp_path):
    calls = []
    kept = Released(tmp_path, "a", "p")
    first = kept.rows(["b", "d"], drawing(calls))
    second = kept.rows(["e", "d", "a"], drawing(calls))
    assert calls == [[0, 1], [0, 2]]
    assert torch.equal(second[1], first[1])
    third = kept.rows(["a", "b", "d", "e"], drawing(calls))
    assert torch.equal(third, torch.stack([second[2], first[0], first[1], second[0]]))
    assert calls[2] == []
    assert kept.rows([], drawing(calls)).shape == (0, 2)


def test_owners_and_purposes_are_apart(tmp_path):
    calls = []
    Released(tmp_path, "a", ["m", 1]).rows(["x"], drawing(calls))
    for owner, purpose in (("b", ["m", 1]), ("a", ["m", 2]), ("a", ["n", 1])):
        Released(tmp_path, owner, purpose).rows(["x"], drawing(calls))
    assert calls == [[0]] * 4
    assert len(list(tmp_path.glob("*.safetensors"))) == 4


def test_a_draw_that_fails_leaves_nothing(tmp_path):
    def fail(places):
        raise ValueError

    kept = Released(tmp_path, "a", "p")
    with pytest.raises(ValueError):  # noqa: PT011
        kept.rows(["x"], fail)
    assert not kept.path.exists()


def test_rows_of_another_size_are_refused(tmp_path):
    kept = Released(tmp_path, "a", "p")
    kept.rows(["x"], drawing([]))
    with pytest.raises(RunError, match=r"\[2\] .*'a', .*\[3\]"):
        kept.rows(["x", "y"], drawing([], size=3))


def test_two_at_once_release_the_same(tmp_path):
    start, results = threading.Barrier(4), {}

    def work(number):
        start.wait()
        keys = [f"{key:03d}" for key in range(number, 60, 1 + number % 2)]
        rows = Released(tmp_path, "a", "p").rows(keys, lambda places: torch.rand(len(places), 2))
        results[number] = dict(zip(keys, rows, strict=True))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for key in results[0]:
        assert all(torch.equal(found[key], results[0][key]) for found in results.values() if key in found)
