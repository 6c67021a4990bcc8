"""Changes of the experiment and of the user's code between the start of a run and its resumption."""

from __future__ import annotations

import ast
import hashlib
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
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
"""Keys that may change in a resumed run, by table; an empty tuple stands for all keys."""

_NOTED = ("experiment.rounds", "experiment.min-clients", "experiment.on-missing", "train.device", "train.compile")
_NOT_THEIRS = ("fedgraph", "flwr")
_METHOD = ("experiment.method", "experiment.strategy", "experiment.client")


def check_goes_on(
    folder: Path, begun_with: Path, experiment: Experiment, own: Collection[str] = ()
) -> dict[str, tuple[str, str]]:
    """Check that a run goes on with the experiment in the file ``begun_with``.

    ``own`` are keys of the method's table that may change, in addition to :data:`MAY_CHANGE`. Returns old and new value
    of the keys with a permitted change.

    Raises
    ------
    ExperimentError
        When other keys have changed: names each, with its old and new value.
    """
    try:
        before = parse_experiment(tomllib.loads(begun_with.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ExperimentError(
            f"cannot read {begun_with}, with which the run began ({error}): put a copy of it back, or remove it if "
            "experiment.toml has not changed since, which is then not checked"
        ) from None
    except ExperimentError as error:
        raise ExperimentError(f"{begun_with}, with which the run began, is invalid now: {error}") from None
    changed = changes(before, experiment)
    may = may_change(experiment, own)
    wrong = [key for key in changed if key not in may and f"{key.partition('.')[0]}.*" not in may]
    if wrong:
        listed = "; ".join(f"{key} was {changed[key][0]} and is {changed[key][1]}" for key in wrong)
        raise ExperimentError(
            f"{folder} cannot be resumed with another experiment: {listed}. Restore the old "
            f"value{'' if len(wrong) == 1 else 's'} in its experiment.toml, or start a new run. A resumed run may "
            f"change: {', '.join(may)}"
        )
    return changed


def notes(changed: Mapping[str, tuple[str, str]]) -> list[str]:
    """Return notes on keys that were changed before the run was resumed."""
    return [
        f"{key} was {old} when the run began, and {new} since it was resumed"
        for key, (old, new) in changed.items()
        if key in _NOTED
    ]


def code_of(experiment: Experiment) -> dict[str, str]:
    """Return a digest of each file of the user's code that an experiment runs, by module name.

    These are the modules named by dotted path and, unless these are installed packages, the modules that they import
    from the same folder. Modules without a file, such as a notebook, are left out.
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
    """Return the dotted paths of the user's code in an experiment, without those of fedgraph and Flower."""
    method, model = experiment.method, experiment.model
    named = [method.strategy, method.client, experiment.train.function, getattr(experiment.data, "set", None)]
    named += [table.get("name") for table in (model, *model.get("variants", ()))]
    paths = [path for path in named if isinstance(path, str) and ":" in path]
    return [path for path in paths if path.partition(":")[0].partition(".")[0] not in _NOT_THEIRS]


def _with_imports(module: str, file: Path) -> dict[str, Path]:
    """Return the files of a module and, recursively, of the modules that it imports from the same folder."""
    root = file.resolve().parents[module.count(".") + (file.name == "__init__.py")]
    files, waiting = {module: file}, [module]
    while waiting and not {"site-packages", "dist-packages"} & {*root.parts}:
        name = waiting.pop()
        for other in _imports(name, files[name]):
            place = root.joinpath(*other.split("."))
            sources = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()]
            if sources and other not in files and other.partition(".")[0] not in _NOT_THEIRS:
                files[other] = sources[0]
                waiting.append(other)
    return files


def _imports(module: str, file: Path) -> Iterator[str]:
    """Yield the imported names of a file that may be modules, and their packages."""
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return  # importing it ends the run, with its own message
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
    """Return notes on code that was changed before the run was resumed."""
    return [
        f"the code of '{module}' has changed since the run began: earlier rounds were run with the old code"
        for module, digest in before.items()
        if module in now and now[module] != digest
    ]


def may_change(experiment: Experiment, own: Collection[str] = ()) -> list[str]:
    """Return the keys that may change in a resumed run, as ``table.key``; ``table.*`` stands for all."""
    names = [f"{table}.{key}" for table, keys in MAY_CHANGE.items() for key in keys or "*"]
    if experiment.evaluation.average_last is not None:
        # The rounds to average are counted from the last one.
        names.remove("experiment.rounds")
    return names + [f"{experiment.method.name}.{key}" for key in sorted(own)]


def changes(before: Experiment, now: Experiment) -> dict[str, tuple[str, str]]:
    """Return the keys in which two experiments differ, with both values, ignoring tables of other methods.

    If the methods differ, only these are returned.
    """
    both = {name: (_shown(old), _shown(new)) for name, (old, new) in differences(_keys(before), _keys(now)).items()}
    method = {name: values for name, values in both.items() if name in _METHOD}
    return method or both


def differences(before: Iterable[tuple[str, Any]], now: Iterable[tuple[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Return the keys in which two sets of settings differ, with both values; None where a key is not set."""
    old, new = dict(before), dict(now)
    names = dict.fromkeys((*old, *new))
    return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}


def _keys(experiment: Experiment) -> Iterator[tuple[str, Any]]:
    others = set(experiment.method_tables) - {experiment.method.name}
    for name, table in experiment.as_dict().items():
        if name not in others:
            yield from keys_within(name, table)


def keys_within(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield a key with its value, of a table the keys within as ``name.key``."""
    if not isinstance(value, Mapping):
        yield name, value
        return
    for key, inner in value.items():
        yield from keys_within(f"{name}.{key}", inner)


def _shown(value: Any) -> str:
    return "not given" if value is None else repr(value)
