"""Run a method of phases: from a grid to the results in the run folder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.algorithms.phases import PhaseRun
from fedgraph.data import DataSource, open_source
from fedgraph.experiment import Experiment, load_experiment
from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.models import ModelChoice, weights_sha256
from fedgraph.runs import (
    Callback,
    Evaluation,
    Recorder,
    RunFolder,
    client_coordinates,
    given_graph,
    load_models,
    summary_of,
)
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.strategies.engine.phases import PhasesPlan

log = logging.getLogger("fedgraph")


def execute_phases(
    grid: Grid,
    experiment: Experiment,
    method: ChosenMethod,
    data_dir: Path,
    folder: RunFolder,
    listeners: Sequence[Callback],
) -> None:
    """Run a method of phases, and write its results to the run folder.

    A stopped run continues with the received answers. Raises FedgraphError for any error.

    Parameters
    ----------
    grid : grid that connects to the nodes.
    data_dir : data folder of the server.
    listeners : callbacks that follow the progress of the run.
    """
    head = experiment.experiment

    def source() -> DataSource:
        return open_source(experiment.data, data_dir)

    def graph_of(federation: Federation) -> ClientGraph | None:
        if head.on_missing == "fail":
            # Otherwise clients of a variant may be absent.
            ModelChoice.of(experiment.model).check_variants(federation.names)
        graph = given_graph(experiment, federation, data_dir, folder.notes)
        folder.write_coordinates(client_coordinates(experiment, federation.names, data_dir))
        if graph is not None:
            write_graph(graph, folder.path / "graph.npz")
        return graph

    def on_epoch(phase: str, epoch: int, losses: Mapping[str, float]) -> None:
        folder.append({"round": epoch, "phase": phase, **losses})
        for listener in listeners:
            listener.on_epoch(phase, epoch)

    roll_call = replace(experiment.roll_call(), before=folder.clients_before())
    run = PhaseRun(
        seed=head.seed,
        data=experiment.data,
        model=experiment.model,
        source=source,
        splits=experiment.evaluation.splits,
        expect=roll_call.expect,
        tolerant=head.on_missing == "skip",
        defence=experiment.defence,
        graph_given=experiment.graph.source != "none",
        graph_of=graph_of,
        other_run=lambda other: _OtherRun(RunFolder.open(other)),
        on_epoch=on_epoch,
    )
    part = experiment.client_part(method.settings.as_table(nulls=True))
    plan = PhasesPlan(method.client, part, roll_call, head.timeout, folder, run)
    running = method.phases(plan)
    folder.metrics.unlink(missing_ok=True)
    outcome = running.run(grid)
    names, traffic = outcome.names, running.traffic
    evaluation = Evaluation(outcome.rounds, names, outcome.metrics, torch.zeros(len(names), 0), running.absent)
    recorder = Recorder(folder, names, checkpoint_every=1)
    for listener in (recorder, *listeners):
        listener.on_evaluation(evaluation)
    folder.write_summary(
        {
            **summary_of(
                experiment,
                names,
                running.data,
                rounds=outcome.rounds,
                traffic=traffic,
                seconds=running.seconds,
                evaluation=evaluation,
                sha256=weights_sha256(("server",), outcome.parameters[None]),
                nodes=running.nodes,
                groups=outcome.groups,
            ),
            "run": folder.run,
            "measured": outcome.measured,
            **({} if outcome.task is None else {"task": asdict(outcome.task)}),
            **outcome.facts,
        }
    )
    log.info(
        "finished: %s; %d exchanges, %.1f MB down, %.1f MB up", folder.path / "summary.json",
        traffic.exchanges, traffic.bytes_down / 1e6, traffic.bytes_up / 1e6,
    )  # fmt: skip


class _OtherRun:
    """A finished run, for algorithms."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self.path, self.run = folder.path, folder.run
        self.check_same_data = folder.check_same_data

    @property
    def method_table(self) -> Mapping[str, Any]:
        return load_experiment(self.path / "experiment.toml").method_table

    def models(self) -> tuple[Mapping[str, Mapping[str, Tensor]], Mapping[str, Tensor] | None] | None:
        return load_models(self._folder.models) if self._folder.models.is_file() else None
