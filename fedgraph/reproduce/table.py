"""Settings of a published table in TOML: columns are experiments, rows are methods, profiles are sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PositiveInt, StringConstraints, model_validator

from fedgraph.reproduce.quantity import FAIRNESS, Quantity, validation_quantity
from fedgraph.support.errors import if_any
from fedgraph.support.settings import Settings

Profile = Literal["small", "full"]

PublishedValue = float | tuple[float, float]
"""A value, or a value and its deviation, as printed in the paper."""

NOT_PRINTED = "-"
"""Placeholder for a value that the paper leaves out."""


def _readable(text: str) -> str:
    Quantity.of(text)
    return text


def _of_validation(text: str) -> str:
    return str(validation_quantity(text)) if text else text


TomlValue = bool | int | float | str | list[Any]
"""Values of a setting: anything but tables."""

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
             training traffic per client until then, with one client per node, with ``:seconds`` the time; with
             ``:first-rounds``, ``:first-bytes`` and ``:first-seconds`` until the first client did. With ``:fairness``
             100 times the correlation, over clients, with their final values in the row ``stand-alone``, for the same
             seed. Or, for runs with ``[evaluation] compare-peers``, the mean over pairs of peers: ``peers/l1``,
             ``peers/l2`` (distances of their parameters), ``peers/hamming``, ``peers/both-right`` or
             ``peers/both-wrong`` (test examples that they predict differently, right, wrong). Or the cost of a run:
             ``run/rounds``, ``run/minibatches`` (of all clients), ``run/passes`` (over all clients' examples),
             ``run/bytes`` (down and up, of all nodes), ``run/bytes-per-client`` or ``run/models-per-round`` (with one
             client per node), ``run/exchanges``, ``run/training-bytes-per-owner`` (embeddings and gradients, without
             those of test samples), or ``run/core-seconds`` (processor time, for methods of rounds).
    factor : factor from a run's value to the unit of the published one, e.g. 100 for per cent.
    rounds : ``[first, last]``: for fairness, average each client over its evaluations in these rounds, instead of its
             final value.
    """

    title: str
    value: Annotated[str, AfterValidator(_readable)]
    factor: float = 1.0
    rounds: tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]] | None = None

    @model_validator(mode="after")
    def _rounds_are_of_fairness(self) -> MetricTable:
        if self.rounds is not None and self.quantity.statistic != FAIRNESS:
            raise ValueError(f"rounds need a value with ':{FAIRNESS}', got '{self.value}'")
        if self.rounds is not None and self.rounds[0] > self.rounds[1]:
            raise ValueError(f"rounds must be [first, last], got {list(self.rounds)}")
        return self

    @property
    def quantity(self) -> Quantity:
        """``value``, parsed."""
        return Quantity.of(self.value)


FIGURES = ("bars", "dots", "lines", "curves", "none")


def _is_figure(text: str) -> str:
    if text not in FIGURES and ":" not in text:
        raise ValueError(f"unknown figure '{text}': use {', '.join(FIGURES)}, or package.module:function")
    return text


class TableTable(Settings):
    """``[table]``.

    Attributes
    ----------
    title, paper, caption : what the table shows, a link to the paper, and how to read our values.
    figure  : what to draw: ``bars`` or ``dots`` (the first metric of every row; bars start at 0), ``lines`` (the same
              over ``at`` of the columns), ``curves`` (the same by round), ``none``, or ``package.module:function``,
              which takes the results and returns a Matplotlib figure, or None when there is nothing to draw.
    method  : the name of the paper's method; rows whose label begins with one of ``highlight`` are drawn in its colour
              or with thicker curves.
    metrics : default for columns.
    set     : overrides of every experiment, ``table.key=value``; ``{seed}`` stands for the seed.
    seeds   : every row is run with each of these.
    stand_alone : the label of the row in which each client trains alone, the reference of fairness.
    compare : the label of the row to compare all others with, paired by seed, with 95 % intervals.
    overlap : if each seed resplits one data set: test samples per training sample; widens these intervals.
    choose_by    : the criterion for the settings of rows with ``choose``, a value on validation data, e.g.
              ``validation/accuracy``.
    choose_seeds : seeds over which the criterion is averaged; by default the first of ``seeds`` (or of those of the
              profile).
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
    experiment : the experiment file, found as by ``fedgraph run``.
    set        : overrides.
    metrics    : metrics to read from its runs.
    client     : the name of the client whose values to read; by default the mean over all clients.
    differs    : how its data or setting differ from the published one; ``{data}`` stands for the description of data in
                 the runs.
    choose_by  : replaces that of the table.
    at         : position on the logarithmic axis of a ``lines`` figure, such as days of data.
    panel      : the title of its panel there.
    seeds_differ : whether each seed has other data, such as other new clients. Deviations over seeds, which then
                 measure the data and not the methods, are not shown.
    published_data : the data of the paper, as the beginning of the description that a run gives of it: ``CIFAR-10``,
                 ``METR-LA, 207 sensors``. If ours is other data, or a part of it, published values are marked and
                 drawn apart.
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
    method    : a built-in method or a strategy by dotted path; not set for a row that is only published.
    experiment : the experiment file, instead of those of the columns.
    set       : overrides.
    set_for   : more overrides by column key.
    columns   : the keys of the columns that it is run for; by default all.
    after     : the label of an earlier row, without ``choose``, whose run this one builds on: ``{run}`` in ``set`` and
                ``set-for`` stands for the run folder of that row for the same column and seed.
    nodes     : number of nodes, regardless of the command line.
    client    : the name of the client whose values to read, instead of the column's.
    suffix    : suffix of metrics that selects one of several models of a run, e.g. ``-local`` for
                ``test/weight-mae-local`` if the column has ``test/weight-mae``. Rows that differ only in ``client`` and
                ``suffix`` share their runs.
    published : by column key, the printed values in the order of the column's metrics, each a number,
                ``[number, deviation]``, or ``"-"`` for none. They are only shown, not used in computations.
    differs   : how it differs from the published row, or how its settings were chosen.
    choose    : values to try, by ``table.key``; keys separated by blanks share a value. Every combination is run with
                ``choose-seeds``, and the row with all seeds uses the best one by ``choose-by``. The choice is reported
                with ``differs``.
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
        """Return whether this row is run for a column."""
        return self.method is not None and self.stands_in(column)

    def stands_in(self, column: str) -> bool:
        """Return whether this row belongs to a column, run or only published."""
        return self.columns is None or column in self.columns


class ProfileTable(Settings):
    """``[profiles.small]`` or ``[profiles.full]``.

    Attributes
    ----------
    set         : overrides of every experiment.
    set_for     : more overrides by column key.
    seeds       : replace those of the table.
    experiments : experiment files by column key, replacing those of the columns.
    columns     : the keys of its columns; by default all.
    differs     : how the profile differs from the published setting.
    differs_for : the same by column key, replacing that of the column.
    """

    set: tuple[str, ...] = ()
    set_for: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] | None = Field(default=None, min_length=1)
    experiments: dict[str, str] = Field(default_factory=dict)
    columns: tuple[str, ...] | None = None
    differs: str = ""
    differs_for: dict[str, str] = Field(default_factory=dict)

    def experiment_file(self, row: RowTable, column: ColumnTable, experiments_dir: Path) -> Path:
        """Return the experiment file of a row, in the folder of the table if it is there."""
        name = row.experiment or self.experiments.get(column.key, column.experiment)
        return experiments_dir / name if (experiments_dir / name).is_file() else Path(name)


class PublishedTable(Settings):
    """The file of a table."""

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
                raise ValueError(f"column '{column.key}' needs metrics, in [[columns]] or [table]")
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
                raise ValueError(f"{who} names unknown column '{key}'{if_any('; known: ', ', '.join(keys))}")
        for row in self.rows:
            for key, values in row.published.items():
                expected = len(self.metrics_of(self.columns[keys.index(key)]))
                if len(values) != expected:
                    raise ValueError(
                        f"row '{row.label}': column '{key}' has {expected} metrics, but {len(values)} published values"
                    )
        return self

    def _check_stand_alone(self) -> None:
        label, ran = self.table.stand_alone, [row.label for row in self.rows if row.method is not None]
        for key, named in (("stand-alone", label), ("compare", self.table.compare)):
            if named and named not in ran:
                known = if_any("; known: ", ", ".join(ran))
                raise ValueError(f"{key} must name a row with a method, got '{named}'{known}")
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
                    f"row '{row.label}': after must name an earlier row without choose, got '{row.after}'; known: "
                    f"{known}"
                )
            lacking = [c.key for c in self.columns if first and row.runs_in(c.key) and not first.runs_in(c.key)]
            if lacking:
                raise ValueError(f"row '{row.label}' needs row '{row.after}', which is not run for '{lacking[0]}'")
            earlier[row.label] = row

    @property
    def reference(self) -> RowTable | None:
        """The row that others are compared with, or None."""
        return next((row for row in self.rows if row.label == self.table.compare), None)

    def columns_in(self, profile: ProfileTable) -> list[ColumnTable]:
        """Return the columns of a profile."""
        return [column for column in self.columns if profile.columns is None or column.key in profile.columns]

    def set_in(self, column: ColumnTable, profile: ProfileTable) -> list[str]:
        """Return the overrides of all rows; later ones win."""
        return [*self.table.set, *column.set, *profile.set, *profile.set_for.get(column.key, ())]

    def metrics_of(self, column: ColumnTable) -> tuple[MetricTable, ...]:
        """Return the metrics of a column."""
        return column.metrics or self.table.metrics

    def choice_quantity(self, row: RowTable, column: ColumnTable) -> Quantity:
        """Return the criterion for the settings of a row in a column. Raises ValueError without one."""
        text = column.choose_by or self.table.choose_by
        if not text:
            raise ValueError(f"row '{row.label}' has settings to choose: give [table] choose-by")
        return Quantity.of(text).at(row.client or column.client, row.suffix)

    def quantity(self, row: RowTable, column: ColumnTable, metric: MetricTable) -> Quantity:
        """Return the quantity of a metric for the runs of a row in a column."""
        return metric.quantity.at(row.client or column.client, row.suffix)
