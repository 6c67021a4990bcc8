"""Run folders, checkpoints, metrics and models of runs, and the callbacks that watch them.

Runs are started by :mod:`fedgraph.starting`::

    from fedgraph.runs import compare, load_run

    load_run("runs/sfl-digits").clients["test/accuracy"].mean()
    compare(["runs/sfl-digits", "runs/fedavg-digits"]).metrics
"""

from fedgraph.runs.callbacks import (
    AverageLast,
    Callback,
    EarlyStopping,
    Evaluation,
    LocalWork,
    RoundsToTarget,
    Training,
)
from fedgraph.runs.comparison import Comparison, compare
from fedgraph.runs.fairness import Fairness, fairness, stand_alone_values
from fedgraph.runs.finished import Run, load_run
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.given_graph import client_coordinates, given_graph
from fedgraph.runs.plan import RunPlan
from fedgraph.runs.recorder import Recorder
from fedgraph.runs.result_files import load_models, write_models
from fedgraph.runs.resuming import named_code
from fedgraph.runs.summary import environment, summary_of

__all__ = [
    "AverageLast",
    "Callback",
    "Comparison",
    "EarlyStopping",
    "Evaluation",
    "Fairness",
    "LocalWork",
    "Recorder",
    "RoundsToTarget",
    "Run",
    "RunFolder",
    "RunPlan",
    "Training",
    "client_coordinates",
    "compare",
    "environment",
    "fairness",
    "given_graph",
    "load_models",
    "load_run",
    "named_code",
    "stand_alone_values",
    "summary_of",
    "write_models",
]
