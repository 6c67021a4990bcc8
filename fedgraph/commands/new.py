"""The command ``fedgraph new``: write a strategy, a data set, an experiment or a project, to begin with."""

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
"""What needs a name, and one that it could have."""

_NOT_SENT = """\
# What git and the bundle of `flwr run` leave out: results, and credentials.
__pycache__/
credentials/
reproductions/
runs/
sweeps/
worth/
"""

_QUICK = {"epochs": 20, "steps": 300, "evaluate-every": 50, "server-steps": 5, "windows": 256}
"""Values in place of defaults that are meant for more data."""

_CLASSES = {
    "strategy": ("my_strategy", "MyStrategy", "digits"),
    "dataset": ("my_data_set", "MyData", "data_set"),
    "graphs": ("my_graphs", "MyGraphs", "graphs"),
}
"""By kind of class: the templates of a module, of the class in it, and of an experiment."""


def new(
    kind: Annotated[str, typer.Argument(help="strategy, dataset, experiment or project.")],
    name: Annotated[str | None, typer.Argument(help="Its name: trimmed-mean.")] = None,
    method: Annotated[str, typer.Option(help="Of an experiment or project: its built-in method.")] = "sfl",
    graphs: Annotated[bool, typer.Option("--graphs", help="Of a dataset: clients have graphs.")] = False,
) -> None:
    """Write commented files that run as they are: `strategy NAME`, `dataset NAME`, `experiment [NAME]`, `project NAME`.

    A strategy and a data set come with an experiment that runs them. A project is what `flwr run` takes: of the
    experiment NAME.toml, which is written too if it is not there. Files that are there are not overwritten.
    """
    from fedgraph.support.files import write_atomically

    console = Console()
    with messages_for_people():
        if kind not in (*_EXAMPLES, "experiment"):
            raise ExperimentError(
                f"there is no '{kind}' to begin with: fedgraph new strategy, dataset, experiment or project"
            )
        if kind in _EXAMPLES and name is None:
            raise ExperimentError(f"a {kind} needs a name: fedgraph new {kind} {_EXAMPLES[kind]}")
        if graphs and kind != "dataset":
            raise ExperimentError("--graphs is about a dataset: fedgraph new dataset NAME --graphs")
        if kind in ("experiment", "project"):
            files = (project_files if kind == "project" else experiment_file)(name or method, method)
        else:
            files = class_files("graphs" if graphs else kind, name or "")
        there = [path for path in files if Path(path).exists()]
        if there:
            exist = "exist" if len(there) > 1 else "exists"
            raise ExperimentError(f"{' and '.join(there)} {exist} already: take another name, or remove it first")
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
    """Return the texts of a class and of an experiment that runs it, by file name.

    Parameters
    ----------
    kind : {"strategy", "dataset", "graphs"}
        A strategy, a data set, or a data set of graphs.
    name : str
        Such as ``trimmed-mean``, for a class ``TrimmedMean`` in ``trimmed_mean.py``.

    Raises
    ------
    ExperimentError
        When it makes no name of a module or class, or that of one that exists.
    """
    from fedgraph.commands.templates import template
    from fedgraph.commands.templates.my_strategy import MyStrategySettings

    written, class_name, experiment = _CLASSES[kind]
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).replace("-", "_").lower()
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", module) or keyword.iskeyword(module):
        what, example = ("strategy", "trimmed-mean") if kind == "strategy" else ("dataset", "ward-stays")
        raise ExperimentError(
            f"'{name}' is no name for a {what}: letters and digits, in words that are joined by dashes, such as "
            f"{example}"
        )
    text, title = template(written), _class_name(module)
    if re.search(rf"\b{title}\b", text) or (not Path(f"{module}.py").exists() and find_spec(module) is not None):
        raise ExperimentError(f"'{name}' is the name of a module or class that exists already: take another one")
    path = f"{module}:{title}"
    tables = template(experiment).replace("NAME", module).replace("CLASS", path)
    if kind == "strategy":
        tables = tables.replace("METHOD", f'strategy = "{path}"') + f"\n{method_table(title, MyStrategySettings)}"
    return {f"{module}.py": text.replace(class_name, title).replace(written, module), f"{module}.toml": tables}


def experiment_file(name: str, method: str) -> dict[str, str]:
    """Return the text of an experiment that runs a built-in method within seconds, by file name.

    Raises
    ------
    ExperimentError
        When there is no such method, it goes on with a finished run, or the name is not one of a file.
    """
    from fedgraph.commands.templates import GO_ON_WITH, kind_of_data, template
    from fedgraph.experiment import built_in, built_ins

    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ExperimentError(f"'{name}' is no name for an experiment: letters, digits, dashes, dots and underscores")
    strategy = built_in(method)
    if strategy is None:
        raise ExperimentError(f"'{method}' is not a built-in method; known: {', '.join(sorted(built_ins()))}")
    kind = kind_of_data(strategy)
    if kind is None:
        first = GO_ON_WITH[method]
        secret = " --secret" if "secret" in method else ""
        raise ExperimentError(
            f"'{method}' goes on with a finished run, and has no experiment of its own: fedgraph new experiment "
            f"--method {first}, run it, and then fedgraph predict RUN_FOLDER{secret}"
        )
    name = name.removesuffix(".toml")
    text = template(kind).replace("NAME.toml", f"{name}.toml{_nodes(method)}").replace("NAME", name)
    head = f'method = "{method}"'
    text = text.replace("METHOD", f"{head:<33} # `fedgraph methods` lists them")
    settings = getattr(strategy, "settings_type", None)
    table = "" if settings is None else method_table(method, settings)
    return {f"{name}.toml": "\n".join(part for part in (text, table) if part)}


def project_files(name: str, method: str) -> dict[str, str]:
    """Return the texts of a project for ``flwr run``, by file name; with its experiment, unless that is there.

    Raises
    ------
    ExperimentError
        When Flower would not take the name, or as :func:`experiment_file` does.
    """
    from fedgraph.commands.templates import template

    name = name.removesuffix(".toml")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,31}", name):
        raise ExperimentError(
            f"'{name}' is no name for a project: a letter, then letters, digits and dashes, 32 at most"
        )
    file = f"{name}.toml"
    project = template("project").replace("NAME", name)
    experiment = {} if Path(file).exists() else experiment_file(name, method)
    return {"pyproject.toml": project, ".gitignore": _NOT_SENT, **experiment}


def method_table(name: str, kind: type[Settings]) -> str:
    """Return a method's own table as TOML, a comment with what it means above each key; empty without keys."""
    from fedgraph.commands.keys import inline, inner_tables, meanings

    if not kind.model_fields:
        return ""
    told, inner, values = meanings(kind), inner_tables(kind), kind().as_table()
    of_preset = [key.replace("_", "-") for key in getattr(kind, "filled_in", ())]
    lines = [f"[{name}]"]
    for key in kind.keys():  # noqa: SIM118
        meaning = f"{key}: {told[key]}".replace("``", "") if key in told else ""
        default = ""
        if key in _QUICK and key in values:
            default = f"   # {inline(values[key])} by default"
            values[key] = _QUICK[key]
        lines += textwrap.wrap(meaning, 112, initial_indent="# ", subsequent_indent="#     ", break_on_hyphens=False)
        if key in inner:
            lines.append(f"# A table of its own, [{name}.{key}]: `fedgraph keys {name}.{key}`")
        else:
            said = f"{key} = {inline(values[key])}{default}" if key in values else f"# {key} is not set"
            lines.append(f"# {said}" if key in of_preset else said)
    return "\n".join(lines) + "\n"


def _class_name(module: str) -> str:
    return "".join(word.capitalize() for word in module.split("_"))


def _nodes(method: str) -> str:
    """Return the option with which a method runs that needs all clients on one node."""
    from fedgraph.experiment import built_in

    return " --nodes 1" if "number-of-nodes" in getattr(built_in(method), "expected_failures", {}) else ""
