"""The arrows of the house: who may import whom."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "fedgraph": {"clients", "strategies", "simulations"},
    "clients": {"strategies", "simulations"},
    "strategies": {"clients", "simulations"},
}
# The only modules of the library that may know Flower: messages, grids and runs.
KNOW_FLOWER = {
    "array_records.py",
    "messages.py",
    "embedding_messages.py",
    "graphical_messages.py",
    "share_messages.py",
    "vertical_messages.py",
    "exchange.py",
    "grid.py",
    "cli.py",
    "running.py",
    "local_flower.py",
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_import_runs_up_the_stairs(package):
    files = list((REPOSITORY / package).rglob("*.py"))
    assert files
    bad = [f"{path}: {name}" for path in files for name in imported(path) if name in FORBIDDEN[package]]
    assert bad == []


def test_mathematics_does_not_know_flower():
    files = [path for path in (REPOSITORY / "fedgraph").rglob("*.py") if path.name not in KNOW_FLOWER]
    assert [str(path) for path in files if "flwr" in set(imported(path))] == []


def test_top_level_is_what_the_plan_says():
    expected = {"pyproject.toml", "README.md", "LICENSE", "Makefile"}
    expected |= {"fedgraph", "clients", "strategies", "simulations", "tests", "docker"}
    import subprocess

    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in listed.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= expected
