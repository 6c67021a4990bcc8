"""The command ``fedgraph node``: check a site's data for an experiment, show what will leave, start the SuperNode."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedgraph.commands.deployment.connection import check_port_free, check_superlink
from fedgraph.commands.deployment.foreground import run_to_the_end, show
from fedgraph.commands.deployment.screen import Screen
from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    from fedgraph.experiment import Experiment

_PAUSE = 15.0


def node(
    experiment: Annotated[str, typer.Argument(help="The experiment that this node is to take part in.")],
    client: Annotated[list[str] | None, typer.Option(help="A client that this node hosts; once for each.")] = None,
    superlink: Annotated[str, typer.Option(help="The server, host:port.")] = "127.0.0.1:8000",
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of the authority that the server's must be of.")
    ] = None,
    private_key: Annotated[Path | None, typer.Option(help="This node's key, of `ssh-keygen -t ecdsa`.")] = None,
    insecure: Annotated[bool, typer.Option(help="Without encryption, on a network that only you use.")] = False,
    data: Annotated[Path | None, typer.Option(help="This node's own file or folder, instead of [data] path.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Data folder, instead of FEDGRAPH_DATA.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="Folder for what clients must remember.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model that the clients have already (f3, vfl).")] = None,
    consent: Annotated[
        list[str] | None, typer.Option(help="fedngm: what the server may learn of values: ranges, sums.")
    ] = None,
    config: Annotated[list[str] | None, typer.Option(help="Another key of the node config: key=value.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override a key of the experiment.")] = None,
    port: Annotated[int, typer.Option(help="Port of the SuperNode on this machine.")] = 9094,
    retry: Annotated[float, typer.Option(help="Seconds to try again when the server does not let the node in.")] = 90,
    log: Annotated[
        Path | None, typer.Option(help="File for all that Flower says, instead of one in the state folder.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all that Flower says, too.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check, do not start.")] = False,
) -> None:
    """Check this site's data for an experiment, then start a node.

    Shows how the data are read and what will leave the machine; the node is Flower's SuperNode. Then it shows what the
    node does, with warnings and errors; all else that Flower says is in a log file.
    """
    from fedgraph.experiment import load_experiment, plugin_folders
    from fedgraph.federation.grids import flower_environment
    from fedgraph.support.plugins import add_plugin_paths

    console = Console()
    with messages_for_people():
        places = {
            "data": data,
            "data-dir": data_dir,
            "state-dir": state_dir,
            "model": model,
            "private-key": private_key,
        }
        node_config = _node_config(client or [], places, consent or [], config or [])
        add_plugin_paths(plugin_folders(experiment))
        hosted = _rehearse(load_experiment(experiment, set_ or []), node_config, console)
        if check and root_certificates is None and not insecure:
            console.print(
                "Checked, not started. To start it, give --root-certificates, the certificate of the server's "
                "authority; or --insecure on a network that only you use.", soft_wrap=True,
            )  # fmt: skip
            return
        command = supernode_command(superlink, port, node_config, root_certificates, private_key, insecure)
        show(command, console)
        if check:
            console.print("Checked, not started.")
            return
        check_port_free("127.0.0.1", port, "the node")
        route = check_superlink(superlink, None if insecure else root_certificates)
        if route.proxy:
            console.print(
                f"The server is reached through the proxy {route.proxy}, by Flower too.", markup=False, soft_wrap=True
            )
        named = ", ".join(hosted) or "an aggregator"
        screen = node_screen(console, log or _default_log(node_config, port), verbose, superlink, named)
        console.print(f"All that Flower says is in {screen.log}.", markup=False, soft_wrap=True, highlight=False)
    deadline = time.monotonic() + retry
    while (status := run_to_the_end(command, flower_environment(), screen=screen)) > 0:
        console.print(
            f"flower-supernode ended with status {status}. If it could not be activated, the server does not know this "
            "node's key: have its operator register the public key that belongs to --private-key. Or it takes a node "
            "that was killed for alive yet, for about a minute.",
            style="red",
            markup=False,
        )
        if time.monotonic() + _PAUSE > deadline:
            break
        console.print(f"Trying again in {_PAUSE:.0f} s.")
        time.sleep(_PAUSE)
    raise typer.Exit(status)


def node_screen(console: Console, log: Path, verbose: bool, superlink: str, named: str) -> Screen:
    """Return what shows a node: when it is connected to the server at ``superlink``, and what its clients do."""
    state = ""

    def connected(*found: object) -> str | None:
        nonlocal state
        before, state = state, "connected"
        if before == "connected":
            return None
        return "connected again" if before else f"connected to {superlink} as {named}, waiting for a run"

    def lost(*found: object) -> str | None:
        nonlocal state
        if state == "lost" or screen.ending:
            return None
        before, state = state, "lost"
        return f"{'lost' if before else 'cannot reach'} the server, trying again"

    def told() -> None:
        # Whatever Flower calls it, a node that answers a run is connected.
        line = connected()
        if line is not None:
            screen.print(line)

    reactions = {
        r"\bSuperNode ID\b": connected,
        r"\bConnection successful\b": connected,
        r"\bConnection attempt failed\b": lost,
    }
    screen = Screen(console, log, verbose, reactions, told)
    return screen


def _default_log(node_config: Mapping[str, Any], port: int) -> Path:
    """Return a file in the state folder of a node, which nodes on one machine may share: their ports differ."""
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
        When neither certificates nor ``insecure`` are given, or both, or a value cannot be written.
    """
    if insecure == (root_certificates is not None):
        raise ExperimentError(
            "give --root-certificates, the certificate of the server's authority; or --insecure on a network that only "
            "you use; and not both"
        )
    encrypted = ["--insecure"] if root_certificates is None else ["--root-certificates", str(root_certificates)]
    known = [] if private_key is None else ["--auth-supernode-private-key", str(private_key)]
    told = " ".join(f"{key}={_quoted(value)}" for key, value in node_config.items())
    address = ["--superlink", superlink, "--port", str(port)]
    return ["flower-supernode", *encrypted, *address, *known, "--node-config", told]


def _node_config(
    clients: Sequence[str], places: Mapping[str, Path | None], consent: Sequence[str], others: Sequence[str]
) -> dict[str, str | float]:
    """Return the node config; paths are absolute, as Flower starts its processes in another folder."""
    found: dict[str, str | float] = {}
    if clients:
        found["clients"] = ",".join(f'"{name}"' if "," in name else name for name in clients)
    for key, place in places.items():
        if place is not None:
            found[key] = str(place.expanduser().absolute())
            if key in ("data", "data-dir", "model", "private-key") and "{" not in place.name and not place.exists():
                raise ExperimentError(f"--{key}: there is no {place}")
    if consent:
        found["consent"] = ",".join(consent)
    return found | {key: _number_or_text(value) for key, value in pairs("--config", others).items()}


def pairs(option: str, entries: Sequence[str]) -> dict[str, str]:
    """Return the values of an option that is given once for each key, as ``key=value``; raise ExperimentError else."""
    found = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key.strip():
            raise ExperimentError(f"{option} '{entry}' is not of the form key=value")
        found[key.strip()] = value.strip()
    return found


def _rehearse(experiment: Experiment, node_config: Mapping[str, Any], console: Console) -> tuple[str, ...]:
    """Show what a rehearsal finds, and return the names of the clients that the node hosts."""
    from fedgraph.clients.engine.rehearsal import rehearse
    from fedgraph.strategies.engine.chosen import ChosenMethod

    chosen = ChosenMethod(experiment)
    found = rehearse(experiment, chosen.client, chosen.settings.as_table(nulls=True), node_config)
    head = experiment.experiment
    console.print(
        f"Experiment '{head.name}', method {experiment.method.name}: {experiment.method.title}", soft_wrap=True
    )
    console.print(f"This node hosts {', '.join(found.clients) or 'nobody, and aggregates'}.\n", soft_wrap=True)
    if found.unexpected:
        console.print(f"{found.unexpected}\n", style="yellow", markup=False, soft_wrap=True, highlight=False)
    for title, lines in (
        ("The data, read as the run will read it", found.data),
        ("What leaves this machine", found.disclosure.leaves),
        ("What stays", found.disclosure.stays),
    ):
        console.print(title, style="bold")
        for line in lines:
            console.print(f"  {line}", markup=False, soft_wrap=True, highlight=False)
        console.print()
    return found.clients


def _quoted(value: str | float) -> str:
    if not isinstance(value, str):
        return str(value)
    if "'" in value or "\n" in value:
        raise ExperimentError(f"Flower cannot take {value!r} in a node config: it holds a quote or a line break")
    # A literal string of TOML, which keeps double quotes in the value.
    return f"'{value}'" if '"' in value or "\\" in value else f'"{value}"'


def _number_or_text(value: str) -> str | float:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
