"""Rounds of many clients on a GPU: beside a plain loop there, beside plain Flower, and for more and more clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedgraph.experiment import Experiment, parse_experiment
from fedgraph.simulations.benchmarks import models, peers
from fedgraph.simulations.benchmarks.cohort import FLOOR, LOOP, Training
from fedgraph.simulations.benchmarks.gpu import made_up
from fedgraph.simulations.benchmarks.gpu.found import Found, compared, once
from fedgraph.simulations.benchmarks.measure import Timing, in_turn, median, number, target_line, turn_ratios
from fedgraph.simulations.benchmarks.runs import client_names, in_process, plain_flower, read_experiment

ROUND, TRAINED = "a round, in one process", "its training alone"
GRAPHS = ", CUDA graphs"
FLOWER = "plain Flower on Ray, a client per node"

LONGEST_ROUND, LEAST_OF_FLOWER = 20.0, 50.0
"""Milliseconds of a round of 207 clients with 10 steps each, and how many times as long plain Flower is to take."""


def week(folder: str, device: str, sensors: int | None, **train: Any) -> Experiment:
    """FedAvg of GRUs by Adam on a made-up week of 207 sensors, or of the first ones."""
    os.environ["FEDGRAPH_DATA"] = str(made_up.week(Path(folder)))
    keys = {"optimizer": "'adam'", "momentum": 0.0, "learning-rate": 0.001, "device": f"'{device}'", **train}
    rounds = keys.pop("rounds", 3)
    overrides = [f"experiment.rounds={rounds}", *(f"train.{key}={value}" for key, value in keys.items())]
    return read_experiment("sfl/metr-la-week.toml", overrides, "fedavg", sensors)


def gru(
    device: str, folder: str, sensors: int | None, steps: int, batch_size: int, repeats: int, measured: int
) -> Found:
    """A round of GRU-64 clients, and its training alone, beside a plain loop and bare arithmetic on the device."""
    experiment = week(folder, device, sensors, rounds=measured + 1, **{"local-steps": steps, "batch-size": batch_size})
    training, settings = Training.of(experiment), experiment.train
    candidates: dict[str, Callable[[], list[Timing]]] = {}
    for behind, compiles in [("", False), (GRAPHS, True)] if device == "cuda" else [("", settings.compile)]:
        own = replace(experiment, train=settings.model_copy(update={"compile": compiles}))
        candidates[ROUND + behind] = _rounds(own, 1)
        candidates[TRAINED + behind] = once(training.cohort(own.train))
    floor = training.floor(settings)
    candidates |= {LOOP: once(training.loop(settings)), FLOOR: once(floor.run)}
    found = compared(candidates, repeats, LOOP, FLOOR)
    found.lines = [
        f"{training.clients} clients, {steps} steps of Adam on {batch_size} examples, gradients clipped. '{FLOOR}': "
        f"{floor.operations / 1e9:.1f} billion operations as products of large float32 matrices. '{LOOP}' exchanges "
        "nothing.",
        target_line("the shorter round", min(_milliseconds(found, name) for name in candidates if ROUND in name),
                    LONGEST_ROUND, " ms"),
    ]  # fmt: skip
    return found


def flower(device: str, folder: str, sensors: int | None, steps: int, batch_size: int, measured: int) -> Found:
    """The same round beside plain Flower, whose nodes are a client each and share the device."""
    # Ours has more rounds, the first of which is left out too, and steps are recorded in the second one.
    experiment = week(
        folder, device, sensors, rounds=4 * measured + 1, **{"local-steps": steps, "batch-size": batch_size}
    )
    clients = len(client_names(experiment))
    candidates = {
        ROUND: _rounds(experiment, 1),
        FLOWER: lambda: plain_flower(experiment, clients, measured + 1).timings[1:],
    }
    found = compared(candidates, 1, FLOWER)
    times = _milliseconds(found, FLOWER) / _milliseconds(found, ROUND)
    verdict = "met" if times >= LEAST_OF_FLOWER else "missed"
    at_once = min(clients, os.cpu_count() or 1)
    found.lines = [
        f"Of the {clients} nodes of plain Flower {at_once} compute at once, each with a core and an equal share of the "
        "device.",
        f"Target: plain Flower takes {number(LEAST_OF_FLOWER)} times as long, or more; measured {number(times)}: "
        f"{verdict}.",
    ]
    return found


def images_by_flower(device: str, folder: str, case: str, clients: int, images: int, measured: int) -> Found:
    """A round of FedAvg with a model of ``models`` on made-up images, beside plain Flower, a client per node."""
    own = replace(models.CASES[case], images=images)
    experiment = own.experiment(clients, measured + 1, Path(folder), device=device)
    task, losses = Path(folder) / "task.npz", dict[str, float]()
    peers.same_task(experiment, case, measured + 1).write(task)
    found = compared({ROUND: _rounds(experiment, 1), FLOWER: peers.on_ray(clients, task, losses)}, 1, FLOWER)
    return replace(found, rows={f"{own.title}, {clients:,} clients, {name}": row for name, row in found.rows.items()})


def growth(device: str, folder: str, clients: int, steps: int, batch_size: int, repeats: int) -> Found:
    """Rounds of FedAvg with a GRU of 64 units each, for one number of clients."""
    tables = {
        "experiment": {"name": "growth", "method": "fedavg", "rounds": 6},
        "data": made_up.series(Path(folder), clients),
        "model": {"name": "gru", "hidden": 64},
        "train": {"batch-size": batch_size, "local-steps": steps, "optimizer": "adam", "learning-rate": 0.001,
                  "device": device},
        "evaluation": {"splits": []},
        "output": {"checkpoint-every": 1_000_000},
    }  # fmt: skip
    timings = in_turn({"round": _rounds(parse_experiment(tables), 1)}, repeats)["round"]
    seconds = [each.wall for each in timings]
    row = {"ms": 1000 * median(seconds), "clients a second": clients / median(seconds),
           "steps a second": clients * steps / median(seconds)}  # fmt: skip
    return Found({f"{clients:,} clients": row}, raw={"seconds": seconds})


def model(
    device: str,
    folder: str,
    case: str,
    clients: int,
    rounds: int,
    repeats: int,
    table: Mapping[str, object] | None = None,
    block: int | None = None,
    images: int | None = None,
) -> Found:
    """A row of the table of ``models`` on the device, or only a round with so many clients computed at once.

    table : keys of the model that are others than those of the case. block : clients computed at once. images : of each
    client, others than those of the case.
    """
    own = models.CASES[case]
    own = replace(own, model={**own.model, **(table or {})}, images=images or own.images)
    candidates = models.candidates(own, clients, rounds, 1, device, Path(folder))
    if block is not None:
        few = own.experiment(clients, rounds + 1, Path(folder), device=device, **{"block-size": block})
        candidates = {models.OURS: _rounds(few, 1), models.LOOP: candidates[models.LOOP]}
    found = in_turn(candidates, repeats)
    row = {f"{models.LOOP}, ms": [1000 * each.wall for each in found[models.LOOP]]}
    row |= {name: turn_ratios(found, name, models.LOOP) for name in found if name != models.LOOP}
    raw = {name: [asdict(each) for each in timings] for name, timings in found.items()}
    said = f"All but '{models.LOOP}' are in units of it, of the same turn."
    behind = "" if block is None else f", {block} at once"
    return Found({f"{own.title}, {clients:,} clients{behind}": row}, [said], raw)


def _rounds(experiment: Experiment, nodes: int) -> Callable[[], list[Timing]]:
    """Return a candidate: all rounds of a run but the first."""
    return lambda: in_process(experiment, nodes)[1:]


def _milliseconds(found: Found, name: str) -> float:
    return 1000 * median(each["wall"] for each in found.raw[name])
