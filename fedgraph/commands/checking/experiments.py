"""The class that a dotted path or short name means, and the small experiment on which it is checked."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from fedgraph.commands.templates import kind_of_data, template
from fedgraph.experiment import Experiment, built_in, built_ins, load_experiment, run_by_experiments
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import a_class, load_object

_SMALL = {
    "digits": ("data.clients=3", "data.limit=240", "model.hidden=[8]", "train.batch-size=32", "train.local-epochs=1"),
    "owners": ("model.hidden=[8, 4]", "train.local-epochs=2", "data.first-examples=300"),
    "series": ("data.sensors=3", "data.days=2", "model.hidden=4", "train.local-steps=5"),
}
"""Overrides that make an experiment as small as a check can do with."""
_SHORT = dict(epochs=2, draws=2, steps=20, **{"evaluate-every": 10, "server-steps": 2, "local-rounds": 1}, windows=64)
"""Values of keys of methods that train at the server, where they have these keys."""


def class_of(path: str) -> type[Any]:
    """Return the class of a dotted path, or the strategy of a built-in method; else raise ExperimentError."""
    found = run_by_experiments(load_object(path, "what is checked", a_class())) if ":" in path else built_in(path)
    if found is None:
        raise ExperimentError(
            f"'{path}' is no built-in method ({', '.join(sorted(built_ins()))}); your own is 'package.module:Class'"
        )
    return found


def strategy_for(client: type[Any]) -> str:
    """Return the built-in method whose client class this one extends; ``local`` for any other."""
    known = {getattr(strategy, "default_client", ""): name for name, strategy in reversed(built_ins().items())}
    # Of the many whose clients just train, the one that adds nothing at the server.
    known[getattr(built_in("local"), "default_client", "")] = "local"
    bases = (f"{base.__module__}:{base.__qualname__}" for base in client.__mro__)
    return next((known[path] for path in bases if path in known), "local")


def small_experiment(method: str, changes: Iterable[str]) -> Experiment:
    """Return a small experiment for a method, by short name or dotted path, from the templates of ``fedgraph new``.

    Raises ExperimentError where the method needs data of its own.
    """
    strategy = class_of(method)
    kind = kind_of_data(strategy)
    if kind is None or kind == "tables":
        raise ExperimentError(
            f"'{method}' needs data, or an earlier run, of its own: give an experiment that has them (--experiment)"
        )
    head = f'{"strategy" if ":" in method else "method"} = "{method}"'
    tables = tomllib.loads(template(kind).replace("NAME", "check").replace("METHOD", head))
    if getattr(strategy, "own_models", False):
        del tables["model"]
    if kind != "digits":
        name, known = method.rpartition(":")[2], strategy.settings_type.keys()
        tables[name] = {key: value for key, value in _SHORT.items() if key in known}
    return load_experiment(tables, [*_SMALL[kind], *changes])
