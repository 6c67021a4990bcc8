"""``cohort``: seconds of local training of many clients at once, against a plain loop and bare arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedgraph.data import CohortData, open_source
from fedgraph.experiment import Experiment
from fedgraph.models import StackedModel, build
from fedgraph.simulations.benchmarks.baselines import Floor, PlainLoop, training_operations
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Repeats,
    Timing,
    in_turn,
    median,
    print_report,
    ratio,
    target_line,
    timed,
    timing_table,
    warmed,
    write_raw,
)
from fedgraph.simulations.benchmarks.runs import data_dir, read_experiment
from fedgraph.support.randomness import generator
from fedgraph.support.threads import available_cores
from fedgraph.training import Cohort, TrainSettings, shuffling_keys, training_batches

LOOP = "plain loop"
FLOOR = "floor"
ONE_WORKER = "cohort, 1 worker"
COMPILED = "cohort, 1 worker, compiled"
FLOOR_TARGETS = {ONE_WORKER: 3.3, COMPILED: 2.5}
F3_SECONDS = 60.0

F3 = (
    "model={name = 'lstm', hidden = 16}",
    "train={optimizer = 'adam', learning-rate = 0.001, batch-size = 100, local-epochs = 200}",
    "data.stride=12",
    "data.shares=[0.7, 0.2, 0.1]",
)
"""Overrides for the second table: hourly examples of METR-LA's week, trained for long."""

STACKED = "cohort, stacked"
RESNET9 = (
    "data={set = 'cifar10', clients = 4, partition = 'iid', limit = 400, normalise = 'standard'}",
    "train={learning-rate = 0.1, batch-size = 32, local-steps = 1, workers = 1}",
)
"""Overrides for the third table: four clients, one minibatch each, nothing augmented."""


def cohort(
    experiment: Annotated[str, typer.Argument(help="Experiment file.")] = "sfl/metr-la-week.toml",
    steps: Annotated[int, typer.Option(min=1, help="Local steps.")] = 10,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of a minibatch.")] = 64,
    model: Annotated[str, typer.Option(help="gru, lstm, rnn or mlp.")] = "gru",
    hidden: Annotated[int, typer.Option(min=1, help="Hidden units.")] = 64,
    sensors: Annotated[int | None, typer.Option(min=1, help="Only the first sensors; all when not given.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Clients computed together; else chosen.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32 or bf16, of the cohort alone.")] = "float32",
    compile_: Annotated[bool, typer.Option("--compile", help="Also measure with torch.compile.")] = False,
    f3: Annotated[bool, typer.Option("--f3", help="Second table: small LSTMs, 200 local epochs.")] = False,
    f3_epochs: Annotated[int, typer.Option(min=1, help="Local epochs of the second table.")] = 200,
    f3_repeats: Annotated[int, typer.Option(min=1, help="How often the second table is measured.")] = 1,
    resnet9: Annotated[bool, typer.Option("--resnet9", help="Third table: ResNet9, four clients of CIFAR-10.")] = False,
    resnet9_width: Annotated[int, typer.Option(min=1, help="Its first channels; the paper's are 64.")] = 64,
    repeats: Repeats = 5,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the experiment.")] = None,
    json_: JsonFile = None,
) -> None:
    """Local training alone: the cohort, a plain PyTorch loop, and the same operations as one big matrix product."""
    if device == "cuda" and not torch.cuda.is_available():
        Console().print("There is no CUDA device that PyTorch can use on this machine: nothing was measured.")
        return
    wanted = [
        *(set_ or []), f"model={_model_table(model, hidden)}", f"train.local-steps={steps}",
        f"train.batch-size={batch_size}", f"train.device={device}", f"train.precision={precision}",
        *([f"train.block-size={block_size}"] if block_size else []),
    ]  # fmt: skip
    chosen = read_experiment(experiment, wanted, sensors=sensors)
    training = Training.of(chosen)
    results = in_turn(_candidates(training, chosen.train, compile_), repeats)
    title = (
        f"Local training of {training.clients} {model} models, {steps} steps of {batch_size} examples, {device}, "
        f"{precision}"
    )
    tables = [timing_table(title, results, [LOOP, FLOOR])]
    floor = training.floor(chosen.train)
    lines = [
        f"'{FLOOR}': {floor.products} float32 products of 1024 x 1024 matrices, {floor.operations / 1e9:.1f} billion "
        "operations in one thread, as many as forward and backward need (3 times forward).",
        f"'{LOOP}': an ordinary module per client, one after the other, one intra-op thread.",
    ]
    targets = FLOOR_TARGETS if device == "cpu" and precision == "float32" else {}
    for name, limit in targets.items():
        if name in results:
            lines.append(target_line(f"core-seconds of {name} / {FLOOR}", ratio(results, name, FLOOR, "core"), limit))
    raw: dict[str, Any] = {"cohort": results}
    if f3:
        longer = [*(set_ or []), *F3, f"train.local-epochs={f3_epochs}", f"train.device={device}"]
        long = read_experiment(experiment, longer, sensors=sensors)
        raw["f3"], table, said = _long_training(long, f3_repeats, compile_)
        tables.append(table)
        lines += said
    if resnet9:
        raw["resnet9"], table, said = _resnet9(resnet9_width, device, repeats)
        tables.append(table)
        lines += said
    threads = f"1 intra-op thread per worker; {available_cores()} workers where it says so" if device == "cpu" else ""
    print_report(tables, lines, threads or "the GPU; the plain loop sends it one client at a time")
    settings = {"experiment": experiment, "overrides": wanted, "repeats": repeats}
    write_raw(json_, "cohort", settings, raw)


@dataclass(frozen=True)
class Training:
    """A training that the cohort and its rivals do alike: model, data, seed, and the first models."""

    model: StackedModel
    data: CohortData
    seed: int
    start: Tensor

    @classmethod
    def of(cls, experiment: Experiment) -> Training:
        """The training of an experiment, all clients from one initial model."""
        source = open_source(experiment.data, data_dir())
        data = source.load(source.client_names())
        model = build(experiment.model, data.task)
        seed = experiment.experiment.seed
        row = model.initial(generator(seed, "initial model"))
        return cls(model, data, seed, row.repeat(len(data.names), 1))

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.data.names)

    def cohort(self, settings: TrainSettings, **changes: object) -> Callable[[], object]:
        """One round of the cohort with changed settings."""
        own = Cohort(self.model, self.data, settings.model_copy(update=changes), self.seed)
        return lambda: own.train(self.start, 1)

    def loop(self, settings: TrainSettings) -> Callable[[], object]:
        """One round of the plain loop."""
        own = PlainLoop(self.model, self.data, settings, self.seed)
        return lambda: own.train(self.start, 1)

    def floor(self, settings: TrainSettings) -> Floor:
        """The arithmetic of one round, over the examples of all minibatches."""
        keys = shuffling_keys(self.seed, self.data.names)
        batches = training_batches(keys, self.data.splits["train"].num_examples, settings, 1)
        examples = int((batches >= 0).sum())
        operations = training_operations(self.model.twin(), self.data.task.input_shape, examples)
        return Floor(operations, settings.torch_device())


def _candidates(training: Training, settings: TrainSettings, compiled: bool) -> dict[str, Callable[[], list[Timing]]]:
    many = available_cores()
    work: dict[str, Callable[[], object]] = {ONE_WORKER: training.cohort(settings, workers=1)}
    if many > 1 and settings.device == "cpu":
        work[f"cohort, {many} workers"] = training.cohort(settings, workers=many)
    if compiled:
        work[COMPILED] = training.cohort(settings, workers=1, compile=True)
        if many > 1 and settings.device == "cpu":
            work[f"cohort, {many} workers, compiled"] = training.cohort(settings, workers=many, compile=True)
    work[LOOP] = training.loop(settings)
    work[FLOOR] = training.floor(settings).run
    return {name: warmed(each) for name, each in work.items()}


def _long_training(
    experiment: Experiment, repeats: int, compiled: bool
) -> tuple[dict[str, list[Timing]], Table, list[str]]:
    """Seconds of a cohort that trains for many epochs; results, their table, and what is to be said about it."""
    training, settings = Training.of(experiment), experiment.train
    name = f"cohort, {settings.workers or available_cores()} workers"
    candidates = {}
    for compiles in (False, True) if compiled else (False,):
        training.cohort(settings, local_epochs=1, compile=compiles)()  # warms up
        work = training.cohort(settings, compile=compiles)
        candidates[f"{name}, compiled" if compiles else name] = _timed_later(work)
    results = in_turn(candidates, repeats)
    train = training.data.splits["train"].num_examples
    every = sum(int(split.num_examples[0]) for split in training.data.splits.values())
    steps = training.data.task.input_shape[0]
    title = (
        f"{training.clients} {experiment.model['name']} models of {experiment.model['hidden']} hidden units, "
        f"{settings.local_epochs} local epochs"
    )
    said = [
        f"'{title}': {training.data.task.output_shape[0]} five-minute steps forecast from the {steps} before them, one "
        f"example per hour, {int(train[0])} of {every} examples of every sensor to train on, {settings.optimizer} at "
        f"{settings.learning_rate:g}, batches of {settings.batch_size}; only the last hidden state is read out. "
        f"{training.model.layout.num_parameters} parameters per client.",
        target_line("its seconds", median(each.wall for each in next(iter(results.values()))), F3_SECONDS, " s"),
    ]
    return results, timing_table(title, results, []), said


def _resnet9(width: int, device: str, repeats: int) -> tuple[dict[str, list[Timing]], Table, list[str]]:
    """One training step of four ResNet9 at once, as the cohort would do it, and in a loop."""
    overrides = [*RESNET9, f"train.device={device}", f"model.width={width}"]
    experiment = read_experiment("sfl/cifar10.toml", overrides)
    training, settings = Training.of(experiment), experiment.train
    work = {
        STACKED: training.cohort(settings, block_size=training.clients),
        "cohort": training.cohort(settings),
        LOOP: training.loop(settings),
    }
    results = in_turn({name: warmed(each) for name, each in work.items()}, repeats)
    title = f"{training.clients} ResNet9 of width {width}, 1 step of {settings.batch_size} examples, {device}"
    said = [
        f"'{title}': {training.model.layout.num_trainable} parameters per client, images 3 x 32 x 32. '{STACKED}' "
        "computes all clients in the same operations, 'cohort' as many as it finds best.",
    ]
    return results, timing_table(title, results, [LOOP]), said


def _timed_later(work: Callable[[], object]) -> Callable[[], list[Timing]]:
    return lambda: [timed(work)]


def _model_table(name: str, hidden: int) -> str:
    width = f"[{hidden}]" if name == "mlp" else str(hidden)
    return f"{{name = '{name}', hidden = {width}}}"
