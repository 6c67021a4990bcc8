"""The contract of a custom data set: what runs and predictions rely on, for each promise a function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor

from fedgraph.commands.checking.contract import Promise, require
from fedgraph.commands.checking.trials import ABSOLUTE, RELATIVE
from fedgraph.data import SPLITS, CohortData, DataSource, Preprocessing, is_custom_class, open_source, parse_data
from fedgraph.experiment import apply_overrides, load_experiment
from fedgraph.models import TaskSpec
from fedgraph.starting.running import run
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import ContractError, DataError, ExperimentError
from fedgraph.support.plugins import a_class, dotted_path, load_object


def is_data_set(what: str | type) -> bool:
    """Return whether a class, or the class of a dotted path, is one of a data set: it has clients, and loads them."""
    found = load_object(str(what), "what is checked", a_class()) if is_custom_class(what) else what
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in ("client_names", "load"))


class CheckedData:
    """A data set that is checked: its class, and the tables of an experiment that runs it, by default a small one.

    Raises ExperimentError when the experiment is not one of this data set, or its keys are wrong.
    """

    def __init__(self, what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = ()) -> None:
        path = dotted_path(what)
        if experiment is None:
            self.tables = apply_overrides({"data": {"set": path}}, overrides)
        else:
            self.tables = load_experiment(experiment, tuple(overrides)).as_dict()
        if self.tables["data"]["set"] != path:
            raise ExperimentError(f"[data] set of the experiment is '{self.tables['data']['set']}', and not '{path}'")
        parse_data(self.tables["data"])
        self.checked: type[Any] = load_object(path, "what is checked", a_class())
        self.title = f"{path}, a data set"

    def opened(self) -> DataSource:
        """Open the data set anew."""
        return open_source(parse_data(self.tables["data"]), data_folder(None))

    @cached_property
    def names(self) -> list[str]:
        """Its clients."""
        return list(self.opened().client_names())

    @cached_property
    def data(self) -> CohortData:
        """All of it."""
        return self.opened().load(self.names)


def _names(checked: CheckedData) -> str:
    names = checked.opened().client_names()
    texts = isinstance(names, list) and bool(names) and all(isinstance(name, str) and name for name in names)
    require(texts, f"client_names returned {names!r}: it is a list of texts, one for each client")
    require(len(set(names)) == len(names), "client_names has a name twice: clients are told apart by their names")
    again = checked.opened().client_names()
    require(again == names, "client_names returned other names, or another order, when it was asked again")
    return f"{len(names)} clients"


def _task(checked: CheckedData) -> str:
    task, data = checked.data.task, checked.data
    require(isinstance(task, TaskSpec), f"the task is {task!r}: it is a fedgraph.models.TaskSpec")
    for plural, names, what, shape, size in (
        ("features", task.features, "an input", task.input_shape, task.input_shape[-1:]),
        ("classes", task.classes, "an output", task.output_shape, task.output_shape[:1]),
    ):
        fits = not names or tuple(size) == (len(names),)
        require(fits, f"there are {len(names)} names of {plural}, and {what} has {shape}")
    same = tuple(data.names) == tuple(checked.names)
    require(same, "load returned other clients than it was asked for, or in another order")
    return f"{task.kind}, inputs {list(task.input_shape)}, outputs {list(task.output_shape)}"


def _examples(checked: CheckedData) -> str:
    data, task = checked.data, checked.data.task
    counts = {name: split.num_examples for name, split in data.splits.items()}
    require(set(counts) == set(SPLITS), f"load returned the splits {sorted(counts)}: they are {', '.join(SPLITS)}")
    without = {name for name, count in zip(data.names, counts["train"].tolist(), strict=True) if not count}
    lacking = ", ".join(sorted(without - set(data.untrained))[:5])
    require(not lacking, f"there are no training examples of {lacking}, who are not 'untrained'")
    wanted = tuple(task.example_shape), tuple(task.output_shape if task.kind != "classification" else ())
    for name in SPLITS:
        for client, (inputs, targets, weights) in zip(data.names, _parts(data, name), strict=True):
            here, shapes = f"{client}, {name}", (tuple(inputs.shape[1:]), tuple(targets.shape[1:]))
            require(shapes == wanted, f"{here}: shapes of inputs and targets are {shapes}, not those of the task")
            finite, counted = bool(inputs.isfinite().all()), bool((targets.isfinite() | (weights == 0)).all())
            require(finite, f"{here}: inputs are NaN or infinite; input_scale says what missing ones are filled with")
            require(counted, f"{here}: targets that count are NaN or infinite")
    remark = ", ".join(f"{int(counts[name].sum()):,} {name}" for name in SPLITS)
    return remark if bool((counts["test"] > 0).all()) else f"{remark}; some clients cannot be tested"


def _alone(checked: CheckedData) -> str:
    names = checked.names
    if len(names) < 2:
        raise SkipTest("it has one client")
    for some in ([names[-1]], [*reversed(names[:3])]):
        _check_same(checked, some, f"{', '.join(some)} were loaded alone")
    return ""


def _stranger(checked: CheckedData) -> str:
    try:
        checked.opened().load(["nobody of this name"])
    except DataError as error:
        return str(error)
    raise ContractError("load returned data of an unknown client: raise DataError with the known ones")


def _graph(checked: CheckedData) -> str:
    graph = checked.opened().given_graph()
    if graph is None:
        raise SkipTest("it has none")
    lacking = ", ".join(sorted(set(checked.names) - set(graph.names))[:5])
    require(not lacking, f"given_graph has no {lacking}: it is over all clients")
    return graph.describe()


def _preprocessing(checked: CheckedData) -> str:
    found = checked.data.preprocessing
    if found is None:
        raise SkipTest("it does not say how data become inputs, which fedgraph predict and modules in units need")
    with TemporaryDirectory() as folder:
        found.write(Path(folder))
        again = Preprocessing.by_client(Path(folder))
    for name in found.names:
        same = all(torch.equal(value, again[name].of(name)[key]) for key, value in found.of(name).items())
        require(same, f"the scales of {name} are not the same once they were written and read")
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
    once = {"experiment.rounds": 1}
    with TemporaryDirectory() as folder:
        one, two = (run(tables, set=once, out=folder, nodes=many, progress=False) for many in (1, 2))
        for name, model in one.models.items():
            # Clients of other sizes beside one change the order of its sums.
            same = all(torch.allclose(value, two.models[name][key], RELATIVE, ABSOLUTE) for key, value in model.items())
            require(same, f"a run over two nodes ends with another model of '{name}' than one over a single node")
    return f"{one.summary['data']}"


def _parts(data: CohortData, split: Any) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield inputs, targets and weights of each client."""
    found = data.splits[split]
    for row, count in enumerate(found.num_examples.tolist()):
        batch = found.select(slice(row, row + 1)).batch(torch.arange(count)[None])
        yield batch.inputs[0], batch.targets[0], batch.weights[0]


def _seen(data: CohortData, split: Any) -> Iterator[tuple[Tensor, ...]]:
    """Yield what a model sees of each client: in place of the numbers of nodes or graphs, the graphs they lie in."""
    for inputs, *others in _parts(data, split):
        around = (inputs,) if data.graphs is None else data.graphs.around(inputs)
        yield *(each for each in around if each is not None), *others


def _check_same(checked: CheckedData, names: list[str], when: str) -> str:
    """Raise ContractError unless some clients, loaded anew, have the data that they have among all."""
    again = checked.opened().load(names)
    for split in SPLITS:
        known = dict(zip(checked.data.names, _seen(checked.data, split), strict=True))
        for name, found in zip(again.names, _seen(again, split), strict=True):
            require(
                all(map(torch.equal, known[name], found)),
                f"{name}, {split}: examples are others than before when {when}; draw from a generator of the client's "
                "own (fedgraph.support.randomness.generator)",
            )
    return ""


DATA_CONTRACT: dict[str, Promise] = {
    "names": Promise("clients have different names, in a stable order", _names),
    "task": Promise("the task fits names of features and classes", _task),
    "examples": Promise("examples have the shapes of the task, and numbers that are finite", _examples),
    "repeats": Promise(
        "what is loaded twice is the same", lambda checked: _check_same(checked, checked.names, "it was loaded again")
    ),
    "clients-alone": Promise("a client has the same data without the others, in any order", _alone),
    "stranger": Promise("an unknown client is an error that says so", _stranger),
    "graph": Promise("its client graph is over all clients", _graph),
    "preprocessing": Promise("how data become inputs can be kept, for predictions", _preprocessing),
    "runs": Promise("a short run finishes, with the same models on one node and on two", _runs),
}
"""All promises of a data set, by name."""
