"""Comparison of the clients' final models by their predictions of the same examples, in one further exchange.

Gorbett, Shirazi, Ray (IEEE Big Data 2023), section IV.C; see :mod:`fedgraph.runs.reports.peer_comparison`. These are
the final models of the run, while the accuracy of a peer of IPA is evaluated after its turn.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from flwr.app import RecordDict

from fedgraph.algorithms import GlobalModel
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation
from fedgraph.messages import WorkReply
from fedgraph.runs.reports import PeerComparison
from fedgraph.strategies.engine.algorithm_run import AlgorithmRun
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError

log = logging.getLogger("fedgraph")

_WHERE = "[evaluation] compare-peers"
_SHARED = f'{_WHERE} needs clients that are tested on the same examples, as with [data] test = "shared" of image sets'


def check_comparable(experiment: Experiment, run: AlgorithmRun) -> None:
    """Check before the first round that the final models can be compared.

    Raises ExperimentError naming the missing predictions.
    """
    federation, method = run.federation, experiment.method.name
    if federation.task.kind != "classification":
        raise ExperimentError(f"{_WHERE} compares predicted classes, but a {federation.task.kind} task has none")
    if isinstance(run.algorithm, GlobalModel):
        raise ExperimentError(f"{_WHERE} compares the clients' own models, but '{method}' has one model for all")
    if not run.restorable:
        raise ExperimentError(f"{_WHERE} compares whole models, but clients of '{method}' keep personal layers")
    if len(federation.names) < 2:
        raise ExperimentError(f"{_WHERE} needs at least two clients")
    private = getattr(run.algorithm.settings, "privacy", None) is not None
    if private and getattr(experiment.data, "scaling", None) == "client":
        raise ExperimentError(
            f"{_WHERE}: predictions of rows that every client scales by its own data would leave without noise, beside "
            f'the privacy of [{method}]; set [data] scaling = "none"'
        )
    counts = federation.num_examples["test"]
    alike = bool((counts == counts[0]).all() and counts[0] > 0)
    if getattr(experiment.data, "test", None) != "shared" or not alike:
        raise ExperimentError(_SHARED)


def compare_peers(run: AlgorithmRun, nodes: Nodes) -> PeerComparison | None:
    """Compare the models of the clients that send predictions; return None if fewer than two do.

    Raises ExperimentError when clients were tested on different examples.
    """
    federation, ask = run.federation, run.algorithm.ask(run.clients, run.state)
    replies = run.exchange(nodes, run.progress.rounds, ask, predictions=partial(read_predictions, federation))
    if len(replies.names) < 2:
        log.warning("peers are not compared: %d of them sent predictions", len(replies.names))
        return None
    targets = replies.tensors["targets"]
    usual = targets.mode(dim=0).values
    alike = (targets == usual).all(dim=1)
    listed = ", ".join(name for name, same in zip(replies.names, alike.tolist(), strict=True) if not same)
    if listed and run.plan.on_missing != "fail" and int(alike.sum()) > 1:
        log.warning("%s are excluded from the comparison: their true classes differ from those of most peers", listed)
        replies = Replies.of(
            federation, replies.positions[alike], {name: rows[alike] for name, rows in replies.tensors.items()}, {}, {}
        )
    elif listed:
        raise ExperimentError(
            f"{_SHARED}; those of {listed} differ from those of most. To finish this run without a comparison, "
            "set compare-peers = false"
        )
    models = run.models[replies.positions, : run.layout.num_trainable]
    return PeerComparison.of(replies.names, models, replies.tensors["predicted"], usual)


def read_predictions(
    federation: Federation, content: RecordDict, clients: list[str]
) -> tuple[WorkReply, Mapping[str, str]]:
    """Unpack and check the predictions of one node; see :data:`fedgraph.strategies.engine.replies.Reader`."""
    examples = int(federation.num_examples["test"][0])
    names = ("predicted", "targets")
    reply = WorkReply.unpack(content, clients, dict.fromkeys(names, (examples,)), dict.fromkeys(names, "int32"))
    classes = federation.task.output_shape[0]
    unusable = {}
    for name, labels in reply.stacked.items():
        none = ((labels < 0) | (labels >= classes)).any(dim=1)
        for row in none.nonzero().flatten().tolist():
            unusable[clients[row]] = f"array '{name}' holds labels beyond the {classes} classes"
    return reply, unusable
