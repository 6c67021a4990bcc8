"""Explanations of all tables and keys, read from the settings classes."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from flwr.serverapp.strategy import Strategy
from pydantic_core import PydanticUndefined

from fedgraph.data import DataSet, settings_by_set
from fedgraph.defence import DefenceTable
from fedgraph.experiment import (
    AgreementTable,
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
from fedgraph.reproduce import EXPLAINED
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import a_class, load_object
from fedgraph.support.settings import Settings
from fedgraph.training import TrainSettings

_WIDEST = 44
"""Largest column at which comments begin."""


def setting_tables() -> dict[str, tuple[str, type[Settings]]]:
    """Return heading and settings class of every table, by short name."""
    tables: dict[str, tuple[str, type[Settings]]] = {
        "experiment": ("[experiment]", ExperimentTable),
        "clients": ("[clients]", ClientsTable),
        "train": ("[train]", TrainSettings),
        "graph": ("[graph]", GraphTable),
        "evaluation": ("[evaluation]", EvaluationTable),
        "fairness": ("[fairness]", FairnessTable),
        "defence": ("[defence]", DefenceTable),
        "output": ("[output]", OutputTable),
        "agreement": ("[agreement]", AgreementTable),
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
    return tables | EXPLAINED


def explanations() -> list[tuple[str, str, list[str], dict[str, str]]]:
    """Return name, heading, lines and meanings of keys of every table, and of keys that select a table.

    A name such as ``metr-la`` or ``sfl`` may have several headings. Built-in methods without a settings class are
    explained by the arguments of their Flower strategy.
    """
    tables = setting_tables()
    explained = [(name, heading, describe(kind, name), meanings(kind)) for name, (heading, kind) in tables.items()]
    choices: dict[tuple[str, str], list[str]] = {}
    for name, (heading, _) in tables.items():
        chosen = re.fullmatch(r'\[(\w+)\] (\w+) = ".*"', heading)
        if chosen is not None:
            choices.setdefault((chosen[1], chosen[2]), []).append(name)
    for (table, key), names in choices.items():
        line = f"one of these; `fedgraph keys NAME` lists their keys: {', '.join(names)}"
        explained.append((table, f"[{table}] {key}", [line, ""], {}))
    others = {name: strategy for name, strategy in built_ins().items() if name not in tables}
    return explained + [(name, f"[{name}]", _of_constructor(strategy), {}) for name, strategy in others.items()]


def explanation_of(path: str) -> tuple[str, list[str]]:
    """Return heading and lines of the table of a user's method or data set, by dotted path.

    Raises ExperimentError if it cannot be imported or is something else.
    """
    named = run_by_experiments(load_object(path, "fedgraph keys", a_class()))
    kind = getattr(named, "settings_type", None)
    if not isinstance(named, type) or not (kind is not None or issubclass(named, Strategy)):
        raise ExperimentError(
            f"{path} is neither a method (an algorithm or client class of fedgraph, or a strategy of Flower) nor a "
            "data set"
        )
    if issubclass(named, DataSet) and kind is not None:
        return f'[data] set = "{path}"', describe(kind, path)
    lines = describe(kind, named.__name__) if kind is not None and kind.model_fields else _of_constructor(named)
    return f"[{named.__name__}]", lines


def _of_constructor(strategy: type) -> list[str]:
    if not issubclass(strategy, Strategy) or hasattr(strategy, "settings_type"):
        return ["has no keys; [experiment] and [train] apply to all methods", ""]
    arguments = {key: value for key, value in constructor_arguments(strategy).items() if not callable(value)}
    keys = [f"{key}   # not set" if value is None else f"{key} = {inline(value)}" for key, value in arguments.items()]
    base = next(base for base in strategy.__mro__ if base.__module__.startswith("flwr."))
    return [*keys, "", f"Arguments of {base.__module__.rpartition('.')[0]}.{base.__name__}.", ""]


def inner_tables(kind: type[Settings]) -> dict[str, type[Settings]]:
    """Return the keys of a table that are tables themselves."""
    tables = {}
    for key, field in zip(kind.keys(), kind.model_fields.values(), strict=True):
        for part in (field.annotation, *get_args(field.annotation)):
            if isinstance(part, type) and issubclass(part, Settings):
                tables[key] = part
    return tables


def describe(kind: type[Settings], name: str = "") -> list[str]:
    """Return one line per key (name, type, default), then the docstrings of the class, with keys as in TOML.

    ``name`` is the name of the table, for references to its inner tables.
    """
    rows = [(f"{key} = {default}" if default else key, words) for key, default, words in fields(kind, name)]
    width = min(max((len(assigned) for assigned, _ in rows), default=0), _WIDEST)
    lines = [f"{assigned.ljust(width)}   # {words}" for assigned, words in rows]
    docstrings = [base.__doc__ for base in kind.__mro__ if issubclass(base, Settings) and base is not Settings]
    for text in docstrings:
        sentences = re.sub(r"Attributes\n-+\n", "", inspect.cleandoc(text or ""))
        lines += ["", *_as_toml(sentences, kind).splitlines()]
    return [*lines, ""]


def fields(kind: type[Settings], name: str = "") -> list[tuple[str, str, str]]:
    """Return each key, its default as TOML (empty without one), and its type in words."""
    rows, inner = [], inner_tables(kind)
    for key, field in zip(kind.keys(), kind.model_fields.values(), strict=True):
        if key in inner:
            rows.append((key, "", f"a table, see {name}.{key}"))
            continue
        typed = _type(field.annotation) + _limits(field.metadata)
        needed = field.default is PydanticUndefined and field.default_factory is None
        default = None if needed else field.get_default(call_default_factory=True)
        if default is None:
            rows.append((key, "", f"{typed}; {'needed' if needed else 'not set'}"))
        else:
            rows.append((key, inline(default.as_table() if isinstance(default, Settings) else default), typed))
    return rows


def _as_toml(text: str, kind: type[Settings]) -> str:
    """Return a docstring with keys and values spelt as in TOML."""
    text = re.sub(r":[a-z]+:(?=`)", "", text)  # roles of Sphinx
    names = re.compile(rf"\b({'|'.join(kind.model_fields)})\b")
    values = {"None": "unset", "True": "true", "False": "false"}
    return re.sub(
        r"\b(None|True|False)\b", lambda word: values[word[0]], names.sub(lambda key: key[0].replace("_", "-"), text)
    )


def meanings(kind: type[Settings]) -> dict[str, str]:
    """Return the meaning of each key in one line, from entries ``key : meaning`` of the docstrings."""
    texts: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if issubclass(base, Settings) and base is not Settings]):
        names: list[str] = []
        for line in inspect.cleandoc(base.__doc__ or "").splitlines():
            entry = re.match(r"([a-z_]+(?:, [a-z_]+)*) *: +(.*)", line)
            if entry is not None:
                names = [name for name in entry[1].split(", ") if name in kind.model_fields]
                texts |= dict.fromkeys(names, entry[2])
            elif line.startswith(" "):
                texts |= {name: f"{texts[name]} {line.strip()}" for name in names}
            else:
                names = []
    return {name.replace("_", "-"): _as_toml(text, kind) for name, text in texts.items()}


def _alternatives(annotation: Any) -> list[str]:
    """Return the alternatives of a type in words of TOML, without validators and None."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _alternatives(arguments[0])
    if origin in (Union, UnionType):
        return list(dict.fromkeys(word for each in arguments for word in _alternatives(each)))
    if origin is Literal:
        return [inline(each) for each in arguments]
    if origin is tuple and arguments[-1:] != (Ellipsis,):
        return [f"[{', '.join(map(_type, arguments))}]"]
    if origin in (tuple, list, set, frozenset, Sequence):
        return [f"list of {_type(arguments[0])}"]
    if origin in (dict, Mapping):
        return [f"table of {_type(arguments[1])}"]
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        return ["table"]
    known: dict[Any, list[str]] = {
        type(None): [], bool: ["true", "false"], int: ["integer"], float: ["number"], Any: ["any value"],
    }  # fmt: skip
    return known.get(annotation, ["text"])


def _type(annotation: Any) -> str:
    *most, last = _alternatives(annotation)
    return f"{', '.join(most)} or {last}" if most else last


def _limits(metadata: Sequence[Any]) -> str:
    """Return the limits of a number in words, such as ``, at least 0 and below 0.5``."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [(word, getattr(each, name, None)) for name, word in words.items() for each in metadata]
    found = [f"{word} {limit:,}" for word, limit in limits if limit is not None]
    return f", {' and '.join(found)}" if found else ""


def inline(value: Any) -> str:
    """Return a value as TOML on one line."""
    if isinstance(value, Mapping):
        items = ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items())
        return f"{{ {items} }}" if items else "{}"
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{', '.join(map(inline, value))}]"
    return json.dumps(value, default=str)
