"""A published table as one TOML file: columns are experiments, rows are methods, profiles are sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt, StringConstraints, model_validator

from fedgraph.reproduce.quantity import FAIRNESS, Quantity, validation_quantity
from fedgraph.support.settings import Settings

Profile = Literal["small", "full"]

PublishedValue = float | tuple[float, float]
"""A number, or a number and its deviation, as printed in the paper."""

NOT_PRINTED = "-"
"""Placeholder for a number that the paper leaves out."""


def _readable(text: str) -> str:
    Quantity.of(text)
    return text


def _of_validation(text: str) -> str:
    return str(validation_quantity(text)) if text else text


TomlValue = bool | int | float | str | list[Any]
"""Values that a setting can have: all but tables."""

_ChooseBy = Annotated[str, AfterValidator(_of_validation)]
_Override = Annotated[str, StringConstraints(pattern=r"^[^.=]+(\.[^.=]+)+$")]
_Key = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
# Rows are chosen by label in a list with commas.
_Label = Annotated[str, StringConstraints(pattern=r"^[^,|\n]+$")]


class MetricTable(Settings):
    """One entry of ``metrics``.

    Attributes
    ----------
    title  : its heading.
    value  : ``<split>/<metric>``, e.g. ``test/mae-60min``: the mean over clients; with ``:std``, ``:best5`` or
             ``:worst5`` another statistic over clients, with ``@group`` over the clients of one group. With ``:rounds``
             the rounds until the mean over clients reached its target (``[evaluation] targets``), with ``:bytes`` the
             traffic for training per client, each on a node of its own, until then, with ``:seconds`` the time; with
             ``:first-rounds``, ``:first-bytes`` and ``:first-seconds`` until the first client did. With ``:fairness``
             100 times the correlation, over clients, with their scores in the row that ``stand-alone`` names, at the
             end of a run of the same seed. Or, of runs with ``[evaluation] compare-peers``, the mean over pairs of
             peers: ``peers/l1``, ``peers/l2`` (distances of their parameters), ``peers/hamming``, ``peers/both-right``
             or ``peers/both-wrong`` (test examples that they predict differently, right, wrong). Or the cost of a run:
             ``run/rounds``, ``run/minibatches`` (of all clients), ``run/passes`` (over all clients' examples),
             ``run/bytes`` (down and up, of all nodes, which depends on which clients share one),
             ``run/bytes-per-client`` or
             ``run/models-per-round`` (with a node for each client), ``run/exchanges``, or
             ``run/training-bytes-per-owner`` (embeddings and gradients, without those of test samples), or
             ``run/core-seconds`` (processor time of the process, by methods of rounds).
    factor : factor from a run's value to the unit of the published one, e.g. 100 for per cent.
    rounds : ``[first, last]``: for fairness each client's mean over those of these rounds in which it was measured; by
             default its value at the end.
    """

    title: str
    value: Annotated[str, AfterValidator(_readable)]
    factor: float = 1.0
    rounds: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def _rounds_are_of_fairness(self) -> MetricTable:
        if self.rounds is not None and self.quantity.statistic != FAIRNESS:
            raise ValueError(f"rounds go with a value of ':{FAIRNESS}', not with '{self.value}'")
        if self.rounds is not None and self.rounds[0] > self.rounds[1]:
            raise ValueError(f"rounds are [first, last], not {list(self.rounds)}")
        return self

    @property
    def quantity(self) -> Quantity:
        """``value``, parsed."""
        return Quantity.of(self.value)


FIGURES = ("bars", "dots", "lines", "curves", "none")


def _is_figure(text: str) -> str:
    if text not in FIGURES and ":" not in text:
        raise ValueError(f"'{text}' is not a figure: give {', '.join(FIGURES)}, or package.module:function")
    return text


class TableTable(Settings):
    """``[table]``.

    Attributes
    ----------
    title, paper, caption : what the table shows, a link to where it was published, and how to read ours.
    figure  : the picture: ``bars`` or ``dots`` (the first metric of every row; bars start at 0), ``lines`` (it, over
              ``at`` of the columns), ``curves`` (it, by round), ``none``, or ``package.module:function``, which
              takes the results and returns a Matplotlib figure, or None when there is nothing to draw.
    method  : the name of the paper's own method; bars and dots of rows whose label begins with one of ``highlight``
              are drawn in its colour, their curves thicker.
    metrics : those of every column that has none of its own.
    set     : overrides of every experiment, ``table.key=value``; ``{seed}`` in one stands for the seed.
    seeds   : every row is run with each of these.
    stand_alone : the label of the row in which each client trains alone; the other rows' fairness is against it.
    compare : the label of the row that all others are compared with, seed by seed, with 95 % intervals.
    overlap : where each seed splits one data set anew, test samples per training sample; widens those intervals.
    choose_by    : the criterion for the settings of rows with ``choose``, a value on validation data, e.g.
              ``validation/accuracy``.
    choose_seeds : they are compared with these seeds, on average; by default with the first of ``seeds`` (or of those
              of the profile).
    """

    title: str
    paper: str = ""
    caption: str = ""
    figure: Annotated[str, AfterValidator(_is_figure)] = "bars"
    method: str = ""
    highlight: tuple[str, ...] = ()
    metrics: tuple[MetricTable, ...] = ()
    set: tuple[str, ...] = ()
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0, 1, 2), min_length=1)
    stand_alone: str = ""
    compare: str = ""
    overlap: float = Field(default=0.0, ge=0)
    choose_by: _ChooseBy = ""
    choose_seeds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, min_length=1)


class ColumnTable(Settings):
    """One ``[[columns]]``.

    Attributes
    ----------
    key, title : its short name, and its heading.
    experiment : the experiment file, found as ``fedgraph run`` finds it.
    set        : overrides.
    metrics    : metrics that are read from its runs.
    client     : the name of the client whose values count; by default the mean over all clients.
    differs    : how its data or setting differ from the published, in plain words; ``{data}`` in it stands for the data
                 that the runs report.
    choose_by  : in place of the table's.
    at         : where the column is in a picture of ``lines``, whose axis is logarithmic: such as its days of data.
    panel      : the title of its panel there.
    seeds_differ : whether each seed has other data, such as other new clients. Deviations over seeds, which are then of
                 the data and not of the methods, are not shown.
    published_data : the data of the paper, in the words that a run uses to describe the same data, as far as they
                 identify it: ``CIFAR-10``, ``METR-LA, 207 sensors``. Where ours are of other data, or of a part of it,
                 published values say so and stand apart in pictures.
    """

    key: _Key
    title: str
    experiment: str
    set: tuple[str, ...] = ()
    metrics: tuple[MetricTable, ...] = ()
    client: str | None = None
    differs: str = ""
    choose_by: _ChooseBy = ""
    at: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    panel: str = ""
    seeds_differ: bool = False
    published_data: str = ""


class RowTable(Settings):
    """One ``[[rows]]``.

    Attributes
    ----------
    label     : its name, without commas.
    method    : a built-in method or a strategy by dotted path; none for a row that is only published.
    experiment : the experiment file in place of those of its columns.
    set       : overrides.
    set_for   : more overrides by column key.
    columns   : the keys of the columns that it is run for; all when not given.
    after     : the label of an earlier row, without settings to choose, whose run this one builds on: ``{run}`` in
                ``set`` and ``set-for`` stands for the folder of its run of the same column and seed.
    nodes     : number of nodes that clients are divided among, whatever the command line sets.
    client    : the name of the client whose values count, in place of the column's.
    suffix    : which model of a run that measures several: suffix of the names of metrics, e.g. ``-local`` for
                ``test/weight-mae-local`` where the column has ``test/weight-mae``. Rows that differ in ``client`` and
                ``suffix`` alone share their runs.
    published : by column key, the printed values in the order of the column's metrics, each a number,
                ``[number, deviation]``, or ``"-"`` if there is none. Shown next to ours, used in no computation.
    differs   : how it differs from the published row, or how its settings were chosen, in plain words.
    choose    : settings that are chosen, by ``table.key`` the values to try; several keys with blanks between them have
                the same value. Every combination is run with the seeds of ``choose-seeds``, and the one that is best by
                ``choose-by`` is the row's, with all seeds. The choice is reported with ``differs``.
    """

    label: _Label
    method: str | None = None
    experiment: str = ""
    set: tuple[str, ...] = ()
    set_for: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    after: str = ""
    nodes: PositiveInt | None = None
    client: str | None = None
    suffix: Annotated[str, StringConstraints(pattern=r"^(-[a-z0-9]+)*$")] = ""
    published: dict[str, tuple[PublishedValue | Literal["-"], ...]] = Field(default_factory=dict)
    differs: str = ""
    choose: dict[_Override, Annotated[tuple[TomlValue, ...], Field(min_length=1)]] = Field(default_factory=dict)

    def runs_in(self, column: str) -> bool:
        """Check whether this row is run for a column."""
        return self.method is not None and self.stands_in(column)

    def stands_in(self, column: str) -> bool:
        """Check whether this row has a place in a column, be it run or only published."""
        return self.columns is None or column in self.columns


class ProfileTable(Settings):
    """``[profiles.small]`` or ``[profiles.full]``.

    Attributes
    ----------
    set         : overrides of every experiment.
    set_for     : more overrides by column key.
    seeds       : in place of the table's.
    experiments : by column key, the experiment file in place of the column's.
    columns     : the keys of the columns that the profile has; all when not given.
    differs     : how the profile differs from the published setting, in plain words.
    differs_for : the same by column key, in place of the column's.
    """

    set: tuple[str, ...] = ()
    set_for: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    experiments: dict[str, str] = Field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    differs: str = ""
    differs_for: dict[str, str] = Field(default_factory=dict)

    def experiment_file(self, row: RowTable, column: ColumnTable, experiments_dir: Path) -> Path:
        """Return the experiment file of a row: one in the folder of the table, or as ``fedgraph run`` finds it."""
        name = row.experiment or self.experiments.get(column.key, column.experiment)
        return experiments_dir / name if (experiments_dir / name).is_file() else Path(name)


class PublishedTable(Settings):
    """The whole file of a table."""

    table: TableTable
    columns: tuple[ColumnTable, ...] = Field(min_length=1)
    rows: tuple[RowTable, ...] = Field(min_length=1)
    profiles: dict[Profile, ProfileTable] = Field(min_length=1)

    @model_validator(mode="after")
    def _parts_fit(self) -> PublishedTable:
        keys, labels = [column.key for column in self.columns], [row.label for row in self.rows]
        for what, names in (("column key", keys), ("row label", labels)):
            repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if repeated:
                raise ValueError(f"the {what} '{repeated[0]}' is given more than once")
        for column in self.columns:
            if not self.metrics_of(column):
                raise ValueError(f"column '{column.key}' has no metrics, nor has [table]")
        self._check_stand_alone()
        self._check_after()
        for column in self.columns:
            for row in self.rows:
                for metric in self.metrics_of(column) if row.stands_in(column.key) else ():
                    self.quantity(row, column, metric)
        used: list[tuple[str, str]] = []
        for row in self.rows:
            used += [(f"row '{row.label}'", key) for key in (*row.set_for, *(row.columns or ()), *row.published)]
        for name, profile in self.profiles.items():
            mentioned = (*profile.set_for, *profile.experiments, *(profile.columns or ()), *profile.differs_for)
            used += [(f"profile '{name}'", key) for key in mentioned]
        for column in self.columns:
            for row in self.rows:
                if row.choose and row.runs_in(column.key):
                    self.choice_quantity(row, column)
        for who, key in used:
            if key not in keys:
                raise ValueError(f"{who} names a column '{key}'; the columns are {', '.join(keys)}")
        for row in self.rows:
            for key, values in row.published.items():
                expected = len(self.metrics_of(self.columns[keys.index(key)]))
                if len(values) != expected:
                    raise ValueError(
                        f"row '{row.label}' has {len(values)} published values for column '{key}' of {expected} metrics"
                    )
        return self

    def _check_stand_alone(self) -> None:
        label, ran = self.table.stand_alone, [row.label for row in self.rows if row.method is not None]
        for key, named in (("stand-alone", label), ("compare", self.table.compare)):
            if named and named not in ran:
                raise ValueError(f"{key} names a row '{named}'; the rows that are run are {', '.join(ran)}")
        values = [metric for column in self.columns for metric in self.metrics_of(column)]
        wanted = [metric.value for metric in values if metric.quantity.statistic == FAIRNESS]
        if wanted and not label:
            raise ValueError(f"{wanted[0]} needs [table] stand-alone, the label of the row to compare with")

    def _check_after(self) -> None:
        earlier: dict[str, RowTable] = {}
        for row in self.rows:
            first = earlier.get(row.after)
            if row.after and (first is None or first.choose):
                known = ", ".join(label for label, other in earlier.items() if not other.choose) or "none"
                raise ValueError(
                    f"row '{row.label}' comes after '{row.after}', which is no earlier row without settings to choose; "
                    f"those are: {known}"
                )
            lacking = [c.key for c in self.columns if first and row.runs_in(c.key) and not first.runs_in(c.key)]
            if lacking:
                raise ValueError(f"row '{row.label}' has column '{lacking[0]}', which row '{row.after}' is not run for")
            earlier[row.label] = row

    @property
    def reference(self) -> RowTable | None:
        """The row that others are compared with; None without a comparison."""
        return next((row for row in self.rows if row.label == self.table.compare), None)

    def columns_in(self, profile: ProfileTable) -> list[ColumnTable]:
        """Return the columns that a profile has."""
        return [column for column in self.columns if profile.columns is None or column.key in profile.columns]

    def set_in(self, column: ColumnTable, profile: ProfileTable) -> list[str]:
        """Return the overrides of all rows; later ones win."""
        return [*self.table.set, *column.set, *profile.set, *profile.set_for.get(column.key, ())]

    def metrics_of(self, column: ColumnTable) -> tuple[MetricTable, ...]:
        """Return the metrics of a column."""
        return column.metrics or self.table.metrics

    def choice_quantity(self, row: RowTable, column: ColumnTable) -> Quantity:
        """Return the quantity that chooses the settings of a row in a column.

        Raises ValueError where the table gives none.
        """
        text = column.choose_by or self.table.choose_by
        if not text:
            raise ValueError(f"row '{row.label}' has settings to choose: give [table] choose-by")
        return Quantity.of(text).at(row.client or column.client, row.suffix)

    def quantity(self, row: RowTable, column: ColumnTable, metric: MetricTable) -> Quantity:
        """Return the quantity that a metric reads from the runs of a row in a column."""
        return metric.quantity.at(row.client or column.client, row.suffix)
