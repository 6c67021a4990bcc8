"""A wide table on a terminal: in parts, each with the names of its rows, so that no number is broken or cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_LINE = 24
"""Letters in which a text may be broken to make room for numbers."""

_FRAME = 3
"""Width of a column in addition to its text; the table takes one more."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    head : str
        Heading; a line for each of its parts, between which are commas.
    entries : sequence of str
        An entry for each row, with Rich's markup.
    is_number : bool, default True
        Whether entries stand on the right and are never broken; texts may be.
    style : str, default ""
        Style of Rich.
    """

    head: str
    entries: Sequence[str]
    is_number: bool = True
    style: str = ""

    @property
    def lines(self) -> str:
        """The heading in lines, as numbers below it are narrow."""
        return self.head.replace(", ", ",\n") if self.is_number else self.head

    @property
    def width(self) -> int:
        """Letters that the column needs."""
        texts = [self.lines, *(Text.from_markup(entry).plain for entry in self.entries)]
        longest = max(cell_len(line) for text in texts for line in text.split("\n"))
        return longest if self.is_number else min(_LINE, longest)


@dataclass(frozen=True)
class InParts:
    """Columns for Rich to print, dealt out to several tables where they are wider than the terminal.

    Attributes
    ----------
    title : str
        Title, as it is.
    columns : sequence of Column
        Columns of equal length.
    names : int, default 1
        How many of the first columns name the rows; they stand in every part.
    """

    title: str
    columns: Sequence[Column]
    names: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables."""
        names = self.columns[: self.names]
        room = options.max_width - 1 - sum(column.width + _FRAME for column in names)
        for number, part in enumerate(_dealt(self.columns[self.names :], room)):
            title = None if number else escape(self.title)
            table = Table(title=title, title_justify="left")
            for column in (*names, *part):
                table.add_column(
                    escape(column.lines),
                    justify="right" if column.is_number else "left",
                    style=column.style,
                    overflow="fold",
                    no_wrap=column.is_number,
                    min_width=column.width,
                )
            for row in zip(*(column.entries for column in (*names, *part)), strict=True):
                table.add_row(*row)
            yield table


def _dealt(columns: Sequence[Column], room: int) -> Iterator[list[Column]]:
    """Yield parts of at least one column, each within so many letters if possible."""
    part: list[Column] = []
    left = room
    for column in columns:
        wanted = column.width + _FRAME
        if part and wanted > left:
            yield part
            part, left = [], room
        part.append(column)
        left -= wanted
    yield part
