"""The contract of data sets: for each promise a sentence and a function that checks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor

from fedgraph.commands.checking.contract import Promise, require
from fedgraph.data import SPLITS, CohortData, DataSource, Preprocessing, is_custom_class, open_source, parse_data
from fedgraph.experiment import apply_overrides, load_experiment
from fedgraph.models import TaskSpec
from fedgraph.starting.running import run
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import ContractError, DataError, ExperimentError
from fedgraph.support.plugins import dotted_path, load_object


def is_data_set(what: str | type) -> bool:
    """Return whether a class, or that of a dotted path, is a data set: it has ``client_names`` and ``load``."""
    kind = load_object(str(what), "fedgraph check") if is_custom_class(what) else what
    return isinstance(kind, type) and all(callable(getattr(kind, name, None)) for name in ("client_names", "load"))


@dataclass(frozen=True)
class CheckedData:
    """A data set to check: its class, and the tables of an experiment that runs it."""

    kind: type[Any]
    tables: Mapping[str, Any]

    @classmethod
    def of(cls, what: str | type, experiment: str | Path | None, overrides: Iterable[str]) -> CheckedData:
        """Load the experiment of a file, or make a small one.

        Raises ExperimentError when the experiment has another data set or invalid keys.
        """
        path = dotted_path(what)
        if experiment is None:
            tables: Mapping[str, Any] = apply_overrides({"data": {"set": path}}, overrides)
        else:
            tables = load_experiment(experiment, tuple(overrides)).as_dict()
        if tables["data"]["set"] != path:
            raise ExperimentError(f"[data] set of the experiment must be '{path}', got '{tables['data']['set']}'")
        parse_data(tables["data"])
        return cls(load_object(path, "fedgraph check"), tables)

    @property
    def title(self) -> str:
        """Description of the data set, in one line."""
        return f"{self.tables['data']['set']}, a data set"

    def opened(self) -> DataSource:
        """Return a new instance of the data set."""
        return open_source(parse_data(self.tables["data"]), data_folder(None))

    @cached_property
    def names(self) -> list[str]:
        """Its clients."""
        return list(self.opened().client_names())

    @cached_property
    def data(self) -> CohortData:
        """The data of all clients."""
        return self.opened().load(self.names)


def _names(checked: CheckedData) -> str:
    names = checked.opened().client_names()
    texts = isinstance(names, list) and bool(names) and all(isinstance(name, str) and name for name in names)
    require(texts, f"client_names must return a list of strings, one per client; got {names!r}")
    require(len(set(names)) == len(names), "client_names must return unique names")
    again = checked.opened().client_names()
    require(again == names, "client_names must return the same names in the same order on every call")
    return f"{len(names)} clients"


def _task(checked: CheckedData) -> str:
    task, data = checked.data.task, checked.data
    require(isinstance(task, TaskSpec), f"the task must be a fedgraph.models.TaskSpec, got {task!r}")
    for plural, names, what, shape, size in (
        ("features", task.features, "an input", task.input_shape, task.input_shape[-1:]),
        ("classes", task.classes, "an output", task.output_shape, task.output_shape[:1]),
    ):
        fits = not names or tuple(size) == (len(names),)
        require(fits, f"the task has {len(names)} names of {plural}, but {what} has shape {shape}")
    same = tuple(data.names) == tuple(checked.names)
    require(same, "load must return the given clients in the given order")
    return f"{task.kind}, inputs {list(task.input_shape)}, outputs {list(task.output_shape)}"


def _examples(checked: CheckedData) -> str:
    data, task = checked.data, checked.data.task
    counts = {name: split.num_examples for name, split in data.splits.items()}
    require(set(counts) == set(SPLITS), f"load must return the splits {', '.join(SPLITS)}, got {sorted(counts)}")
    without = {name for name, count in zip(data.names, counts["train"].tolist(), strict=True) if not count}
    lacking = ", ".join(sorted(without - set(data.untrained))[:5])
    require(not lacking, f"clients without training examples must be 'untrained': {lacking}")
    wanted = tuple(task.example_shape), tuple(task.output_shape if task.kind != "classification" else ())
    for name in SPLITS:
        for client, (inputs, targets, weights) in zip(data.names, _parts(data, name), strict=True):
            here, shapes = f"{client}, {name}", (tuple(inputs.shape[1:]), tuple(targets.shape[1:]))
            require(shapes == wanted, f"{here}: inputs and targets have shapes {shapes}, the task has {wanted}")
            finite = bool(inputs.isfinite().all())
            require(finite, f"{here}: inputs are NaN or infinite; input_scale sets the fill of missing values")
            finite = bool((targets.isfinite() | (weights == 0)).all())
            require(finite, f"{here}: targets are NaN or infinite")
    remark = ", ".join(f"{int(counts[name].sum()):,} {name}" for name in SPLITS)
    return remark if bool((counts["test"] > 0).all()) else f"{remark}; some clients have no test examples"


def _repeats(checked: CheckedData) -> str:
    _check_same(checked, checked.names, "it was loaded again")
    return ""


def _alone(checked: CheckedData) -> str:
    names = checked.names
    if len(names) < 2:
        raise SkipTest("only one client")
    for some in ([names[-1]], [*reversed(names[:3])]):
        _check_same(checked, some, f"{', '.join(some)} were loaded alone")
    return ""


def _stranger(checked: CheckedData) -> str:
    try:
        checked.opened().load(["nobody of this name"])
    except DataError as error:
        return str(error)
    raise ContractError("load returned data for an unknown client: raise DataError, naming the known ones")


def _graph(checked: CheckedData) -> str:
    graph = checked.opened().given_graph()
    if graph is None:
        raise SkipTest("no client graph")
    lacking = ", ".join(sorted(set(checked.names) - set(graph.names))[:5])
    require(not lacking, f"given_graph must have all clients; missing: {lacking}")
    return graph.describe()


def _preprocessing(checked: CheckedData) -> str:
    preprocessing = checked.data.preprocessing
    if preprocessing is None:
        raise SkipTest("no preprocessing, which fedgraph predict and modules for original units need")
    with TemporaryDirectory() as folder:
        preprocessing.write(Path(folder))
        again = Preprocessing.by_client(Path(folder))
    for name in preprocessing.names:
        same = all(torch.equal(value, again[name].of(name)[key]) for key, value in preprocessing.of(name).items())
        require(same, f"the scales of {name} change when they are written and read")
    return ""


def _runs(checked: CheckedData) -> str:
    task = checked.data.task
    name = "gru" if task.kind == "forecast" else "gcn" if task.level else "mlp"
    small = {
        "experiment": {"name": "check", "method": "local", "rounds": 1},
        "model": {"name": name, "hidden": [4] if name == "mlp" else 4},
        "train": {"local-steps": 2},
    }
    tables = {**small, **checked.tables, "output": {"report": False}}
    with TemporaryDirectory() as folder:
        one, two = (
            run(tables, set={"experiment.rounds": 1}, out=folder, nodes=nodes, progress=False).summary
            for nodes in (1, 2)
        )
    same = one["weights_sha256"] == two["weights_sha256"]
    require(same, "a run on two nodes ends with other models than a run on one")
    return f"{one['data']}"


DATA_CONTRACT: dict[str, Promise] = {
    "names": Promise("clients have unique names in a stable order", _names),
    "task": Promise("the task fits the names of features and classes", _task),
    "examples": Promise("examples are finite and have the shapes of the task", _examples),
    "repeats": Promise("loading twice gives the same data", _repeats),
    "clients-alone": Promise("a client has the same data without the others, in any order", _alone),
    "stranger": Promise("an unknown client is a clear error", _stranger),
    "graph": Promise("the client graph has all clients", _graph),
    "preprocessing": Promise("the preprocessing can be stored for predictions", _preprocessing),
    "runs": Promise("a short run finishes, with the same models on one node and two", _runs),
}
"""All promises of a data set, by name."""


def _parts(data: CohortData, split: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield inputs, targets and weights of each client."""
    examples = data.splits[split]
    for row, count in enumerate(examples.num_examples.tolist()):
        batch = examples.select(slice(row, row + 1)).batch(torch.arange(count)[None])
        yield batch.inputs[0], batch.targets[0], batch.weights[0]


def _seen(data: CohortData, split: Any) -> Iterator[tuple[Tensor, ...]]:
    """Yield the inputs of the model, targets and weights of each client, with graphs in place of their indices."""
    for inputs, *others in _parts(data, split):
        around = (inputs,) if data.graphs is None else data.graphs.around(inputs)
        yield *(each for each in around if each is not None), *others


def _check_same(checked: CheckedData, names: list[str], when: str) -> None:
    """Raise ContractError unless ``names``, loaded again, have the same data as when all clients are loaded."""
    again = checked.opened().load(names)
    for split in SPLITS:
        known = dict(zip(checked.data.names, _seen(checked.data, split), strict=True))
        for name, tensors in zip(again.names, _seen(again, split), strict=True):
            pairs = zip(known[name], tensors, strict=True)
            require(
                all(one.shape == two.shape and torch.equal(one, two) for one, two in pairs),
                f"{name}, {split}: examples differ when {when}; draw random numbers from a generator per client "
                "(fedgraph.support.randomness.generator)",
            )
