"""Templates of ``fedgraph new``, whose experiments are also used by ``fedgraph check``.

``my_strategy.py``, ``my_data_set.py`` and ``my_graphs.py`` run as they are. In the experiments, ``NAME`` and ``METHOD``
are placeholders::

    template(kind_of_data(built_in("f3")))
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

__all__ = ["kind_of_data", "template"]

_OWNERS = ("f3", "vfl")
_SERIES = ("f3-forecast", "simple-forecast")
_TABLES = ("fedngm",)

GO_ON_WITH = {"f3-inference": "f3", "f3-secret": "f3", "f3-forecast-inference": "f3-forecast"}
"""Methods that continue a finished run, with the method of that run."""


def template(kind: str) -> str:
    """Return the template of an experiment, such as ``digits``, or of a class, such as ``my_strategy``."""
    name = f"{kind}.py" if kind.startswith("my_") else f"{kind}.toml"
    return (files(__package__) / name).read_text(encoding="utf-8")


def kind_of_data(strategy: type[Any]) -> str | None:
    """Return the name of the experiment template for a strategy, by the built-in method that it is or extends.

    The default is ``digits``; None for methods that continue a finished run.
    """
    for name in (vars(base).get("name") for base in strategy.__mro__):
        if name in GO_ON_WITH:
            return None
        if name in _TABLES:
            return "tables"
        if name in _OWNERS or name in _SERIES:
            return "owners" if name in _OWNERS else "series"
    return "digits"
