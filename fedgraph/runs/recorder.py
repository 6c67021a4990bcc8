"""What a run writes while it trains: a line for each training and evaluation, and checkpoints to go on from."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from fedgraph.runs.callbacks import Callback, Evaluation, Training
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.summary import by_split, per_client
from fedgraph.support.files import State, save_state

log = logging.getLogger("fedgraph")


class Recorder(Callback):
    """Callback that writes ``metrics.jsonl`` during the run, and a checkpoint every ``checkpoint_every`` rounds.

    Parameters
    ----------
    folder : RunFolder
        The run folder.
    names : sequence of str
        Clients of the run.
    checkpoint_every : int
        Rounds between checkpoints.
    watched : sequence of Callback, optional
        Callbacks whose state belongs to the checkpoint.
    counters : callable, optional
        Returns the counters to store in a checkpoint (exchanges, bytes, seconds).
    examples : mapping of str to Tensor, optional
        Number of examples of each client by split; a resumed run must have the same.

    Attributes
    ----------
    last : Evaluation or None
        The last evaluation.
    """

    def __init__(
        self,
        folder: RunFolder,
        names: Sequence[str],
        checkpoint_every: int,
        watched: Sequence[Callback] = (),
        counters: Callable[[], dict[str, float]] = dict,
        examples: Mapping[str, Tensor] | None = None,
    ) -> None:
        self._folder = folder
        self._file = folder.metrics
        self._every = checkpoint_every
        self._watched = list(watched)
        self._names = list(names)
        self.counters = counters
        self._examples = dict(examples or {})
        self.last: Evaluation | None = None

    def on_training(self, training: Training) -> None:
        """Write a line with training loss, absent clients, time and traffic."""
        self._folder.append(
            {
                "round": training.round,
                "phase": "training",
                "split": "train",
                **per_client(training.names, {"loss": training.loss}),
                "absent": dict(training.absent),
                "seconds": round(training.seconds, 6),
                **{name: count for name, count in vars(training.traffic).items() if name != "exchanges"},
            }
        )

    def on_evaluation(self, evaluation: Evaluation) -> bool:
        """Write a line per split."""
        self.last = evaluation
        for split, metrics in by_split(evaluation.metrics).items():
            self._folder.append(
                {
                    "round": evaluation.round,
                    "phase": "evaluation",
                    "split": split,
                    **per_client(evaluation.names, metrics),
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
                "examples": self._examples,
                "strategy": state(),
                "watched": {type(callback).__name__: callback.state() for callback in self._watched},
                "metrics-bytes": self._lines_on_disk(),
                "counters": self.counters(),
            },
        )

    def resume(self) -> State | None:
        """Restore this recorder and its watched callbacks from the checkpoint, and return it; None without one.

        Lines of ``metrics.jsonl`` after the checkpoint are cut off; their rounds are run again. Raises RunError for a
        damaged checkpoint.
        """
        if not self._folder.checkpoint.exists():
            self._file.unlink(missing_ok=True)
            return None
        saved = self._folder.kept()
        self._cut_lines(saved["metrics-bytes"])
        for callback in self._watched:
            # A callback that is new to the experiment starts without state.
            if type(callback).__name__ in saved["watched"]:
                callback.load_state(saved["watched"][type(callback).__name__])
        return saved

    def _cut_lines(self, size: int) -> None:
        """Cut ``metrics.jsonl`` to its size at the checkpoint, or if it is shorter, after its last whole line."""
        found = self._file.stat().st_size if self._file.exists() else 0
        if found > size:
            os.truncate(self._file, size)
        elif found < size:
            lost = f"{self._file.name} was cut or removed: it lacks measurements of rounds before the run was resumed"
            log.warning("%s", lost)
            self._folder.notes.append(lost)
            if found:
                os.truncate(self._file, self._file.read_bytes().rfind(b"\n") + 1)

    def _lines_on_disk(self) -> int:
        """Flush the lines before a checkpoint to disk, and return their size in bytes."""
        if not self._file.exists():
            return 0
        with self._file.open("rb+") as stream:
            os.fsync(stream.fileno())
            return stream.seek(0, os.SEEK_END)
