"""The app bundle that Flower makes of the project."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fedgraph.commands.new import project_files
from fedgraph.federation.grids.programs import program

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("clients", "fedgraph", "simulations", "strategies")


@pytest.mark.process
def test_flower_builds_a_bundle_with_all_that_a_run_needs(tmp_path):
    app = tmp_path / "app"
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("clients", "docker", "docs", "fedgraph", "simulations", "strategies", "tests"):
        shutil.copytree(REPOSITORY / part, app / part, ignore=ignored)
    for file in ("pyproject.toml", "LICENSE", "README.md", ".gitignore", "hatch_build.py"):
        shutil.copy(REPOSITORY / file, app)
    built = subprocess.run(
        [Path(sys.executable).parent / "flwr", "build"], cwd=app, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = app.glob("*.fab")
    assert bundle.stat().st_size < 10e6
    names = set(zipfile.ZipFile(bundle).namelist())
    for needed in (
        "pyproject.toml", "LICENSE", "strategies/app.py", "clients/app.py", "simulations/sfl/digits.toml",
        "fedgraph/runs/reports/page/template.py",
    ):  # fmt: skip
        assert needed in names
    # Flower leaves out what it takes for tests by its name, which is then missing on the nodes.
    modules = {str(path.relative_to(app)) for part in PACKAGES for path in (app / part).rglob("*.py")}
    assert modules - names == set()


@pytest.mark.process
def test_run_folders_of_a_project_stay_out_of_its_bundle(tmp_path, monkeypatch):
    """Flower would refuse the deeper ones, and send the others to every node."""
    project = tmp_path / "groups"
    project.mkdir()
    monkeypatch.chdir(project)
    for path, text in project_files("groups", "sfl").items():
        Path(path).write_text(text)
    kept = Path("runs", "groups", "nodes", *"abcdefghij")
    kept.mkdir(parents=True)
    for path in (kept / "scales.json", Path("runs", "groups", "summary.json")):
        path.write_text("{}")
    built = subprocess.run([program("flwr"), "build"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (bundle,) = project.glob("*.fab")
    assert {"pyproject.toml", "groups.toml"} == {
        name for name in zipfile.ZipFile(bundle).namelist() if not name.startswith(".info")
    }
