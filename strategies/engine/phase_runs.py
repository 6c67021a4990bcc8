"""Run a method that goes through phases: from a grid to the results in the run folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from fedgraph.data import DataSource, open_source
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.models import ModelChoice, weights_sha256
from fedgraph.runs import Callback, Evaluation, Recorder, RunFolder, client_coordinates, given_graph, summary_of
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
    """Run a method that goes through phases, and write its results to the run folder.

    A run that was stopped continues with what clients had sent.

    Parameters
    ----------
    grid : Grid
        Grid that connects to the nodes.
    experiment : Experiment
        The experiment.
    method : ChosenMethod
        Its method.
    data_dir : Path
        Data folder of the server.
    folder : RunFolder
        The run folder.
    listeners : sequence of Callback
        Callbacks that follow the progress of the run.

    Raises
    ------
    FedgraphError
        With what was wrong, where, and what to do.
    """
    head = experiment.experiment

    def source() -> DataSource:
        return open_source(experiment.data, data_dir)

    def graph_of(federation: Federation) -> ClientGraph | None:
        if head.on_missing == "fail":
            # Otherwise the clients of a variant may be among the absent.
            ModelChoice.of(experiment.model).check_variants(federation.names)
        graph = given_graph(experiment, federation, data_dir, folder.notes)
        folder.write_coordinates(client_coordinates(experiment, federation.names, data_dir))
        if graph is not None:
            write_graph(graph, folder.path / "graph.npz")
        return graph

    plan = PhasesPlan(
        client=method.client,
        experiment=experiment.client_part(method.settings.as_table(nulls=True)),
        data=experiment.data,
        model=experiment.model,
        seed=head.seed,
        splits=experiment.evaluation.splits,
        roll_call=experiment.roll_call(),
        tolerant=head.on_missing == "skip",
        timeout=head.timeout,
        source=source,
        graph_given=experiment.graph.source != "none",
        graph_of=graph_of,
        folder=folder,
        listeners=listeners,
        defence=experiment.defence,
    )
    strategy = method.build_of_phases(plan)
    folder.metrics.unlink(missing_ok=True)
    strategy.summary()
    strategy.start(grid, ArrayRecord())
    outcome = strategy.outcome
    assert outcome is not None
    names, traffic = outcome.names, strategy.traffic
    evaluation = Evaluation(outcome.rounds, names, outcome.metrics, torch.zeros(len(names), 0), outcome.absent)
    recorder = Recorder(folder, names, checkpoint_every=1)
    for listener in (recorder, *listeners):
        listener.on_evaluation(evaluation)
    folder.write_summary(
        {
            **summary_of(
                experiment,
                names,
                outcome.data,
                rounds=outcome.rounds,
                traffic=traffic,
                seconds=strategy.seconds,
                evaluation=evaluation,
                sha256=weights_sha256(("server",), outcome.parameters[None]),
                nodes=strategy.nodes,
                groups=outcome.groups,
            ),
            "measured": outcome.measured,
            **({} if outcome.task is None else {"task": asdict(outcome.task)}),
            **outcome.facts,
        }
    )
    log.info(
        "finished: %s; %d exchanges, %.1f MB down, %.1f MB up", folder.path / "summary.json",
        traffic.exchanges, traffic.bytes_down / 1e6, traffic.bytes_up / 1e6,
    )  # fmt: skip
