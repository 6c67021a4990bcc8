"""Tables of numbers as CSV, with all digits, and as Markdown and on the terminal, rounded."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rich.markup import escape

from fedgraph.reproduce.in_parts import Column, InParts
from fedgraph.support.files import as_csv


def markdown_line(entries: Collection[str]) -> str:
    """Format one line of a Markdown table.

    Returns
    -------
    str
        The line; pipes in entries are escaped, line breaks become blanks.
    """
    return "| " + " | ".join(entry.replace("|", "\\|").replace("\n", " ") for entry in entries) + " |"


@dataclass(frozen=True)
class NumberTable:
    """Numbers and texts under headings.

    Attributes
    ----------
    name : str
        Name of its CSV file, without the suffix.
    title : str
        Title for people.
    headings : tuple of str
        One per column.
    lines : tuple of tuple
        Texts, numbers, truth values, or None for empty entries.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[Any, ...], ...]

    def csv(self) -> str:
        """Format as CSV with headings; numbers have all their digits."""
        return as_csv([self.headings, *self.lines])

    def markdown(self) -> str:
        """Format as a Markdown table, with numbers aligned to the right."""
        sides = ["---:" if self._is_number(column) else "---" for column in range(len(self.headings))]
        body = (markdown_line([_rounded(entry) for entry in line]) for line in self.lines)
        return "\n".join([markdown_line(self.headings), markdown_line(sides), *body])

    def for_terminal(self) -> InParts:
        """Format for the terminal; the columns before the first one of numbers name the rows."""
        columns = [
            Column(heading, [escape(_rounded(line[place])) for line in self.lines], self._is_number(place))
            for place, heading in enumerate(self.headings)
        ]
        names = next((place for place, column in enumerate(columns) if column.is_number), 1)
        return InParts(self.title, columns, max(1, names))

    def _is_number(self, column: int) -> bool:
        entries = [line[column] for line in self.lines if line[column] is not None]
        return bool(entries) and all(
            isinstance(entry, int | float) and not isinstance(entry, bool) for entry in entries
        )


def _rounded(entry: Any) -> str:
    """Format an entry; floats have four significant digits."""
    if entry is None:
        return "-"
    if isinstance(entry, bool):
        return "yes" if entry else "no"
    return f"{entry:.4g}" if isinstance(entry, float) else str(entry)
