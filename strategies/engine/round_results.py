"""The final files of a run of rounds: learned graph, models, comparison of peers, summary."""

from __future__ import annotations

import logging
from dataclasses import asdict
from statistics import fmean
from typing import Any

from fedgraph.experiment import Experiment
from fedgraph.federation import Traffic
from fedgraph.graph import write_graph
from fedgraph.models import weights_sha256
from fedgraph.runs import Recorder, RunFolder, summary_of, write_models
from fedgraph.runs.reports import FILE, PeerComparison
from fedgraph.strategies.engine.algorithm_run import AlgorithmRun
from fedgraph.strategies.engine.broken_outputs import notes_of

log = logging.getLogger("fedgraph")


def write_results(
    experiment: Experiment,
    folder: RunFolder,
    run: AlgorithmRun,
    recorder: Recorder,
    peers: PeerComparison | None,
    facts: dict[str, Any],
) -> None:
    """Write graph, models and summary of a run of rounds; ``facts`` are its algorithm's part."""
    federation, learned = run.federation, run.learned_graph()
    if learned is not None:
        write_graph(learned, folder.path / "learned-graph.npz")
    write_models(folder.models, run.layout, federation.names, run.models, run.readout(), run.plan.frozen)
    if peers is not None:
        peers.write(folder.path / FILE)
    noted = {key: entry for callback in run.plan.callbacks for key, entry in callback.summary().items()}
    for callback in run.plan.callbacks:
        folder.notes.extend(callback.notes())
    graph = federation.graph
    if run.algorithm.needs_graph and graph is not None and graph.without_self_loops().num_edges == 0:
        noted["notes"] = ["the client graph has no edges, and nothing is shared along it: see [graph]"]
    folder.notes.extend([*notes_of(run.progress.broken, federation), *run.states.notes()])
    noted |= {"run": folder.run, "task": asdict(federation.task)}
    if federation.computed:
        noted["trained"] = federation.computed
    if run.progress.kept or not run.restorable:
        # In other methods clients keep nothing, and the models of the folder are those evaluated.
        kept = {"clients": run.progress.kept, "round": run.progress.kept_after}
        noted["models_at_nodes"] = {"run": folder.run, **kept}
    noted["models_per_round"] = _models_per_round(folder, run)
    folder.notes.extend(run.defence.notes(run.progress.rounds))
    folder.notes.extend([*_about_clients(experiment), *facts.pop("notes", ())])
    noted |= run.defence.facts() | facts | ({} if peers is None else {"peers": peers.summary()})
    totals = recorder.counters()
    # Of this process, which includes simulated nodes.
    noted["core_seconds"] = round(totals["core_seconds"], 3)
    summary = summary_of(
        experiment,
        federation.names,
        federation.data,
        rounds=run.progress.rounds,
        traffic=Traffic(**{name: int(totals[name]) for name in vars(Traffic())}),
        seconds=totals["seconds"],
        evaluation=recorder.last,
        sha256=weights_sha256(federation.names, run.with_frozen(run.models)),
        nodes=len(federation.hosts),
        groups=federation.groups,
        learned=learned,
        noted=noted,
        trainings=folder.trainings(),
        examples=federation.num_examples,
    )
    folder.write_summary(summary)
    log.info(
        "finished: %s; %d exchanges, %.1f MB down, %.1f MB up", folder.path / "summary.json",
        totals["exchanges"], totals["bytes_down"] / 1e6, totals["bytes_up"] / 1e6,
    )  # fmt: skip


def _about_clients(experiment: Experiment) -> list[str]:
    """Return a note if the client class is set in the experiment instead of the method's."""
    client = experiment.method.client
    return [f"clients of class {client} instead of those of {experiment.method.name}"] if client else []


def _models_per_round(folder: RunFolder, run: AlgorithmRun) -> float | None:
    """Return the traffic of a training round in numbers of models, down and up, with a node per client.

    2 N for N clients with FedAvg, about 2 N^2 with IPA, where each peer receives the models of all. None without
    rounds.
    """
    lines = folder.trainings() if run.progress.rounds else ()
    moved = [line["bytes_down_alone"] + line["bytes_up_alone"] for line in lines]
    return fmean(moved) / (4 * run.plan.layout.num_parameters) if moved else None
