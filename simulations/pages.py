"""Numbers and pictures of pages, made from result files: ``python -m fedgraph.simulations.pages``.

With ``--check`` it writes nothing.

Pages are the README.md of the project, those of ``simulations/*``, and those of ``docs``; result files are
``simulations/*/results/*.csv``, which ``fedgraph reproduce NAME --results simulations/PAPER/results`` writes. Markers
are HTML comments, which nobody sees where a page is rendered. A table stands between two of them, the first of
which says in TOML what is in it::

    <!-- table sfl/table1-small
    corner = "MAE an hour ahead, mph"
    rows = ["FedAvg", {row = "SFL", title = "**SFL**, setting of the paper"}]
    columns = [
        {column = "metr-la", title = "METR-LA, 29 of 207 sensors", show = "{MAE:±.3} / {MAPE:.3}"},
        {column = "metr-la", title = "published, all 207", show = "{MAE:published}"},
    ]
    -->
    (the table: what stands here is replaced)
    <!-- end of table -->

``sfl/table1-small`` is ``simulations/sfl/results/table1-small.csv``. Every row and every column of a page's table may
say ``row``, ``column``, ``metric`` and ``file`` of the numbers in it. The column has the last word, and ``{row}`` in
its ``row`` stands for that of the line: ``row = "Align / {row}"``. A row that is text alone is a row of the result file
by its label; without ``rows`` all rows of the file are shown.

``show`` is text with numbers in braces, ``{row|column|metric:format}``; what is left out, from the left or between the
bars, is that of the place in the table. A format is ``.3``, the decimals; before them ``±``, the deviation over seeds
too, where there are several; ``,`` separates thousands. No decimals leave a number as it stands. ``seed 0`` before all
of it is that seed alone, ``published`` the paper's value; ``seeds`` is how many there are, ``compared`` by how much
the row that the table compares with is above, with its interval (see ``[table] compare``). ``% below FedAvg .1``, or
``% above``, is by how many per cent the mean differs from that of the row FedAvg, and ``less FedAvg .1`` by how much. A
number that is not there is ``-``; where the first of them is not, ``otherwise``, more text of this kind, stands in
place of the whole. ``yes`` is "yes" for 1 and "no" for 0.

A number in a sentence stands between two markers as well::

    a birth weight within <!-- fedngm/table4-small {Global NGM|births|birth weight, MAE [g]:.1} -->334.6<!-- end --> g

The picture below a marker has lines over the columns of a table, one for each of the rows that it names::

    <!-- picture forecasting/days-small
    rows = ["Local only", "FedAvg", "SFL"]
    -->
    ![MAE an hour ahead over days of data](days.png)

It is drawn again when the numbers in it or the columns of its table have changed: the file contains a digest of those.
"""

from __future__ import annotations

import argparse
import difflib
import io
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from PIL import Image

from fedgraph.reproduce import ResultFile, markdown_line, over_columns_of_file
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import json_digest, write_atomically
from fedgraph.support.settings import S, Settings, parse

REPOSITORY = Path(__file__).resolve().parent.parent

_TABLE = re.compile(r"(<!-- table (?P<file>\S+)\n(?P<about>.*?)\n-->\n)(.*?)(?P<end><!-- end of table -->)", re.DOTALL)
_NUMBER = re.compile(r"(<!-- (?P<file>[\w./-]+)\s+(?P<show>[^<>]*\{[^<>]*) -->)[^<>]*(?P<end><!-- end -->)")
_PICTURE = re.compile(
    r"<!-- picture (?P<file>\S+)\n(?P<about>.*?)\n-->\s+!\[[^\]]*\]\((?P<path>[^)]+\.png)\)", re.DOTALL
)
_FIELD = re.compile(r"\{(?P<place>[^{}]*):(?P<format>[^{}:]*)\}")
_FORMAT = re.compile(
    r"((?P<relation>% below|% above|less) (?P<other>.+) )?(published ?|seed (?P<seed>\d+) ?)?"
    r"(?P<spread>±)?(?P<thousands>,)?(\.(?P<decimals>\d))?|seeds|compared|yes"
)
_ABSENT = "-"
_DRAWN_FROM = "Source"
"""Keyword of the text in a PNG file that is a digest of the numbers."""


class Place(Settings):
    """What a row or a column of a page's table says of the numbers in it.

    title                     : its heading; by default its row.
    row, column, metric, file : of the numbers, as result files have them.
    """

    title: str | None = None
    row: str | None = None
    column: str | None = None
    metric: str | None = None
    file: str | None = None


class PageColumn(Place):
    """A column of a page's table.

    show      : what stands in it, with numbers in braces.
    otherwise : what stands in place of that where its first number is not there.
    """

    show: str
    otherwise: str = _ABSENT


class PageTable(Settings):
    """A table of a page.

    corner  : the heading of its first column.
    rows    : all of the result file when not given.
    columns : those that have numbers.
    """

    corner: str = ""
    rows: tuple[str | Place, ...] | None = None
    columns: tuple[PageColumn, ...]


class PageLines(Settings):
    """What a page says of a picture.

    rows : those that are drawn, in this order.
    """

    rows: tuple[str, ...]


class Results:
    """Result files by short name, each read once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, ResultFile] = {}

    def named(self, name: str) -> ResultFile:
        """``sfl/table1-small`` is ``simulations/sfl/results/table1-small.csv``."""
        if name not in self._read:
            paper, _, table = name.partition("/")
            self._read[name] = ResultFile(self._root / "simulations" / paper / "results" / f"{table}.csv")
        return self._read[name]


def pages(root: Path) -> list[Path]:
    """The pages of a checkout of the project."""
    found = (root / "README.md", *sorted(root.glob("simulations/*/README.md")), *sorted(root.glob("docs/**/*.md")))
    return [path for path in found if path.is_file() and "_build" not in path.parts]


def written_anew(text: str, results: Results) -> str:
    """A page with every table and every number between markers as the result files have them.

    Raises
    ------
    ExperimentError
        For a marker without its other half, one that asks for what is not there, and wrong keys or formats.
    """
    tables = _TABLE.sub(partial(_table_again, results), text)
    again = _NUMBER.sub(partial(_number_again, results), tables)
    for what, found, opened, closed in (
        ("table", _TABLE, "<!-- table ", "<!-- end of table -->"),
        ("number", _NUMBER, r"<!-- [\w./-]+/[\w./-]+\s+[^<>]*\{", "<!-- end -->"),
    ):
        whole = len(found.findall(again))
        if len(re.findall(opened, again)) != whole or again.count(closed) != whole:
            raise ExperimentError(f"a marker of a {what} lacks its other half; `{closed}` ends a {what}")
    return again


def _table_again(results: Results, found: re.Match[str]) -> str:
    table, name = _said(PageTable, "table", found), found["file"]
    rows = results.named(name).rows if table.rows is None else table.rows
    lines = [markdown_line([table.corner, *(column.title or "" for column in table.columns)])]
    lines.append("|---" * (1 + len(table.columns)) + "|")
    for each in rows:
        row = Place(title=each, row=each) if isinstance(each, str) else each
        entries = [_shown(results, name, row, column) for column in table.columns]
        lines.append(markdown_line([row.title or row.row or "", *entries]))
    return found[1] + "\n".join(["", *lines, "", found["end"]])


def _said(kind: type[S], what: str, found: re.Match[str]) -> S:
    """What a marker says in TOML."""
    about, name = found["about"], f"{what} {found['file']}"
    try:
        return parse(kind, tomllib.loads(about), name)
    except tomllib.TOMLDecodeError as error:
        raise ExperimentError(f"{name} ({about.splitlines()[0]}): not TOML: {error}") from None


def _shown(results: Results, file: str, row: Place, column: PageColumn) -> str:
    place: list[str | None] = []
    for part in ("row", "column", "metric"):
        of_row, of_column = getattr(row, part), getattr(column, part)
        place.append(of_row if of_column is None else of_column.replace(f"{{{part}}}", of_row or ""))
    return filled(results, column.file or row.file or file, column.show, place, column.otherwise)


def _number_again(results: Results, found: re.Match[str]) -> str:
    show = " ".join(found["show"].split())
    return found[1] + filled(results, found["file"], show, [None, None, None]) + found["end"]


def filled(results: Results, file: str, show: str, place: Sequence[str | None], otherwise: str | None = None) -> str:
    """``show`` with the numbers of a file in place of its braces.

    place     : row, column and metric, for what the braces leave out.
    otherwise : what stands in place of all of it where the first number is missing; None: that is an error. Rows that
                nobody knows are none where it is more than the usual.
    """
    fields = list(_FIELD.finditer(show))
    if "{" in _FIELD.sub("", show):
        raise ExperimentError(f"'{show}' of {file}: a number is {{row|column|metric:format}}, e.g. {{MAE:±.3}}")
    strict = otherwise in (None, _ABSENT)
    numbers = [_number(results.named(file), found, place, strict) for found in fields]
    if numbers and numbers[0] is None:
        if otherwise is None:
            raise ExperimentError(f"{results.named(file).path} has no number for '{fields[0]['place']}'")
        return filled(results, file, otherwise, place, _ABSENT) if "{" in otherwise else otherwise
    entries = iter(numbers)
    return _FIELD.sub(lambda found: next(entries) or _ABSENT, show)


def _number(file: ResultFile, found: re.Match[str], place: Sequence[str | None], strict: bool) -> str | None:
    """As text; None where the file has none. ``strict``: it is an error where nobody knows the row."""
    where = f"{{{found['place']}:{found['format']}}} of {file.path.name}"
    given = found["place"].split("|")
    how = _FORMAT.fullmatch(found["format"])
    if how is None or len(given) > 3:
        raise ExperimentError(f"{where} is no number with its format, as {{row|column|metric:±.3}} is")
    row, column, metric = (said or known for said, known in zip(["", "", *given][-3:], place, strict=True))
    if row is None or column is None or metric is None:
        raise ExperimentError(f"{where} does not say row, column and metric, nor does the place where it stands")
    if strict:
        file.check_known(row, column, metric)
    if how[0] == "compared":
        difference = file.compared(row, column, metric)
        return None if difference is None else str(difference)
    if how[0].startswith("published"):
        printed = file.published(row, column, metric)
        if printed is None:
            return None
        parts = list(printed) if isinstance(printed, tuple) else [printed]
    else:
        spread = file.spread(row, column, metric)
        if spread is None:
            return None
        if how[0] == "seeds":
            return str(file.num_seeds(row, column, metric))
        if how[0] == "yes":
            return "yes" if spread.mean else "no"
        parts = [spread.mean, *([] if spread.deviation is None else [spread.deviation])]
        if how["seed"] is not None:
            if int(how["seed"]) not in spread.values:
                return None
            parts = [spread.values[int(how["seed"])]]
    if how["other"]:
        file.check_known(how["other"], column, metric)
        other = file.spread(how["other"], column, metric)
        if other is None:
            return None
        parts = [_related(parts[0], how["relation"], other.mean)]
    style = "g" if how["decimals"] is None else f"{how['thousands'] or ''}.{how['decimals']}f"
    return " ± ".join(f"{part:{style}}" for part in parts[: 2 if how["spread"] else 1])


def _related(value: float, relation: str, other: float) -> float:
    if relation == "less":
        return value - other
    return 100 * (other - value if relation == "% below" else value - other) / other


def stale(root: Path) -> Iterator[tuple[Path, str, str]]:
    """Every page that the result files would have otherwise: its path, its text, and what it should be.

    Raises ExperimentError as :func:`written_anew`, naming the page.
    """
    results = Results(root)
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        try:
            again = written_anew(text, results)
        except ExperimentError as error:
            raise ExperimentError(f"{page.relative_to(root)}: {error}") from None
        if again != text:
            yield page, text, again


@dataclass(frozen=True)
class Picture:
    """A picture of a page, with the result file that it is drawn from, and the rows in it."""

    path: Path
    file: ResultFile
    rows: tuple[str, ...]

    @cached_property
    def numbers(self) -> str:
        """A digest of all that is drawn, and of what the table says of it."""
        lines = [line for line in self.file.lines if line.row in self.rows]
        columns = [] if self.file.table is None else self.file.table.columns
        told = [column.model_dump(mode="json") for column in columns]
        return json_digest([self.rows, told, [[*line.place, line.seed, line.value, line.deviation] for line in lines]])

    @property
    def is_stale(self) -> bool:
        """Whether it has other numbers, or is not there."""
        if not self.path.is_file():
            return True
        with Image.open(self.path) as image:
            return image.info.get(_DRAWN_FROM) != self.numbers

    def draw(self) -> None:
        """Write the file."""
        figure = over_columns_of_file(self.file, self.rows)
        if figure is None:
            raise ExperimentError(f"{self.file.path} has no numbers for {self.path.name}")
        written = io.BytesIO()
        figure.savefig(written, format="png", metadata={_DRAWN_FROM: self.numbers})
        write_atomically(self.path, written.getvalue())


def pictures(root: Path) -> Iterator[Picture]:
    """The pictures of all pages that are drawn from result files."""
    results = Results(root)
    for page in pages(root):
        for found in _PICTURE.finditer(page.read_text(encoding="utf-8")):
            lines = _said(PageLines, "picture", found)
            yield Picture(page.parent / found["path"], results.named(found["file"]), lines.rows)


def outdated(root: Path) -> Iterator[str]:
    """Yield for every result file which of its rows were measured with other settings than its table has now."""
    for path in sorted(root.glob("simulations/*/results/*.csv")):
        rows = dict.fromkeys(f"'{line.row}' of {line.column}" for line in ResultFile(path).outdated())
        if rows:
            yield f"{path.relative_to(root)}: measured with other settings than the table has now: {', '.join(rows)}"


def differences(text: str, again: str) -> list[str]:
    """The lines that differ, as they are and as they should be."""
    every = difflib.unified_diff(text.splitlines(), again.splitlines(), lineterm="", n=0)
    return [line for line in every if not line.startswith(("---", "+++", "@@"))]


def main() -> int:
    """Write all pages anew, or say which of them are not as the result files have them."""
    parser = argparse.ArgumentParser(
        prog="python -m fedgraph.simulations.pages", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 where a page is not up to date"
    )
    check = parser.parse_args().check
    try:
        found, outdated_rows = list(stale(REPOSITORY)), list(outdated(REPOSITORY))
        drawn = [picture for picture in pictures(REPOSITORY) if picture.is_stale]
        for picture in drawn:
            print(f"{picture.path.relative_to(REPOSITORY)}: other numbers than in {picture.file.path.name}")
            if not check:
                picture.draw()
    except ExperimentError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    for line in outdated_rows:
        print(line)
    for page, text, again in found:
        if not check:
            write_atomically(page, again.encode())
        print("\n".join([str(page.relative_to(REPOSITORY)), *differences(text, again)]))
    return 1 if check and (found or drawn or outdated_rows) else 0


if __name__ == "__main__":
    sys.exit(main())
