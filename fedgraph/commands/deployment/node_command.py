"""The command ``fedgraph node``: check a site's data, show what leaves the machine, start the SuperNode."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedgraph.commands.deployment.connection import (
    MOST_PORT,
    check_file,
    check_port_free,
    check_superlink,
    check_writable,
    host_and_port,
    trusting,
)
from fedgraph.commands.deployment.foreground import run_to_the_end, show
from fedgraph.commands.deployment.screen import Screen
from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    from fedgraph.experiment import Experiment

_PAUSE = 15.0


def node(
    experiment: Annotated[str, typer.Argument(help="The experiment to take part in.")],
    client: Annotated[list[str] | None, typer.Option(help="A client of this node; repeat for each.")] = None,
    superlink: Annotated[str, typer.Option(help="The server, host:port.")] = "127.0.0.1:8000",
    root_certificates: Annotated[Path | None, typer.Option(help="Certificate of the authority of the server.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="This node's key, from `ssh-keygen -t ecdsa`.")] = None,
    trusted_entities: Annotated[
        Path | None, typer.Option(help="Public keys of those whose code may run here: runs bring it along, signed.")
    ] = None,
    insecure: Annotated[bool, typer.Option(help="No encryption, for a network that only you use.")] = False,
    data: Annotated[Path | None, typer.Option(help="This node's own file or folder, instead of [data] path.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder for the state of clients.")] = None,
    model: Annotated[Path | None, typer.Option(help="An existing model of the clients (f3, vfl).")] = None,
    config: Annotated[list[str] | None, typer.Option(help="Another key of the node config: key=value.")] = None,
    port: Annotated[int, typer.Option(min=1, max=MOST_PORT, help="Port of the SuperNode on this machine.")] = 9094,
    retry: Annotated[float, typer.Option(help="Seconds to retry when the server refuses the node.")] = 90,
    log: Annotated[
        Path | None, typer.Option(help="File for Flower's output, instead of one in the state folder.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show Flower's output.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check, do not start.")] = False,
    agreed: Annotated[bool, typer.Option("--agree", help="Accept what differs from the former agreement.")] = False,
) -> None:
    """Check this site's data for an experiment, then start a node that answers this experiment alone.

    Shows how the data are read, what leaves the machine and what is agreed to, then starts Flower's SuperNode, and
    shows its progress, warnings and errors. The rest of Flower's output goes to a log file. Messages are answered by
    the fedgraph that is installed here, not by the code of the app that a run brings along.
    """
    from fedgraph.commands.deployment.agreeing import agree, show_changes
    from fedgraph.experiment import find_experiment, load_experiment, plugin_folders
    from fedgraph.federation import read_private_key
    from fedgraph.federation.grids import flower_environment
    from fedgraph.support.plugins import add_plugin_paths
    from fedgraph.training import state_folder

    console = Console()
    with messages_for_people():
        places = {
            "data": data,
            "data-dir": data_dir,
            "state-dir": state_dir,
            "model": model,
            "private-key": private_key,
        }
        node_config = _node_config(client or [], places, config or [])
        if private_key is not None and private_key.exists():
            read_private_key(private_key)
        check_writable(state_folder(node_config), "--state-dir")
        if log is not None:
            check_file(log, "--log", new_folder=True)
        host_and_port(superlink)
        trusting(root_certificates)
        add_plugin_paths(plugin_folders(experiment))
        # The node answers what is in the site's own file.
        node_config["agreement"] = str(find_experiment(experiment))
        agreement, state = load_experiment(experiment), state_folder(node_config)
        hosted = _rehearse(agreement, node_config, console)
        if not check or agreed:
            agree(agreement, hosted, state, agreed, console)
        else:
            show_changes(agreement, hosted, state, console)
        if check and root_certificates is None and not insecure:
            console.print(
                "Checked, not started. To start it, give --root-certificates, the certificate of the server's "
                "authority; or --insecure on a network that only you use.", soft_wrap=True,
            )  # fmt: skip
            return
        command = supernode_command(superlink, port, node_config, root_certificates, private_key, insecure)
        if trusted_entities is not None:
            if not trusted_entities.is_file():
                raise ExperimentError(f"--trusted-entities: there is no file {trusted_entities}")
            command += ["--trusted-entities", str(trusted_entities)]
        show(["fedgraph", "supervise", *command], console)
        if check:
            console.print("Checked, not started.")
            return
        check_port_free("127.0.0.1", port, "the node")
        route = check_superlink(superlink, None if insecure else root_certificates)
        if route.proxy:
            console.print(f"The server is reached through the proxy {route.proxy}.", markup=False, soft_wrap=True)
        named = ", ".join(hosted) or "an aggregator"
        screen = node_screen(console, log or _default_log(node_config, port), verbose, superlink, named)
        console.print(f"Flower's output is in {screen.log}.", markup=False, soft_wrap=True, highlight=False)
    deadline = time.monotonic() + retry
    while (status := run_to_the_end(command, flower_environment(), screen=screen)) > 0:
        console.print(
            f"flower-supernode ended with status {status}. If it could not be activated, the server does not know this "
            "node's key: ask its operator to register the public key of --private-key. After a node was killed, the "
            "server may also regard it as connected for about a minute.",
            style="red",
            markup=False,
        )
        if time.monotonic() + _PAUSE > deadline:
            break
        console.print(f"Trying again in {_PAUSE:.0f} s.")
        time.sleep(_PAUSE)
    raise typer.Exit(status)


def node_screen(console: Console, log: Path, verbose: bool, superlink: str, named: str) -> Screen:
    """Return the screen of a node, which shows its connection to ``superlink`` and the work of its clients."""
    state = ""

    def connected(*match: object) -> str | None:
        nonlocal state
        before, state = state, "connected"
        if before == "connected":
            return None
        return "connected again" if before else f"connected to {superlink} as {named}, waiting for a run"

    def lost(*match: object) -> str | None:
        nonlocal state
        if state == "lost" or screen.ending:
            return None
        before, state = state, "lost"
        return f"{'lost' if before else 'cannot reach'} the server, trying again"

    def on_line() -> None:
        # A node that takes part in a run is connected, whatever Flower's lines say.
        line = connected()
        if line is not None:
            screen.print(line)

    reactions = {
        r"\bSuperNode ID\b": connected,
        r"\bConnection successful\b": connected,
        r"\bConnection attempt failed\b": lost,
    }
    screen = Screen(console, log, verbose, reactions, on_line)
    return screen


def _default_log(node_config: Mapping[str, Any], port: int) -> Path:
    """Return a log file in the state folder, which nodes on one machine may share, named by port."""
    from fedgraph.training import state_folder

    return state_folder(node_config) / "logs" / f"node-{port}.log"


def supernode_command(
    superlink: str,
    port: int,
    node_config: Mapping[str, str | float],
    root_certificates: Path | None,
    private_key: Path | None,
    insecure: bool,
) -> list[str]:
    """Return the command that starts Flower's SuperNode.

    Raises
    ------
    ExperimentError
        Unless exactly one of certificates and ``insecure`` is given, or when Flower cannot parse a value.
    """
    if insecure == (root_certificates is not None):
        raise ExperimentError(
            "give either --root-certificates, the certificate of the server's authority, or --insecure on a network "
            "that only you use"
        )
    encrypted = ["--insecure"] if root_certificates is None else ["--root-certificates", str(root_certificates)]
    key_option = [] if private_key is None else ["--auth-supernode-private-key", str(private_key)]
    config = " ".join(f"{key}={_quoted(value)}" for key, value in node_config.items())
    address = ["--superlink", superlink, "--port", str(port)]
    return ["flower-supernode", *encrypted, *address, *key_option, "--node-config", config]


def _node_config(
    clients: Sequence[str], places: Mapping[str, Path | None], others: Sequence[str]
) -> dict[str, str | float]:
    """Return the node config, with absolute paths, as Flower starts its processes in another folder."""
    node_config: dict[str, str | float] = {}
    if clients:
        node_config["clients"] = ",".join(f'"{name}"' if "," in name else name for name in clients)
    for key, place in places.items():
        if place is not None:
            node_config[key] = str(place.expanduser().absolute())
            if key in ("data", "data-dir", "model", "private-key") and "{" not in place.name and not place.exists():
                raise ExperimentError(f"--{key}: {place} does not exist")
    given = pairs("--config", others)
    return node_config | {key: text if key == "clients" else _number_or_text(text) for key, text in given.items()}


def pairs(option: str, entries: Sequence[str]) -> dict[str, str]:
    """Parse the entries ``key=value`` of an option. Raises ExperimentError for other entries."""
    values = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise ExperimentError(f"{option} '{entry}' must be key=value")
        values[key.strip()] = value.strip()
    return values


def _rehearse(experiment: Experiment, node_config: Mapping[str, Any], console: Console) -> tuple[str, ...]:
    """Show the result of a rehearsal, and return the names of the node's clients."""
    from fedgraph.clients.engine.rehearsal import rehearse
    from fedgraph.commands.deployment.agreeing import agreement_lines
    from fedgraph.strategies.engine.chosen import ChosenMethod

    chosen = ChosenMethod(experiment)
    rehearsal = rehearse(experiment, chosen.client, chosen.settings.as_table(nulls=True), node_config)
    head = experiment.experiment
    console.print(
        f"Experiment '{head.name}', method {experiment.method.name}: {experiment.method.title}", soft_wrap=True
    )
    hosts = f"hosts {', '.join(rehearsal.clients)}" if rehearsal.clients else "hosts no client, and aggregates"
    console.print(f"This node {hosts}.\n", soft_wrap=True)
    if rehearsal.unexpected:
        console.print(f"{rehearsal.unexpected}\n", style="yellow", markup=False, soft_wrap=True, highlight=False)
    for title, lines in (
        ("The data, read as the run will read it", rehearsal.data),
        ("What leaves this machine", rehearsal.disclosure.leaves),
        ("What stays, apart from that", rehearsal.disclosure.stays),
        ("What this node will answer, and nothing else", agreement_lines(experiment)),
    ):
        console.print(title, style="bold")
        for line in lines:
            console.print(f"  {line}", markup=False, soft_wrap=True, highlight=False)
        console.print()
    return rehearsal.clients


def _quoted(value: str | float) -> str:
    if not isinstance(value, str):
        return str(value)
    if "'" in value or "\n" in value:
        raise ExperimentError(f"a node config of Flower cannot have {value!r}: it contains a quote or a line break")
    # A TOML literal string may contain double quotes.
    return f"'{value}'" if '"' in value or "\\" in value else f'"{value}"'


def _number_or_text(value: str) -> str | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
