"""A resumed run is the same run: what may change in its experiment, and the check that nothing else has."""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Collection, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedgraph.experiment import Experiment, parse_experiment
from fedgraph.support.errors import ExperimentError

MAY_CHANGE: dict[str, tuple[str, ...]] = {
    "experiment": ("name", "rounds", "min-clients", "on-missing", "wait", "timeout"),
    "train": ("workers", "threads", "block-size", "device", "compile"),
    "evaluation": ("compare-peers", "forecasts", "yardsticks"),
    "clients": ("expect", "public-keys"),
    "output": (),
}
"""Keys that may change in a run that is resumed: how long it goes on, who may be absent, and how fast it computes.

An empty tuple stands for all keys of the table."""

_NOTED = ("experiment.rounds", "experiment.min-clients", "experiment.on-missing", "train.device", "train.compile")
_NOT_THEIRS = ("fedgraph", "flwr")
_METHOD = ("experiment.method", "experiment.strategy", "experiment.client")


def check_goes_on(
    folder: Path, begun_with: Path, experiment: Experiment, own: Collection[str] = ()
) -> dict[str, tuple[str, str]]:
    """Check that a run that has trained goes on with the experiment that it began with.

    Parameters
    ----------
    folder : Path
        The run folder, for messages.
    begun_with : Path
        File of the experiment that it began with.
    experiment : Experiment
        As it is to be run now.
    own : collection of str
        Keys of the method's own table that may change, beside those of :data:`MAY_CHANGE`.

    Returns
    -------
    dict of str to tuple of str
        Old and new value of the keys that have changed, and may.

    Raises
    ------
    ExperimentError
        With each key that must not change, its old and its new value, and what to do.
    """
    try:
        before = parse_experiment(tomllib.loads(begun_with.read_text(encoding="utf-8")))
    except ExperimentError as error:
        raise ExperimentError(f"{begun_with}, with which the run began, cannot be used now: {error}") from None
    found = changes(before, experiment)
    may = may_change(experiment, own)
    wrong = [key for key in found if key not in may and f"{key.partition('.')[0]}.*" not in may]
    if wrong:
        told = "; ".join(f"{key} was {found[key][0]} and is {found[key][1]}" for key in wrong)
        raise ExperimentError(
            f"{folder} has trained with another experiment than it is to go on with: {told}. Set "
            f"{'it' if len(wrong) == 1 else 'them'} back in its experiment.toml to go on, or start a new run with the "
            f"new value{'' if len(wrong) == 1 else 's'}. In a run that is resumed may change: {', '.join(may)}"
        )
    return found


def notes(changed: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return what the notes of a run say of keys that were changed before it was resumed."""
    return [
        f"{key} was {old} when the run began, and {new} since it was resumed"
        for key, (old, new) in changed.items()
        if key in _NOTED
    ]


def code_of(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each file with code of the user's that an experiment runs, by the name of its module.

    These are the modules that it names by dotted path and, of those that are not installed, what they import from the
    same folder. Modules that are nowhere, such as a notebook, are left out.
    """
    files: dict[str, Path] = {}
    for module in sorted({path.partition(":")[0] for path in named_code(experiment)}):
        if module == "__main__":
            continue
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.origin is not None and Path(spec.origin).is_file():
            files |= _with_imports(module, Path(spec.origin))
    return {module: hashlib.sha256(file.read_bytes()).hexdigest() for module, file in sorted(files.items())}


def named_code(experiment: Experiment) -> list[str]:
    """Return the dotted paths of the user's code that an experiment names: strategy, client, training function, data
    set, models.

    Those of fedgraph and Flower are left out.
    """
    method, model = experiment.method, experiment.model
    named = [method.strategy, method.client, experiment.train.function, getattr(experiment.data, "set", None)]
    named += [table.get("name") for table in (model, *model.get("variants", ()))]
    paths = [path for path in named if isinstance(path, str) and ":" in path]
    return [path for path in paths if path.partition(":")[0].partition(".")[0] not in _NOT_THEIRS]


def _with_imports(module: str, file: Path) -> dict[str, Path]:
    """Return the files of a module, and of those that it imports from the folder in which it was found, and so on."""
    root = file.resolve().parents[module.count(".") + (file.name == "__init__.py")]
    files, waiting = {module: file}, [module]
    while waiting and not {"site-packages", "dist-packages"} & {*root.parts}:
        name = waiting.pop()
        for other in _imports(name, files[name]):
            place = root.joinpath(*other.split("."))
            there = [each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()]
            if there and other not in files and other.partition(".")[0] not in _NOT_THEIRS:
                files[other] = there[0]
                waiting.append(other)
    return files


def _imports(module: str, file: Path) -> Iterator[str]:
    """Return what may be a module among the names that a file imports, and the packages in which these are."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # which ends the run, with a message of its own
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            names = [".".join(filter(None, [source, each.name])) for each in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[: end + 1]) for end in range(len(parts)))


def notes_of_code(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what the notes of a run say of code that was changed before it was resumed."""
    return [
        f"the code of '{module}' was changed since the run began: the rounds before and after are of other code"
        for module, digest in before.items()
        if module in now and now[module] != digest
    ]


def may_change(experiment: Experiment, own: Collection[str] = ()) -> list[str]:
    """Return the keys that may change in a run that is resumed, as ``table.key``; ``table.*`` stands for all."""
    found = [f"{table}.{key}" for table, keys in MAY_CHANGE.items() for key in keys or "*"]
    if experiment.evaluation.average_last is not None:
        # The rounds to be averaged are counted from the last one.
        found.remove("experiment.rounds")
    return found + [f"{experiment.method.name}.{key}" for key in sorted(own)]


def changes(before: Experiment, now: Experiment) -> dict[str, tuple[str, str]]:
    """Return the keys in which two experiments differ, with the value in both; tables of other methods do not count.

    Where the method is another one, only that.
    """
    old, new = (dict(_keys(each)) for each in (before, now))
    names = dict.fromkeys((*old, *new))
    found = {name: (_shown(old.get(name)), _shown(new.get(name))) for name in names if old.get(name) != new.get(name)}
    method = {name: values for name, values in found.items() if name in _METHOD}
    return method or found


def _keys(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    others = set(experiment.method_tables) - {experiment.method.name}
    for name, table in experiment.as_dict().items():
        if name not in others:
            yield from _flat(name, table)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flat(f"{name}.{key}", inner)


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
