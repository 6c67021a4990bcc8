import pytest
import torch

from fedgraph.fusion.forecasting import OwnerWindows, shared_windows
from fedgraph.support.errors import DataError


def test_windows_of_all_owners_lie_side_by_side():
    starts = torch.tensor([[10, 20, 30], [20, 40, -1]])
    values = torch.arange(12.0).reshape(2, 3, 2)
    known = torch.ones(2, 3, 2, dtype=torch.bool)
    windows = OwnerWindows.of(starts, values, values + 100, known)
    assert windows.keys.tolist() == [10, 20, 30, 40]
    assert windows.present.tolist() == [[True, True, True, False], [False, True, False, True]]
    assert windows.embeddings[0].tolist() == [[0, 1], [2, 3], [4, 5], [0, 0]]
    assert windows.embeddings[1].tolist() == [[0, 0], [6, 7], [0, 0], [8, 9]]
    assert windows.targets[1, 3].tolist() == [108, 109]
    assert windows.known.any(2).tolist() == windows.present.tolist()
    back = windows.of_owners(windows.embeddings, starts)
    assert torch.equal(back[0], values[0])
    assert torch.equal(back[1, :2], values[1, :2])
    assert not back[1, 2].any()


def test_owners_with_the_same_windows_are_taken_as_they_are():
    starts = torch.tensor([[1, 2], [1, 2]])
    values = torch.randn(2, 2, 3)
    windows = OwnerWindows.of(starts, values.half(), values, values > 0)
    assert windows.of_owners(values, starts) is values
    assert windows.embeddings.dtype == torch.float16
    batch = windows.batch(torch.tensor([1]))
    assert batch.embeddings.dtype == torch.float32
    assert batch.keys.tolist() == [2]


def test_embeddings_of_later_windows_are_targets():
    starts = torch.tensor([[0, 5, 10, 20], [0, 10, -1, -1]])
    embeddings = torch.arange(8.0).reshape(2, 4, 1) + 1
    windows = OwnerWindows.of(starts, embeddings, torch.zeros(2, 4, 0), torch.zeros(2, 4, 0).bool()).ahead(10)
    assert windows.keys.tolist() == [0, 5, 10, 20]
    assert windows.known[..., 0].tolist() == [[True, False, True, False], [True, False, False, False]]
    assert windows.targets[0, [0, 2], 0].tolist() == [3, 4]
    assert windows.targets[1, 0, 0] == 6


def test_later_windows_may_be_some_days_off_as_months_are():
    months = torch.tensor([0, 31, 59, 90, 120])
    values = torch.arange(5.0).reshape(1, 5, 1)
    windows = OwnerWindows.of(months[None], values, torch.zeros(1, 5, 0), torch.zeros(1, 5, 0).bool())
    assert windows.ahead(62).known.sum() == 0
    later = windows.ahead(62, tolerance=7)
    assert later.known[0, :, 0].tolist() == [True, True, True, False, False]
    assert later.targets[0, :3, 0].tolist() == [2, 3, 4]


def test_shared_windows_are_counted_and_none_is_an_error():
    names = ("a", "b", "c")
    everybody = torch.ones(3, 5, dtype=torch.bool)
    assert shared_windows(everybody, names) == "all 5 training windows are shared by all clients"
    everybody[2, :2], everybody[0, 0] = False, False
    assert shared_windows(everybody, names) == "4 of 5 training windows are shared by clients, 3 by all"
    apart = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1]]).bool()
    assert shared_windows(apart, names).endswith(
        "1 of 4 training windows are shared by clients, 0 by all; 'c' shares none"
    )
    with pytest.raises(DataError, match="'a', 'b', 'c'"):
        shared_windows(torch.eye(3).bool(), names)
    assert shared_windows(torch.ones(1, 4).bool(), ("a",)).startswith("all 4")
