"""How the rows of clients differ from those that everybody may see, in what their segments are made of.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, figure 6 and table 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import typer

from fedgraph.data import open_source
from fedgraph.data.columns import Table, as_category, read_column, sort_categories
from fedgraph.data.tables import DividedTableSource
from fedgraph.experiment import load_experiment
from fedgraph.reproduce import calm, panels
from fedgraph.simulations.scripts import DATA, DataDir, Out, Page, ResultsFile, run
from fedgraph.support.errors import ExperimentError

EXPERIMENTS = ("fedngm/births.toml", "fedngm/deaths.toml")

_PUBLIC = "public"
_COLOURS = ("#1f6fb4", "#e8710a", "#3f9b57", "#8b6cc1", "#c04a1d", "#7a5c3e")
_TEXT = """\
Published at <https://arxiv.org/abs/2309.11680>.

Each client has more of one part of the mothers. A row of a client's segment comes to it four times as often as to a \
client in whose segment it is not. In the paper C3 has more mothers with a degree, as here among infants who died; \
births of 2014 come without education, so that there C3 has more mothers without WIC benefits.

"""


@dataclass(frozen=True)
class Distribution:
    """Of the rows of one experiment.

    segments : by client, values by column.
    rows     : by client, and of ``public``.
    shares   : by column and value, the share of it by client and in ``public``, of the rows where the column is known.
    inside   : by client, the share of its own rows in its segment, and of the public ones.
    """

    name: str
    segments: dict[str, dict[str, tuple[str, ...]]]
    rows: dict[str, int]
    shares: dict[str, dict[str, dict[str, float]]]
    inside: dict[str, tuple[float, float]]


def distributions(data_dir: Path, experiments: Sequence[str] = EXPERIMENTS) -> Page:
    """Count, and draw; a picture for each experiment, whose data set deals rows out by segments."""
    figures, lines = {}, []
    sizes: list[tuple[str | int | float | None, ...]] = []
    for experiment in experiments:
        found = distribution(experiment, data_dir, 0)
        figures[found.name] = draw(found)
        for client, segment in found.segments.items():
            said = " and ".join(f"{column} = {' or '.join(values)}" for column, values in segment.items())
            own, public = found.inside[client]
            sizes.append((found.name, client, said, found.rows[client], own, public))
        sizes.append((found.name, _PUBLIC, "", found.rows[_PUBLIC], None, None))
        for column, values in found.shares.items():
            lines += [
                (found.name, column, value, client, share)
                for value, by_client in values.items()
                for client, share in by_client.items()
            ]
    headings = ("experiment", "client", "segment", "rows", "share in its segment", "of public rows")
    tables = {
        "splits": pd.DataFrame(sizes, columns=headings),
        "shares": pd.DataFrame(lines, columns=("experiment", "column", "value", "client", "share")),
    }
    pictures = "\n\n".join(f"![How the rows of {name} are distributed]({name}.png)" for name in figures)
    title = "Rows of clients beside public ones (Chajewska, Shrivastava, fig. 6 and table 1)"
    return Page(title, f"{_TEXT}{{splits}}\n\n{pictures}", tables, figures=figures)


def distribution(experiment: str, data_dir: Path, seed: int) -> Distribution:
    """What an experiment's clients hold, dealt out with ``seed``.

    Raises
    ------
    ExperimentError
        When its data set has no segments or no public part.
    """
    loaded = load_experiment(experiment, [f"data.partition-seed={seed}"])
    source, name = open_source(loaded.data, data_dir), loaded.experiment.name
    public = source.public_table() if isinstance(source, DividedTableSource) else None
    if not isinstance(source, DividedTableSource) or not source.settings.segments or public is None:
        raise ExperimentError(
            f"{experiment}: its data are not dealt out by segments (segments) with a public part (public-share)"
        )
    segments = source.settings.segments
    tables = {client: source.load_table(client).table for client in source.client_names()} | {_PUBLIC: public}
    columns = dict.fromkeys(column for segment in segments.values() for column in segment)
    return Distribution(
        name=name,
        segments=segments,
        rows={who: table.num_rows for who, table in tables.items()},
        shares={column: _shares(tables, column) for column in columns},
        inside={
            client: (_inside(tables[client], segment), _inside(public, segment)) for client, segment in segments.items()
        },
    )


def _shares(tables: dict[str, Table], column: str) -> dict[str, dict[str, float]]:
    counts = {}
    for who, table in tables.items():
        found = read_column(table, column)
        counts[who] = dict(zip(map(as_category, found.texts.to_pylist()), found.counts.tolist(), strict=True))
    values = sort_categories(list(dict.fromkeys(value for by_value in counts.values() for value in by_value)))
    return {
        value: {who: by_value.get(value, 0) / sum(by_value.values()) for who, by_value in counts.items()}
        for value in values
    }


def _inside(table: Table, segment: dict[str, tuple[str, ...]]) -> float:
    """The share of all rows that are in a segment."""
    inside = np.ones(table.num_rows, dtype=bool)
    for name, values in segment.items():
        column = read_column(table, name)
        wanted = [as_category(text) in values for text in column.texts.to_pylist()]
        inside &= np.array([*wanted, False])[column.codes]
    return float(inside.mean())


def draw(found: Distribution) -> Any:
    """A panel per column, with a bar per client and value; values of which a segment is made are printed bold."""
    figure, axes = panels(len(found.shares), width=4.6, height=3.2, most=3)
    for axis, (column, values) in zip(axes, found.shares.items(), strict=True):
        who = list(next(iter(values.values())))
        width = 0.8 / len(who)
        for place, client in enumerate(who):
            heights = [100 * by_client[client] for by_client in values.values()]
            colour = "0.75" if client == _PUBLIC else _COLOURS[place % len(_COLOURS)]
            left = np.arange(len(values)) + (place - (len(who) - 1) / 2) * width
            axis.bar(left, heights, width, color=colour, label=client, zorder=2)
        axis.set_xticks(range(len(values)), list(values), fontsize=8, rotation=30 if len("".join(values)) > 40 else 0)
        special = {value for segment in found.segments.values() for value in segment.get(column, ())}
        for label in axis.get_xticklabels():
            if label.get_text() in special:
                label.set_fontweight("bold")
        calm(axis, column, "", "rows [%]")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", fontsize=8, frameon=False, ncols=len(labels))
    return figure


def main(data_dir: DataDir = DATA, out: Out = Path("reproductions/fedngm-fig6"), results: ResultsFile = None) -> None:
    """Count how the clients' rows differ from public ones, from the data alone. It takes seconds."""
    distributions(data_dir).write(out, results)


if __name__ == "__main__":
    run(partial(typer.run, main))
