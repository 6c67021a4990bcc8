"""Flower's programs are found, also where the scripts beside Python are missing or were made for another one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedgraph
from fedgraph.federation.grids import flower_environment, program, programs, run_on_flower
from fedgraph.support.errors import RunError

SCRIPTS = ["flower-superexec", "flower-superlink", "flower-supernode", "flwr", "flwr-serverapp", "flwr-simulation"]


def test_programs_are_found_or_named():
    assert program("flwr") == str(Path(sys.executable).with_name("flwr"))
    with pytest.raises(RunError, match=r"'no-such-program' .*flwr\[simulation\]"):
        program("no-such-program")


def test_environment_is_private_and_finds_what_this_process_finds(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", *sys.path, "/somewhere/else"])
    monkeypatch.chdir(tmp_path)
    environment = flower_environment(tmp_path / "home", EXTRA="1")
    assert environment["FLWR_HOME"] == str(tmp_path / "home")
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert environment["EXTRA"] == "1"
    entries = environment["PYTHONPATH"].split(os.pathsep)
    ours = str(Path(fedgraph.__file__).parent.parent)
    assert (entries[0], entries[1], entries[-1]) == (ours, str(tmp_path), "/somewhere/else")


def test_without_the_simulation_extra(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(programs, "_scripts", list)
    with pytest.raises(RunError, match=r"cannot find 'flower-superlink'"):
        run_on_flower({}, 1, tmp_path / "log", {"FEDGRAPH_STATE": str(tmp_path / "state")})


@pytest.fixture(params=["missing", "of another Python", "not executable"])
def moved(request, tmp_path, monkeypatch):
    """A Python whose folder and ``PATH`` have no script of Flower that runs, as after a move to another machine."""
    folder, python = tmp_path / "a place" / "bin", sys.executable
    folder.mkdir(parents=True)
    (folder / "python").write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    (folder / "python").chmod(0o755)
    for name in SCRIPTS if request.param != "missing" else []:
        first = "#!/no/such/python" if request.param == "of another Python" else f"#!{python}"
        (folder / name).write_text(f"{first}\nraise SystemExit('the wrong script')\n")
        (folder / name).chmod(0o755 if request.param == "of another Python" else 0o644)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.process
def test_scripts_that_do_not_run_here_are_written_anew(moved):
    found = Path(program("flower-superlink"))
    assert found.is_relative_to(moved)
    environment = flower_environment()
    for name in SCRIPTS:  # as Flower's programs start one another
        assert shutil.which(name, path=environment["PATH"]) == str(found.with_name(name))
    said = subprocess.run(["flower-superlink", "--help"], env=environment, capture_output=True, text=True, check=True)
    assert "usage: flower-superlink" in said.stdout
    written = found.stat().st_mtime_ns
    assert program("flower-superlink") == str(found)
    assert found.stat().st_mtime_ns == written


def test_a_cache_that_cannot_be_written_is_named(moved):
    moved.write_text("a file")
    with pytest.raises(RunError, match=r"programs beside .*python are missing or start a Python .* install flwr again"):
        program("flwr")
