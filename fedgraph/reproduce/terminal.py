"""A table on the terminal, in as many parts as its width asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedgraph.reproduce.paired import differences, explanation
from fedgraph.reproduce.results import Results
from fedgraph.reproduce.table import ColumnTable
from fedgraph.reproduce.text import entries

_LINE = 24
"""Letters in which a name or a remark may be broken to make room for numbers."""

_FRAME = 3
"""Letters that a column takes beside its text."""


def terminal_tables(results: Results, rows: Collection[str], columns: Collection[str]) -> Iterator[RenderableType]:
    """Yield a table per column for the terminal, with the named rows and columns."""
    for column in results.columns:
        if column.key in columns:
            yield _measured(results, column, rows)
            if any(row.label in rows for row, _ in differences(results, column)):
                yield _compared(results, column, rows)


def _measured(results: Results, column: ColumnTable, rows: Collection[str]) -> RenderableType:
    shown = [row for row in results.rows(column) if row.label in rows]
    differs = results.differs_as_a_whole(column)
    # Reasons are given below the tables.
    remarks = [
        "; ".join(
            filter(None, (results.trouble(row, column).partition(": ")[0], row.differs, results.chosen(row, column)))
        )
        for row in shown
    ]
    heads = []
    for metric in results.table.metrics_of(column):
        heads.append(results.heading(column, metric))
        if results.has_published(column):
            heads.append(results.published_heading(column))
    return _InParts(
        title=f"{column.title}{f' ({differs})' if differs else ''}",
        head="method",
        names=[row.label for row in shown],
        heads=heads,
        cells=[list(entries(results, row, column, "[bold]{}[/bold]")) for row in shown],
        remarks=remarks,
    )


def _compared(results: Results, column: ColumnTable, rows: Collection[str]) -> RenderableType:
    compared = [(row, found) for row, found in differences(results, column) if row.label in rows]
    return _InParts(
        title=explanation(results),
        head=f"{results.table.table.compare} less",
        names=[row.label for row, _ in compared],
        heads=[metric.title for metric in results.table.metrics_of(column)],
        # Brackets of an interval are not markup.
        cells=[["-" if each is None else escape(str(each)) for each in found] for _, found in compared],
    )


@dataclass(frozen=True)
class _InParts:
    """Named rows of numbers, dealt out to several tables where they are wider than the terminal; no number is cut.

    ``cells`` has the numbers of each row, as markup; ``remarks``, where there are any, stand beside the last of them.
    """

    title: str
    head: str
    names: Sequence[str]
    heads: Sequence[str]
    cells: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables."""
        names = min(_LINE, _width([self.head, *self.names]))
        remarks = min(_LINE, _width(["what differs", *self.remarks])) if any(self.remarks) else 0
        widths = [
            _width([_broken(head), *(Text.from_markup(row[place]).plain for row in self.cells)])
            for place, head in enumerate(self.heads)
        ]
        room = options.max_width - 1 - (names + _FRAME)
        parts: list[list[int]] = [[]]
        taken = 0
        for place, width in enumerate(widths):
            if parts[-1] and taken + width + _FRAME > room:
                parts.append([])
                taken = 0
            parts[-1].append(place)
            taken += width + _FRAME
        if remarks and taken + remarks + _FRAME > room:
            parts.append([])
        for number, part in enumerate(parts):
            last = bool(remarks) and number == len(parts) - 1
            yield self._table(part, names, widths, remarks if last else 0, "" if number else self.title)

    def _table(self, part: Sequence[int], names: int, widths: Sequence[int], remarks: int, title: str) -> Table:
        table = Table(title=escape(title) or None, title_justify="left")
        table.add_column(escape(self.head), overflow="fold", min_width=names)
        for place in part:
            style = "dim" if self.heads[place].startswith("published") else ""
            head = escape(_broken(self.heads[place]))
            table.add_column(head, justify="right", style=style, no_wrap=True, min_width=widths[place])
        if remarks:
            table.add_column("what differs", style="dim", overflow="fold", min_width=remarks)
        for name, row, remark in zip_longest(self.names, self.cells, self.remarks, fillvalue=""):
            beside = [escape(str(remark))] if remarks else []
            table.add_row(escape(str(name)), *(row[place] for place in part), *beside)
        return table


def _width(texts: Sequence[str]) -> int:
    """Return the length of the longest line."""
    return max(cell_len(line) for text in texts for line in text.split("\n"))


def _broken(heading: str) -> str:
    """Break a heading into a line per part, since numbers below are narrow."""
    return heading.replace(", ", ",\n")
