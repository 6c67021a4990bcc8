"""The experiment: a validated TOML file with overrides, independent of the grid."""

from __future__ import annotations

import glob
import json
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w

from fedgraph.data import CLIENT, OWN_FILE_SETS, is_custom_class, parse_data
from fedgraph.defence import DefenceTable
from fedgraph.experiment.method_tables import resolved_table
from fedgraph.experiment.methods import Method, built_in, built_ins, resolve
from fedgraph.experiment.overrides import Overrides, apply_overrides, overrides_by_key
from fedgraph.experiment.tables import (
    AgreementTable,
    EvaluationTable,
    ExperimentTable,
    FairnessTable,
    OutputTable,
)
from fedgraph.federation import ClientsTable, RollCall
from fedgraph.graph import GraphTable
from fedgraph.models import ModelChoice
from fedgraph.support.errors import ExperimentError, similar
from fedgraph.support.settings import Settings, parse
from fedgraph.support.untrusted import in_short
from fedgraph.training import TrainSettings

_METHOD_KEYS = ("method", "strategy", "client")


def _is_data(path: Path) -> bool:
    """Whether a file or folder exists; for a path with ``{client}``, the file of any client."""
    if CLIENT not in path.name:
        return path.exists()
    return any(path.parent.glob(glob.escape(path.name).replace(glob.escape(CLIENT), "*")))


_PATHS = (
    ("data", "path", _is_data),
    ("data", "test-path", Path.exists),
    ("data", "graph", Path.is_file),
    ("graph", "path", Path.exists),
    ("graph", "coordinates", Path.is_file),
    ("fairness", "stand-alone", Path.is_dir),
    ("clients", "public-keys", Path.is_dir),
)
"""Keys of paths; those of ``[data]`` for sets of the user's own files."""


@dataclass(frozen=True)
class Experiment:
    """A validated experiment.

    Attributes
    ----------
    experiment : ExperimentTable
        The table ``[experiment]``.
    data : Settings
        The data set and its settings.
    model : dict
        The checked table; empty for methods with their own models.
    train : TrainSettings
        Local training.
    graph : GraphTable
        The client graph.
    evaluation : EvaluationTable
        Metrics and their schedule.
    output : OutputTable
        Where results are written.
    method : Method
        The method that runs.
    method_tables : dict of str to dict
        Tables of methods; each is checked when its method runs.
    fairness : FairnessTable or None
        None without such a table.
    clients : ClientsTable
        Expected clients; by default all that nodes host.
    defence : DefenceTable
        Defence against harmful replies; by default only a warning.
    agreement : AgreementTable
        What a site leaves open, and its limits.
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
    defence: DefenceTable = field(default_factory=DefenceTable)
    agreement: AgreementTable = field(default_factory=AgreementTable)

    @property
    def method_table(self) -> dict[str, Any]:
        """The table of the method; empty by default."""
        return self.method_tables.get(self.method.name, {})

    @property
    def method_settings(self) -> Settings:
        """The table of the method with its defaults; empty for a strategy of Flower, whose keys stay at the server.

        Raises ExperimentError when it is invalid.
        """
        kind = getattr(self.method.strategy_class, "settings_type", None)
        return Settings() if kind is None else parse(kind, self.method_table, f"[{self.method.name}]")

    def roll_call(self) -> RollCall:
        """Return the clients that a run waits for. Raises ExperimentError when public keys cannot be read."""
        return RollCall.of(self.clients, self.experiment.min_clients, self.experiment.wait)

    def as_dict(self) -> dict[str, Any]:
        """Return the resolved experiment: all tables, including that of the method, with all defaults.

        Keys that are None and ``[output] resume`` are omitted. Tables of other methods are unchanged. Raises
        ExperimentError when the table of the method is invalid.
        """
        return self._resolved(Settings.as_table)

    def as_toml(self) -> str:
        """Return the resolved experiment as TOML text, with keys that are None listed in ``unset`` of their table.

        It does not depend on later changes of defaults. Raises ExperimentError as :meth:`as_dict`.
        """
        return tomli_w.dumps(self._resolved(Settings.as_written))

    def _resolved(self, write: Callable[[Settings], dict[str, Any]]) -> dict[str, Any]:
        name = self.method.name
        own = resolved_table(self.method.strategy_class, self.method_table, f"[{name}]", write)
        head = {"experiment": self.experiment, "data": self.data}
        rest = {
            "train": self.train,
            "graph": self.graph,
            "evaluation": self.evaluation,
            "fairness": self.fairness,
            "clients": self.clients,
            "defence": self.defence,
            "output": self.output.model_copy(update={"resume": None}),
        }
        return {
            **{key: write(table) for key, table in head.items()},
            **({"model": ModelChoice.resolved(self.model, write)} if self.model else {}),
            **{key: write(table) for key, table in rest.items() if table is not None},
            **{key: table for key, table in self.method_tables.items() if key != name},
            **({name: own} if own else {}),
        }

    def client_part(self, method_settings: Mapping[str, Any], final: bool = True) -> str:
        """Return the nodes' part as JSON, without output folders, graph and data of other clients.

        Every node receives the names in ``[clients] expect``, the names and patterns in ``[[model.variants]]``, and the
        names and scales in ``[data]``.

        Parameters
        ----------
        method_settings : mapping
            Settings of the method.
        final : bool
            Whether the evaluated models are final, and their forecasts are written.
        """
        expected = {} if self.clients.expect is None else {"expect": self.clients.expect}
        forecasts = {"forecasts": self.evaluation.forecasts} if final and self.evaluation.forecasts else {}
        terms = {"terms": self.method.terms} if self.method.terms else {}
        # With all keys, independent of a node's defaults.
        model = ModelChoice.resolved(self.model, partial(Settings.as_table, nulls=True)) if self.model else {}
        return json.dumps(
            {
                **expected,
                **forecasts,
                **terms,
                "seed": self.experiment.seed,
                "data": self.data.as_table(nulls=True),
                "model": model,
                "train": self.train.as_table(nulls=True),
                "method": dict(method_settings),
                "horizons": self.evaluation.horizons,
                "missing-as": self.evaluation.missing_as,
                **({"unseen-classes": True} if self.evaluation.unseen_classes else {}),
            },
            sort_keys=True,
        )


def parse_experiment(tables: Mapping[str, Any]) -> Experiment:
    """Validate the tables of an experiment file.

    Tables of methods are checked later, when the method runs. Raises ExperimentError for an unknown table or key (with
    the known ones), a missing or an unusable value.
    """
    fixed = (
        "experiment", "data", "model", "train", "graph", "evaluation", "fairness", "clients", "defence", "output",
        "agreement",
    )  # fmt: skip
    head = parse(ExperimentTable, _table(tables, "experiment"), "[experiment]")
    method = resolve(head.method, head.strategy, head.client)
    for name in tables:
        if name not in fixed and name != method.name and built_in(name) is None:
            known = [*fixed, *sorted({*built_ins(), method.name})]
            raise ExperimentError(
                f"the experiment has no table [{name}]; known tables: {', '.join(known)}{similar([name], known)}"
            )
    own_models = getattr(method.strategy_class, "own_models", False)
    for name in ("data",) if own_models else ("data", "model"):
        if name not in tables:
            raise ExperimentError(f"the experiment needs a table [{name}]")
    if not own_models:
        ModelChoice.of(_table(tables, "model"))
    elif "model" in tables:
        raise ExperimentError(
            f"method '{method.name}' has models of its own, which [{method.name}] describes: leave out [model]"
        )
    evaluation = parse(EvaluationTable, _table(tables, "evaluation"), "[evaluation]")
    data = parse_data(_table(tables, "data"))
    for key in ("forecasts", "yardsticks"):
        if getattr(evaluation, key) and "output_steps" not in type(data).model_fields:
            raise ExperimentError(f"[evaluation] {key} is for time series, and this data set has none: leave it out")
    if evaluation.forecasts and _table(tables, "model").get("variants"):
        raise ExperimentError("[evaluation] forecasts are of models of one architecture: leave out [[model.variants]]")
    return Experiment(
        experiment=head,
        data=data,
        model=dict(_table(tables, "model")),
        train=parse(TrainSettings, _table(tables, "train"), "[train]"),
        graph=parse(GraphTable, _table(tables, "graph"), "[graph]"),
        evaluation=evaluation,
        output=parse(OutputTable, _table(tables, "output"), "[output]"),
        method=method,
        method_tables={name: dict(_table(tables, name)) for name in tables if name not in fixed},
        fairness=_fairness(_table(tables, "fairness"), evaluation) if "fairness" in tables else None,
        clients=parse(ClientsTable, _table(tables, "clients"), "[clients]"),
        defence=parse(DefenceTable, _table(tables, "defence"), "[defence]"),
        agreement=parse(AgreementTable, _table(tables, "agreement"), "[agreement]"),
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
    if fairness.stop_below is not None and evaluation.average_last is not None:
        raise ExperimentError(
            "[fairness] stop-below and [evaluation] average-last both choose the models that the run ends with; leave "
            "one out"
        )
    return fairness


def load_experiment(
    path: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    method: str | None = None,
    client: str | None = None,
) -> Experiment:
    """Read an experiment file and apply overrides.

    An override of ``graph.source`` removes keys of ``[graph]`` that apply only to the old source, such as ``path``.
    Paths of own data, graph files, other runs and public keys are searched next to the experiment, then in the current
    folder, and made absolute; data and graphs in neither are searched in the data folder when they are read. Raises
    ExperimentError when the file is missing or not TOML, and as :func:`parse_experiment`.

    Parameters
    ----------
    path : str, Path or mapping
        The file, as for :func:`find_experiment`, or its tables.
    overrides : str, iterable of str, or mapping
        Values such as ``train.learning-rate=0.05``, as for :func:`apply_overrides`. ``experiment.strategy`` replaces a
        method in the file and its client class, and vice versa.
    method : str, optional
        Another method, by short name or dotted path, that runs instead of the one in the file.
    client : str, optional
        Dotted path of the client class, instead of that of the file or of the method.
    """
    if isinstance(path, Mapping):
        return _checked(path, overrides, method, client, Path.cwd())
    found = find_experiment(path)
    try:
        tables = tomllib.loads(found.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{found} is not a TOML file: {error}") from None
    try:
        return _checked(tables, overrides, method, client, found.parent)
    except ExperimentError as error:
        raise ExperimentError(f"{found}:\n{error}") from None


def _checked(
    given: Mapping[str, Any],
    overrides: Overrides,
    method: str | None,
    client: str | None,
    folder: Path,
) -> Experiment:
    """Validate tables after overrides, with paths looked for in ``folder`` first."""
    overrides = overrides_by_key(overrides)  # read twice, and may be an iterator
    set_here = apply_overrides({}, overrides)
    chosen = _table(set_here, "experiment")
    instead = {key: chosen[key] for key in ("method", "strategy") if chosen.get(key) is not None}
    for key, path in instead.items():
        if path != _table(given, "experiment").get(key):
            given = _with_method(given, key, str(path))
    tables = apply_overrides(given, overrides)
    _drop_keys_of_another_source(tables, given, set_here)
    if method is not None:
        tables = _with_method(tables, "strategy" if ":" in method else "method", method)
        # A client class of this call is for every method, unless a method is set too.
        if not instead:
            client = client or chosen.get("client")
    if client is not None:
        tables["experiment"] = {**_table(tables, "experiment"), "client": client}
    for table, key, is_there in _PATHS:
        chosen_set = _table(tables, "data").get("set")
        if table == "data" and chosen_set not in OWN_FILE_SETS and not is_custom_class(chosen_set):
            continue
        named = str(_table(tables, table).get(key, ""))
        candidates = (folder / named, Path(named)) if named else ()
        whole = next((str(path.resolve()) for path in candidates if is_there(path)), None)
        if whole is not None:
            tables[table][key] = whole
    return parse_experiment(tables)


def _drop_keys_of_another_source(tables: dict[str, Any], given: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    """Remove keys of the old source if an override changes ``[graph] source``.

    Thus ``graph.source=complete`` works as a control for an experiment with a graph from a file.
    """
    source = _table(chosen, "graph").get("source")
    if source is None or source == _table(given, "graph").get("source"):
        return
    kept = set(_table(chosen, "graph"))
    # The path of a file is not that of a run.
    fit = {key for key in _table(tables, "graph") if GraphTable.fits(key, str(source))} - {"path"}
    tables["graph"] = {key: value for key, value in _table(tables, "graph").items() if key in fit | kept}


def _with_method(tables: Mapping[str, Any], key: str, method: str) -> dict[str, Any]:
    """Return the tables with another method, or strategy, by ``key``.

    Keys of the previous method are dropped: its client class, and its table.
    """
    head = {key: value for key, value in _table(tables, "experiment").items() if key not in _METHOD_KEYS}
    own = _table(tables, "experiment").get("strategy")
    own_table = str(own).rpartition(":")[2] if own else None
    kept = {name: table for name, table in tables.items() if name != own_table or name == method.rpartition(":")[2]}
    return {**kept, "experiment": {**head, key: method}}


def find_experiment(path: str | Path) -> Path:
    """Find an experiment file in the current folder, or among those of the project; return its absolute path.

    Raises ExperimentError when it does not exist, or is not a path.
    """
    if not isinstance(path, str | PathLike):
        raise ExperimentError(
            "an experiment is a file, by path or by name such as 'sfl/digits.toml', or its tables as a dict, not "
            f"{path!r}"
        )
    given = Path(path)
    shipped = Path(str(files("fedgraph.simulations")))
    for candidate in (given, shipped.parent / given, shipped / given):
        if candidate.is_file():
            return candidate.resolve()
    raise ExperimentError(f"no experiment file '{path}' from {Path.cwd()}, nor among those in {shipped}")


def plugin_folders(experiment: str | Path | Mapping[str, Any] | None) -> list[str]:
    """Return the module folders of an experiment: that of its file, if any, and the current one.

    Raises ExperimentError when the file does not exist.
    """
    folders = [str(find_experiment(experiment).parent)] if isinstance(experiment, str | Path) else []
    return [*folders, str(Path.cwd())]


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise ExperimentError(
            f"'{name}' must be a table, not {in_short(repr(table), 50)}: write [{name}] on a separate line, and its "
            "keys below it (in Python a dict of its keys)"
        )
    return table
