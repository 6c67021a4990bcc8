"""Lines of numbers as CSV, in full, and as Markdown and on the terminal, rounded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedgraph.support.files import as_csv


def markdown_line(entries: Collection[str]) -> str:
    """One line of a Markdown table."""
    return "| " + " | ".join(entry.replace("|", "\\|").replace("\n", " ") for entry in entries) + " |"


@dataclass(frozen=True)
class NumberTable:
    """Numbers and words under headings.

    name     : what its CSV file is called, without the suffix.
    title    : what it shows.
    headings : one per column.
    lines    : text, numbers, truth values, or None where there is nothing.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        """With its headings, every number in full."""
        return as_csv([self.headings, *self.lines])

    def markdown(self) -> str:
        """As a Markdown table, numbers to the right."""
        sides = ["---:" if self._is_number(column) else "---" for column in range(len(self.headings))]
        body = (markdown_line([_rounded(entry) for entry in line]) for line in self.lines)
        return "\n".join([markdown_line(self.headings), markdown_line(sides), *body])

    def for_terminal(self) -> Table:
        """The same for the terminal."""
        table = Table(title=escape(self.title), title_justify="left")
        for column, heading in enumerate(self.headings):
            table.add_column(escape(heading), justify="right" if self._is_number(column) else "left", overflow="fold")
        for line in self.lines:
            table.add_row(*(escape(_rounded(entry)) for entry in line))
        return table

    def _is_number(self, column: int) -> bool:
        entries = [line[column] for line in self.lines if line[column] is not None]
        return bool(entries) and all(
            isinstance(entry, int | float) and not isinstance(entry, bool) for entry in entries
        )


def _rounded(entry: Any) -> str:
    """Four digits that count, for a number that has more."""
    if entry is None:
        return "-"
    if isinstance(entry, bool):
        return "yes" if entry else "no"
    return f"{entry:.4g}" if isinstance(entry, float) else str(entry)
