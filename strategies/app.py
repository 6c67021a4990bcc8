"""The ServerApp: from an experiment file to a finished run folder."""

from __future__ import annotations

import json
import logging
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedgraph.architectures import Architectures
from fedgraph.callbacks import Callback, EarlyStopping
from fedgraph.client_graph import write_graph
from fedgraph.data import data_folder
from fedgraph.errors import ExperimentError, RunError
from fedgraph.exchange import OrderedGrid
from fedgraph.experiment import Experiment, load_experiment
from fedgraph.federation import Federation
from fedgraph.messages import CLIENT_KEY, EXPERIMENT_KEY, RUN_KEY, to_record
from fedgraph.model_choice import ModelChoice
from fedgraph.model_file import write_models
from fedgraph.parameters import weights_sha256
from fedgraph.plan import RunPlan
from fedgraph.report import LISTENERS, LogProgress, as_text
from fedgraph.run import Recorder, RunFolder, summary_of
from fedgraph.threads import pinned_threads
from fedgraph.traffic import Traffic
from strategies.base import CohortStrategy
from strategies.chosen import ChosenMethod
from strategies.opening import open_federation

log = logging.getLogger("fedgraph")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment that the run config names; keys ``experiment, set, data-dir, output-dir, seed``."""
    experiment, data_dir = from_run_config(context.run_config)
    # Where no terminal shows this run, what happens goes where Flower's own log goes, so that it is streamed.
    handlers = [] if LISTENERS else logging.getLogger("flwr").handlers[:]
    for handler in handlers:
        log.addHandler(handler)
    try:
        with pinned_threads(experiment.train.threads):
            folder = conduct(grid, experiment, data_dir)
        for line in as_text(folder.summary()).splitlines() if handlers else ():
            log.info(line)
    finally:
        for handler in handlers:
            log.removeHandler(handler)


def from_run_config(config: Mapping[str, Any]) -> tuple[Experiment, Path]:
    """The experiment and the data folder that a Flower run config asks for."""
    overrides = shlex.split(str(config.get("set", "")))
    if int(config.get("seed", -1)) >= 0:
        overrides.append(f"experiment.seed={int(config['seed'])}")
    if config.get("output-dir"):
        overrides.append(f"output.dir={json.dumps(str(config['output-dir']))}")
    experiment = load_experiment(str(config["experiment"]), overrides)
    own = config.get("data-dir") or os.environ.get("FEDGRAPH_DATA")
    return experiment, data_folder(str(own) if own else None)


def conduct(grid: Grid, experiment: Experiment, data_dir: Path) -> RunFolder:
    """Run an experiment over a grid.

    Raises
    ------
    FedgraphError
        With what was wrong, where, and what to do.
    """
    resumed = experiment.output.resume
    folder = RunFolder.open(resumed) if resumed else RunFolder.create(experiment, Path(experiment.output.dir))
    handler = folder.log_to_file()
    try:
        with folder.locked():
            folder.refuse_finished()
            _conduct(grid, experiment, data_dir, folder)
    except Exception as error:
        log.error("the run stopped: %s", error)
        raise
    finally:
        logging.getLogger("fedgraph").removeHandler(handler)
        handler.close()
    return folder


def _conduct(grid: Grid, experiment: Experiment, data_dir: Path, folder: RunFolder) -> None:
    began = time.monotonic()
    head = experiment.experiment
    method = ChosenMethod(experiment)
    log.info("run folder %s", folder.path)
    traffic = Traffic()
    federation, experiment_part = open_federation(grid, experiment, method, data_dir, folder, traffic)
    choice = ModelChoice.of(experiment.model)
    choice.refuse_idle_variants(federation.names)
    architectures = Architectures.of(choice, federation.task, federation.names)
    ordered = OrderedGrid(grid, federation, traffic)
    evaluation = experiment.evaluation
    stopping: list[Callback] = []
    if evaluation.monitor is not None and evaluation.patience is not None:
        stopping = [EarlyStopping(evaluation.monitor, evaluation.patience, evaluation.restore_best)]
    earlier: dict[str, float] = {"seconds": 0.0, "exchanges": 0, "bytes_down": 0, "bytes_up": 0}
    recorder = Recorder(
        folder,
        federation.names,
        experiment.output.checkpoint_every,
        watched=stopping,
        counters=lambda: {
            "seconds": earlier["seconds"] + time.monotonic() - began,
            "exchanges": earlier["exchanges"] + traffic.exchanges,
            "bytes_down": earlier["bytes_down"] + traffic.bytes_down,
            "bytes_up": earlier["bytes_up"] + traffic.bytes_up,
        },
    )
    plan = RunPlan(
        layout=architectures.layout,
        client=method.client,
        experiment=experiment_part,
        run=folder.name,
        seed=head.seed,
        splits=tuple(evaluation.splits),
        every=evaluation.every,
        min_clients=head.min_clients,
        on_missing=head.on_missing,
        checkpoint_every=experiment.output.checkpoint_every,
        callbacks=(*stopping, recorder, LogProgress(head.rounds), *LISTENERS),
        architectures=architectures if architectures.is_mixed else None,
    )
    strategy = method.build(federation, plan)
    if stopping and evaluation.restore_best and not strategy.restorable:
        raise ExperimentError(
            f"[evaluation] restore-best: clients of '{experiment.method.name}' keep a part of their models, which "
            "cannot be brought back from here; set restore-best = false"
        )
    if experiment.output.resume:
        earlier.update(_go_on(recorder, strategy, federation))
    config = {
        CLIENT_KEY: method.client,
        EXPERIMENT_KEY: experiment_part,
        RUN_KEY: folder.name,
        "evaluate": list(evaluation.splits),
    }
    strategy.summary()
    strategy.start(
        ordered,
        to_record(architectures.initial(head.seed)),
        num_rounds=head.rounds,
        timeout=head.timeout,
        train_config=ConfigRecord(dict(config)),  # type: ignore[arg-type]
        evaluate_config=ConfigRecord(dict(config)),  # type: ignore[arg-type]
    )
    _write_results(experiment, folder, federation, strategy, recorder)


def _go_on(recorder: Recorder, strategy: CohortStrategy, federation: Federation) -> dict[str, float]:
    """Set the strategy back to the last checkpoint; what the counters said there, nothing without a checkpoint."""
    saved = recorder.resume()
    if saved is None:
        return {}
    if saved["clients"] != list(federation.names):
        raise RunError("other clients take part than before the run was stopped; it cannot go on with these")
    strategy.load_state(saved["strategy"])
    strategy.finished_rounds = saved["round"]
    log.info("going on after round %d", saved["round"])
    counters: dict[str, float] = saved["counters"]
    return counters


def _write_results(
    experiment: Experiment, folder: RunFolder, federation: Federation, strategy: CohortStrategy, recorder: Recorder
) -> None:
    learned = strategy.learned_graph()
    if learned is not None:
        write_graph(learned, folder.path / "learned-graph.npz")
    write_models(
        folder.models,
        strategy.layout,
        federation.names,
        strategy.models,
        strategy.global_model(),
        strategy.plan.architectures,
    )
    totals = recorder.counters()
    folder.write_summary(
        summary_of(
            experiment,
            federation.names,
            federation.data,
            rounds=strategy.finished_rounds,
            traffic=Traffic(int(totals["exchanges"]), int(totals["bytes_down"]), int(totals["bytes_up"])),
            seconds=totals["seconds"],
            evaluation=recorder.last,
            sha256=weights_sha256(federation.names, strategy.models),
            groups=federation.groups,
        )
    )
    log.info(
        "finished: %s; %d exchanges, %.1f MB down, %.1f MB up", folder.path / "summary.json",
        totals["exchanges"], totals["bytes_down"] / 1e6, totals["bytes_up"] / 1e6,
    )  # fmt: skip
