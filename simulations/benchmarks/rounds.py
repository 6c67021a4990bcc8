"""``rounds``: seconds of one round of federated training, ours and as a plain Flower app with one client per node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from fedgraph.data import open_source
from fedgraph.experiment import Experiment
from fedgraph.models import build
from fedgraph.reproduce import ResultLine, merge_into
from fedgraph.simulations.benchmarks.baselines import PlainLoop
from fedgraph.simulations.benchmarks.measure import (
    JsonFile,
    Repeats,
    Timing,
    in_turn,
    median,
    print_report,
    ratio,
    target_line,
    timing_table,
    warmed,
    write_raw,
)
from fedgraph.simulations.benchmarks.runs import (
    client_names,
    data_dir,
    in_process,
    on_ray,
    plain_flower,
    read_experiment,
)
from fedgraph.simulations.scripts import ResultsFile
from fedgraph.support.randomness import generator

PLAIN = "plain Flower"
LOOP = "plain loop"
TARGETS = {10: 0.15, 1: 0.067}
"""At most this share of a plain Flower round, by local steps."""


def rounds(
    experiment: Annotated[str, typer.Argument(help="Experiment file, on METR-LA's week.")] = "sfl/metr-la-week.toml",
    steps: Annotated[list[int] | None, typer.Option(help="Local steps; several make several tables. [10, 1]")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", help="Methods of ours. [fedavg, sfl]")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes that our clients are dealt out to.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of a minibatch.")] = 64,
    sensors: Annotated[int | None, typer.Option(min=1, help="Only the first sensors; all when not given.")] = None,
    measured: Annotated[int, typer.Option(min=1, help="Rounds measured per start, after one that is not.")] = 2,
    repeats: Repeats = 5,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the experiment.")] = None,
    result_file: ResultsFile = None,
    json_: JsonFile = None,
) -> None:
    """One round of all clients: ours in one process and on Ray, a plain Flower app on Ray, and a plain loop.

    The plain app has one node per client and is written as Flower's quickstart is (``plain_flower/``); it does the
    experiment's FedAvg with the same model, data and settings. Nobody evaluates or writes checkpoints.
    """
    chosen = steps or [10, 1]
    names = methods or ["fedavg", "sfl"]
    tables, lines, raw, told = [], [], {}, list[ResultLine]()
    for local_steps in chosen:
        overrides = [*(set_ or []), f"train.batch-size={batch_size}", f"train.local-steps={local_steps}"]
        overrides.append(f"experiment.rounds={measured + 1}")
        experiments = {method: read_experiment(experiment, overrides, method, sensors) for method in names}
        clients = len(client_names(experiments[names[0]]))
        candidates = _candidates(experiments, clients, nodes, measured)
        results = in_turn(candidates, repeats)
        raw[str(local_steps)] = results
        title = f"One round of {clients} clients, {local_steps} local steps of {batch_size} examples"
        tables.append(timing_table(title, results, [PLAIN, LOOP]))
        column = f"{local_steps} local step{'' if local_steps == 1 else 's'}"
        for name, timings in results.items():
            values = {
                "seconds": median(each.wall for each in timings),
                "core-s": median(each.core for each in timings),
                "core-s to plain Flower": ratio(results, name, PLAIN, "core"),
            }
            told += [ResultLine(name, column, metric, value=f"{value:.3g}", source="benchmarks rounds")
                     for metric, value in values.items()]  # fmt: skip
        for name in results if local_steps in TARGETS else ():
            if name.startswith(f"ours, {names[0]}"):
                what = f"{name} / {PLAIN}, {local_steps} local steps"
                lines.append(target_line(what, ratio(results, name, PLAIN), TARGETS[local_steps]))
    lines += [
        "A round is the time from making its messages to having aggregated the replies: in process and on Ray the "
        "`seconds` of metrics.jsonl, in the plain app the time from configure_train to the end of aggregate_train. "
        f"The first round of every start, with loading and warming up, is left out; starts in turn: {repeats}.",
        f"'{PLAIN}': FedAvg on Ray, one node per client. '{LOOP}': the same training in one process, without exchange.",
        "Core-seconds on Ray are those of all its processes and Flower's.",
    ]
    threads = _threads(experiments[names[0]])
    print_report(tables, lines, threads)
    settings = {"experiment": experiment, "nodes": nodes, "batch-size": batch_size, "overrides": set_ or []}
    if result_file is not None:
        merge_into(result_file, told)
    write_raw(json_, "rounds", {**settings, "clients": clients, "repeats": repeats}, raw)


def _candidates(
    experiments: dict[str, Experiment], clients: int, nodes: int, measured: int
) -> dict[str, Callable[[], list[Timing]]]:
    """What is measured, by the name of its row; the first round of every run is dropped."""
    some = next(iter(experiments.values()))
    candidates: dict[str, Callable[[], list[Timing]]] = {}
    for method, experiment in experiments.items():
        candidates[f"ours, {method}, in process"] = _later(lambda own: in_process(own, nodes), experiment)
    for method, experiment in experiments.items():
        candidates[f"ours, {method}, Ray, {nodes} nodes"] = _later(lambda own: on_ray(own, nodes), experiment)
    candidates[PLAIN] = _later(lambda own: plain_flower(own, clients, measured + 1).timings, some)
    candidates[LOOP] = _plain_loop(some)
    return candidates


def _later(run: Callable[[Experiment], Sequence[Timing]], experiment: Experiment) -> Callable[[], list[Timing]]:
    return lambda: list(run(experiment))[1:]


def _plain_loop(experiment: Experiment) -> Callable[[], list[Timing]]:
    source = open_source(experiment.data, data_dir())
    data = source.load(source.client_names())
    model = build(experiment.model, data.task)
    loop = PlainLoop(model, data, experiment.train, experiment.experiment.seed)
    start = model.initial(generator(experiment.experiment.seed, "initial model")).repeat(len(data.names), 1)
    return warmed(lambda: loop.train(start, 1))


def _threads(experiment: Experiment) -> str:
    workers = experiment.train.workers
    ours = "as many workers as a node has cores" if workers is None else f"{workers} workers"
    return (
        f"ours: {ours}, {experiment.train.threads} intra-op threads each; plain Flower: one core per simulated node, "
        "as Ray sets it; plain loop: one intra-op thread"
    )
