"""The experiment: one TOML file, validated, overridable key by key, the same for every grid."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import Field, PositiveInt, model_validator

from fedgraph.data import parse_data
from fedgraph.data.base import SplitName
from fedgraph.errors import ExperimentError
from fedgraph.methods import BUILT_IN, Method, resolve
from fedgraph.model_choice import ModelChoice
from fedgraph.roll_call import ClientsTable, RollCall
from fedgraph.settings import Settings, parse
from fedgraph.train_settings import TrainSettings

_METHOD_KEYS = ("method", "strategy", "client")
_PATHS = (
    ("graph", "path", Path.is_file),
    ("fairness", "stand-alone", Path.is_dir),
    ("clients", "public-keys", Path.is_dir),
)
"""Keys that hold the path of a file or folder."""


class ExperimentTable(Settings):
    """``[experiment]``: what is run and how strict the run is about absent clients.

    name        : run folders are called after it.
    method      : a built-in method; or strategy and client by dotted path (the client's default fits the strategy).
    rounds, seed : communication rounds, of which methods over owners of different features (f3, vfl) have none;
                  everything random follows from the seed.
    min_clients : fewest clients that must take part in every round.
    on_missing  : what happens to a client without a usable reply: ``fail`` ends the run, ``skip`` leaves the client
                  out of the round's aggregation, ``keep-last`` lets its last usable reply take part instead.
    wait        : seconds to wait at the start for nodes to connect.
    timeout     : seconds to wait for the replies of one exchange.
    """

    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    method: str | None = None
    strategy: str | None = None
    client: str | None = None
    rounds: int = Field(default=10, ge=0)
    seed: int = Field(default=0, ge=0)
    min_clients: PositiveInt = 1
    on_missing: Literal["fail", "skip", "keep-last"] = "fail"
    wait: float = Field(default=60.0, ge=0)
    timeout: float = Field(default=3600.0, gt=0)


class GraphTable(Settings):
    """``[graph]``: the given client graph.

    source : ``none``, ``complete``, ``data`` (the graph published with the data set), ``labels`` (clients that share
             a main class; made from private label counts, an oracle) or ``file``.
    path   : with ``file``: an edge list (from,to and a weight, or a distance or cost, which go through a Gaussian
             kernel), a matrix, .npz, .json, .graphml, .gml or DCRNN's .pkl; looked for beside the experiment, from the
             current folder, and in the data folder.
    main_labels, label_weights : with ``labels``: how many of a client's largest classes count, and whether links weigh
             1 (``binary``) or the likeness of the class mixes (``overlap``).
    directed   : refuse (false) or keep (true) a file's asymmetry; an edge list that names each pair once is directed
             unless this is false. By default a file is taken as it is.
    symmetrise : take the larger of the two weights of every pair.
    binarise   : every weight becomes 1.
    missing    : clients that the graph lacks are an ``error`` or stand alone (``isolate``).
    extra      : clients that only the graph has are an ``error`` or left out (``drop``).
    """

    source: Literal["none", "complete", "data", "labels", "file"] = "none"
    path: str | None = None
    main_labels: PositiveInt = 1
    label_weights: Literal["binary", "overlap"] = "binary"
    directed: bool | None = None
    symmetrise: bool = False
    binarise: bool = False
    missing: Literal["error", "isolate"] = "error"
    extra: Literal["error", "drop"] = "error"

    @model_validator(mode="after")
    def _path_goes_with_file(self) -> GraphTable:
        if (self.source == "file") != (self.path is not None):
            raise ValueError('source = "file" needs a path, and only that source takes one')
        return self


class EvaluationTable(Settings):
    """``[evaluation]``: what is measured, how often, and when measuring ends the run.

    splits   : which of each client's splits are measured.
    every    : after every so many rounds, and at the end.
    restore_best : end with the models of the best evaluation, when early stopping is on.
    horizons : forecast steps reported on their own, counted from 1; by default 3, 6 and 12, as far as a forecast goes.
    monitor  : metric watched for early stopping as ``<split>/<metric>``, e.g. ``validation/mae``; needs ``patience``,
               the number of evaluations without a better mean over clients after which the run ends.
    targets  : value by metric, e.g. ``{"test/accuracy" = 0.98}``; ``rounds_to_target`` in ``summary.json`` tells after
               how many rounds the mean over clients reached it, and after how many the first client did.
    stop_at_targets : end the run once all targets are reached, by the ``mean`` or by the ``first`` client.
    compare_peers : compare the models that the run ends with, pair by pair: their parameters, and the classes that
               they predict for the test examples, which must be the same for all clients (``[data] test = "shared"``)
               and whose true classes go to the server. Makes ``peers.npz``, ``peers.csv``, and means in
               ``summary.json``; for classification by methods whose clients have whole models of their own.
    """

    splits: tuple[SplitName, ...] = ("validation", "test")
    every: PositiveInt = 1
    horizons: tuple[PositiveInt, ...] | None = None
    monitor: str | None = None
    patience: PositiveInt | None = None
    restore_best: bool = True
    targets: dict[str, float] = Field(default_factory=dict)
    stop_at_targets: Literal["mean", "first"] | None = None
    compare_peers: bool = False

    @model_validator(mode="after")
    def _watched(self) -> EvaluationTable:
        if (self.monitor is None) != (self.patience is None):
            raise ValueError("monitor and patience go together")
        if self.stop_at_targets is not None and not self.targets:
            raise ValueError("stop-at-targets needs targets")
        watched = dict.fromkeys(self.targets, "targets has")
        if self.monitor is not None:
            watched[self.monitor] = "monitor is"
        for name, where in watched.items():
            split, slash, metric = name.partition("/")
            if split not in self.splits or not slash or not metric:
                raise ValueError(f"{where} '<split>/<metric>' with a split of {self.splits}, e.g. validation/loss")
        return self


class FairnessTable(Settings):
    """``[fairness]``: whether clients that are ahead when each trains alone are ahead in the federation too.

    Fairness is 100 times the correlation, over clients, of what they reach alone and here (Gorbett, Shirazi, Ray; IEEE
    Big Data 2023, section IV.D): ``fairness`` in ``summary.json``, and by round in ``metrics.jsonl``.

    stand_alone : the folder of a finished run with the same [data] in which each client trains alone (method
                  ``local``); looked for beside the experiment, and from the current folder.
    metric      : what is correlated, as ``<split>/<metric>``.
    stop_below  : end the run when fairness has been at this value or above it, and falls below; the models are then
                  those of the last evaluation at which it was not below.
    """

    stand_alone: str
    metric: str = "test/accuracy"
    stop_below: float | None = Field(default=None, ge=-100, le=100)


class OutputTable(Settings):
    """``[output]``: where the run folder goes and how often a checkpoint is written.

    dir    : run folders are made in this folder.
    checkpoint_every : rounds between checkpoints.
    resume : a run folder to go on with, instead of starting a new one.
    """

    dir: str = "runs"
    checkpoint_every: PositiveInt = 1
    resume: str | None = None


@dataclass(frozen=True)
class Experiment:
    """A validated experiment.

    model         : the table as given, checked; empty for methods that have models of their own.
    clients       : whoever is there, where the file has no such table.
    method_tables : as given; the keys of each are known to its method, which checks them when it runs.
    fairness      : None where the file has no such table.
    """

    experiment: ExperimentTable
    data: Settings
    model: dict[str, Any]
    train: TrainSettings
    graph: GraphTable
    evaluation: EvaluationTable
    output: OutputTable
    method: Method
    method_tables: dict[str, dict[str, Any]]
    fairness: FairnessTable | None = None
    clients: ClientsTable = field(default_factory=ClientsTable)

    @property
    def method_table(self) -> dict[str, Any]:
        """The table named after the method that runs; empty when the file has none."""
        return self.method_tables.get(self.method.name, {})

    def roll_call(self) -> RollCall:
        """Whom a run waits for. Raises ExperimentError when public keys cannot be read."""
        return RollCall.of(self.clients, self.experiment.min_clients, self.experiment.wait)

    def as_dict(self) -> dict[str, Any]:
        """The resolved experiment: every table with every default filled in, fit to be written as TOML."""
        return {
            "experiment": self.experiment.as_table(),
            "data": self.data.as_table(),
            **({"model": self.model} if self.model else {}),
            "train": self.train.as_table(),
            "graph": self.graph.as_table(),
            "evaluation": self.evaluation.as_table(),
            **({} if self.fairness is None else {"fairness": self.fairness.as_table()}),
            **({} if self.clients == ClientsTable() else {"clients": self.clients.as_table()}),
            "output": {key: value for key, value in self.output.as_table().items() if key != "resume"},
            **self.method_tables,
        }

    def as_toml(self) -> str:
        """The resolved experiment as TOML text."""
        return tomli_w.dumps(self.as_dict())

    def client_part(self, method_settings: Mapping[str, Any]) -> str:
        """What a node needs to know, as JSON: no output folders, no graph, nothing of other clients.

        Only the names in ``[clients] expect``, the names and patterns in ``[[model.variants]]``, and the names and
        scales in ``[data]``, are seen by every node.
        """
        expected = {} if self.clients.expect is None else {"expect": self.clients.expect}
        return json.dumps(
            {
                **expected,
                "seed": self.experiment.seed,
                "data": self.data.as_table(),
                "model": self.model,
                "train": self.train.as_table(),
                "method": dict(method_settings),
                "horizons": self.evaluation.horizons,
            },
            sort_keys=True,
        )


def parse_experiment(tables: Mapping[str, Any]) -> Experiment:
    """Validate the tables of an experiment file.

    Raises
    ------
    ExperimentError
        For an unknown table or key (with the known ones), a missing or an unusable value.
    """
    fixed = ("experiment", "data", "model", "train", "graph", "evaluation", "fairness", "clients", "output")
    head = parse(ExperimentTable, _table(tables, "experiment"), "[experiment]")
    method = resolve(head.method, head.strategy, head.client)
    method_names = {*BUILT_IN, method.name}
    for name in tables:
        if name not in fixed and name not in method_names:
            known = ", ".join([*fixed, *sorted(method_names)])
            raise ExperimentError(f"the experiment has no table [{name}]; known tables: {known}")
    for name in ("data",) if method.own_models else ("data", "model"):
        if name not in tables:
            raise ExperimentError(f"the experiment needs a table [{name}]")
    if not method.own_models:
        ModelChoice.of(_table(tables, "model"))
    elif "model" in tables:
        raise ExperimentError(
            f"method '{method.name}' has models of its own, which [{method.name}] describes: leave out [model]"
        )
    evaluation = parse(EvaluationTable, _table(tables, "evaluation"), "[evaluation]")
    return Experiment(
        experiment=head,
        data=parse_data(_table(tables, "data")),
        model=dict(_table(tables, "model")),
        train=parse(TrainSettings, _table(tables, "train"), "[train]"),
        graph=parse(GraphTable, _table(tables, "graph"), "[graph]"),
        evaluation=evaluation,
        output=parse(OutputTable, _table(tables, "output"), "[output]"),
        method=method,
        method_tables={name: dict(_table(tables, name)) for name in tables if name not in fixed},
        fairness=_fairness(_table(tables, "fairness"), evaluation) if "fairness" in tables else None,
        clients=parse(ClientsTable, _table(tables, "clients"), "[clients]"),
    )


def _fairness(table: Mapping[str, Any], evaluation: EvaluationTable) -> FairnessTable:
    fairness = parse(FairnessTable, table, "[fairness]")
    split, _, metric = fairness.metric.partition("/")
    if split not in evaluation.splits or not metric:
        raise ExperimentError(
            f"[fairness] metric is '<split>/<metric>' with a split that is measured ([evaluation] splits = "
            f"{list(evaluation.splits)}), not '{fairness.metric}'"
        )
    if fairness.stop_below is not None and evaluation.monitor is not None and evaluation.restore_best:
        raise ExperimentError(
            "[fairness] stop-below and [evaluation] monitor both choose the models that the run ends with; leave one "
            "out, or set restore-best = false"
        )
    return fairness


def load_experiment(path: str | Path, overrides: Iterable[str] = (), method: str | None = None) -> Experiment:
    """Read an experiment file and apply overrides such as ``train.learning-rate=0.05``.

    ``method`` runs another method, by short name or dotted path, in place of the one the file names. The path of a
    graph file, of a stand-alone run, or of the folder of public keys is looked for beside the experiment, then from the
    current folder, and made absolute where it is found.

    Raises
    ------
    ExperimentError
        When the file is missing or is no TOML, and as ``parse_experiment``.
    """
    found = find_experiment(path)
    try:
        tables = tomllib.loads(found.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{found} is not a TOML file: {error}") from None
    try:
        tables = apply_overrides(tables, overrides)
        if method is not None:
            tables = _with_method(tables, method)
        for table, key, is_there in _PATHS:
            given = str(_table(tables, table).get(key, ""))
            candidates = (found.parent / given, Path(given)) if given else ()
            whole = next((str(path.resolve()) for path in candidates if is_there(path)), None)
            if whole is not None:
                tables[table][key] = whole
        return parse_experiment(tables)
    except ExperimentError as error:
        raise ExperimentError(f"{found}:\n{error}") from None


def _with_method(tables: dict[str, Any], method: str) -> dict[str, Any]:
    """The tables with another method, and without the table that only the file's own method knows."""
    head = {key: value for key, value in _table(tables, "experiment").items() if key not in _METHOD_KEYS}
    own = _table(tables, "experiment").get("strategy")
    own_table = str(own).rpartition(":")[2] if own else None
    kept = {name: table for name, table in tables.items() if name != own_table or name == method.rpartition(":")[2]}
    return {**kept, "experiment": {**head, "strategy" if ":" in method else "method": method}}


def find_experiment(path: str | Path) -> Path:
    """The experiment file: as given from the current folder, or one of those that come with the project.

    Raises
    ------
    ExperimentError
        When neither exists.
    """
    given = Path(path)
    shipped = Path(str(files("simulations")))
    for candidate in (given, shipped.parent / given, shipped / given):
        if candidate.is_file():
            return candidate.resolve()
    raise ExperimentError(f"no experiment file '{path}' from {Path.cwd()}, nor among those in {shipped}")


def apply_overrides(tables: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """``tables`` with each ``table.key=value`` applied; values are TOML, or plain text where they are not.

    ``table={key = value}`` replaces a whole table.

    Raises
    ------
    ExperimentError
        When an override has no ``=`` or goes through something that is not a table.
    """
    result = json.loads(json.dumps(tables, default=str))
    for override in overrides:
        path, equals, text = override.partition("=")
        keys = path.strip().split(".")
        value = _toml_value(text.strip())
        if not equals or not all(keys) or (len(keys) < 2 and not isinstance(value, dict)):
            raise ExperimentError(f"override '{override}' is not of the form table.key=value (or table={{...}})")
        table = result
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ExperimentError(f"override '{override}': '{key}' is not a table")
        table[keys[-1]] = value
    return result


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise ExperimentError(f"'{name}' must be a table: write [{name}] on a line of its own")
    return table
