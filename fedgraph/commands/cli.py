"""The command ``fedgraph``: its commands under their headings, and the short ones among them."""

from __future__ import annotations

import inspect
import platform
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
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
from fedgraph.support.errors import ExperimentError, similar
from fedgraph.support.listing_cache import cached_listing
from fedgraph.support.plugins import other_checkouts
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    import click

_OURS = ("sfl", "f3", "ipa", "fedngm")

_INSTEAD = {
    "resume": "run --resume RUN",
    "train": "run",
    "list": "runs",
    "init": "new",
    "plot": "report",
    "experiments": "run --help",
}
"""What does the work of commands that people may expect."""

_HELP = """Federated learning for clients that are related to each other, on Flower.

To begin: `fedgraph tour` shows every method at work in two minutes, `fedgraph run` trains on handwritten digits for
some seconds, `fedgraph runs` lists what came out.
"""


class _Command(TyperCommand):
    """A command whose help explains its arguments too, and has no backslashes that are meant for rich."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        # Typer's arguments lose their help to the initialiser of click 8.5.
        explained = get_type_hints(inspect.unwrap(self.callback), include_extras=True) if self.callback else {}
        for parameter in self.params:
            if isinstance(parameter, TyperArgument) and not parameter.help:
                parameter.help = explained[parameter.name].__metadata__[0].help

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write nothing: Typer lists the arguments among the options, click 8.5 would do so once more."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the text of ``--help``."""
        return super().get_help(ctx).replace("\\[", "[")


class _Grouped(TyperGroup):
    """A group whose help lists the commands under headings, those of ``_COMMANDS``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of a name; where there is none, say which one does that."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            instead = _INSTEAD.get(args[0])
            told = f": `fedgraph {instead}` does that" if instead else similar(args[:1], list(self.commands))
            ctx.fail(f"there is no command '{args[0]}'{told}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per heading, with names in a column that is as wide in all of them."""
        width = max(map(len, self.commands))
        for heading, functions in _COMMANDS.items():
            told = [(name.ljust(width), self.commands[name].get_short_help_str(limit=200)) for name in functions]
            with formatter.section(heading):
                formatter.write_dl(told)


app = typer.Typer(
    cls=_Grouped, no_args_is_help=True, rich_markup_mode=None, help=_HELP, pretty_exceptions_show_locals=False
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
            f"The code of {Path(__file__).resolve().parents[2]} runs, and not that of {folder}, where fedgraph is too. "
            f"For that one set PYTHONPATH={folder}, or install it.",
            style="yellow", markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip


def methods() -> None:
    """List the built-in methods and what they need."""
    table, papers = Table(), dict[str, list[str]]()
    table.add_column("method", no_wrap=True)
    for column in ("what it is", "needs"):
        table.add_column(column, overflow="fold")
    # Methods for graphs first, then the baselines.
    methods = sorted(cached_listing("methods", _described), key=lambda row: row[0].split("-")[0] not in _OURS)
    for name, title, needs, paper in methods:
        table.add_row(name, escape(title), escape(needs))
        papers.setdefault(paper, []).append(name)
    console = Console()
    console.print(table)
    # Outside the table, where no address is broken.
    for paper, names in papers.items():
        if paper:
            console.print(f"{', '.join(names)}: {paper}", soft_wrap=True, highlight=False)
    console.print(
        "Any strategy of flwr.serverapp.strategy, and your own, by dotted path: "
        '[experiment] strategy = "package.module:Class"',
        markup=False,
    )


def _described() -> list[tuple[str, ...]]:
    from fedgraph.experiment import built_ins

    return [
        (name, *(getattr(found, key) for key in ("title", "needs", "paper"))) for name, found in built_ins().items()
    ]


def keys(
    table: Annotated[
        str | None, typer.Argument(help="experiment, data, metr-la, sfl, fedavg, my_module:Mine, ...")
    ] = None,
) -> None:
    """List the keys of experiment files and what they mean.

    Those of the files of `fedgraph reproduce` are listed too, and those of a method of your own by its dotted path.
    """
    console = Console(soft_wrap=True, highlight=False)
    with messages_for_people():
        known = cached_listing("keys", _explained)
        wanted = [(heading, lines) for name, heading, lines in known if table in (None, name)] or _headed(table, known)
        if not wanted and table is not None and ":" in table:
            wanted = [_explained_own(table)]
        if not wanted:
            names = ", ".join(dict.fromkeys(name for name, *_ in known))
            raise ExperimentError(f"there is no table '{table}'; known: {names}")
        for heading, lines in wanted:
            console.print(f"[bold]{escape(heading)}[/bold]")
            for line in lines:
                console.print(f"    {line}", markup=False)


def _headed(table: str | None, known: list[tuple[str, str, list[str]]]) -> list[tuple[str, list[str]]]:
    """Return tables that have another short name, by their heading, such as ``data.table-schema``, or its last part."""
    wanted = (table or "").strip("[]")
    for ends in (lambda heading: heading, lambda heading: heading.rpartition(".")[2]):
        found = [(head, lines) for _, head, lines in known if head[:1] == "[" and ends(head.strip("[]")) == wanted]
        if found:
            # Several data sets have the same table.
            return [each for place, each in enumerate(found) if each not in found[:place]]
    return []


def _explained() -> list[tuple[str, str, list[str]]]:
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
        # Those of a program of Flower are its own.
        _others = {"ignore_unknown_options": True, "allow_extra_args": True} if _function is supervise else None
        app.command(_name, cls=_Command, context_settings=_others)(_function)
