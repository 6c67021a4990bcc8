"""The experiment: one TOML file, validated, with overrides for single keys, the same for every grid."""

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
from fedgraph.experiment.tables import EvaluationTable, ExperimentTable, FairnessTable, OutputTable
from fedgraph.federation import ClientsTable, RollCall
from fedgraph.graph import GraphTable
from fedgraph.models import ModelChoice
from fedgraph.support.errors import ExperimentError, similar
from fedgraph.support.settings import Settings, parse
from fedgraph.training import TrainSettings

_METHOD_KEYS = ("method", "strategy", "client")


def _is_data(path: Path) -> bool:
    """Whether a file or folder is there; of a path with ``{client}`` in its name, the file of any client."""
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
"""Keys whose value is the path of a file or folder; those of ``[data]`` for sets of a user's own files."""


@dataclass(frozen=True)
class Experiment:
    """A validated experiment.

    Attributes
    ----------
    experiment : ExperimentTable
        What is run.
    data : Settings
        The data set and its settings.
    model : dict
        The table as given, checked; empty for methods that have models of their own.
    train : TrainSettings
        Local training.
    graph : GraphTable
        The client graph.
    evaluation : EvaluationTable
        What is measured, and when.
    output : OutputTable
        Where results are written.
    method : Method
        The method that runs.
    method_tables : dict of str to dict
        Tables of methods as given; each is checked when its method runs.
    fairness : FairnessTable or None
        None where the file has no such table.
    clients : ClientsTable
        Expected clients; whichever clients nodes host, where the file has no such table.
    defence : DefenceTable
        Defence against clients whose replies are harmful; only a warning, where the file has no such table.
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

    @property
    def method_table(self) -> dict[str, Any]:
        """The table named after the method that runs; empty when the file has none."""
        return self.method_tables.get(self.method.name, {})

    def roll_call(self) -> RollCall:
        """Return the clients that a run waits for. Raises ExperimentError when public keys cannot be read."""
        return RollCall.of(self.clients, self.experiment.min_clients, self.experiment.wait)

    def as_dict(self) -> dict[str, Any]:
        """Return the resolved experiment: all tables with all defaults filled in, that of its method included.

        Keys that are None are left out, and so is ``[output] resume``. Tables of other methods are as given. Raises
        ExperimentError when the table of the method does not fit it.
        """
        return self._resolved(Settings.as_table)

    def as_toml(self) -> str:
        """Return the resolved experiment as TOML text, with keys that are None listed in ``unset`` of their table.

        Reading it gives the same experiment even if defaults have changed since. Raises ExperimentError as
        :meth:`as_dict` does.
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
        """Return the part that nodes need, as JSON: no output folders, no graph, nothing about other clients.

        The exceptions are the names in ``[clients] expect``, the names and patterns in ``[[model.variants]]``, and the
        names and scales in ``[data]``, which every node sees.

        Parameters
        ----------
        method_settings : mapping
            Settings of the method.
        final : bool
            Whether models are final when they are measured, so that their forecasts are written.
        """
        expected = {} if self.clients.expect is None else {"expect": self.clients.expect}
        forecasts = {"forecasts": self.evaluation.forecasts} if final and self.evaluation.forecasts else {}
        terms = {"terms": self.method.terms} if self.method.terms else {}
        # With all keys, so that defaults of a node change nothing.
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
    fixed = ("experiment", "data", "model", "train", "graph", "evaluation", "fairness", "clients", "defence", "output")
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
            raise ExperimentError(f"[evaluation] {key} is about time series, which this data set has not: leave it out")
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

    An override of ``graph.source`` takes out those keys of ``[graph]`` that are about the old source alone, such as
    ``path``.

    The path of a user's own data, of a graph file, of another run, or of the folder of public keys is looked for next
    to the experiment, then in the current folder, and made absolute where it is found. Data and graph that are in
    neither are looked for in the data folder when they are read. Raises ExperimentError when the file is missing or not
    TOML, and as for :func:`parse_experiment`.

    Parameters
    ----------
    path : str, Path or mapping
        The file, as for :func:`find_experiment`, or its tables.
    overrides : str, iterable of str, or mapping
        Values such as ``train.learning-rate=0.05``, as for :func:`apply_overrides`. ``experiment.strategy`` takes the
        place of a method in the file, and of its client class, and the reverse.
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
        # A client class that is set for this call serves every method, unless a method is set along with it.
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
    """Where an override changes ``[graph] source``, take out keys about the old source that it does not set itself.

    So that ``graph.source=complete`` is the control that it is meant as, for an experiment with a graph from a file.
    """
    source = _table(chosen, "graph").get("source")
    if source is None or source == _table(given, "graph").get("source"):
        return
    kept = set(_table(chosen, "graph"))
    # The path of a file is not that of a run, either.
    fit = {key for key in _table(tables, "graph") if GraphTable.fits(key, str(source))} - {"path"}
    tables["graph"] = {key: value for key, value in _table(tables, "graph").items() if key in fit | kept}


def _with_method(tables: Mapping[str, Any], key: str, method: str) -> dict[str, Any]:
    """Return the tables with another method, or strategy, by ``key``.

    Keys that belong to the file's choice are dropped as well: its client class, and the table that only it knows.
    """
    head = {key: value for key, value in _table(tables, "experiment").items() if key not in _METHOD_KEYS}
    own = _table(tables, "experiment").get("strategy")
    own_table = str(own).rpartition(":")[2] if own else None
    kept = {name: table for name, table in tables.items() if name != own_table or name == method.rpartition(":")[2]}
    return {**kept, "experiment": {**head, key: method}}


def find_experiment(path: str | Path) -> Path:
    """Find an experiment file: as given from the current folder, or among those that come with the project.

    The path is absolute. Raises ExperimentError when neither exists, or it is no path at all.
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
    """Return the folders whose modules an experiment may name: that of its file, if it has one, and the current one.

    Raises ExperimentError when there is no such file.
    """
    folders = [str(find_experiment(experiment).parent)] if isinstance(experiment, str | Path) else []
    return [*folders, str(Path.cwd())]


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, Mapping):
        raise ExperimentError(f"'{name}' must be a table: write [{name}] on a line of its own")
    return table
