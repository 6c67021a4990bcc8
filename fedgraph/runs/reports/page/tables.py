"""The tables of a report, as the template shows them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedgraph.runs.reports.results import Results, Spread
from fedgraph.runs.reports.words import mean_text, range_text, shown_number, spread_text

_MOST_ROWS = 3000


def made(labels: Sequence[str], environments: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Return labels, time and command of runs; without labels where all were made together."""
    found: dict[tuple[str, str], list[str]] = {}
    for label, environment in zip(labels, environments, strict=True):
        began = str(environment.get("began", ""))[:16].replace("T", " ")
        found.setdefault((began, _typed(environment.get("command", ()))), []).append(label)
    if len({command for _, command in found}) == 1:
        # Runs of one command begin one after the other.
        return [("", *next(iter(found)))]
    return [(", ".join(who), *made) for made, who in found.items()]


def _typed(arguments: Sequence[str]) -> str:
    """Return a command as it was typed; nothing for programs that nobody types, such as the kernel of a notebook."""
    program, *rest = arguments or [""]
    path = Path(program)
    if path.name == "fedgraph" or path.parts[-2:] == ("fedgraph", "__main__.py"):
        return shlex.join(["fedgraph", *rest])
    is_script = path.suffix == ".py" and not path.name.startswith(("ipykernel", "__main__"))
    return shlex.join(["python", path.name, *rest]) if is_script else ""


def heads(results: Results) -> list[dict[str, str]]:
    """Return what columns are called, with the remark that is needed to read the numbers of a run."""
    return [
        {"name": each.name, "remark": "" if each.ending else results.summaries[each.run].get("remark", "")}
        for each in results.columns
    ]


def features(results: Results) -> dict[str, Any]:
    """Return the table of single features: a row for each, a column for each measure, a line for each model."""
    measures = list(dict.fromkeys(measure for _, measure in results.features.values()))
    rows: dict[str, dict[str, list[str]]] = {}
    for row, (feature, measure) in results.features.items():
        rows.setdefault(feature, {})[measure] = [mean_text(values) for values in results.row(row)]
    empty = ["" for _ in results.columns]
    return {
        "measures": measures,
        "rows": [(name, [found.get(measure, empty) for measure in measures]) for name, found in rows.items()],
    }


def cell(values: Spread | None) -> dict[str, str]:
    """Return mean with deviation, from the worst to the best clients, and these by themselves, as text."""
    worst, best = (shown_number((values or {}).get(key)) for key in ("worst5", "best5"))
    return {"mean": spread_text(values), "range": range_text(values), "worst": worst, "best": best}


def clients(results: Results, telling: str | None) -> dict[str, Any]:
    """Return the table of clients, a column for each model: of every metric of one run, of the telling one of several.

    ``metrics`` are headings above those of the models, each with the number of its columns.
    """
    wanted = list(results.overall) if len(results.summaries) == 1 else [telling] if telling else []
    columns = [(row, column, results.clients(row, column)) for row in wanted for column in results.columns]
    columns = [each for each in columns if each[2]]
    groups = results.summaries[0].get("groups", {})
    names = dict.fromkeys(name for *_, values in columns for name in values)
    for summary in results.summaries:
        for values in summary["per_client"].get(results.split, {}).values():
            names |= dict.fromkeys(values)
    rows = [
        (name, [*([groups.get(name, "")] if groups else []), *(shown_number(of.get(name)) for *_, of in columns)])
        for name in names
    ]
    models = len(results.columns) > 1
    counts = Counter(row for row, *_ in columns)
    return {
        "metrics": list(counts.items()) if models else [],
        "groups": bool(groups),
        "heads": [*(["group"] if groups else []), *(column.name if models else row for row, column, _ in columns)],
        "rows": rows[:_MOST_ROWS] if columns else [],
        "left_out": max(0, len(rows) - _MOST_ROWS),
    }
