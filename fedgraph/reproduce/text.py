"""Tables as Markdown, and for the terminal."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedgraph.reproduce.results import Results
from fedgraph.reproduce.spreads import Spread
from fedgraph.reproduce.table import ColumnTable, PublishedValue, RowTable

_LETTERS = 24
"""Minimum width of columns of text, which may be folded to make room for numbers."""


def markdown_line(entries: Collection[str]) -> str:
    """Format one line of a Markdown table, with pipes escaped and line breaks as blanks."""
    return "| " + " | ".join(entry.replace("|", "\\|").replace("\n", " ") for entry in entries) + " |"


def markdown(results: Results, has_figure: bool = True) -> str:
    """Return a table as Markdown: a section per column with our and published values, then remarks and the command.

    ``has_figure`` says whether ``figure.png`` is beside it.
    """
    about = results.table.table
    lines = [f"# {about.title}", ""]
    lines += [f"`{results.name}`, profile `{results.profile_name}`. {_paper(results)}", ""]
    lines += [about.caption, ""] if about.caption else []
    if has_figure and about.figure != "none":
        lines += ["![The same as a picture](figure.png)", ""]
    for column in results.columns:
        lines += _section(results, column)
    lines += ["## About these numbers", ""]
    lines += [f"- {line}" for line in _footer(results)]
    return "\n".join(lines) + "\n"


def _paper(results: Results) -> str:
    paper = results.table.table.paper
    if not paper:
        return ""
    is_published = any(results.has_published(column) for column in results.columns)
    return f"Published at <{paper}>." if is_published else f"The method is from <{paper}>, this table is not."


def _section(results: Results, column: ColumnTable) -> Iterator[str]:
    metrics = results.table.metrics_of(column)
    published = [results.published_heading(column)] if results.has_published(column) else []
    titles = [results.heading(column, metric) for metric in metrics]
    heads = ["method", *(head for title in titles for head in (title, *published)), "what differs"]
    yield from (f"## {column.title}", "")
    for description in results.descriptions(column):
        yield from (f"Data: {description}.", "")
    if published and results.published_of(column):
        yield from (f"Published values are of {results.published_of(column)}, not of these data.", "")
    yield markdown_line(heads)
    yield markdown_line(["---", *("---:" for _ in heads[1:-1]), "---"])
    for row in results.rows(column):
        remark = "; ".join(filter(None, (results.trouble(row, column), results.differs(row, column))))
        yield markdown_line([_label(row, column), *_entries(results, row, column, "**{}**"), remark])
    yield ""
    compared = list(results.differences(column))
    if compared:
        yield from (explanation(results), "")
        yield markdown_line([f"{results.table.table.compare} less", *(metric.title for metric in metrics)])
        yield markdown_line(["---", *("---:" for _ in metrics)])
        for row, differences in compared:
            yield markdown_line([row.label, *("-" if each is None else str(each) for each in differences)])
        yield ""


def _label(row: RowTable, column: ColumnTable) -> str:
    return row.label if row.runs_in(column.key) else f"{row.label} (published only)"


def _footer(results: Results) -> Iterator[str]:
    finished = [outcome for outcome in results.outcomes if outcome.summary]
    yield (
        f"Profile `{results.profile_name}`{f': {results.profile.differs}' if results.profile.differs else ''}. "
        f"Seeds: {', '.join(map(str, results.seeds))}; {len(finished)} of {len(results.outcomes)} runs are finished."
    )
    yield (
        "Ours: every client is measured on its own data with the model it holds at the end; the number is the mean "
        "over clients unless the heading or the row says otherwise, then the mean ± sample deviation over seeds. "
        "The best of ours is in bold."
    )
    yield "Published values are printed as in the paper and not used in computations."
    if results.overrides:
        yield f"Overridden on the command line: `{' '.join(results.overrides)}`."
    # Rows of one run count it once.
    took = {outcome.cell.path: outcome.summary["seconds"] for outcome in finished if outcome.summary}
    seconds = sum(took.values())
    yield f"The finished runs took {seconds:,.0f} s in total."
    if finished:
        yield f"Made with commit {', '.join(dict.fromkeys(outcome.commit for outcome in finished))}."
    yield f"To repeat or continue: `{command(results)}`"
    yield "To repeat a single run: `fedgraph run cells/RUN/experiment.toml`, with RUN from table.csv."


def explanation(results: Results) -> str:
    """Explain the differences in words."""
    overlap = results.table.table.overlap
    wider = (
        " Seeds resplit the same samples and are not independent, for which intervals are widened (Nadeau and Bengio "
        f"2003, {overlap:.3g} test samples per training sample)."
        if overlap
        else ""
    )
    return (
        f"{results.table.table.compare} less each other row, paired by seed: mean, 95 % interval of the mean "
        f"(Student's t), and number of seeds for which it is larger.{wider}"
    )


def command(results: Results) -> str:
    """Return the command that makes the table, without options that do not affect results."""
    parts = ["fedgraph", "reproduce", results.name, "--profile", results.profile_name]
    if results.seeds != (results.profile.seeds or results.table.table.seeds):
        parts += ["--seeds", ",".join(map(str, results.seeds))]
    for override in results.overrides:
        parts += ["--set", override]
    return shlex.join(parts)


def terminal_tables(
    console: Console, results: Results, rows: Collection[str], columns: Collection[str]
) -> Iterator[Table]:
    """Yield tables for the terminal with the named rows and columns, without empty columns."""
    for column in results.columns:
        if column.key in columns and any(row.label in rows for row in results.rows(column)):
            yield from _values(console, results, column, rows)
            if any(row.label in rows for row, _ in results.differences(column)):
                yield from _compared(console, results, column, rows)


def _values(console: Console, results: Results, column: ColumnTable, rows: Collection[str]) -> Iterator[Table]:
    shown = [row for row in results.rows(column) if row.label in rows]
    heads: list[tuple[str, str]] = []
    for metric in results.table.metrics_of(column):
        heads.append((results.heading(column, metric), ""))
        if results.has_published(column):
            heads.append((results.published_heading(column), "dim"))
    numbers = zip(*(_entries(results, row, column, "[bold]{}[/bold]") for row in shown), strict=True)
    parts = [_Column(head, entries, style) for (head, style), entries in zip(heads, numbers, strict=True)]
    # Reasons are given below the tables.
    remarks = [
        "; ".join(
            filter(None, (results.trouble(row, column).partition(": ")[0], row.differs, results.chosen(row, column)))
        )
        for row in shown
    ]
    if any(remarks):
        parts.append(_Column("what differs", [*map(escape, remarks)], "dim", is_text=True))
    differs = results.differs_as_a_whole(column)
    title = f"{column.title}{f' ({differs})' if differs else ''}"
    names = _Column("method", [escape(row.label) for row in shown], is_text=True)
    return _in_parts(console, title, names, parts)


def _compared(console: Console, results: Results, column: ColumnTable, rows: Collection[str]) -> Iterator[Table]:
    compared = [(row, of_row) for row, of_row in results.differences(column) if row.label in rows]
    # Brackets of an interval are not markup.
    texts = zip(
        *(["-" if each is None else escape(str(each)) for each in of_row] for _, of_row in compared), strict=True
    )
    metrics = results.table.metrics_of(column)
    parts = [_Column(metric.title, entries) for metric, entries in zip(metrics, texts, strict=True)]
    names = [escape(row.label) for row, _ in compared]
    less = _Column(f"{results.table.table.compare} less", names, is_text=True)
    return _in_parts(console, explanation(results), less, parts)


class _Column(NamedTuple):
    """A column on the terminal: numbers are right-aligned and never broken, texts may be folded."""

    head: str
    entries: Sequence[str]
    style: str = ""
    is_text: bool = False


def _in_parts(console: Console, title: str, names: _Column, columns: Sequence[_Column]) -> Iterator[Table]:
    """Yield one table, or several if it is wider than the terminal, each with the names of the rows."""
    part: list[_Column] = []
    unlimited = console.options.update(width=10_000)
    for column in columns:
        if part and console.measure(_table(title, [names, *part, column]), options=unlimited).minimum > console.width:
            yield _table(title, [names, *part])
            title, part = "", []
        part.append(column)
    yield _table(title, [names, *part])


def _table(title: str, columns: Sequence[_Column]) -> Table:
    table = Table(title=escape(title) or None, title_justify="left")
    for head, entries, style, is_text in columns:
        # Headings of numbers have a line for each part, to stay narrow.
        lines = head if is_text else head.replace(", ", ",\n")
        longest = max(map(cell_len, [*lines.split("\n"), *(Text.from_markup(entry).plain for entry in entries)]))
        table.add_column(
            escape(lines), style=style, overflow="fold", no_wrap=not is_text, justify="left" if is_text else "right",
            min_width=min(_LETTERS, longest) if is_text else longest,
        )  # fmt: skip
    for row in zip(*(column.entries for column in columns), strict=True):
        table.add_row(*row)
    return table


def number(ours: Spread | None, decimals: int = 3) -> str:
    """Format as ``4.880 ± 0.012``, or ``4.880`` for one seed."""
    if ours is None:
        return "-"
    deviation = "" if ours.deviation is None else f" ± {ours.deviation:.{decimals}f}"
    return f"{ours.mean:.{decimals}f}{deviation}"


def printed(value: PublishedValue | None, decimals: int = 2) -> str:
    """Format a published value."""
    if value is None:
        return "-"
    return " ± ".join(f"{part:.{decimals}f}" for part in (value if isinstance(value, tuple) else (value,)))


def _entries(results: Results, row: RowTable, column: ColumnTable, bold: str) -> Iterator[str]:
    """Yield our and the published value of each metric; ``bold`` is the format of our best value."""
    for metric in results.table.metrics_of(column):
        every = [spread for each in results.rows(column) if (spread := results.ours(each, column, metric))]
        decimals = 3 if max((spread.mean for spread in every), default=0) < 10 else 2
        if metric.quantity.is_count:
            decimals = 0 if all(spread.deviation is None for spread in every) else 1
        text = number(results.ours(row, column, metric), decimals)
        yield bold.format(text) if results.best(column, metric) == row.label else text
        if results.has_published(column):
            yield printed(results.published(row, column, metric), 0 if metric.quantity.is_count else 2)
