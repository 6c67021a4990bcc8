"""Run a method of rounds: from a grid to the final models in the run folder."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.experiment import Experiment
from fedgraph.federation import Federation, OrderedGrid, Traffic, identify
from fedgraph.graph import GraphTable, write_graph
from fedgraph.messages.frozen_layers import FrozenLayers
from fedgraph.models import (
    ModelChoice,
    PersonalLayers,
    PersonalLayersSettings,
    StackedModel,
    initial_model,
)
from fedgraph.runs import (
    AverageLast,
    Callback,
    EarlyStopping,
    Fairness,
    LocalWork,
    Recorder,
    RoundsToTarget,
    RunFolder,
    RunPlan,
    client_coordinates,
    given_graph,
    stand_alone_values,
)
from fedgraph.runs.reports import LogProgress
from fedgraph.strategies.engine.algorithm_run import AlgorithmRun
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.strategies.engine.kept_states import with_new_attempt
from fedgraph.strategies.engine.loop import RoundLoop
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.peer_predictions import check_comparable, compare_peers
from fedgraph.strategies.engine.round_results import write_results
from fedgraph.strategies.engine.scales import with_shared_scales
from fedgraph.support.errors import ExperimentError, RunError, some
from fedgraph.support.files import State
from fedgraph.support.plugins import a_client, load_object
from fedgraph.support.randomness import derive_seed

log = logging.getLogger("fedgraph")


def execute_rounds(
    grid: Grid,
    experiment: Experiment,
    method: ChosenMethod,
    data_dir: Path,
    folder: RunFolder,
    listeners: Sequence[Callback],
) -> None:
    """Run or continue a method of rounds, and write its results to the run folder.

    Raises FedgraphError for any error.

    Parameters
    ----------
    grid : grid that connects to the nodes.
    data_dir : data folder of the server.
    listeners : callbacks that follow the progress of the run.
    """
    began, worked = time.monotonic(), time.process_time()
    head = experiment.experiment
    traffic = Traffic()
    federation, experiment_part = open_federation(grid, experiment, method, data_dir, folder, traffic)
    model = ModelChoice.of(experiment.model).build(federation.task)
    ordered = OrderedGrid(grid, federation, traffic)
    evaluation = experiment.evaluation
    earlier: dict[str, float] = {}

    def counters() -> dict[str, float]:
        core_seconds = time.process_time() - worked
        now = {"seconds": time.monotonic() - began, "core_seconds": core_seconds, **vars(traffic)}
        return {name: earlier.get(name, 0) + count for name, count in now.items()}

    watched = _watched(experiment, federation, folder, lambda: counters()["seconds"], model.least_examples)
    recorder = Recorder(
        folder, federation.names, experiment.output.checkpoint_every, watched, counters, federation.num_examples
    )
    saved = recorder.resume() if experiment.output.resume else None
    plan = RunPlan(
        layout=model.layout,
        client=method.client,
        experiment=experiment_part,
        run=folder.run,
        attempts=with_new_attempt(saved and saved.get("strategy", {}).get("kept-states", {})),
        rounds=head.rounds,
        seed=head.seed,
        splits=tuple(evaluation.splits),
        every=evaluation.every,
        min_clients=head.min_clients,
        on_missing=head.on_missing,
        checkpoint_every=experiment.output.checkpoint_every,
        callbacks=(*watched, recorder, LogProgress(head.rounds), *listeners),
        initial_model_of=lambda name: initial_model(model, derive_seed(head.seed, "own initial model", name)),
        defence=experiment.defence,
        frozen=_frozen_layers(method, model, head.seed),
    )
    nodes = Nodes(ordered, federation, plan, head.timeout)
    initial = model.layout.row_state(initial_model(model, head.seed))
    run = AlgorithmRun(method.algorithm(federation, plan, nodes), federation, plan, initial)
    if not run.restorable:
        _check_restorable(experiment)
    if evaluation.compare_peers:
        check_comparable(experiment, run)
    if saved is not None:
        earlier.update(_resume(saved, run, federation, head.rounds))
    run.algorithm.summary()
    RoundLoop(run, nodes).run(head.rounds)
    # The run ends if a strategy of Flower has aggregated nothing.
    facts = run.facts()
    if evaluation.forecasts is not None:
        _have_forecasts_written(run, ordered, experiment, folder)
    peers = compare_peers(run, nodes) if evaluation.compare_peers else None
    write_results(experiment, folder, run, recorder, peers, facts)


def _frozen_layers(method: ChosenMethod, model: StackedModel, seed: int) -> FrozenLayers | None:
    """Return the frozen layers, which are sent to nodes once, if the client class supports it."""
    layout, client = model.layout, load_object(method.client, "[experiment] client", a_client)
    if not layout.frozen or not getattr(client, "joins_frozen", False):
        return None
    settings = method.settings
    personal = settings.personal_layers if isinstance(settings, PersonalLayersSettings) else ()
    layers = PersonalLayers.of(layout, personal, fixes_frozen=True)
    if not layers.fixed.names:
        return None
    return FrozenLayers(layers.fixed, layers.fixed.row(layout.row_state(initial_model(model, seed))))


def _have_forecasts_written(run: AlgorithmRun, grid: OrderedGrid, experiment: Experiment, folder: RunFolder) -> None:
    """Evaluate the final models again, with an experiment in which nodes write forecasts."""
    part = {**json.loads(run.plan.experiment), "forecasts": experiment.evaluation.forecasts}
    run.plan = replace(run.plan, experiment=json.dumps(part, sort_keys=True), splits=("test",))
    nodes = Nodes(grid, run.federation, run.plan, experiment.experiment.timeout)
    lost = run.measure(run.progress.rounds, nodes).absent
    if lost:
        name, reason = next(iter(lost.items()))
        folder.notes.append(f"{len(lost)} clients have written no forecasts, such as {name}: {reason}")


def open_federation(
    grid: Grid, experiment: Experiment, method: ChosenMethod, data_dir: Path, folder: RunFolder, traffic: Traffic
) -> tuple[Federation, str]:
    """Query nodes for their clients, and build client graph and shared scales.

    The graph and shared scales are written to the run folder; ``traffic`` counts the opening query. Raises
    FedgraphError for missing, duplicate or inconsistent clients, and when the graph does not fit them.

    Returns
    -------
    federation : Federation
        The federation with its client graph.
    experiment : str
        The nodes' part of the experiment, as JSON.
    """
    settings = method.settings.as_table(nulls=True)
    private = getattr(method.settings, "privacy", None) is not None
    if private and experiment.graph.source == "labels" and not method.uses_graph:
        log.info("no client graph: results do not depend on it, and numbers of labels would leave without noise")
        experiment = replace(experiment, graph=GraphTable())
    federation = identify(
        grid,
        method.client,
        experiment.client_part(settings, final=False),
        replace(experiment.roll_call(), before=folder.clients_before()),
        label_counts=experiment.graph.source == "labels",
        on_wait=lambda text: log.info("waiting for nodes: %s", text),
        traffic=traffic,
        tolerate=experiment.experiment.on_missing != "fail",
        notes=folder.notes,
    )
    log.info("%d clients on %d nodes; data: %s", len(federation.names), len(federation.hosts), federation.data)
    if federation.computed:
        log.info("models are trained %s", federation.computed)
    graph = given_graph(experiment, federation, data_dir, folder.notes)
    folder.write_coordinates(client_coordinates(experiment, federation.names, data_dir))
    if graph is not None:
        write_graph(graph, folder.path / "graph.npz")
        log.info("client graph: %s", graph.describe())
    federation = replace(federation, graph=graph, most_examples=experiment.defence.counted_examples)
    return federation, with_shared_scales(experiment, federation, folder.path).client_part(settings, final=False)


def _watched(
    experiment: Experiment, federation: Federation, folder: RunFolder, seconds: Callable[[], float], least: int
) -> list[Callback]:
    """Return the callbacks of the experiment whose state belongs to checkpoints."""
    evaluation, fairness = experiment.evaluation, experiment.fairness
    watched: list[Callback] = []
    if experiment.train.function is None:
        watched.append(LocalWork(federation.num_examples["train"], experiment.train, least))
    if evaluation.monitor is not None and evaluation.patience is not None:
        watched.append(EarlyStopping(evaluation.monitor, evaluation.patience, evaluation.restore_best))
    if evaluation.average_last is not None:
        watched.append(AverageLast(evaluation.average_last, experiment.experiment.rounds))
    if evaluation.targets:
        watched.append(RoundsToTarget(evaluation.targets, evaluation.stop_at_targets, seconds))
    if fairness is not None:
        isolated = stand_alone_values(fairness, experiment, federation.names)
        watched.append(Fairness(fairness.metric, isolated, fairness.stop_below, folder.append))
    return watched


def _check_restorable(experiment: Experiment) -> None:
    """Raise ExperimentError if the run may end with models of an earlier round."""
    evaluation, fairness = experiment.evaluation, experiment.fairness
    if evaluation.monitor is not None and evaluation.restore_best:
        key, advice = "[evaluation] restore-best", "set restore-best = false"
    elif fairness is not None and fairness.stop_below is not None:
        key, advice = "[fairness] stop-below", "leave it out"
    elif evaluation.average_last is not None:
        key, advice = "[evaluation] average-last", "leave it out"
    else:
        return
    raise ExperimentError(
        f"{key} may end with the models of an earlier round, which '{experiment.method.name}' cannot restore "
        f"completely: clients keep a part, or the server has only that of the last round; {advice}"
    )


def _resume(saved: State, run: AlgorithmRun, federation: Federation, rounds: int) -> dict[str, float]:
    """Restore the run to the last checkpoint, and return the counters at that time.

    Raises RunError if clients or their numbers of examples have changed, for a checkpoint of another method or model,
    and for fewer rounds than were trained.
    """
    if saved["clients"] != list(federation.names):
        lost = [name for name in saved["clients"] if name not in federation.names]
        new = [name for name in federation.names if name not in saved["clients"]]
        raise RunError(
            f"the clients have changed since the run was stopped (missing: {some(lost) or 'none'}; new: "
            f"{some(new) or 'none'}), and it cannot continue with these: start the nodes of all that took part. "
            "[clients] expect leaves out others"
        )
    _check_same_examples(saved.get("examples", {}), federation)
    try:
        run.load(saved["strategy"])
        if len(run.models) != len(federation.names):
            raise ValueError(f"{len(run.models)} models of {len(federation.names)} clients")
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise RunError(
            f"the checkpoint of this run does not match the method or model of its experiment.toml "
            f"({type(error).__name__}: {error}): restore the experiment, or start a new run"
        ) from error
    done = run.progress.rounds
    if done > rounds:
        raise RunError(f"[experiment] rounds = {rounds}, but this run has trained {done} already: set {done} or more")
    log.info("going on after round %d", done)
    counters: dict[str, float] = saved["counters"]
    return counters


def _check_same_examples(before: Mapping[str, Tensor], federation: Federation) -> None:
    """Raise RunError, with the client, when a client has other numbers of examples than when the run was stopped."""
    for split, counts in before.items():
        now = federation.num_examples.get(split)
        for name, old, new in zip(federation.names, counts.tolist(), () if now is None else now.tolist(), strict=False):
            if old != new:
                raise RunError(
                    f"client '{name}' has {new} {split} examples, but had {old} when this run was stopped: restore the "
                    "data, or start a new run"
                )
