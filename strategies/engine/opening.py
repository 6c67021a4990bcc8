"""The opening of a run: who takes part, how they are related, and what nodes are told of the experiment."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from flwr.serverapp import Grid

from fedgraph.data import open_source
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation, Traffic, given_graph, identify
from fedgraph.graph import write_graph
from fedgraph.runs import RunFolder
from strategies.engine.chosen import ChosenMethod
from strategies.engine.scales import with_shared_scales

log = logging.getLogger("fedgraph")


def open_federation(
    grid: Grid, experiment: Experiment, method: ChosenMethod, data_dir: Path, folder: RunFolder, traffic: Traffic
) -> tuple[Federation, str]:
    """The federation with its client graph, and the part of the experiment that nodes get from now on, as JSON.

    The graph and shared scales are written to the run folder; ``traffic`` counts the opening query.

    Raises
    ------
    FedgraphError
        When clients are missing, hosted twice or disagree, and when the graph does not fit them.
    """
    settings = method.settings.as_table()
    federation = identify(
        grid,
        method.client,
        experiment.client_part(settings),
        experiment.roll_call(),
        label_counts=experiment.graph.source == "labels",
        on_wait=lambda text: log.info("waiting for nodes: %s", text),
        traffic=traffic,
    )
    log.info("%d clients on %d nodes; data: %s", len(federation.names), len(federation.hosts), federation.data)
    graph = given_graph(experiment.graph, federation, lambda: open_source(experiment.data, data_dir), data_dir)
    if graph is not None:
        write_graph(graph, folder.path / "graph.npz")
        log.info("client graph: %s", graph.describe())
    federation = replace(federation, graph=graph)
    return federation, with_shared_scales(experiment, federation, folder.path).client_part(settings)
