"""A table of two methods on a small experiment, and ways to plan, run and look at it."""

from pathlib import Path

import pytest
import tomli_w
from rich.console import Console

from fedgraph.reproduce.cells import CellMaker
from fedgraph.reproduce.choosing import plan_cells, plan_choices
from fedgraph.reproduce.execution import Execution, run_cells
from fedgraph.reproduce.results import Results, read_outcomes
from fedgraph.reproduce.table_files import load_table


@pytest.fixture(autouse=True)
def in_its_own_process(leave_no_trace):
    """What the command changes is put back."""


@pytest.fixture
def table(digits_tables):
    """Content of a table file; its experiment takes one round."""
    digits_tables["experiment"]["rounds"] = 1
    Path("small.toml").write_text(tomli_w.dumps(digits_tables))
    return {
        "table": {
            "title": "Small",
            "seeds": [0, 1],
            "metrics": [
                {"title": "mean", "value": "test/accuracy", "factor": 100},
                {"title": "worst", "value": "test/accuracy:worst5", "factor": 100},
            ],
        },
        "columns": [{"key": "digits", "title": "Digits", "experiment": "small.toml", "differs": "{data}"}],
        "profiles": {"small": {"differs": "one round"}},
        "rows": [
            {"label": "FedAvg", "method": "fedavg", "published": {"digits": [12.5, [3.0, 1.25]]}},
            {"label": "SFL", "method": "sfl", "differs": "as it is"},
            {"label": "Oracle", "published": {"digits": [99.0, "-"]}},
        ],
    }


@pytest.fixture
def write():
    """Write a table as a file; returns its path."""

    def write(content, name="tiny.toml"):
        path = Path(name).resolve()
        path.write_text(tomli_w.dumps(content))
        return path

    return write


@pytest.fixture
def plan(write, tmp_path):
    """The cells of a table."""

    def plan(content, *overrides, seeds=None, profile="small"):
        _, table, file = load_table(str(write(content)))
        chosen = table.profiles[profile]
        seeds = seeds or chosen.seeds or table.table.seeds
        maker = CellMaker(table, chosen, overrides, tmp_path / "out" / "cells", file.parent)
        return plan_cells(maker, seeds, plan_choices(maker, seeds))

    return plan


@pytest.fixture
def execute(tmp_path):
    """Run cells; returns those that were run."""

    def execute(cells, **how):
        ran = []
        run_cells(cells, Execution(2, tmp_path / "no-data", **how), Console(quiet=True), on_end=ran.append)
        return ran

    return execute


@pytest.fixture
def results_of(plan, tmp_path):
    """What the cells of a table have come to, whether run or not."""

    def results_of(content, seeds=None):
        cells = plan(content, seeds=seeds)
        name, table, _ = load_table("tiny.toml")
        seeds = tuple(dict.fromkeys(cell.seed for cell in cells))
        profile = table.profiles["small"]
        return Results(name, table, "small", profile, seeds, (), read_outcomes(cells, tmp_path / "no-data"))

    return results_of
