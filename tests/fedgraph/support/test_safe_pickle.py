from __future__ import annotations

import io
import os
import pickle
import pickletools
import subprocess
import sys

import numpy as np
import pytest

from fedgraph.support.safe_pickle import read_pickle


class Runs:
    """Pickles as a call of ``function``."""

    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_and_arrays_of_every_protocol(protocol):
    value = [
        ["773869", "767541"],
        {"773869": 0, "767541": 1},
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        (np.int64(5), np.float32(0.5), True, None),
        np.array([773869, 767541]),
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
        np.zeros((0, 4), np.float32),
    ]
    result = read_pickle(io.BytesIO(pickle.dumps(value, protocol)))
    assert result[:2] == value[:2]
    assert result[4] == value[4]
    for got, wanted in zip(result[2:4] + result[5:], value[2:4] + value[5:], strict=True):
        assert got.dtype.kind == wanted.dtype.kind
        np.testing.assert_array_equal(got, wanted)


def test_arrays_as_python_2_wrote_them():
    """Protocol 2 with byte strings as STRING opcodes and the old module name, as in the published files."""
    matrix = np.array([[1, 0.5], [0, 1]], dtype="<f4")
    raw = matrix.tobytes()
    short = lambda text: b"U" + bytes([len(text)]) + text  # noqa: E731
    data = (
        b"\x80\x02](" + short(b"773869") + short(b"767541") + b"e}(" + short(b"773869") + b"K\x00u"
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t" + short(b"b") + b"tR"
        b"(K\x01(K\x02K\x02tcnumpy\ndtype\n("
        + short(b"f4")
        + b"K\x00K\x01tR(K\x03"
        + short(b"<")
        + b"NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89" + short(raw) + b"tb\x87."
    )
    pickletools.dis(data, out=io.StringIO())  # raises if the bytes are no pickle
    names, positions, result = read_pickle(io.BytesIO(data))
    assert names == ["773869", "767541"]
    assert positions == {"773869": 0}
    np.testing.assert_array_equal(result, matrix)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (os.system, rf"{os.system.__module__}\.system"),
        (eval, r"\.eval"),
        (getattr, r"\.getattr"),
        (np.load, r"numpy\.load"),
        (pickle.loads, r"pickle\.loads"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_no_named_code_runs(tmp_path, function, named, protocol):
    marker = tmp_path / "ran"
    data = pickle.dumps([["a"], {}, Runs(function, f"touch {marker}")], protocol)
    with pytest.raises(ValueError, match=f"asks to load '.*{named}'.*not loaded"):
        read_pickle(io.BytesIO(data))
    assert not marker.exists()


def test_the_dangerous_file_would_have_run_elsewhere(tmp_path):
    """So that the test above cannot pass because its pickle is harmless."""
    marker = tmp_path / "ran"
    pickle.loads(pickle.dumps([["a"], {}, Runs(os.system, f"touch {marker}")]))
    assert marker.exists()


@pytest.mark.parametrize("name", ["multiarray.fromstring", "multiarray._reconstruct.__globals__"])
def test_allowed_modules_open_no_back_door(name):
    data = b"\x80\x04\x8c\x16numpy._core.multiarray\x8c" + bytes([len(name)]) + name.encode() + b"\x93."
    with pytest.raises(ValueError, match="not loaded"):
        read_pickle(io.BytesIO(data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps(np.array([{"a": 1}, None], dtype=object)), "array of type 'O8'.*only numbers"),
        (pickle.dumps(np.zeros(2, dtype=[("a", "f4")])), "array of type 'V4'"),
        (pickle.dumps(np.zeros(3))[:-20], "not a pickle of plain values"),
        (b"", "EOFError"),
        (b"hello", "UnpicklingError"),
        (pickle.dumps(Runs(bytes, "a", "utf-16"), 4), "not a pickle of plain values.*TypeError"),
        (b"\x80\x04c_codecs\nencode\n(\x8c\x01a\x8c\x04zliB\x74R.", "in the encoding 'zliB'; only latin1"),
    ],
)
def test_other_files_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        read_pickle(io.BytesIO(data))


TEXT = b"X\x10\x27\x00\x00" + b"a" * 10_000
MANY = b"(" + b"K\x00" * 100_000 + b"t"
SAME_HASH = b"".join(b"\x8a\x64" + ((2**61 - 1) * n).to_bytes(100, "little") + b"K\x00s" for n in range(50_000))


@pytest.mark.parametrize(
    "data",
    [
        b"]" + b"2\x86" * 60 + b".",  # [] -> ([], []) -> ... 2 ** 60 lists
        b"]" + b"q\x00(h\x00h\x00l" * 60 + b".",
        b"}" + b")" + b"2\x86" * 100 + b"K\x00s.",  # as the key of a dict, whose hash has no end
        b"](" + b")" + b"2\x86" * 100 + b"\x91.",  # in a set
        b"]q\x00h\x00a.",  # a list within itself
        b"]r\xff\xff\xff\x7fb.",  # remembered as number 2 ** 31
        b"]p2147483647\nb.",
        b"\x96" + b"\xff" * 7 + b"\x00.",  # a bytearray of 2 ** 56 bytes
        b"\x8e\x00\x00\x00\x00\x04\x00\x00\x00a.",  # 16 GiB of bytes
        b"\x95" + b"\xff" * 7 + b"\x00.",  # a frame of 2 ** 56 bytes
        b"L" + b"9" * 1_000_000 + b"L\n.",
        b"]" * 100_000 + b"a" * 99_999 + b".",  # lists within lists
        b"c_codecs\nencode\nq\x00" + TEXT + b"q\x01\x8c\x06latin1\x86q\x02" + b"h\x00h\x02R" * 200_000 + b".",
        b"cnumpy\nndarray\n" + b"q\x00" + MANY + b"q\x01" + b"h\x00h\x01R" * 100_000 + b".",
        b"cnumpy\ndtype\n(" + TEXT + b"tR.",
        b"}" + SAME_HASH + b".",
        b"]K\x00b.",
    ],
    ids=lambda data: f"{len(data)} bytes, {data[:12]!r}",
)
def test_files_that_would_take_without_end(data, tmp_path):
    """In a process of its own, which may have 2 GiB and ten seconds."""
    (tmp_path / "x").write_bytes(data)
    code = (
        "import resource, sys, time\n"
        "from fedgraph.support.safe_pickle import read_pickle\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "began = time.process_time()\n"
        "try:\n"
        "    read_pickle(open(sys.argv[1], 'rb'))\n"
        "except ValueError as error:\n"
        "    print(time.process_time() - began, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "x"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[0]) < 10
    assert len(done.stdout) < 1000


def test_what_is_used_twice_stays_one_object():
    shared = ["a", 1]
    one, other = read_pickle(io.BytesIO(pickle.dumps([shared, shared])))
    assert one is other
