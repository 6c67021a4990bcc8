import errno
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors import SafetensorError

from fedgraph.support.errors import DiskError, RunError
from fedgraph.support.files import (
    load_state,
    make_folder,
    private_folder,
    remove_unfinished,
    replacing,
    save_state,
    write_atomically,
)


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path):
    target = tmp_path / "state"
    write_atomically(target, b"0" * 1_000_000)
    code = (
        "import sys, pathlib; from fedgraph.support.files import write_atomically\n"
        "for i in range(10**6): write_atomically(pathlib.Path(sys.argv[1]), str(i % 10).encode() * 1_000_000)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(target)])
    try:
        process.wait(1.5)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
    process.wait()
    content = target.read_bytes()
    assert len(content) == 1_000_000
    assert len(set(content)) == 1


def test_a_failed_write_leaves_no_temporary_file(tmp_path):
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "x", "text is not bytes")
    assert list(tmp_path.iterdir()) == []


def test_a_file_filled_in_a_block_replaces_the_old_one_at_its_end(tmp_path):
    target = tmp_path / "folder" / "x"
    write_atomically(target, b"old")
    with replacing(target) as temporary:
        temporary.write_bytes(b"new")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"new"
    with pytest.raises(ZeroDivisionError), replacing(target) as temporary:
        temporary.write_bytes(b"half" * (1 // 0))
    assert [path.name for path in target.parent.iterdir()] == ["x"]
    assert target.read_bytes() == b"new"


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EDQUOT, "quota"), SafetensorError("I/O error: No space left on device (os error 28)")],
)
def test_files_that_a_disk_cannot_take_are_named(tmp_path, error):
    words = r"cannot write .*x: (Disk quota exceeded|No space left on device); make room"
    with pytest.raises(DiskError, match=words), replacing(tmp_path / "x"):
        raise error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), SafetensorError("of another kind")])
def test_other_errors_of_writing_stay_what_they_are(tmp_path, error):
    with pytest.raises(type(error)) as raised, replacing(tmp_path / "x"):
        raise error
    assert raised.value is error


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


def test_a_folder_is_made_whole_or_not_at_all(tmp_path):
    def fill(folder):
        assert folder.parent == tmp_path
        (folder / "a").write_text("a")

    assert make_folder(tmp_path, "run", fill) == tmp_path / "run"
    assert make_folder(tmp_path, "run", fill) == tmp_path / "run-2"
    (tmp_path / "run-3").write_text("a file")
    assert make_folder(tmp_path, "run", fill) == tmp_path / "run-4"
    assert [path.name for path in (tmp_path / "run-4").iterdir()] == ["a"]

    def fail(folder):
        fill(folder)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        make_folder(tmp_path, "other", fail)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2", "run-3", "run-4"]


def test_folders_that_killed_processes_left_are_removed_after_an_hour(tmp_path):
    for name, age in (("old", 4000), ("new", 10)):
        left = tmp_path / f".run.{name}.part"
        left.mkdir()
        (left / "a").touch()
        os.utime(left, (time.time() - age,) * 2)
    (tmp_path / ".kept").mkdir()
    os.utime(tmp_path / ".kept", (0, 0))
    make_folder(tmp_path, "run", lambda folder: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".kept", ".run.new.part", "run"]


def test_what_killed_writers_left_is_removed(tmp_path):
    with replacing(tmp_path / "below" / "a.json") as unfinished:
        unfinished.write_text("half")
        (tmp_path / ".hidden").touch()
        (tmp_path / ".tmpAb12Cd").touch()
        remove_unfinished(tmp_path)
        assert not unfinished.exists()
        unfinished.write_text("whole")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".hidden", "a.json", "below"]


def test_a_file_that_is_replaced_while_it_is_filled_is_the_one_that_is_flushed(tmp_path, monkeypatch):
    """As safetensors does: a power cut must not leave a file whose content was never written to disk."""
    flushed = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor).st_ino))
    with replacing(tmp_path / "a") as unfinished:
        (tmp_path / "other").write_text("content")
        os.replace(tmp_path / "other", unfinished)
    assert flushed == [(tmp_path / "a").stat().st_ino]


@pytest.fixture(params=[0o000, 0o077])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_private_files_and_their_folders_are_their_users_alone(tmp_path, umask):
    save_state(tmp_path / "node" / "state" / "x", {"tensor": torch.zeros(2)})
    write_atomically(tmp_path / "node" / "x.json", b"{}", private=True)
    found = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert found == {"node": 0o700, "node/state": 0o700, "node/state/x": 0o600, "node/x.json": 0o600}


def test_folders_that_are_there_keep_their_modes(tmp_path):
    tmp_path.chmod(0o755)
    assert private_folder(tmp_path) == tmp_path
    write_atomically(tmp_path / "new" / "x", b"")
    assert tmp_path.stat().st_mode & 0o777 == 0o755
