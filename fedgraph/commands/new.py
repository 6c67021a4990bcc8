"""The command ``fedgraph new``: write the files of a new strategy, data set, experiment or project."""

from __future__ import annotations

import keyword
import re
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    from fedgraph.support.settings import Settings

_EXAMPLES = {"strategy": "trimmed-mean", "dataset": "wards", "project": "groups"}
"""Kinds that need a name, with an example."""

_NOT_SENT = """\
# Results and credentials: not for git, nor for the bundle of `flwr run`.
__pycache__/
credentials/
reproductions/
runs/
sweeps/
worth/
"""

_QUICK = {"epochs": 20, "steps": 300, "evaluate-every": 50, "server-steps": 5, "windows": 256}
"""Values for short runs, replacing defaults for more data."""

_CLASSES = {
    "strategy": ("my_strategy", "MyStrategy", "digits"),
    "dataset": ("my_data_set", "MyData", "data_set"),
    "graphs": ("my_graphs", "MyGraphs", "graphs"),
}
"""By kind of class: module and class of its template, and the template of an experiment."""


def new(
    kind: Annotated[str, typer.Argument(help="strategy, dataset, experiment or project.")],
    name: Annotated[str | None, typer.Argument(help="Its name: trimmed-mean.")] = None,
    method: Annotated[str, typer.Option(help="Built-in method of an experiment or project.")] = "sfl",
    graphs: Annotated[bool, typer.Option("--graphs", help="For a dataset whose clients have graphs.")] = False,
) -> None:
    """Write a runnable template: `strategy NAME`, `dataset NAME`, `experiment [NAME]` or `project NAME`.

    A strategy and a data set come with an experiment that runs them. A project, for `flwr run`, runs the experiment
    NAME.toml, which is written if missing. Existing files are not overwritten.
    """
    from fedgraph.support.files import write_atomically

    console = Console()
    with messages_for_people():
        if kind not in (*_EXAMPLES, "experiment"):
            raise ExperimentError(f"unknown kind '{kind}'; known: strategy, dataset, experiment, project")
        if kind in _EXAMPLES and name is None:
            raise ExperimentError(f"a {kind} needs a name: fedgraph new {kind} {_EXAMPLES[kind]}")
        if graphs and kind != "dataset":
            raise ExperimentError("--graphs needs a dataset: fedgraph new dataset NAME --graphs")
        if kind in ("experiment", "project"):
            files = (project_files if kind == "project" else experiment_file)(name or method, method)
        else:
            files = class_files("graphs" if graphs else kind, name or "")
        existing = [path for path in files if Path(path).exists()]
        if existing:
            exist = "exist" if len(existing) > 1 else "exists"
            raise ExperimentError(f"{' and '.join(existing)} already {exist}: choose another name, or delete it first")
        for path, text in files.items():
            write_atomically(Path(path), text.encode())
    module = next(iter(files)).partition(".")[0]
    console.print(f"Written: {', '.join(files)}. To run it:\n", markup=False, highlight=False)
    if kind == "project":
        console.print("    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 flwr run . --stream", markup=False)
        return
    console.print(f"    fedgraph run {list(files)[-1]}{_nodes(method) if kind == 'experiment' else ''}", markup=False)
    if kind != "experiment":
        console.print(f"    fedgraph check {module}:{_class_name(module)}", markup=False)


def class_files(kind: str, name: str) -> dict[str, str]:
    """Return the content of a module with a class, and of an experiment that runs it, by file name.

    Parameters
    ----------
    kind : {"strategy", "dataset", "graphs"}
        A strategy, a data set, or a data set of graphs.
    name : str
        For example ``trimmed-mean``, for a class ``TrimmedMean`` in ``trimmed_mean.py``.

    Raises
    ------
    ExperimentError
        When the name is not valid for a module and class, or is in use.
    """
    from fedgraph.commands.templates import template
    from fedgraph.commands.templates.my_strategy import MyStrategySettings

    written, class_name, experiment = _CLASSES[kind]
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", module) or keyword.iskeyword(module):
        what, example = ("strategy", "trimmed-mean") if kind == "strategy" else ("dataset", "ward-stays")
        raise ExperimentError(
            f"'{name}' is not a valid name for a {what}: use words of letters and digits, joined by dashes, such as "
            f"{example}"
        )
    text, title = template(written), _class_name(module)
    if re.search(rf"\b{title}\b", text) or (not Path(f"{module}.py").exists() and find_spec(module) is not None):
        raise ExperimentError(f"'{name}' is the name of an existing module or class: choose another")
    path = f"{module}:{title}"
    tables = template(experiment).replace("NAME", module).replace("CLASS", path)
    if kind == "strategy":
        tables = tables.replace("METHOD", f'strategy = "{path}"') + f"\n{method_table(title, MyStrategySettings)}"
    return {f"{module}.py": text.replace(class_name, title).replace(written, module), f"{module}.toml": tables}


def experiment_file(name: str, method: str) -> dict[str, str]:
    """Return the content of an experiment that runs a built-in method within seconds, by file name.

    Raises
    ------
    ExperimentError
        When the method is unknown or continues a finished run, or the name is not valid for a file.
    """
    from fedgraph.commands.templates import GO_ON_WITH, kind_of_data, template
    from fedgraph.experiment import built_in, built_ins

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ExperimentError(
            f"'{name}' is not a valid name for an experiment: use letters, digits, dashes, dots and underscores"
        )
    strategy = built_in(method)
    if strategy is None:
        raise ExperimentError(f"'{method}' is not a built-in method; known: {', '.join(sorted(built_ins()))}")
    kind = kind_of_data(strategy)
    if kind is None:
        first = GO_ON_WITH[method]
        secret = " --secret" if "secret" in method else ""
        raise ExperimentError(
            f"'{method}' continues a finished run and has no experiment: run fedgraph new experiment --method {first}, "
            f"run that experiment, then fedgraph predict RUN_FOLDER{secret}"
        )
    name = name.removesuffix(".toml")
    text = template(kind).replace("NAME.toml", f"{name}.toml{_nodes(method)}").replace("NAME", name)
    head = f'method = "{method}"'
    text = text.replace("METHOD", f"{head:<33} # `fedgraph methods` lists them")
    settings = getattr(strategy, "settings_type", None)
    table = "" if settings is None else method_table(method, settings)
    return {f"{name}.toml": "\n".join(part for part in (text, table) if part)}


def project_files(name: str, method: str) -> dict[str, str]:
    """Return the content of a project for ``flwr run``, by file name, with its experiment unless that exists.

    Raises
    ------
    ExperimentError
        When Flower does not accept the name, or as :func:`experiment_file`.
    """
    from fedgraph.commands.templates import template

    name = name.removesuffix(".toml")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", name):
        raise ExperimentError(
            f"'{name}' is not a valid name for a project: use a letter, then letters, digits and dashes, at most 32"
        )
    file = f"{name}.toml"
    project = template("project").replace("NAME", name)
    experiment = {} if Path(file).exists() else experiment_file(name, method)
    return {"pyproject.toml": project, ".gitignore": _NOT_SENT, **experiment}


def method_table(name: str, kind: type[Settings]) -> str:
    """Return the table of a method as TOML, with the meaning of each key as a comment; empty without keys."""
    from fedgraph.commands.keys import inline, inner_tables, meanings

    if not kind.model_fields:
        return ""
    texts, inner, values = meanings(kind), inner_tables(kind), kind().as_table()
    of_preset = [key.replace("_", "-") for key in getattr(kind, "filled_in", ())]
    lines = [f"[{name}]"]
    for key in kind.keys():  # noqa: SIM118
        meaning = f"{key}: {texts[key]}".replace("``", "") if key in texts else ""
        default = ""
        if key in _QUICK and key in values:
            default = f"   # {inline(values[key])} by default"
            values[key] = _QUICK[key]
        lines += textwrap.wrap(meaning, 112, initial_indent="# ", subsequent_indent="#     ", break_on_hyphens=False)
        if key in inner:
            lines.append(f"# A table, [{name}.{key}]: `fedgraph keys {name}.{key}`")
        else:
            line = f"{key} = {inline(values[key])}{default}" if key in values else f"# {key} is not set"
            lines.append(f"# {line}" if key in of_preset else line)
    return "\n".join(lines) + "\n"


def _class_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))


def _nodes(method: str) -> str:
    """Return ``--nodes 1`` for a method that needs all clients on one node, else an empty string."""
    from fedgraph.experiment import built_in

    return " --nodes 1" if "number-of-nodes" in getattr(built_in(method), "expected_failures", {}) else ""
