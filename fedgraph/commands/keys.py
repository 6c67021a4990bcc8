"""All tables of an experiment, or of a published table, and their keys, read from the settings classes."""

from __future__ import annotations

import inspect
import re
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from flwr.serverapp.strategy import Strategy
from pydantic_core import PydanticUndefined

from fedgraph.data import DataSet, settings_by_set
from fedgraph.defence import DefenceTable
from fedgraph.experiment import (
    EvaluationTable,
    ExperimentTable,
    FairnessTable,
    OutputTable,
    built_ins,
    constructor_arguments,
    run_by_experiments,
)
from fedgraph.federation import ClientsTable
from fedgraph.graph import GraphTable
from fedgraph.models import MODELS, ModelTable, ModuleSettings, VariantTable
from fedgraph.reproduce import EXPLAINED, STUDY_EXPLAINED
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object
from fedgraph.support.settings import Settings
from fedgraph.training import TrainSettings


def setting_tables() -> dict[str, tuple[str, type[Settings]]]:
    """Return heading and settings class of every table that ``fedgraph keys`` explains, by short name."""
    tables: dict[str, tuple[str, type[Settings]]] = {
        "experiment": ("[experiment]", ExperimentTable),
        "clients": ("[clients]", ClientsTable),
        "train": ("[train]", TrainSettings),
        "graph": ("[graph]", GraphTable),
        "evaluation": ("[evaluation]", EvaluationTable),
        "fairness": ("[fairness]", FairnessTable),
        "defence": ("[defence]", DefenceTable),
        "output": ("[output]", OutputTable),
    }
    tables |= {name: (f'[data] set = "{name}"', kind) for name, kind in settings_by_set().items()}
    tables |= {"model": ("[model]", ModelTable), "variants": ("[[model.variants]]", VariantTable)}
    tables |= {name: (f'[model] name = "{name}"', kind) for name, (kind, _) in MODELS.items()}
    tables["package.module:Class"] = ('[model] name = "package.module:Class"', ModuleSettings)
    for name, strategy in built_ins().items():
        kind = getattr(strategy, "settings_type", None)
        if kind is not None and kind.model_fields:
            tables[name] = (f"[{name}]", kind)
    for name, (heading, kind) in list(tables.items()):
        outer = re.split(r"[\[\]]+", heading)[1]
        tables |= {f"{name}.{key}": (f"[{outer}.{key}]", inner) for key, inner in inner_tables(kind).items()}
    return tables | EXPLAINED | STUDY_EXPLAINED


def explanations() -> list[tuple[str, str, list[str]]]:
    """Return name, heading and explanation of every table, and of what keys of ``[data]`` and ``[model]`` choose from.

    A name such as ``metr-la`` or ``sfl`` may have several headings. Built-in methods without a settings class are told
    with the arguments of their strategy in Flower.
    """
    tables = setting_tables()
    found = [(name, heading, describe(kind, name)) for name, (heading, kind) in tables.items()]
    choices: dict[tuple[str, str], list[str]] = {}
    for name, (heading, _) in tables.items():
        chosen = re.fullmatch(r'\[(\w+)\] (\w+) = ".*"', heading)
        if chosen is not None:
            choices.setdefault((chosen[1], chosen[2]), []).append(name)
    for (table, key), names in choices.items():
        told = f"chooses one of these, whose keys `fedgraph keys NAME` lists: {', '.join(names)}"
        found.append((table, f"[{table}] {key}", [told, ""]))
    others = {name: strategy for name, strategy in built_ins().items() if name not in tables}
    return found + [(name, f"[{name}]", _of_constructor(strategy)) for name, strategy in others.items()]


def explanation_of(path: str) -> tuple[str, list[str]]:
    """Return heading and explanation of the table of a method or a data set of the user's own, by dotted path.

    Raises ExperimentError where there is none, or something else.
    """
    found = run_by_experiments(load_object(path, "fedgraph keys"))
    kind = getattr(found, "settings_type", None)
    if not isinstance(found, type) or not (kind is not None or issubclass(found, Strategy)):
        raise ExperimentError(
            f"{path} is no method: neither an algorithm or client class of fedgraph, nor a strategy of Flower; and no "
            "data set"
        )
    if issubclass(found, DataSet) and kind is not None:
        return f'[data] set = "{path}"', describe(kind, path)
    told = describe(kind, found.__name__) if kind is not None and kind.model_fields else _of_constructor(found)
    return f"[{found.__name__}]", told


def _of_constructor(strategy: type) -> list[str]:
    if not issubclass(strategy, Strategy) or hasattr(strategy, "settings_type"):
        return ["has no keys of its own; [experiment] and [train] are for all methods", ""]
    keys = [f"{key} = {default!r}" for key, default in constructor_arguments(strategy).items() if not callable(default)]
    base = next(base for base in strategy.__mro__ if base.__module__.startswith("flwr."))
    return [*keys, "", f"Arguments of {base.__module__.rpartition('.')[0]}.{base.__name__}.", ""]


def inner_tables(kind: type[Settings]) -> dict[str, type[Settings]]:
    """Return the keys of a table that are tables of their own."""
    found = {}
    for key, field in zip(kind.keys(), kind.model_fields.values(), strict=True):
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, Settings):
                found[key] = part
    return found


def describe(kind: type[Settings], name: str = "") -> list[str]:
    """Return one line per key (name, type, default), then the docstrings of the class, with keys as in TOML.

    ``name`` is that of the table, by which its inner tables are referred to.
    """
    lines, inner = [], inner_tables(kind)
    for key, field in zip(kind.keys(), kind.model_fields.values(), strict=True):
        if key in inner:
            lines.append(f"{key}: a table, see {name}.{key}")
            continue
        needed = field.default is PydanticUndefined and field.default_factory is None
        default = "needed" if needed else repr(field.get_default(call_default_factory=True))
        lines.append(f"{key}: {_type(field.annotation)} = {default}")
    said = [base.__doc__ for base in kind.__mro__ if issubclass(base, Settings) and base is not Settings]
    # As they are written in TOML.
    fields = re.compile(rf"\b({'|'.join(kind.model_fields)})\b")
    for text in said:
        sentences = re.sub(r"Attributes\n-+\n", "", inspect.cleandoc(text or ""))
        explained = fields.sub(lambda field: field[0].replace("_", "-"), sentences)
        lines += ["", *explained.splitlines()]
    return [*lines, ""]


def meanings(kind: type[Settings]) -> dict[str, str]:
    """Return what each key means, in one line, as far as the docstrings have an entry ``key : meaning`` for it."""
    found: dict[str, str] = {}
    fields = re.compile(rf"\b({'|'.join(kind.model_fields)})\b")
    for base in reversed([base for base in kind.__mro__ if issubclass(base, Settings) and base is not Settings]):
        names: list[str] = []
        for line in inspect.cleandoc(base.__doc__ or "").splitlines():
            entry = re.match(r"([a-z_]+(?:, [a-z_]+)*) *: +(.*)", line)
            if entry is not None:
                names = [name for name in entry[1].split(", ") if name in kind.model_fields]
                found |= dict.fromkeys(names, entry[2])
            elif line.startswith(" "):
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
            else:
                names = []
    return {
        name.replace("_", "-"): fields.sub(lambda field: field[0].replace("_", "-"), text)
        for name, text in found.items()
    }


def _type(annotation: Any) -> str:
    """Format a type as in Python, without validators."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(map(_type, arguments))
    if annotation is Ellipsis:
        return "..."
    name = str(getattr(annotation, "__name__", annotation))
    if origin is Literal:
        return f"{name}[{', '.join(map(repr, arguments))}]"
    return f"{name}[{', '.join(map(_type, arguments))}]" if arguments else name.replace("NoneType", "None")
