import json
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from fedgraph.support.errors import RunError
from fedgraph.training.row_file import read_clients, read_rows, write_rows

CLIENTS = ("a", "b", "ü/\n..", "")
LIKE = {"matrix": torch.zeros(3, 2), "step": torch.zeros(())}


def stacked(clients=4):
    return {"matrix": torch.arange(clients * 6.0).reshape(clients, 3, 2), "step": torch.arange(float(clients))}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "folder" / "rows.safetensors"
    write_rows(path, CLIENTS, stacked())
    return path


def test_whole_files_come_back_with_their_names(path):
    assert read_clients(path) == CLIENTS
    rows = read_rows(path, CLIENTS, range(4), LIKE)
    assert list(rows) == ["matrix", "step"]
    for name, values in stacked().items():
        assert torch.equal(rows[name], values)


def test_rows_read_are_the_callers_own(path):
    for positions in (range(4), [2]):
        read_rows(path, CLIENTS, positions, LIKE)["matrix"].fill_(-1)
    assert torch.equal(read_rows(path, CLIENTS, range(4), LIKE)["matrix"], stacked()["matrix"])


def test_any_rows_in_any_order(tmp_path):
    clients = tuple(map(str, range(9)))
    path = tmp_path / "rows.safetensors"
    write_rows(path, clients, stacked(9))

    @settings(max_examples=50)
    @given(st.lists(st.integers(0, 8), max_size=12))
    def check(positions):
        rows = read_rows(path, clients, positions, LIKE)
        for name, values in stacked(9).items():
            assert torch.equal(rows[name], values[torch.tensor(positions, dtype=torch.long)])

    check()


def test_rows_take_the_type_asked_for(path):
    like = {"matrix": torch.zeros(3, 2, dtype=torch.float64), "step": torch.zeros((), dtype=torch.int64)}
    for positions in (range(4), [1, 3]):
        rows = read_rows(path, CLIENTS, positions, like)
        assert {name: values.dtype for name, values in rows.items()} == {
            "matrix": torch.float64,
            "step": torch.int64,
        }


def test_tensors_that_share_memory_or_are_not_contiguous(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    values = {"left": base, "right": base, "turned": base.t()[:3], "repeated": base[:, :1].expand(3, 4)}
    write_rows(tmp_path / "x", ("a", "b", "c"), values)
    like = {name: value[0] for name, value in values.items()}
    for name, rows in read_rows(tmp_path / "x", ("a", "b", "c"), range(3), like).items():
        assert torch.equal(rows, values[name])


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path, monkeypatch, step):
    monkeypatch.setattr(f"fedgraph.support.files.os.{step}", Mock(side_effect=OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_rows(path, CLIENTS, {name: value + 1 for name, value in stacked().items()})
    assert [entry.name for entry in path.parent.iterdir()] == ["rows.safetensors"]
    assert torch.equal(read_rows(path, CLIENTS, range(4), LIKE)["matrix"], stacked()["matrix"])


def test_a_missing_file_is_told_from_a_broken_one(tmp_path, path):
    with pytest.raises(FileNotFoundError):
        read_clients(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        read_rows(tmp_path / "missing", CLIENTS, [0], LIKE)
    path.write_bytes(path.read_bytes()[:-1])
    for read in (lambda: read_clients(path), lambda: read_rows(path, CLIENTS, range(4), LIKE)):
        with pytest.raises(RunError, match=r"rows\.safetensors"):
            read()


@pytest.mark.parametrize("metadata", [None, {"clients": "no JSON"}, {"clients": "[1]"}, {"state": "{}"}])
def test_files_of_others(tmp_path, metadata):
    save_file(stacked(), tmp_path / "x", metadata=metadata)
    with pytest.raises(RunError, match="cannot read the saved state"):
        read_clients(tmp_path / "x")


def test_other_clients_names_or_shapes(path):
    with pytest.raises(RunError, match="not that of the clients"):
        read_rows(path, ("a", "b"), range(2), LIKE)
    with pytest.raises(RunError, match=r"\['matrix', 'step'\], .*\['momentum'\]"):
        read_rows(path, CLIENTS, range(4), {"momentum": torch.zeros(2)})
    with pytest.raises(RunError, match=r"matrix .*\(4, 3, 2\), .*\(4, 2, 3\)"):
        read_rows(path, CLIENTS, [1], {"matrix": torch.zeros(2, 3)})


@pytest.mark.parametrize("clients", [4, 20000])
def test_flipped_bits_of_rows_that_are_read(tmp_path, clients):
    """Of 20000 clients, rows are in several blocks with checksums of their own."""
    names, path = tuple(map(str, range(clients))), tmp_path / "x"
    write_rows(path, names, stacked(clients))
    content = path.read_bytes()
    first = content.index(stacked(clients)["matrix"].numpy().tobytes())
    flipped = bytearray(content)
    flipped[first + 3] ^= 64
    path.write_bytes(flipped)
    for positions in (range(clients), [0], [2, 1]):
        with pytest.raises(RunError, match="cannot read the saved state .*damaged"):
            read_rows(path, names, positions, LIKE)
    assert read_rows(path, names, [1], {"step": LIKE["step"]})["step"].tolist() == [1.0]
    if clients > 4:
        assert torch.equal(
            read_rows(path, names, [19999, 18000], LIKE)["matrix"], stacked(clients)["matrix"][[19999, 18000]]
        )
        path.write_bytes(content)
        positions = [19999, *range(0, clients, 7)]
        assert torch.equal(read_rows(path, names, positions, LIKE)["matrix"], stacked(clients)["matrix"][positions])


def test_rows_of_other_clients_or_without_a_checksum(path):
    save_file(stacked(), path, metadata={"clients": json.dumps(CLIENTS)})
    assert torch.equal(read_rows(path, CLIENTS, range(4), LIKE)["matrix"], stacked()["matrix"])
    write_rows(path, CLIENTS, stacked())
    path.write_bytes(path.read_bytes().replace(rb"\"b\"", rb"\"c\""))
    with pytest.raises(RunError, match="damaged"):
        read_rows(path, ("a", "c", *CLIENTS[2:]), [0], LIKE)
