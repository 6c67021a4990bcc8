"""Finished runs of a small table, made by hand, for figures that are drawn from run folders."""

import json

import pytest

from fedgraph.reproduce.cells import Cell
from fedgraph.reproduce.results import Outcome, Results
from fedgraph.reproduce.table import PublishedTable


@pytest.fixture
def drawn(tmp_path):
    """Draw what ``fill`` writes into the folders of runs; ``fill`` may return their summary."""

    def drawn(figure, fill, rows=("FedAvg", "SFL"), **about):
        table = PublishedTable.model_validate(
            {
                "table": {"title": "Small", "metrics": [{"title": "accuracy", "value": "test/accuracy"}], **about},
                "columns": [{"key": "digits", "title": "Digits", "experiment": "small.toml"}],
                "rows": [{"label": label, "method": "fedavg"} for label in rows],
                "profiles": {"small": {}},
            }
        )
        outcomes = []
        for seed in (0, 1):
            for label in rows:
                cell = Cell(label, "digits", seed, None, tmp_path / f"{label}-seed{seed}")
                cell.path.mkdir()
                summary = {"metrics": {}, "data": "made up", **(fill(cell) or {})}
                (cell.path / "summary.json").write_text(json.dumps(summary))
                outcomes.append(Outcome(cell, "finished", summary=summary))
        found = figure(Results("small", table, "small", table.profiles["small"], (0, 1), (), tuple(outcomes)))
        if found is not None:
            found.savefig(tmp_path / "figure.png")
            assert (tmp_path / "figure.png").stat().st_size > 5000
        return found

    return drawn
