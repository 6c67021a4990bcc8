"""The run folder: everything a run leaves behind, written so that a killed run can go on."""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph import __version__
from fedgraph.experiment import Experiment
from fedgraph.federation import Traffic
from fedgraph.runs.callbacks import Callback, Evaluation, Training
from fedgraph.support.errors import RunError
from fedgraph.support.files import State, load_state, locked, save_state, write_atomically
from fedgraph.training import summarise

_PACKAGES = ("flwr", "ray", "torch", "torch-geometric", "numpy", "scikit-learn")


class RunFolder:
    """A folder ``<name>-<time>``. Its name is also the name under which nodes keep their clients' state."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name

    @classmethod
    def create(cls, experiment: Experiment, under: Path, plugins: Sequence[str] = ()) -> RunFolder:
        """Make a new run folder with the resolved experiment and the environment in it.

        ``plugins`` are folders whose modules the experiment may name; a resumed run needs them again.
        """
        stem = f"{experiment.experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        for attempt in range(1000):
            path = (under / (stem if attempt == 0 else f"{stem}-{attempt + 1}")).resolve()
            try:
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise RunError(f"cannot make the run folder {path}: {error}") from None
            write_atomically(path / "environment.json", _json({**environment(), "plugins": list(plugins)}))
            # The last: a folder that has it is whole.
            write_atomically(path / "experiment.toml", experiment.as_toml().encode())
            return cls(path)
        raise RunError(f"cannot make a new run folder under {under}")

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """A run folder to go on with. Raises RunError when it is none."""
        folder = Path(path).resolve()
        if not (folder / "experiment.toml").is_file():
            raise RunError(f"{folder} is no run folder: it has no experiment.toml")
        return cls(folder)

    @property
    def plugins(self) -> list[str]:
        """Folders whose modules the experiment may name."""
        saved = json.loads((self.path / "environment.json").read_text())
        return list(saved.get("plugins", []))

    @property
    def checkpoint(self) -> Path:
        """Where the checkpoint lies."""
        return self.path / "checkpoint.safetensors"

    @property
    def models(self) -> Path:
        """Where the final models lie; see :mod:`fedgraph.runs.result_files`."""
        return self.path / "models.safetensors"

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end."""
        return (self.path / "summary.json").is_file()

    def check_unfinished(self) -> None:
        """Raise RunError when there is nothing to go on with."""
        if self.is_finished:
            raise RunError(f"{self.path} is finished; its results are in summary.json")

    @contextmanager
    def locked(self, wait: float = 60.0) -> Iterator[None]:
        """Hold the folder for one process.

        Raises
        ------
        RunError
            When another process still writes to it after ``wait`` seconds.
        """
        with ExitStack() as held:
            try:
                held.enter_context(locked(self.path / ".lock", wait))
            except TimeoutError:
                raise RunError(f"another process is still running {self.path}") from None
            yield

    def log_to_file(self) -> logging.Handler:
        """Append the project's log messages to ``logs/run.log``; the caller removes the handler."""
        (self.path / "logs").mkdir(exist_ok=True)
        handler = logging.FileHandler(self.path / "logs" / "run.log", encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        handler.setLevel(logging.INFO)
        logger = logging.getLogger("fedgraph")
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
        return handler

    @property
    def metrics(self) -> Path:
        """Where everything that is measured goes, one JSON value per line."""
        return self.path / "metrics.jsonl"

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        with self.metrics.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")

    def evaluations(self, split: str) -> Iterator[dict[str, Any]]:
        """The lines of ``metrics.jsonl`` that say what was measured on a split, one per round.

        Without that of models that were restored at the end: they are those of an earlier round.
        """
        for line in self._lines():
            if line["phase"] == "evaluation" and line["split"] == split and not line.get("restored"):
                yield line

    def trainings(self) -> Iterator[dict[str, Any]]:
        """The lines of ``metrics.jsonl`` that are of a round of training."""
        return (line for line in self._lines() if line["phase"] == "training")

    def _lines(self) -> Iterator[dict[str, Any]]:
        yield from map(json.loads, self.metrics.read_text(encoding="utf-8").splitlines())

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` says. Raises RunError when the run is not finished."""
        try:
            summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        except FileNotFoundError:
            raise RunError(f"{self.path} is not finished: it has no summary.json") from None
        return summary

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """``summary.json``; its presence marks the run as finished."""
        write_atomically(self.path / "summary.json", _json(summary))


class Recorder(Callback):
    """Writes ``metrics.jsonl`` while the run goes on and the checkpoint after every ``checkpoint_every`` rounds.

    names    : the clients of the run.
    counters : called at a checkpoint for numbers that must survive a resume (exchanges, bytes, seconds).
    """

    def __init__(
        self,
        folder: RunFolder,
        names: Sequence[str],
        checkpoint_every: int,
        watched: Sequence[Callback] = (),
        counters: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._folder = folder
        self._file = folder.metrics
        self._every = checkpoint_every
        self._watched = list(watched)
        self._names = list(names)
        self.counters = counters
        self.last: Evaluation | None = None

    def on_training(self, training: Training) -> None:
        """One line: training loss and who was absent."""
        self._folder.append(
            {
                "round": training.round,
                "phase": "training",
                "split": "train",
                **_values(training.names, {"loss": training.loss}),
                "absent": dict(training.absent),
                "seconds": round(training.seconds, 6),
                **{name: count for name, count in vars(training.traffic).items() if name != "exchanges"},
            }
        )

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """One line per split."""
        self.last = evaluation
        for split, metrics in by_split(evaluation.metrics).items():
            self._folder.append(
                {
                    "round": evaluation.round,
                    "phase": "evaluation",
                    "split": split,
                    **_values(evaluation.names, metrics),
                    "absent": dict(evaluation.absent),
                    **({"restored": True} if evaluation.restored else {}),
                }
            )
        return False

    def on_round_end(self, server_round: int, state: Callable[[], State]) -> None:
        """Write the checkpoint when it is due."""
        if server_round % self._every:
            return
        save_state(
            self._folder.checkpoint,
            {
                "round": server_round,
                "clients": self._names,
                "strategy": state(),
                "watched": {type(callback).__name__: callback.state() for callback in self._watched},
                "metrics-bytes": self._lines_on_disk(),
                "counters": self.counters(),
            },
        )

    def resume(self) -> State | None:
        """The checkpoint, with this recorder and the callbacks it watches set back to it; None where there is none.

        Lines that were written after the checkpoint are cut off; their rounds will be run again.
        """
        if not self._folder.checkpoint.exists():
            self._file.unlink(missing_ok=True)
            return None
        saved = load_state(self._folder.checkpoint)
        if self._file.exists():
            os.truncate(self._file, min(saved["metrics-bytes"], self._file.stat().st_size))
        for callback in self._watched:
            # One that the experiment did not ask for before begins now.
            if type(callback).__name__ in saved["watched"]:
                callback.load_state(saved["watched"][type(callback).__name__])
        return saved

    def _lines_on_disk(self) -> int:
        """Make sure that the lines a checkpoint counts on outlast it; returns their bytes."""
        if not self._file.exists():
            return 0
        with self._file.open("rb+") as stream:
            os.fsync(stream.fileno())
            return stream.seek(0, os.SEEK_END)


def by_split(metrics: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """``{"test/mae": v}`` -> ``{"test": {"mae": v}}``."""
    result: dict[str, dict[str, Tensor]] = {}
    for name, values in metrics.items():
        split, _, metric = name.partition("/")
        result.setdefault(split, {})[metric] = values
    return result


def _values(names: Sequence[str], metrics: Mapping[str, Tensor]) -> dict[str, Any]:
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
    noted: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The content of ``summary.json``; what ``bytes_down``, ``bytes_up`` and these per client count, see ``Traffic``.

    ``nodes`` is how many host the clients. ``groups`` is a word per client; where there are any, metrics are summarised
    over each group too. ``noted`` are further entries, such as what callbacks have to say.
    """
    split_metrics = by_split(evaluation.metrics) if evaluation is not None else {}
    values = {split: _values(names, metrics) for split, metrics in split_metrics.items()}
    return {
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
        "per_client": {split: value["per_client"] for split, value in values.items()},
        **({} if groups is None else _by_group(names, groups, split_metrics)),
        **(noted or {}),
        "weights_sha256": sha256,
    }


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
    """Versions, machine and commit that a run was made with."""
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
    }


def _commit() -> str | None:
    here = Path(__file__).resolve().parents[2]
    if not (here / ".git").exists():
        return None
    found = subprocess.run(
        ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or None


def _plain(values: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: what was not measured is null."""
    return {key: value if math.isfinite(value) else None for key, value in values.items()}


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
