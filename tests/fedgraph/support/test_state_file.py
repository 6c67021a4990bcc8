import pytest
import torch

from fedgraph.support.errors import RunError
from fedgraph.support.state_file import load_state, save_state


def test_nested_state_round_trip(tmp_path):
    state = {
        "round": 3,
        "name": "x",
        "none": None,
        "list": [1, 2.5, "z"],
        "deep": {"tensor": torch.arange(6.0).reshape(2, 3), "flag": torch.tensor([True, False]), "empty": {}},
    }
    save_state(tmp_path / "a" / "state", state)
    loaded = load_state(tmp_path / "a" / "state")
    assert torch.equal(loaded["deep"].pop("tensor"), state["deep"]["tensor"])
    assert torch.equal(loaded["deep"].pop("flag"), state["deep"]["flag"])
    assert loaded == {"round": 3, "name": "x", "none": None, "list": [1, 2.5, "z"], "deep": {"empty": {}}}


def test_expanded_views_are_stored_whole(tmp_path):
    save_state(tmp_path / "s", {"rows": torch.arange(3.0).expand(4, 3), "same": torch.arange(3.0)})
    assert torch.equal(load_state(tmp_path / "s")["rows"], torch.arange(3.0).repeat(4, 1))


def test_tensors_that_share_memory_are_stored(tmp_path):
    tensor = torch.arange(3.0)
    save_state(tmp_path / "s", {"a": tensor, "b": {"c": tensor}})
    loaded = load_state(tmp_path / "s")
    assert torch.equal(loaded["a"], loaded["b"]["c"])


@pytest.mark.parametrize("content", [b"", b"nonsense", b'\x10\0\0\0\0\0\0\0{"a":1}         '])
def test_broken_file_is_named(tmp_path, content):
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(RunError, match=r"cannot read the saved state .*/s"):
        load_state(tmp_path / "s")


def test_missing_file_is_named(tmp_path):
    with pytest.raises(RunError, match="cannot read the saved state"):
        load_state(tmp_path / "none")
