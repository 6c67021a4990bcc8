"""Hold a data set of one's own to the contract: each promise that runs and predictions rely on is a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor

from fedgraph.commands.checking.check import Result
from fedgraph.data import SPLITS, CohortData, DataSource, Preprocessing, is_custom_class, open_source, parse_data
from fedgraph.experiment import apply_overrides, load_experiment
from fedgraph.models import TaskSpec
from fedgraph.starting.running import run
from fedgraph.support.catalogue import data_folder
from fedgraph.support.errors import ContractError, DataError, ExperimentError, FedgraphError
from fedgraph.support.plugins import dotted_path, load_object

_MODELS: dict[str, dict[str, Any]] = {"forecast": {"name": "gru", "hidden": 4}}
"""A small model by the kind of the task; a perceptron for others, and a graph network where data are graphs."""


def is_data_set(found: object) -> bool:
    """Return whether a class is one of a data set: it has clients, and loads them."""
    return isinstance(found, type) and all(callable(getattr(found, name, None)) for name in ("client_names", "load"))


@dataclass(frozen=True)
class CheckedData:
    """A data set that is checked.

    Attributes
    ----------
    path : str
        Dotted path of its class.
    tables : mapping
        Tables of an experiment that runs it.
    """

    path: str
    tables: Mapping[str, Any]

    @classmethod
    def of(cls, what: str | type, experiment: str | Path | None, overrides: Iterable[str]) -> CheckedData:
        """Choose the experiment: that of a file, else a small one.

        Raises
        ------
        ExperimentError
            When the experiment is not one of this data set.
        """
        path = dotted_path(what)
        if experiment is None:
            tables: Mapping[str, Any] = apply_overrides({"data": {"set": path}}, overrides)
        else:
            tables = load_experiment(experiment, tuple(overrides)).as_dict()
        if tables["data"]["set"] != path:
            raise ExperimentError(f"[data] set of the experiment is '{tables['data']['set']}', and not '{path}'")
        return cls(path, tables)

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
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ContractError(f"client_names returned {names!r}: it is a list of texts, one for each client")
    if len(set(names)) < len(names):
        raise ContractError("client_names has a name twice: clients are told apart by their names")
    if checked.opened().client_names() != names:
        raise ContractError("client_names returned other names, or another order, when it was asked again")
    return f"{len(names)} clients"


def _task(checked: CheckedData) -> str:
    task, data = checked.data.task, checked.data
    if not isinstance(task, TaskSpec):
        raise ContractError(f"the task is {task!r}: it is a fedgraph.models.TaskSpec")
    if task.features and len(task.features) != task.input_shape[-1]:
        raise ContractError(f"there are {len(task.features)} names of features, and an input has {task.input_shape}")
    if task.classes and len(task.classes) != task.output_shape[0]:
        raise ContractError(f"there are {len(task.classes)} names of classes, and an output has {task.output_shape}")
    if tuple(data.names) != tuple(checked.names):
        raise ContractError("load returned other clients than it was asked for, or in another order")
    return f"{task.kind}, inputs {list(task.input_shape)}, outputs {list(task.output_shape)}"


def _examples(checked: CheckedData) -> str:
    data, task = checked.data, checked.data.task
    counts = {name: split.num_examples for name, split in data.splits.items()}
    if set(counts) != set(SPLITS):
        raise ContractError(f"load returned the splits {sorted(counts)}: they are {', '.join(SPLITS)}")
    without = [name for name, count in zip(data.names, counts["train"].tolist(), strict=True) if not count]
    if set(without) - set(data.untrained):
        raise ContractError(f"there are no training examples of {', '.join(without[:5])}, who are not 'untrained'")
    for name in SPLITS:
        for client, (inputs, targets, weights) in zip(data.names, _parts(data, name), strict=True):
            shapes = inputs.shape[1:], targets.shape[1:]
            wanted = task.output_shape if task.kind != "classification" else ()
            if tuple(shapes[0]) != task.example_shape or tuple(shapes[1]) != wanted:
                raise ContractError(
                    f"{client}, {name}: shapes of inputs and targets are {shapes}, not those of the task"
                )
            if not bool(inputs.isfinite().all()):
                raise ContractError(
                    f"{client}, {name}: inputs are NaN or infinite; input_scale says what missing ones are filled with"
                )
            if not bool((targets.isfinite() | (weights == 0)).all()):
                raise ContractError(f"{client}, {name}: targets that count are NaN or infinite")
    told = ", ".join(f"{int(counts[name].sum()):,} {name}" for name in SPLITS)
    return told if bool((counts["test"] > 0).all()) else f"{told}; some clients cannot be tested"


def _repeats(checked: CheckedData) -> str:
    again = checked.opened().load(checked.names)
    _same(checked.data, again, checked.names, "it was loaded again")
    return ""


def _alone(checked: CheckedData) -> str:
    names = checked.names
    if len(names) < 2:
        raise SkipTest("it has one client")
    for some in ([names[-1]], [*reversed(names[:3])]):
        _same(checked.data, checked.opened().load(some), some, f"{', '.join(some)} were loaded alone")
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
    lacking = sorted(set(checked.names) - set(graph.names))
    if lacking:
        raise ContractError(f"given_graph has no {', '.join(lacking[:5])}: it is over all clients")
    return graph.describe()


def _kept(checked: CheckedData) -> str:
    found = checked.data.preprocessing
    if found is None:
        raise SkipTest(
            "it does not say how data become inputs: fedgraph predict, and modules in people's units, need it"
        )
    with TemporaryDirectory() as folder:
        found.write(Path(folder))
        again = Preprocessing.by_client(Path(folder))
    for name in found.names:
        if any(not torch.equal(value, again[name].of(name)[key]) for key, value in found.of(name).items()):
            raise ContractError(f"the scales of {name} are not the same once they were written and read")
    return ""


def _runs(checked: CheckedData) -> str:
    task = checked.data.task
    usual = {"name": "gcn" if task.level else "mlp", "hidden": 4 if task.level else [4]}
    small = {
        "experiment": {"name": "check", "method": "local", "rounds": 1},
        "model": _MODELS.get(task.kind, usual),
        "train": {"local-steps": 2},
        "output": {"report": False},
    }
    tables = {**small, **checked.tables, "output": {"report": False}}
    with TemporaryDirectory() as folder:
        digits = {
            nodes: run(tables, set={"experiment.rounds": 1}, out=folder, nodes=nodes, progress=False).summary
            for nodes in (1, 2)
        }
    one, two = (found["weights_sha256"] for found in digits.values())
    if one != two:
        raise ContractError("a run over two nodes ends with other models than one over a single node")
    return f"{digits[1]['data']}"


CONTRACT: dict[str, tuple[str, Callable[[CheckedData], str]]] = {
    "names": ("clients have different names, in a stable order", _names),
    "task": ("the task fits names of features and classes", _task),
    "examples": ("examples have the shapes of the task, and numbers that are finite", _examples),
    "repeats": ("what is loaded twice is the same", _repeats),
    "clients-alone": ("a client has the same data without the others, in any order", _alone),
    "stranger": ("an unknown client is an error that says so", _stranger),
    "graph": ("its client graph is over all clients", _graph),
    "preprocessing": ("how data become inputs can be kept, for predictions", _kept),
    "runs": ("a short run finishes, with the same models on one node and on two", _runs),
}
"""Checks by name: what each checks, and the check."""


def check_data_set(
    what: str | type, experiment: str | Path | None = None, overrides: Iterable[str] = ()
) -> list[Result]:
    """Make all checks of a data set.

    Parameters
    ----------
    what : str or type
        Its class, or the dotted path.
    experiment : str or Path, optional
        Experiment file that runs it; by default the class alone, with the keys of ``overrides``.
    overrides : iterable of str
        Keys that the class needs: ``data.path=wards.csv``.

    Returns
    -------
    list of Result
        What came of each check.

    Raises
    ------
    ExperimentError
        When the class cannot be found or its keys are wrong.
    """
    checked = CheckedData.of(what, experiment, overrides)
    parse_data(checked.tables["data"])
    results = []
    for name, (words, check) in CONTRACT.items():
        try:
            results.append(Result(name, words, "pass", check(checked)))
        except SkipTest as reason:
            results.append(Result(name, words, "skipped", str(reason)))
        except FedgraphError as error:
            results.append(Result(name, words, "fail", str(error)))
        except Exception as error:  # of the class that is checked
            results.append(Result(name, words, "fail", f"{type(error).__name__}: {error}"))
    return results


def names_data_set(what: str) -> bool:
    """Return whether a dotted path is that of a data set."""
    return is_custom_class(what) and is_data_set(load_object(what, "what is checked"))


def _parts(data: CohortData, split: Any) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Yield inputs, targets and weights of each client."""
    found = data.splits[split]
    for row, count in enumerate(found.num_examples.tolist()):
        batch = found.select(slice(row, row + 1)).batch(torch.arange(count)[None])
        yield batch.inputs[0], batch.targets[0], batch.weights[0]


def _seen(data: CohortData, split: Any) -> Iterable[tuple[Tensor, ...]]:
    """Yield what a model sees of each client: in place of the numbers of nodes or graphs, the graphs they lie in."""
    for inputs, *others in _parts(data, split):
        around = (inputs,) if data.graphs is None else data.graphs.around(inputs)
        yield *(each for each in around if each is not None), *others


def _same(data: CohortData, other: CohortData, names: Iterable[str], when: str) -> None:
    """Raise ContractError unless some clients have the same data in both."""
    for split in SPLITS:
        known = dict(zip(data.names, _seen(data, split), strict=True))
        found = dict(zip(other.names, _seen(other, split), strict=True))
        for name in names:
            pairs = zip(known[name], found[name], strict=True)
            if not all(one.shape == two.shape and torch.equal(one, two) for one, two in pairs):
                raise ContractError(
                    f"{name}, {split}: examples are others than before when {when}; draw from a generator of the "
                    "client's own (fedgraph.support.randomness.generator)"
                )
