"""Content of ``summary.json`` and ``environment.json``: results, absent clients, and the machine."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedgraph import __version__
from fedgraph.experiment import Experiment
from fedgraph.federation import Traffic
from fedgraph.graph import ClientGraph
from fedgraph.runs.callbacks import Evaluation
from fedgraph.support.errors import counted
from fedgraph.training import summarise

Values = Mapping[str, Mapping[str, Any]]
"""Values by metric and client, as in ``summary.json``; None if not finite or not measured."""

_PACKAGES = ("flwr", "ray", "torch", "torch-geometric", "numpy", "scikit-learn")


def by_split(metrics: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Group metrics by split, ``{"test/mae": v}`` -> ``{"test": {"mae": v}}``."""
    result: dict[str, dict[str, Tensor]] = {}
    for name, values in metrics.items():
        split, _, metric = name.partition("/")
        result.setdefault(split, {})[metric] = values
    return result


def per_client(names: Sequence[str], metrics: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the metrics of one split, summarised over clients and by client."""
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
    examples: Mapping[str, Tensor] | None = None,
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
        All traffic of the run.
    seconds : float
        Duration of the run.
    evaluation : Evaluation or None
        The last evaluation.
    sha256 : str
        Digest of the final models.
    nodes : int, optional
        Number of nodes that host the clients.
    groups : sequence of str, optional
        Group of each client; metrics are then also summarised over each group.
    learned : ClientGraph, optional
        The learned client graph; the entry ``graph`` has its agreement with the groups.
    noted : mapping, optional
        Further entries, such as those of callbacks.
    trainings : iterable of mapping, optional
        Lines of ``metrics.jsonl`` about training, with the absent clients.
    examples : mapping of str to Tensor, optional
        By split, the number of examples of each client.

    Returns
    -------
    dict
        JSON values, with None for numbers that are not finite.
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
        **attendance(names, by_client, absent, trainings, _without_examples(names, examples or {})),
        **({} if groups is None else _by_group(names, groups, split_metrics)),
        **({} if groups is None or learned is None else {"graph": _plain(learned.agreement(groups))}),
        **(noted or {}),
        "weights_sha256": sha256,
    }
    if getattr(experiment.data, "test", None) == "shared" and "test" in by_client:
        who = in_words(*counts(summary, "test"))
        summary["measured"] = f"{who}, all measured on the same test data with the model each holds at the end"
    return summary


def measured_clients(values: Values) -> list[str]:
    """Return the clients with a value of at least one metric."""
    names = dict.fromkeys(name for of_metric in values.values() for name in of_metric)
    return [name for name in names if any(of_metric.get(name) is not None for of_metric in values.values())]


def attendance(
    names: Sequence[str],
    per_client: Mapping[str, Values],
    absent: Mapping[str, str],
    trainings: Iterable[Mapping[str, Any]] = (),
    empty: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the entries of ``summary.json`` on absent clients; empty if all took part.

    ``absent`` has the reasons of clients that were not measured, whether among ``names`` or not; ``trainings`` are the
    lines of ``metrics.jsonl`` about training, ``empty`` are clients without examples by split.

    Returns
    -------
    dict
        ``not_measured`` has the reason by split and client; ``missed_training`` has, by client, the number of missed
        ``rounds``, the number of all (``of``), and the last ``reason``.
    """
    everybody = dict.fromkeys((*names, *absent))
    without = {}
    for split, values in per_client.items():
        measured = set(measured_clients(values))
        reasons = dict.fromkeys(empty.get(split, ()), f"no {split} examples") | dict(absent)
        lost = {name: reasons.get(name, "no finite value") for name in everybody if name not in measured}
        if lost:
            without[split] = lost
    lines = [line["absent"] for line in trainings]
    last = {name: reason for line in lines for name, reason in line.items()}
    missed = {
        name: {"rounds": sum(name in line for line in lines), "of": len(lines), "reason": last[name]}
        for name in sorted(last)
    }
    return {
        **({"not_measured": without} if without else {}),
        **({"missed_training": missed} if missed else {}),
    }


def _without_examples(names: Sequence[str], examples: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the clients without examples, by split."""
    return {
        split: [name for name, number in zip(names, numbers.tolist(), strict=True) if number == 0]
        for split, numbers in examples.items()
    }


def counts(summary: Mapping[str, Any], split: str) -> tuple[int, int]:
    """Return how many clients were measured on a split at the end of a run, and how many there are."""
    values = summary.get("per_client", {}).get(split)
    lost = summary.get("not_measured", {}).get(split, {})
    measured = len(measured_clients(values)) if values else int(summary["clients"])
    strangers = [name for name in lost if not any(name in of_metric for of_metric in (values or {}).values())]
    return measured, int(summary["clients"]) + len(strangers)


def in_words(measured: int, everybody: int) -> str:
    """Return ``4 clients``, or ``2 of 4 clients`` if some were not measured."""
    every = counted(everybody, "client")
    return every if measured == everybody else f"{measured:,} of {every}"


def _by_group(
    names: Sequence[str], groups: Sequence[str], split_metrics: Mapping[str, Mapping[str, Tensor]]
) -> dict[str, Any]:
    members = {group: torch.tensor([each == group for each in groups]) for group in sorted(set(groups))}
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
    """Return the content of ``environment.json``: time, command, versions, machine and commit.

    ``commit`` is None outside a checkout or without git, ``cuda`` without a GPU.
    """
    return {
        "fedgraph": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": _versions(),
        "command": without_secrets(sys.argv),
        "began": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


_SECRET = re.compile(
    r"(.*(?:^|[-_.=])(?:token|password|passphrase|passwd|credentials?|\w+[-_.]secret|(?:api|private|access)[-_]?key))(=.*)?",
    re.IGNORECASE | re.DOTALL,
)


def without_secrets(command: Sequence[str]) -> list[str]:
    """Return a command line with ``***`` for tokens, passwords and keys: Flower starts a run with its token."""
    shown: list[str] = []
    hidden = False
    for word in command:
        secret = _SECRET.fullmatch(word)
        shown.append("***" if hidden else f"{secret[1]}=***" if secret and secret[2] else word)
        hidden = secret is not None and not secret[2] and word.startswith("-")
    return shown


@cache
def _versions() -> dict[str, str | None]:
    """Return the versions of packages, None for those not installed."""
    found: dict[str, str | None] = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _commit() -> str | None:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return None
    return described.stdout.strip() or None


def _plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """Replace numbers that are not finite by None: JSON has no NaN."""
    return {key: value if math.isfinite(value) else None for key, value in values.items()}
