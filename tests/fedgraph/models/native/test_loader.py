"""Functions in C++: compiled once, found again, and clear about what is missing."""

from __future__ import annotations

import threading

import pytest

from fedgraph.models.native import loader as native
from fedgraph.models.native.loader import NativeError, load

SOURCE = 'extern "C" int twice(int value) { return 2 * value; }'


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedgraph" / "native"


@pytest.fixture
def compiler():
    try:
        native._compiler()
    except NativeError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("compiler")
def test_a_library_is_compiled_once_and_then_needs_no_compiler(cache, monkeypatch):
    assert load("example", SOURCE).twice(21) == 42
    (kept,) = cache.glob("example-*.so")
    written = kept.stat().st_mtime_ns
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert load("example", SOURCE).twice(4) == 8
    assert kept.stat().st_mtime_ns == written
    with pytest.raises(NativeError, match="CXX .*'no-such-compiler'"):
        load("example", SOURCE.replace("2 *", "3 *"))


@pytest.mark.usefixtures("compiler")
def test_libraries_for_other_processors_are_kept_apart(cache, monkeypatch):
    load("example", SOURCE)
    monkeypatch.setattr(native, "_processor", lambda: "another processor")
    load("example", SOURCE)
    assert len(list(cache.glob("example-*.so"))) == 2


@pytest.mark.usefixtures("compiler")
def test_a_compiler_that_does_not_know_the_processor_flags_is_asked_without_them(monkeypatch):
    monkeypatch.setattr(native, "_PROCESSOR_FLAGS", (("-march=no-such-processor",), ()))
    assert load("example", SOURCE).twice(1) == 2


@pytest.mark.usefixtures("compiler")
def test_of_several_at_once_one_compiles_and_a_lock_left_behind_stops_nobody(cache, monkeypatch):
    compiled = []
    compile_ = native._compile

    def counted(source, library):
        compiled.append(library)
        compile_(source, library)

    monkeypatch.setattr(native, "_compile", counted)
    results = []
    cache.mkdir(parents=True)
    monkeypatch.setattr(native, "_processor", str)
    load("example", SOURCE)
    (lock,) = cache.glob("*.lock")
    compiled.pop().unlink()
    assert lock.exists()
    threads = [threading.Thread(target=lambda: results.append(load("example", SOURCE).twice(3))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [6] * 4
    assert len(compiled) == 1


@pytest.mark.usefixtures("compiler")
def test_a_mistake_in_the_source_is_shown_and_leaves_nothing_behind(cache):
    with pytest.raises(NativeError, match=r"failed: .*error.*nowhere"):
        load("example", 'extern "C" int wrong() { return nowhere; }')
    assert [path.suffix for path in cache.iterdir()] == [".lock"]


@pytest.mark.usefixtures("compiler")
def test_a_function_that_nobody_has_is_named():
    with pytest.raises(NativeError, match="no_such_function"):
        load("example", 'extern "C" int no_such_function(); extern "C" int call() { return no_such_function(); }')


def test_without_a_compiler_the_names_tried_are_given(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(native, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(NativeError, match=r"no C\+\+ compiler \(no-such-compiler\)"):
        load("example", SOURCE)


def test_a_compiler_is_missed_before_a_folder(tmp_path, monkeypatch):
    """In a container that can write nothing, another folder would be of no use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NativeError, match="no-such-compiler") as caught:
        load("example", SOURCE)
    assert "XDG_CACHE_HOME" not in str(caught.value)


@pytest.mark.usefixtures("compiler")
def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(occupied))
    with pytest.raises(NativeError, match="XDG_CACHE_HOME"):
        load("example", SOURCE)


def test_a_library_for_first_use_is_tried_once_and_again_when_forgotten(monkeypatch, caplog):
    tries = []

    def fails(name, source):
        tries.append((name, source))
        raise NativeError("there is no C++ compiler")

    library = native.OnFirstUse("twice", SOURCE, "doubling")
    assert not tries
    monkeypatch.setattr(native, "load", fails)
    assert library() is library() is None
    assert tries == [("twice", SOURCE)]
    assert caplog.text.count("[train] compile: doubling in C++ cannot be used on this node") == 1
    monkeypatch.setattr(native, "load", lambda name, source: "loaded")
    assert library() is None
    library.forget()
    assert library() == "loaded"
