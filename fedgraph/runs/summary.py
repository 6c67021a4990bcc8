"""Content of ``summary.json`` and ``environment.json``: results of a run, and the machine that it ran on."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph import __version__
from fedgraph.experiment import Experiment
from fedgraph.federation import Traffic
from fedgraph.graph import ClientGraph
from fedgraph.runs.attendance import attendance, counts, in_words
from fedgraph.runs.callbacks import Evaluation
from fedgraph.training import summarise

_PACKAGES = ("flwr", "ray", "torch", "torch-geometric", "numpy", "scikit-learn")


def by_split(metrics: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group metrics by split, ``{"test/mae": v}`` -> ``{"test": {"mae": v}}``."""
    result: dict[str, dict[str, Tensor]] = {}
    for name, values in metrics.items():
        split, _, metric = name.partition("/")
        result.setdefault(split, {})[metric] = values
    return result


def per_client(names: Sequence[str], metrics: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return summaries over clients of the metrics of one split, and their values by client."""
    return {
        "metrics": {metric: _plain(summarise(values, metric)) for metric, values in metrics.items()},
        "per_client": {
            metric: _plain(dict(zip(names, values.tolist(), strict=True))) for metric, values in metrics.items()
        },
    }


def summary_of(
    experiment: Experiment,
    names: Sequence[str],
    data: str,
    rounds: int,
    traffic: Traffic,
    seconds: float,
    evaluation: Evaluation | None,
    sha256: str,
    nodes: int | None = None,
    groups: Sequence[str] | None = None,
    learned: ClientGraph | None = None,
    noted: Mapping[str, Any] | None = None,
    trainings: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Build the content of ``summary.json``.

    Parameters
    ----------
    experiment : Experiment
        The experiment.
    names : sequence of str
        Clients of the run.
    data : str
        Description of the data.
    rounds : int
        Number of rounds that were trained.
    traffic : Traffic
        All traffic of the run; defines ``bytes_down``, ``bytes_up`` and these per client.
    seconds : float
        Time that the run took.
    evaluation : Evaluation or None
        The last evaluation.
    sha256 : str
        Digest of the final models.
    nodes : int, optional
        Number of nodes that host the clients.
    groups : sequence of str, optional
        Group of each client; metrics are then also summarised over each group.
    learned : ClientGraph, optional
        The client graph that was learned; ``graph`` says how far its edges are those of groups.
    noted : mapping, optional
        Further entries, such as those of callbacks.
    trainings : iterable of mapping, optional
        Lines of ``metrics.jsonl`` about training, which say who missed it.

    Returns
    -------
    dict
        Values fit for JSON, with None for numbers that are not finite.
    """
    split_metrics = by_split(evaluation.metrics) if evaluation is not None else {}
    values = {split: per_client(names, metrics) for split, metrics in split_metrics.items()}
    by_client = {split: value["per_client"] for split, value in values.items()}
    expected = dict.fromkeys(experiment.clients.expect or (), "no node hosted it")
    lost = {name: reason for name, reason in expected.items() if name not in names}
    absent = {**lost, **(evaluation.absent if evaluation is not None else {})}
    summary = {
        "experiment": experiment.experiment.name,
        "method": experiment.method.name,
        "data": data,
        "clients": len(names),
        "rounds": rounds,
        "exchanges": traffic.exchanges,
        "bytes_down": traffic.bytes_down,
        "bytes_up": traffic.bytes_up,
        "nodes": nodes,
        **traffic.per_client(len(names)),
        "seconds": round(seconds, 3),
        "metrics": {split: value["metrics"] for split, value in values.items()},
        "per_client": by_client,
        **attendance(names, by_client, absent, trainings),
        **({} if groups is None else _by_group(names, groups, split_metrics)),
        **({} if groups is None or learned is None else {"graph": _plain(learned.agreement(groups))}),
        **(noted or {}),
        "weights_sha256": sha256,
    }
    if getattr(experiment.data, "test", None) == "shared" and "test" in by_client:
        who = in_words(*counts(summary, "test"))
        summary["measured"] = f"{who}, all measured on the same test data with the model each holds at the end"
    return summary


def _by_group(
    names: Sequence[str], groups: Sequence[str], split_metrics: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    members = {group: torch.tensor([own == group for own in groups]) for group in sorted(set(groups))}
    return {
        "groups": dict(zip(names, groups, strict=True)),
        "per_group": {
            split: {
                group: {metric: _plain(summarise(values[chosen], metric)) for metric, values in metrics.items()}
                for group, chosen in members.items()
            }
            for split, metrics in split_metrics.items()
        },
    }


def environment() -> dict[str, Any]:
    """Return the circumstances of a run: time, command, versions, machine and commit.

    Returns
    -------
    dict
        Content of ``environment.json``; ``commit`` is None outside a checkout and without git, ``cuda`` without a GPU.
    """
    packages: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = None
    return {
        "fedgraph": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": packages,
        "command": sys.argv,
        "began": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def _commit() -> str | None:
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return found.stdout.strip() or None


def _plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """Replace numbers that are not finite by None, because JSON has no NaN."""
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
