"""What a part of the benchmark has found, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from fedgraph.simulations.benchmarks.measure import Timing, in_turn, median, number, turn_ratios, warmed

LEAST, MOST = "least", "most"
_SMALL = 1e-3

Candidates = Mapping[str, Callable[[], list[Timing]]]


@dataclass
class Found:
    """What was found: rows by name, each with its columns, what there is to say about them, and every single number.

    rows : a cell is text, a number, or several, of which the table has the median, with the least and the most. One
           that a row does not have stays empty.
    """

    rows: dict[str, dict[str, Any]]
    lines: list[str] = field(default_factory=list)
    raw: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, content: Mapping[str, Any]) -> Found:
        """Return what was written with all fields of it, among others."""
        return cls(content["rows"], content["lines"], content["raw"])

    def table(self, title: str) -> Table:
        """Return the rows as a table."""
        columns = list(dict.fromkeys(column for row in self.rows.values() for column in row))
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for column in columns:
            table.add_column(column, justify="right")
        for name, row in self.rows.items():
            table.add_row(name, *(_shown(row.get(column, "")) for column in columns))
        return table

    def numbers(self) -> Iterator[tuple[str, str, float]]:
        """Yield row, column and value of all numbers; of several the median, and the least and the most of columns
        with these words behind their name.
        """
        for name, row in self.rows.items():
            for column, cell in row.items():
                values = cell if isinstance(cell, list) else [cell]
                if any(isinstance(value, str) for value in values):
                    continue
                yield name, column, float(median(values))
                if len(values) > 1:
                    yield name, f"{column}, {LEAST}", float(min(values))
                    yield name, f"{column}, {MOST}", float(max(values))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return spread(value)
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < _SMALL else number(value)
    return str(value)


def once(work: Callable[[], object]) -> Callable[[], list[Timing]]:
    """Return a candidate for :func:`compared` that warms itself up."""
    return warmed(work)


def compared(candidates: Candidates, repeats: int, *baselines: str) -> Found:
    """Measure in turn; return milliseconds, and ratios to each baseline of the same turn."""
    found = in_turn(candidates, repeats)
    rows: dict[str, dict[str, Any]] = {}
    for name, timings in found.items():
        rows[name] = {"ms": [1000 * each.wall for each in timings]}
        for baseline in baselines:
            if baseline in found:
                rows[name][f"to {baseline}"] = turn_ratios(found, name, baseline)
    return Found(rows, raw={name: [asdict(each) for each in timings] for name, timings in found.items()})


def spread(values: Sequence[float]) -> str:
    """Return the median of some numbers, with the least and the most where there are several."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"
