"""The strategy or client class to check, and the small experiment for it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedgraph.commands.templates import kind_of_data, template
from fedgraph.experiment import (
    Experiment,
    apply_overrides,
    built_in,
    built_ins,
    load_experiment,
    parse_experiment,
    run_by_experiments,
)
from fedgraph.strategies.engine.chosen import ChosenMethod, algorithm_of, has_phases
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object

_SMALL = {
    "digits": ("data.clients=3", "data.limit=240", "model.hidden=[8]", "train.batch-size=32", "train.local-epochs=1"),
    "owners": ("model.hidden=[8, 4]", "train.local-epochs=2", "data.first-examples=300"),
    "series": ("data.sensors=3", "data.days=2", "model.hidden=4", "train.local-steps=5"),
}
"""Overrides that make an experiment small."""
_SHORT = dict(epochs=2, draws=2, steps=20, **{"evaluate-every": 10, "server-steps": 2, "local-rounds": 1}, windows=64)
"""Values of keys of methods that train at the server, as far as they have them."""


@dataclass(frozen=True)
class Subject:
    """A class to check: its dotted path or short name, whether it is a client class, and an experiment that runs it."""

    path: str
    checked: type[Any]
    is_client: bool
    experiment: Experiment

    @classmethod
    def of(cls, what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = ()) -> Subject:
        """Find a class and its experiment: that of the file, or a small one.

        Raises
        ------
        ExperimentError
            When the class is unknown, is neither strategy nor client class, or does not fit the experiment.
        """
        path = what if isinstance(what, str) else f"{what.__module__}:{what.__qualname__}"
        checked = _found(path)
        is_client = not issubclass(checked, Strategy) and algorithm_of(checked) is None
        if is_client and not callable(getattr(checked, "handle", None)):
            raise ExperimentError(
                f"'{path}' is neither a strategy (a subclass of fedgraph.algorithms.Algorithm, of "
                "fedgraph.algorithms.phases.PhasedAlgorithm or of flwr.serverapp.strategy.Strategy) nor a client class "
                "(with a classmethod handle(message, node)) nor a data set (a subclass of fedgraph.data.DataSet)"
            )
        client = [f"experiment.client={path}"] if is_client else []
        changes = [*client, "experiment.rounds=3", "output.checkpoint-every=1", *overrides]
        if experiment is not None:
            chosen = load_experiment(experiment, changes, None if is_client else path)
        else:
            chosen = _small(_strategy_for(checked) if is_client else path, changes)
        ChosenMethod(chosen)
        return cls(path, checked, is_client, chosen)

    @property
    def strategy(self) -> type[Any]:
        """Class of the strategy of the experiment."""
        strategy: type[Any] = self.experiment.method.strategy_class
        return strategy

    @property
    def has_rounds(self) -> bool:
        """Whether the strategy has rounds."""
        return not has_phases(self.strategy)

    @property
    def title(self) -> str:
        """Description of class and experiment, in one line."""
        kind = f"a client class, with {self.experiment.method.name}" if self.is_client else "a strategy,"
        return f"{self.path}, {kind} on {self.experiment.data.as_table()['set']}"

    @property
    def modules(self) -> set[str]:
        """Names of the modules of strategy and client class."""
        paths = (self.experiment.method.strategy, ChosenMethod(self.experiment).client)
        return {path.partition(":")[0] for path in paths}


def _found(path: str) -> type[Any]:
    kind = run_by_experiments(load_object(path, "fedgraph check")) if ":" in path else built_in(path)
    if kind is None:
        raise ExperimentError(
            f"'{path}' is not a built-in method ({', '.join(sorted(built_ins()))}); name your own class as "
            "'package.module:Class'"
        )
    if not isinstance(kind, type):
        raise ExperimentError(f"'{path}' is not a class")
    return kind


def _strategy_for(client: type[Any]) -> str:
    """Return the built-in method whose client class this one extends, else ``local``."""
    known = {getattr(strategy, "default_client", ""): name for name, strategy in reversed(built_ins().items())}
    # Many methods share the plain client class: choose the one without computation at the server.
    known[getattr(built_in("local"), "default_client", "")] = "local"
    bases = (f"{base.__module__}:{base.__qualname__}" for base in client.__mro__)
    return next((known[path] for path in bases if path in known), "local")


def _small(method: str, changes: Iterable[str]) -> Experiment:
    """Return a small experiment for a method, by name or dotted path of its strategy."""
    strategy = _found(method)
    kind = kind_of_data(strategy)
    if kind is None or kind == "tables":
        raise ExperimentError(
            f"'{method}' needs its own data or an earlier run: give an experiment with them (--experiment)"
        )
    head = f'{"strategy" if ":" in method else "method"} = "{method}"'
    tables = tomllib.loads(template(kind).replace("NAME", "check").replace("METHOD", head))
    if getattr(strategy, "own_models", False):
        del tables["model"]
    if kind != "digits":
        name, known = method.rpartition(":")[2], strategy.settings_type.keys()
        tables[name] = {key: value for key, value in _SHORT.items() if key in known}
    return parse_experiment(apply_overrides(tables, [*_SMALL[kind], *changes]))
