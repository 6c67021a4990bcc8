import os
import signal
import subprocess
import sys

import pytest

from fedgraph.support.atomic import replacing, write_atomically


def test_a_kill_leaves_the_old_file_or_the_new_one(tmp_path):
    target = tmp_path / "state"
    write_atomically(target, b"0" * 1_000_000)
    code = (
        "import sys, pathlib; from fedgraph.support.atomic import write_atomically\n"
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
