"""The part of an experiment that a node receives."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from fedgraph.data import parse_data
from fedgraph.messages import unpacking_request
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError, ReplyError
from fedgraph.support.settings import S, Settings, parse, select_settings
from fedgraph.support.untrusted import read_json
from fedgraph.training import TrainSettings
from fedgraph.training.forecasting import FileForm

_USUAL_HORIZONS = (3, 6, 12)


@dataclass(frozen=True)
class Assignment:
    """The part of an experiment that a node receives.

    Attributes
    ----------
    seed : int
        Seed of the run.
    data : Settings
        The data set and its settings.
    model : dict
        The table ``[model]``.
    train : TrainSettings
        Local training.
    method : dict
        Settings of the method, resolved by the strategy.
    horizons : tuple of int or None
        Forecast steps that are reported separately.
    missing_as : float or None
        Value of missing targets in additional errors of forecasts.
    unseen_classes : bool
        Whether the accuracy on classes without training examples at a client is a metric.
    expect : tuple of str or None
        Clients of the run; None for all clients that nodes host.
    forecasts : {"csv", "parquet"} or None
        Format in which forecasts of the evaluated models are written on the node; None for no files.
    terms : str
        Dotted path of the client class that the method requires, if the experiment names another one.
    """

    seed: int
    data: Settings
    model: dict[str, Any]
    train: TrainSettings
    method: dict[str, Any]
    horizons: tuple[int, ...] | None
    missing_as: float | None = None
    unseen_classes: bool = False
    expect: tuple[str, ...] | None = None
    forecasts: FileForm | None = None
    terms: str = ""

    def check_terms(self, client_class: type) -> None:
        """Raise ExperimentError for a client class that does not implement the method or ``[train] function``."""
        if self.train.function is not None:
            why = getattr(client_class, "refuses_function", None)
            reason = why(self.method) if why is not None else "its clients do not train only the model of [model]"
            if reason:
                raise ExperimentError(f"[train] function cannot be used by {client_class.__name__}: {reason}")
        # By name, so that the server cannot cause imports.
        if self.terms and self.terms not in {f"{base.__module__}:{base.__name__}" for base in client_class.__mro__}:
            raise ExperimentError(
                f"[experiment] client: {client_class.__name__} does not implement the clients of this method: derive "
                f"it from {self.terms}, or use a custom strategy instead of the method"
            )

    def method_as(self, kind: type[S]) -> S:
        """Return the settings of the method that ``kind`` defines, without those that only the server needs."""
        return select_settings(kind, self.method, "the settings of the method")

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, text: str) -> Assignment:
        """Parse the JSON of a request. Raises ReplyError or ExperimentError for invalid content."""
        tables = read_json(text, "the experiment of the request")
        with unpacking_request():
            for name in ("data", "model", "train", "method"):
                if not isinstance(tables[name], dict):
                    raise ReplyError(f"the request is malformed: its experiment has no table '{name}'")
            expect = tables.get("expect")
            return cls(
                seed=int(tables["seed"]),
                data=parse_data(tables["data"]),
                model=tables["model"],
                train=parse(TrainSettings, tables["train"], "[train]"),
                method=tables["method"],
                horizons=None if tables["horizons"] is None else tuple(int(step) for step in tables["horizons"]),
                missing_as=None if tables.get("missing-as") is None else float(tables["missing-as"]),
                unseen_classes=tables.get("unseen-classes") is True,
                expect=None if expect is None else tuple(str(name) for name in expect),
                forecasts=TypeAdapter(FileForm | None).validate_python(tables.get("forecasts")),
                terms=str(tables.get("terms", "")),
            )

    def horizons_of(self, task: TaskSpec) -> tuple[int, ...]:
        """Return the forecast steps to report: those of the settings, else the default ones within the forecast.

        Raises ExperimentError when a step is beyond the forecasts of this task, or an option of ``[evaluation]`` does
        not apply to the task.
        """
        steps = task.output_shape[0] if task.kind == "forecast" else 0
        if self.missing_as is not None and not steps:
            raise ExperimentError(
                f"[evaluation] missing-as is for forecasts of time series, but this data is for {task.kind}: leave it "
                "out"
            )
        if self.unseen_classes and task.kind != "classification":
            raise ExperimentError(
                f"[evaluation] unseen-classes is for classification, but this data is for {task.kind}: leave it out"
            )
        if self.horizons is not None:
            beyond = [step for step in self.horizons if step > steps]
            if beyond:
                listed = ", ".join(map(str, beyond))
                raise ExperimentError(f"[evaluation] horizons: steps {listed} are beyond forecasts of {steps} steps")
            return self.horizons
        return tuple(step for step in _USUAL_HORIZONS if step <= steps)
