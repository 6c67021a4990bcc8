"""The part of an experiment that a node needs."""

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
        The table ``[model]`` as given.
    train : TrainSettings
        Local training.
    method : dict
        Settings of the method, as the strategy resolved them.
    horizons : tuple of int or None
        Forecast steps that are reported separately.
    missing_as : float or None
        Value that missing targets count as in further errors of forecasts.
    unseen_classes : bool
        Whether the accuracy on classes that a client has not in training is a metric.
    expect : tuple of str or None
        Clients that the run is for; None for whichever clients nodes host.
    forecasts : {"csv", "parquet"} or None
        In which form forecasts of the models that are measured are written on the node; None: not at all.
    terms : str
        Dotted path of the client class whose training the method relies on, where the experiment names another one.
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
        """Raise ExperimentError for a client class without the terms of the method, which would not be that method.

        Also for a class that cannot have its clients trained by ``[train] function``.
        """
        if self.train.function is not None:
            why = getattr(client_class, "refuses_function", None)
            reason = why(self.method) if why is not None else "its clients do not train the model of [model] alone"
            if reason:
                raise ExperimentError(f"[train] function cannot be used by {client_class.__name__}: {reason}")
        # By name: nothing is imported because a server says so.
        if self.terms and self.terms not in {f"{base.__module__}:{base.__name__}" for base in client_class.__mro__}:
            raise ExperimentError(
                f"[experiment] client: {client_class.__name__} lacks what clients of this method do, and the run would "
                f"not be of the method that it names: derive the class from {self.terms}, or give it a strategy of "
                "your own in place of the method"
            )

    def method_as(self, kind: type[S]) -> S:
        """Return the settings of the method that ``kind`` defines; settings that only the server needs are left out."""
        return select_settings(kind, self.method, "the settings of the method")

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, text: str) -> Assignment:
        """Parse the JSON of a request. Raises ReplyError or ExperimentError for anything that is not part of an
        experiment."""
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
        """Return the forecast steps to report: those asked for, else the default ones within the forecast.

        Raises ExperimentError when a step is beyond the forecasts of this task, or missing targets or classes are to
        count that this task has not.
        """
        steps = task.output_shape[0] if task.kind == "forecast" else 0
        if self.missing_as is not None and not steps:
            raise ExperimentError(
                f"[evaluation] missing-as is for forecasts of time series, and this data is for {task.kind}: leave it "
                "out"
            )
        if self.unseen_classes and task.kind != "classification":
            raise ExperimentError(
                f"[evaluation] unseen-classes is for classification, and this data is for {task.kind}: leave it out"
            )
        if self.horizons is not None:
            beyond = [step for step in self.horizons if step > steps]
            if beyond:
                listed = ", ".join(map(str, beyond))
                raise ExperimentError(f"[evaluation] horizons: there is no step {listed} in forecasts of {steps} steps")
            return self.horizons
        return tuple(step for step in _USUAL_HORIZONS if step <= steps)
