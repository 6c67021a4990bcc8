"""The wheel: built, looked into, installed elsewhere and run from there."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FOLDERS = ("fedgraph", "clients", "strategies", "simulations")
PACKAGES = ("fedgraph", *(f"fedgraph.{name}" for name in FOLDERS[1:]))
# Says where each package was found before it runs the command: the environment also has the repository itself.
PROGRAM = """\
import importlib, sys
for name in {packages}:
    print("found", name, importlib.import_module(name).__file__)
sys.stdout.flush()
from fedgraph.commands.cli import app
app()
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A clean copy of what the wheel is made of."""
    folder = tmp_path_factory.mktemp("source")
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore", "hatch_build.py"):
        shutil.copy(REPOSITORY / name, folder / name)
    # Must stay out of the wheel.
    shutil.copytree(REPOSITORY / "tests" / "strategies", folder / "tests" / "strategies")
    return folder


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    """The wheel file, built without the network."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder with the wheel's content, as pip lays it out."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    done = subprocess.run([*pip, str(wheel)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def run_installed(installed, tmp_path):
    """Run the command of the installed wheel from an empty folder; returns the summary of its one run."""

    def run(*arguments):
        program = PROGRAM.format(packages=PACKAGES)
        work = tmp_path / "elsewhere"
        work.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", program, "run", *arguments, "--out", str(tmp_path / "out")],
            cwd=work,
            env={**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "120"},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("found "))
        assert found == {name: str(installed.joinpath(*name.split("."), "__init__.py")) for name in PACKAGES}
        assert list(work.iterdir()) == [], "a run leaves something beside its run folder"
        (summary,) = (tmp_path / "out").glob("*/summary.json")
        return json.loads(summary.read_text())

    return run


def test_the_wheel_holds_the_packages_and_nothing_else(source, wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        f"{'' if name == 'fedgraph' else 'fedgraph/'}{path.relative_to(source).as_posix()}"
        for name in FOLDERS
        for path in (source / name).rglob("*")
        if path.is_file()
    }
    info = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    assert names - info == expected
    assert "fedgraph/py.typed" in names
    assert "fedgraph/simulations/sfl/digits.toml" in names
    assert any(name.endswith("licenses/LICENSE") for name in info)


def test_the_wheel_declares_command_and_dependencies(wheel):
    archive = zipfile.ZipFile(wheel)
    (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    assert "fedgraph = fedgraph.commands.cli:app" in archive.read(f"{info}/entry_points.txt").decode()
    metadata = archive.read(f"{info}/METADATA").decode()
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert f"Version: {declared['version']}" in metadata
    extras = declared["optional-dependencies"]

    def required(extra):
        """Packages of an extra, and of those that it includes."""
        for each in extras[extra]:
            included = re.fullmatch(rf"{declared['name']}\[(.*)\]", each)
            yield from chain.from_iterable(map(required, included[1].split(","))) if included else [each]

    expected = [*declared["dependencies"], *chain.from_iterable(map(required, extras))]
    assert metadata.count("\nRequires-Dist: ") == len(expected)


def test_the_description_stands_without_the_repository(wheel):
    """On a package index there are no files for relative links to lead to, and no checkout."""
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    head, _, text = archive.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head
    assert "Author: The fedgraph authors" in head
    assert all(re.search(r", https://", line) for line in head.splitlines() if line.startswith("Project-URL"))
    assert all(re.match(r"https?:", link) for link in re.findall(r"\]\(([^)]*)\)", text))
    assert not re.search(r"<img|\bmake |pip install \.\s", text)
    assert "pip install fedgraph-flower" in text
    assert "fedgraph tour" in text


@pytest.mark.process
def test_the_installed_wheel_runs_the_default_experiment(run_installed):
    summary = run_installed("--set", "experiment.rounds=2")
    assert summary["method"] == "sfl"
    assert summary["rounds"] == 2
    assert summary["clients"] == 20
    # Two rounds are no training to speak of, but far above the 0.1 of a model that has not learned.
    assert summary["metrics"]["test"]["accuracy"]["mean"] > 0.3


@pytest.mark.slow
@pytest.mark.xdist_group("flower")
def test_the_installed_wheel_runs_on_flower(run_installed):
    summary = run_installed("--grid", "flower", "--set", "experiment.rounds=1", "--set", "data.clients=4")
    assert summary["rounds"] == 1
    assert summary["clients"] == 4
