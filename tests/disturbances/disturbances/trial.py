"""Try a scenario: run it, go on after each stop as an operator would, and see what does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disturbances.results import judge
from disturbances.scenario import Holds
from disturbances.stage import Attempt, Stage
from fedgraph.runs import RunFolder

_MOST_ATTEMPTS = 8


@dataclass
class Found:
    """What came of a scenario.

    Attributes
    ----------
    problems : list of str
        What does not hold; empty if all does.
    happened : int
        How many of its faults happened.
    attempts : list of Attempt
        The start of the run, and every time it was gone on with.
    folder : RunFolder or None
        The run.
    """

    problems: list[str] = field(default_factory=list)
    happened: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    folder: RunFolder | None = None


def try_scenario(stage: Stage, faults: list[Any], holds: Holds, undisturbed: dict[str, Any] | None) -> Found:
    """Run a scenario on a stage, going on with the run until it ends, and return what does not hold.

    Always must hold: a stop has a reason in words; a run folder that is there can be read and gone on with at all
    times; a run that is gone on with ends; its results are finite; and no unfinished file stays behind.

    ``undisturbed`` is the summary of the same run without faults.
    """
    found = Found()
    pending = list(faults)
    for number in range(_MOST_ATTEMPTS):
        attempt = stage.attempt(found.folder, pending)
        found.attempts.append(attempt)
        pending = pending[attempt.happened :]
        found.happened += attempt.happened
        if not attempt.foreseen:
            found.problems.append(f"an unforeseen error: {attempt.error}")
        found.problems += unreadable(stage.runs)
        folders = [RunFolder(path.parent) for path in sorted(stage.runs.glob("[!.]*/experiment.toml"))]
        found.folder = folders[0] if folders else None
        if found.problems or (found.folder is not None and found.folder.is_finished):
            break
        if not attempt.error:
            found.problems.append("it ended without an error, and is not finished")
        if number and not attempt.happened:
            found.problems.append(f"it cannot be gone on with: {attempt.error}")
            break
    else:
        found.problems.append(f"it is not finished after {_MOST_ATTEMPTS} starts")
    resumed = len(found.attempts) > 1
    if not found.problems:
        assert found.folder is not None
        if holds.end != "either" and resumed != (holds.end == "resumed"):
            found.problems.append(f"it was to be {holds.end}: {[each.error for each in found.attempts]}")
        found.problems += results(found.folder, holds, undisturbed)
        found.problems += [f"{path} stays behind" for path in leftovers(stage.folder)]
    return found


def undisturbed_run(stage: Stage) -> RunFolder:
    """The run of a stage, to its end without faults."""
    found = try_scenario(stage, [], Holds(), None)
    assert found.folder is not None
    assert not found.problems, f"without faults: {found}"
    return found.folder


def unreadable(runs: Path) -> list[str]:
    """Folders that are no run, or whose files cannot be read."""
    problems = []
    for path in sorted(runs.iterdir()) if runs.is_dir() else ():
        if path.name.startswith("."):
            continue
        try:
            folder = RunFolder.open(path)
            assert folder.tables
            assert isinstance(folder.plugins, list)
            if folder.is_finished:
                folder.summary()
        except Exception as error:
            problems.append(f"{path.name}: {type(error).__name__}: {error}")
    return problems


def leftovers(folder: Path) -> list[Path]:
    """Files that a writer has not finished."""
    hidden = (path for path in folder.rglob(".*") if path.is_file() and path.name != ".lock")
    return [path for path in hidden if "homes" not in path.parts and "app" not in path.parts]


def results(folder: RunFolder, holds: Holds, undisturbed: dict[str, Any] | None) -> list[str]:
    """What is wrong with the results of a finished run."""
    problems = []
    summary = folder.summary()
    if holds.weights == "same" and undisturbed is not None:
        for name in ("weights_sha256", "metrics", "rounds"):
            if summary.get(name) != undisturbed.get(name):
                problems.append(f"{name} is {summary.get(name)!r}, and {undisturbed.get(name)!r} without faults")
    try:
        lines, broken = list(folder.lines()), judge(folder.path).broken
    except ValueError as error:
        return [*problems, f"metrics.jsonl: {error}"]
    if broken:
        problems.append(f"{broken} is not finite")
    trained = [line["round"] for line in lines if line["phase"] == "training"]
    if trained != list(range(1, len(trained) + 1)):
        problems.append(f"rounds {trained} are recorded")
    return problems
