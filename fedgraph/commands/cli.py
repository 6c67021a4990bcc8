"""The command ``fedgraph``: its commands under headings, and the commands ``methods`` and ``keys``."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperGroup

from fedgraph import __version__
from fedgraph.commands.check import check
from fedgraph.commands.data import data
from fedgraph.commands.deployment.credentials import credentials_for_testing
from fedgraph.commands.deployment.foreground import supervise
from fedgraph.commands.deployment.node_command import node
from fedgraph.commands.deployment.server_command import server
from fedgraph.commands.new import new
from fedgraph.commands.peers import peers
from fedgraph.commands.predict import export, predict
from fedgraph.commands.reproduce import reproduce
from fedgraph.commands.run import run
from fedgraph.commands.runs import compare, report, runs
from fedgraph.commands.simulate import simulate
from fedgraph.commands.sweep import sweep
from fedgraph.commands.tour import tour
from fedgraph.commands.worth import worth
from fedgraph.support.errors import ExperimentError, closest_first, if_any
from fedgraph.support.listing_cache import cached_listing
from fedgraph.support.plugins import other_checkouts
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    import click

_OURS = ("sfl", "f3", "ipa", "fedngm")

_SHORT_HELP: dict[str, Any] = {"help_option_names": ["--help", "-h"]}

_INSTEAD = {
    "resume": "run --resume RUN",
    "train": "run",
    "list": "runs",
    "init": "new",
    "plot": "report",
    "experiments": "run --help",
    "help": "--help",
}
"""Replacements of commands that users may expect."""

_HELP = """Federated learning on Flower, for clients that are related to each other.

To begin: `fedgraph tour` shows every method in two minutes, `fedgraph run` trains on handwritten digits in some
seconds, `fedgraph runs` lists runs and their results.
"""


class _Command(TyperCommand):
    """A command whose help also explains its arguments, and removes backslashes meant for rich."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The initialiser of click 8.5 drops the help of Typer's arguments.
        hints = get_type_hints(inspect.unwrap(self.callback), include_extras=True) if self.callback else {}
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and not parameter.help:
                parameter.help = hints[parameter.name].__metadata__[0].help

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: Typer lists arguments among the options, and click 8.5 would repeat them."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the text of ``--help``."""
        return super().get_help(ctx).replace("\\[", "[")


class _Grouped(TyperGroup):
    """A group whose help lists the commands under the headings of ``_COMMANDS``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a name; the error for an unknown one suggests another."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            instead = _INSTEAD.get(args[0])
            close = get_close_matches(args[0], self.commands, n=1)
            hint = f": use `fedgraph {instead}`" if instead else f"; did you mean '{close[0]}'?" if close else ""
            ctx.fail(f"unknown command '{args[0]}'{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per heading, with names in columns of equal width."""
        width = max(map(len, self.commands))
        for heading, functions in _COMMANDS.items():
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(limit=200)) for name in functions]
            with formatter.section(heading):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_Grouped,
    context_settings=_SHORT_HELP,
    no_args_is_help=True,
    rich_markup_mode=None,
    help=_HELP,
    pretty_exceptions_show_locals=False,
)


def _tell_versions(wanted: bool) -> None:
    if not wanted:
        return
    versions = [f"{package} {version(package)}" for package in ("flwr", "torch")]
    typer.echo(f"fedgraph {__version__}\n{', '.join(versions)}, python {platform.python_version()}")
    raise typer.Exit


@app.callback()
def _main(
    versions: Annotated[
        bool,
        typer.Option("--version", callback=_tell_versions, is_eager=True, help="Show versions and exit."),
    ] = False,
) -> None:
    for folder in other_checkouts():
        Console(stderr=True).print(
            f"This runs the fedgraph of {Path(__file__).resolve().parents[2]}, not that of {folder}: to run that one, "
            f"set PYTHONPATH={folder} or install it.",
            style="yellow", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def methods(
    name: Annotated[str | None, typer.Argument(help="A method to describe.")] = None,
) -> None:
    """List the built-in methods, or describe one: what it needs, and its paper."""
    console = Console(highlight=False)
    # Methods for graphs first, then the baselines.
    listed = sorted(cached_listing("methods", _described), key=lambda row: row[0].split("-")[0] not in _OURS)
    if name is not None:
        with messages_for_people():
            _tell_method(console, name, {row[0]: row[1:] for row in listed})
        return
    width = max(len(each) for each, *_ in listed)
    cut = console.is_terminal  # whole in a file or a pipe
    for each, title, *_ in listed:
        line = f"{each:<{width}}  {title}"
        console.print(line, markup=False, no_wrap=True, overflow="ellipsis" if cut else "ignore", crop=cut)
    console.print("\nTo describe one: fedgraph methods sfl. Other strategies, such as Flower's, run by dotted path:")
    console.print('[experiment] strategy = "package.module:Class"', markup=False)


def _tell_method(console: Console, name: str, known: dict[str, Any]) -> None:
    if name not in known:
        raise ExperimentError(
            f"'{name}' is not a built-in method; known: {closest_first([name], [*known], len(known))}"
        )
    title, needs, paper = known[name]
    lines = {
        "needs": needs,
        "paper": paper,
        "keys": f"fedgraph keys {name}",
        "begin": f"fedgraph new experiment --method {name}",
    }
    console.print(f"{name}: {title}\n", markup=False)
    for label, text in lines.items():
        if text:
            # Addresses and commands are not broken.
            console.print(f"{label:<7}{text}", markup=False, soft_wrap=True)


def _described() -> list[tuple[str, ...]]:
    from fedgraph.experiment import built_ins

    return [
        (name, *(getattr(method, key) for key in ("title", "needs", "paper"))) for name, method in built_ins().items()
    ]


def keys(
    table: Annotated[
        str | None,
        typer.Argument(help="A table or a key: experiment, metr-la, sfl, train.learning-rate, my_module:Mine."),
    ] = None,
) -> None:
    """Explain the keys of experiment files.

    Also explains the files of `fedgraph reproduce`, and the keys of your own method by its dotted path.
    """
    console = Console(soft_wrap=True, highlight=False)
    with messages_for_people():
        known = [_Explained(*each) for each in cached_listing("keys", _explained)]
        wanted = [each for each in known if table in (None, each.name)] or _headed(table or "", known)
        if not wanted and table is not None:
            wanted = [_Explained(table, *_explained_own(table))] if ":" in table else _of_key(table, known)
        for each in wanted:
            console.print(f"[bold]{escape(each.heading)}[/bold]")
            for line in each.lines:
                console.print(f"    {line}".rstrip(), markup=False)


class _Explained(NamedTuple):
    """The explanation of a table: short name, heading, lines to print, and meanings of its keys."""

    name: str
    heading: str
    lines: list[str]
    meanings: dict[str, str] = {}  # noqa: RUF012


def _headed(table: str, known: list[_Explained]) -> list[_Explained]:
    """Return tables by heading, such as ``data.table-schema``, or by its last part."""
    wanted = table.strip("[]")
    for ends in (lambda heading: heading, lambda heading: heading.rpartition(".")[2]):
        tables = [each for each in known if each.heading[:1] == "[" and ends(each.heading.strip("[]")) == wanted]
        if tables:
            # Several data sets have the same table.
            return [each for at, each in enumerate(tables) if each[1:] not in [other[1:] for other in tables[:at]]]
    return []


def _of_key(path: str, known: list[_Explained]) -> list[_Explained]:
    """Return the explanation of one key, ``table.key``. Raises ExperimentError if it is unknown."""
    name, _, key = path.strip("[]").rpartition(".")
    tables = [each for each in known if each.name == name] or _headed(name, known)
    if not tables:
        names = list(dict.fromkeys(each.name for each in known))
        raise ExperimentError(
            f"unknown table '{path}'; known: {closest_first([path], names, 12)} `fedgraph keys` lists all"
        )
    explained = []
    for each in tables:
        for line in each.lines[: each.lines.index("")]:
            if line.split(" ")[0] == key:
                lines = [line, *wrap(each.meanings.get(key, ""), 100), ""]
                explained.append(_Explained(each.name, each.heading, lines))
    if not explained:
        keys = [line.split(" ")[0] for each in tables for line in each.lines[: each.lines.index("")]]
        known_keys = if_any("; known: ", closest_first([key], keys, len(keys)))
        raise ExperimentError(f"{tables[0].heading} has no key '{key}'{known_keys}")
    return explained


def _explained() -> list[tuple[str, str, list[str], dict[str, str]]]:
    from fedgraph.commands.keys import explanations

    return explanations()


def _explained_own(path: str) -> tuple[str, list[str]]:
    from fedgraph.commands.keys import explanation_of
    from fedgraph.experiment import plugin_folders
    from fedgraph.support.plugins import add_plugin_paths

    add_plugin_paths(plugin_folders(None))
    return explanation_of(path)


_COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "First steps": {
        "tour": tour, "run": run, "runs": runs, "compare": compare, "report": report, "predict": predict,
        "export": export, "peers": peers, "worth": worth, "sweep": sweep, "reproduce": reproduce,
    },
    "Your own methods": {"new": new, "check": check},
    "Your own Flower apps": {"simulate": simulate},
    "Look things up": {"methods": methods, "keys": keys, "data": data},
    "Real machines": {
        "node": node, "server": server, "supervise": supervise, "test-credentials": credentials_for_testing,
    },
}  # fmt: skip
for _functions in _COMMANDS.values():
    for _name, _function in _functions.items():
        # The options of supervise belong to the program that it runs.
        _others = {"ignore_unknown_options": True, "allow_extra_args": True} if _function is supervise else {}
        app.command(_name, cls=_Command, context_settings=_others | _SHORT_HELP)(_function)
