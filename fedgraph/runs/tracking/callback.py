"""The callback that tells trackers what ``metrics.jsonl`` has, each line once, however often the run is resumed."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedgraph.experiment import Experiment
from fedgraph.runs.callbacks import Callback
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports import picture_of_runs
from fedgraph.runs.tracking.tracker import PASSWORD, Status, Tracker, Values, in_words, trackers_of
from fedgraph.support.files import State

log = logging.getLogger("fedgraph")

_MARK = "tracked.json"
_PICTURE = "learning-curves.png"
_SMALL_FILES = ("experiment.toml", "environment.json", "summary.json", "graph.json", "learned-graph.json")
_MOST_BYTES = 16_000_000
_SECRET = re.compile(
    r"(^|[-_])(token|password|passphrase|passwd|secret|credentials?|(api|private|access)[-_]?key)$", re.I
)
_UNTOLD_TABLES = ("output", "clients")
"""Tables that are no parameters: where results go, and who takes part."""
_COSTS = ("seconds", "bytes_down", "bytes_up")


@contextmanager
def tracked(experiment: Experiment, folder: RunFolder) -> Iterator[tuple[Callback, ...]]:
    """Track a run that takes place within the block; yields the callbacks that it needs, none without trackers.

    At the end of the block the trackers are told the results, or that the run has failed.

    Raises
    ------
    ExperimentError
        When a tracker cannot be started, for example because its package is not installed.
    """
    if not experiment.output.track:
        yield ()
        return
    tracking = Tracking(trackers_of(experiment, folder), experiment, folder)
    try:
        yield (tracking,)
    except BaseException:
        tracking.end("failed")
        raise
    tracking.end("finished")


class Tracking(Callback):
    """Callback that passes the lines of ``metrics.jsonl`` on to trackers.

    Rounds are passed on once a checkpoint has them, so that none is taken back; epochs of methods without rounds at
    once. How many lines each tracker has been told is kept in the run folder: a resumed run tells only the others (and,
    after a kill while it was told, the last one again). A tracker that fails is left alone for the rest of the run,
    after a warning; a resumed run takes it up again.

    Parameters
    ----------
    trackers : mapping of str to Tracker
        The trackers, by name.
    experiment : Experiment
        The experiment, whose keys are told as parameters; keys that look like secrets are not.
    folder : RunFolder
        The run folder.
    """

    def __init__(self, trackers: Mapping[str, Tracker], experiment: Experiment, folder: RunFolder) -> None:
        self._trackers, self._folder = dict(trackers), folder
        self._every = experiment.output.checkpoint_every
        tables = experiment.as_dict()
        self._params = dict(parameters(tables))
        self._has_secrets = any(_is_secret(name, value) for name, value in _leaves(tables, ""))
        mark = folder.path / _MARK
        self._told: dict[str, int] = json.loads(mark.read_text()) if mark.exists() else {}
        self._lines = self._offset = 0
        self._epochs: Counter[str] = Counter()
        self._each(lambda tracker: tracker.log_params(self._params))

    def on_epoch(self, phase: str, epoch: int) -> None:
        """Pass on what the method without rounds has written."""
        self._pass_on()

    def on_round_end(self, server_round: int, state: Callable[[], State]) -> None:
        """Pass on what the checkpoint of this round covers, if there is one."""
        if server_round % self._every == 0:
            self._pass_on()

    def end(self, status: Status) -> None:
        """Pass on what is left of a finished run, its results and files, and end the records."""
        if status == "finished":
            self._pass_on()
            summary = self._folder.summary()
            self._each(lambda tracker: tracker.log_metrics(results(summary), int(summary["rounds"])))
            for path in self._files():
                self._each(lambda tracker, path=path: tracker.save(path))  # type: ignore[misc]
        self._each(lambda tracker: tracker.finalize(status))

    def _pass_on(self) -> None:
        before = dict(self._told)
        for line in self._new_lines():
            values, step = self._numbers_of(line)
            for name in list(self._trackers):
                if values and self._told.get(name, 0) < self._lines:
                    self._guarded(name, lambda tracker: tracker.log_metrics(values, step))  # noqa: B023
                if name in self._trackers:
                    self._told[name] = max(self._told.get(name, 0), self._lines)
        if self._told != before:
            # Not forced on to the disk, as little as what trackers write.
            fresh = self._folder.path / f".{_MARK}"
            fresh.write_text(json.dumps(self._told))
            fresh.replace(self._folder.path / _MARK)

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        """Yield the lines written since the last call; the first call comes after old ones have been cut off."""
        if not self._folder.metrics.exists():
            return
        with self._folder.metrics.open("rb") as stream:
            stream.seek(self._offset)
            for line in stream:
                self._offset += len(line)
                self._lines += 1
                yield json.loads(line)

    def _numbers_of(self, line: Mapping[str, Any]) -> tuple[Values, int]:
        """Return the numbers of a line, and the step that they belong to.

        Epochs are counted on where a phase begins anew, for example with another learning rate. The second evaluation
        after the last round, of restored models, has no numbers here: they are among the results.
        """
        phase, step = line["phase"], int(line["round"])
        if line.get("restored"):
            return {}, step
        if phase in ("training", "evaluation"):
            return _of_clients(line), step
        self._epochs[phase] += 1
        own = {f"{phase}/{_dashed(key)}": value for key, value in line.items() if key != "round"}
        return _numbers(own), step if phase == "fairness" else self._epochs[phase]

    def _each(self, job: Callable[[Tracker], None]) -> None:
        for name in list(self._trackers):
            self._guarded(name, job)

    def _guarded(self, name: str, job: Callable[[Tracker], None]) -> None:
        """Call ``job``; a tracker for which it fails is not called again."""
        try:
            job(self._trackers[name])
        except Exception as error:
            del self._trackers[name]
            log.warning("tracker %s failed, the run goes on without it: %s", name, in_words(error))

    def _files(self) -> Iterator[Path]:
        """Yield the small files of a finished run, and a picture of it."""
        path = self._folder.path
        try:
            picture_of_runs([self._folder], [self._folder.summary()]).savefig(path / _PICTURE)
            yield path / _PICTURE
        except Exception as error:
            log.info("there is no picture for the trackers: %s", error)
        # The command line, in the environment, may have set a secret too.
        hidden = ("experiment.toml", "environment.json") if self._has_secrets else ()
        for file in (*(path / name for name in _SMALL_FILES if name not in hidden), self._folder.metrics):
            if file.exists() and file.stat().st_size <= _MOST_BYTES:
                yield file


def parameters(tables: Mapping[str, Any]) -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield the keys of a resolved experiment as ``table.key`` with their values; lists become JSON.

    Where results go and who takes part are left out, and so are secrets: keys with a name such as ``api-token``, and
    addresses with a password.
    """
    told = {name: table for name, table in tables.items() if name not in _UNTOLD_TABLES}
    for name, value in _leaves(told, ""):
        if not _is_secret(name, value):
            yield name, value if isinstance(value, bool | int | float | str) else json.dumps(value, default=str)


def _is_secret(name: str, value: Any) -> bool:
    return any(map(_SECRET.search, name.split(".")[1:])) or bool(isinstance(value, str) and PASSWORD.search(value))


def _leaves(table: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
            value = {str(position): entry for position, entry in enumerate(value)}
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def results(summary: Mapping[str, Any]) -> Values:
    """Return the numbers of ``summary.json``: means and deviations of the final models, and what the run took."""
    measured = {
        f"final/{split}/{metric}/{statistic}": values[statistic]
        for split, metrics in summary["metrics"].items()
        for metric, values in metrics.items()
        for statistic in ("mean", "std")
    }
    costs = {f"total/{_dashed(name)}": summary[name] for name in (*_COSTS, "exchanges")}
    return _numbers({**measured, **costs})


def _of_clients(line: Mapping[str, Any]) -> Values:
    split = line["split"] if line["phase"] == "evaluation" else "training"
    found: dict[str, Any] = {}
    for metric, values in line["metrics"].items():
        found |= {f"{split}/{metric}/{statistic}": value for statistic, value in values.items()}
        found[f"{split}/{metric}"] = _numbers(line["per_client"][metric])
    costs = {f"{split}/{_dashed(name)}": line[name] for name in _COSTS if name in line}
    return _numbers({**found, f"{split}/absent": len(line["absent"]), **costs})


def _dashed(key: str) -> str:
    return key.replace("_", "-")


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what is no finite number, and mappings without any."""
    return {
        name: value
        for name, value in values.items()
        if (isinstance(value, Mapping) and value)
        or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
    }
