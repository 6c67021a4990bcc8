"""What a part of the benchmark has found, as rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table

from fedgraph.simulations.benchmarks.measure import Timing, in_turn, median, number, turn_ratios, warmed

Candidates = Mapping[str, Callable[[], list[Timing]]]


@dataclass
class Found:
    """What was found: rows by name, each with its columns, what there is to say about them, and every single number.

    rows : cells are text or numbers; a cell that a row does not have stays empty.
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


def _shown(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)


def once(work: Callable[[], object]) -> Callable[[], list[Timing]]:
    """Return a candidate for :func:`compared` that warms itself up."""
    return warmed(work)


def compared(candidates: Candidates, repeats: int, *baselines: str) -> Found:
    """Measure in turn; return milliseconds with their range, and ratios to each baseline of the same turn."""
    found = in_turn(candidates, repeats)
    rows: dict[str, dict[str, Any]] = {}
    for name, timings in found.items():
        rows[name] = {"ms": spread([1000 * each.wall for each in timings])}
        for baseline in baselines:
            if baseline in found:
                rows[name][f"to {baseline}"] = spread(turn_ratios(found, name, baseline))
    return Found(rows, raw={name: [asdict(each) for each in timings] for name, timings in found.items()})


def spread(values: Sequence[float]) -> str:
    """Return the median of some numbers, with the least and the most where there are several."""
    if len(values) == 1:
        return number(values[0])
    return f"{number(median(values))} ({number(min(values))} to {number(max(values))})"
