"""``models``: a round of FedAvg for every model that comes along, beside a plain loop and the bare arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedgraph.data import open_source
from fedgraph.experiment import Experiment, parse_experiment
from fedgraph.models import build
from fedgraph.reproduce import ResultLine, merge_into
from fedgraph.simulations.benchmarks.baselines import Arithmetic, PlainLoop
from fedgraph.simulations.benchmarks.gpu.made_up import images
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Repeats,
    Timing,
    in_turn,
    median,
    number,
    print_report,
    turn_ratios,
    warmed,
    write_raw,
)
from fedgraph.simulations.benchmarks.runs import data_dir, in_process
from fedgraph.simulations.scripts import ResultsFile
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.threads import available_cores
from fedgraph.training import shuffling_keys, training_batches

OURS, ONE, IDLE = "fedgraph, as it comes", "fedgraph, one worker", "fedgraph, nothing trained"
LOOP, LOOP_2, FLOOR = "plain loop", "plain loop, 2 intra-op threads", "bare arithmetic"
GRAPHS = "fedgraph, CUDA graphs"


class ConvolutionNet(nn.Module):
    """A module as a user writes it: convolutions, batch normalisation, dropout; images ``[1, 28, 28]``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 49, 10)),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Compute logits ``[batch, 10]``."""
        logits: Tensor = self.layers(images)
        return logits


_IMAGES = {"fashion-mnist": 60_000, "cifar10": 50_000}
_SHAPES = {"fashion-mnist": (28, 1), "cifar10": (32, 3)}
"""Side and channels of images."""


@dataclass(frozen=True)
class Case:
    """A model and the data that it is trained on.

    title : in the table. model : its table. data : name of the images, or "series". clients : numbers that fit.
    core, wall : most core-seconds of one worker, and seconds as it comes on two cores, to the plain loop's.
    images : most examples of a client, all of which it uses once in a round, in minibatches of up to 32.
    """

    title: str
    model: Mapping[str, object]
    data: str
    clients: tuple[int, ...]
    core: float
    wall: float
    images: int = 90

    def experiment(self, clients: int, rounds: int, made_up: Path | None = None, **train: object) -> Experiment:
        """FedAvg of clients with minibatches of up to 32 examples each, by default three, which nobody evaluates.

        Where there is a folder for ``made_up`` images, they are random ones.
        """
        return parse_experiment(self.tables(clients, rounds, made_up, **train))

    def tables(self, clients: int, rounds: int, made_up: Path | None = None, **train: object) -> dict[str, Any]:
        """The tables of :meth:`experiment`."""
        most = min(self.images, _IMAGES.get(self.data, 0) // clients)
        if self.data == "series":
            data: dict[str, object] = {
                "set": "synthetic-traffic",
                "sensors": clients,
                "days": 1,
                "missing-share": 0.0,
                "input-steps": 12,
                "output-steps": 12,
            }
        elif made_up is not None:
            data = images(made_up, *_SHAPES[self.data], clients, most)
        else:
            data = {
                "set": self.data,
                "clients": clients,
                "partition": "iid",
                "limit": clients * most,
                "validation-share": 0.0,
            }
        return {
            "experiment": {"name": "models", "method": "fedavg", "rounds": rounds},
            "data": data,
            "model": dict(self.model),
            "train": {"batch-size": 32, "local-steps": -(-self.images // 32), "learning-rate": 0.05, **train},
            "evaluation": {"splits": []},
            "output": {"checkpoint-every": 1_000_000},
        }


CASES = {
    "mlp": Case("perceptron 784-200-10", {"name": "mlp", "hidden": [200]}, "fashion-mnist", (10, 100, 1000), 0.6, 0.35),
    "mlp-small": Case("perceptron 12-32-12", {"name": "mlp", "hidden": [32]}, "series", (10, 100, 1000), 0.6, 0.35),
    "logistic": Case(
        "logistic regression 784-10", {"name": "mlp", "hidden": []}, "fashion-mnist", (10, 100, 1000), 0.6, 0.35
    ),
    "gru": Case("GRU of 64 units", {"name": "gru", "hidden": 64}, "series", (10, 100, 1000), 0.6, 0.35),
    "lstm": Case("LSTM of 16 units", {"name": "lstm", "hidden": 16}, "series", (10, 100, 1000), 0.6, 0.35),
    "cnn": Case("CNN 8, 16", {"name": "cnn", "channels": [8, 16]}, "fashion-mnist", (10, 100, 1000), 1.0, 0.55),
    "cnn-wide": Case("CNN 32, 64", {"name": "cnn", "channels": [32, 64]}, "fashion-mnist", (10, 100), 1.0, 0.55),
    "module": Case("a custom module", {"name": f"{__name__}:ConvolutionNet"}, "fashion-mnist", (10, 100), 1.0, 0.55),
    "resnet9": Case("ResNet9", {"name": "resnet9"}, "cifar10", (10,), 1.0, 0.55),
}
"""Models by name; the limits are what the project sets itself."""


def models(
    chosen: Annotated[list[str] | None, typer.Option("--model", help=f"{', '.join(CASES)}; all by default.")] = None,
    clients: Annotated[list[int] | None, typer.Option(help="Numbers of clients, of those that fit a model.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured per start, after one that is not.")] = 2,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that our clients are dealt out to.")] = 2,
    repeats: Repeats = 5,
    results: ResultsFile = None,
    json_: JsonFile = None,
) -> None:
    """One round of FedAvg of every model: ours, a plain loop over the clients, and the bare arithmetic.

    Three minibatches of 32 examples a client, plain gradient descent, nobody evaluates. The loop does the same work,
    the mean of the models included, in one process and one module. In turn, and as ratios of the same turn.
    """
    raw: dict[str, dict[str, list[Timing]]] = {}
    lines: list[str] = []
    table, told = _headings(), list[ResultLine]()
    for name in chosen or list(CASES):
        if name not in CASES:
            raise ExperimentError(f"--model {name}: there are {', '.join(CASES)}")
        for count in CASES[name].clients:
            if clients and count not in clients:
                continue
            title = f"{CASES[name].title}, {count:,} clients"
            try:
                found = in_turn(candidates(CASES[name], count, rounds, nodes), repeats)
            except DataError as error:
                lines.append(f"'{title}' was left out: {str(error).splitlines()[0]}")
                continue
            raw[title] = found
            numbers = _numbers(found)
            table.add_row(title, *(f"{numbers[metric]:.{digits}f}" for metric, digits in _METRICS.items()))
            told += [ResultLine(title, "round", metric, value=f"{value:.4g}", source="benchmarks models")
                     for metric, value in numbers.items()]  # fmt: skip
            lines += _verdicts(title, CASES[name], numbers)
            said = ", ".join(f"{metric} {number(value)}" for metric, value in numbers.items())
            Console(stderr=True).print(f"{title}: {said}", soft_wrap=True, highlight=False)
    lines += [
        f"Medians of {repeats} starts of each in turn, {rounds} rounds each, the first round left out; ratios are of "
        "the same turn, with the least and the most. Core-seconds are of the process; those of fedgraph are with one "
        f"worker, its seconds with as many workers as there are cores here: {available_cores()}.",
        f"'{FLOOR}': the matrix products and convolutions of the minibatches alone. 'engine': core-milliseconds of "
        "a round in which nobody trains.",
    ]
    print_report([table], lines, "one intra-op thread but where it says so")
    write_raw(json_, "models", {"repeats": repeats, "rounds": rounds, "nodes": nodes}, raw)
    if results is not None:
        merge_into(results, told)


_METRICS = {
    "loop, s": 3,
    "fedgraph, s": 3,
    "core-s to loop": 2,
    "least": 2,
    "most": 2,
    "s to loop": 2,
    "least s": 2,
    "most s": 2,
    "loop with 2 threads, s to loop": 2,
    "arithmetic to loop": 2,
    "engine, ms": 1,
}


def _headings() -> Table:
    table = Table(title="One round of FedAvg, three minibatches of 32 a client", title_justify="left")
    table.add_column("")
    for metric in _METRICS:
        table.add_column(metric, justify="right")
    return table


def _numbers(found: Mapping[str, Sequence[Timing]]) -> dict[str, float]:
    """Return medians, and ratios to the plain loop of the same turn."""
    core, wall = turn_ratios(found, ONE, LOOP, "core"), turn_ratios(found, OURS, LOOP)
    values = [
        median(each.wall for each in found[LOOP]),
        median(each.wall for each in found[OURS]),
        *(median(core), min(core), max(core)),
        *(median(wall), min(wall), max(wall)),
        median(turn_ratios(found, LOOP_2, LOOP)),
        median(turn_ratios(found, FLOOR, LOOP, "core")),
        1000 * median(each.core for each in found[IDLE]),
    ]
    return dict(zip(_METRICS, values, strict=True))


def _verdicts(title: str, case: Case, numbers: Mapping[str, float]) -> list[str]:
    """Say what was aimed at and missed."""
    aims = [("core-s to loop", case.core)] + ([("s to loop", case.wall)] if available_cores() == 2 else [])
    return [
        f"Target: {title}: {metric} <= {limit}; measured {numbers[metric]:.2f}: missed."
        for metric, limit in aims
        if numbers[metric] > limit
    ]


def candidates(
    case: Case, clients: int, rounds: int, nodes: int, device: str | None = None, made_up: Path | None = None
) -> dict[str, Callable[[], list[Timing]]]:
    """Return what is measured of a model by the table of the command; with ``device`` by that of ``gpu``.

    The latter has nothing about cores, and CUDA graphs on a GPU.
    """
    by_cores, device = device is None, device or "cpu"

    def chosen(**train: object) -> Experiment:
        return case.experiment(clients, rounds + 1, made_up, device=device, **train)

    some = chosen()
    source = open_source(some.data, data_dir())
    data = source.load(source.client_names())
    model, seed = build(some.model, data.task), some.experiment.seed
    start = model.initial(generator(seed, "initial model"))
    batches = training_batches(shuffling_keys(seed, data.names), data.splits["train"].num_examples, some.train, 1)
    sizes = (batches >= 0).sum(2).flatten().tolist()
    floor = Arithmetic(model.twin(), data.task.input_shape, [size for size in sizes if size], device)

    def loop(threads: int) -> Callable[[], list[Timing]]:
        own = PlainLoop(model, data, some.train, seed, threads)
        return warmed(lambda: own.average(start, 1))

    def ours(**train: object) -> Callable[[], list[Timing]]:
        experiment = chosen(**train)
        return lambda: in_process(experiment, nodes)[1:]

    return {
        OURS: ours(),
        **({ONE: ours(workers=1)} if by_cores else {}),
        **({GRAPHS: ours(compile=True)} if device == "cuda" else {}),
        IDLE: ours(**{"local-steps": 0}),
        LOOP: loop(1),
        **({LOOP_2: loop(2)} if by_cores else {}),
        FLOOR: warmed(floor.run),
    }
