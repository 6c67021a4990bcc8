"""The command ``fedgraph server``: check certificates, start the SuperLink, register the keys of nodes."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from rich.console import Console

from fedgraph.commands.deployment.connection import MOST_PORT, check_file, check_host, check_port_free
from fedgraph.commands.deployment.foreground import run_to_the_end, show
from fedgraph.commands.deployment.screen import Screen
from fedgraph.support.errors import RunError
from fedgraph.support.terminal import messages_for_people

_SOON = timedelta(days=14)
_ALREADY = "already in use"


def server(
    certificate: Annotated[Path | None, typer.Option(help="This server's certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="The private key of the certificate.")] = None,
    authority: Annotated[Path | None, typer.Option(help="Certificate of the authority that signed it.")] = None,
    public_keys: Annotated[
        Path | None, typer.Option(help="Folder with the public keys, NAME.pub, of the nodes that may join.")
    ] = None,
    database: Annotated[Path, typer.Option(help="File for the state of the SuperLink.")] = Path("superlink.db"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=MOST_PORT, help="Port for nodes and `flwr`.")] = 8000,
    insecure: Annotated[bool, typer.Option(help="No encryption and no authentication.")] = False,
    ready: Annotated[
        Path | None, typer.Option(help="File to create once all these nodes may join, for health checks.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="File for Flower's output, instead of one next to the database.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Also show Flower's output.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check, do not start.")] = False,
) -> None:
    """Start the server that nodes connect to.

    It is Flower's SuperLink, with TLS, authenticated nodes and a database; runs go to the folder `runs` here. Shows
    connections, progress of runs, warnings and errors; the rest of Flower's output goes to a log file.
    """
    from fedgraph.federation import read_public_keys
    from fedgraph.federation.grids import connection, flower_environment, superlink_answers

    console = Console()
    with messages_for_people():
        secure = (certificate, key, authority, public_keys)
        if insecure == any(each is not None for each in secure) or not (insecure or all(each for each in secure)):
            raise RunError(
                "give --certificate, --key, --authority and --public-keys, or only --insecure, on a network that only "
                "you use. `fedgraph test-credentials` makes credentials for testing"
            )
        check_host(host)
        # Flower's own programs, and the registration below, connect to this address.
        here = "127.0.0.1" if host == "0.0.0.0" else host
        names = [here]
        if certificate and key and authority and public_keys:
            names = names_of_certificate(certificate, key, authority)
            console.print(f"The certificate is for {', '.join(names)}.", soft_wrap=True)
            if here not in names:
                raise RunError(
                    f"{certificate} is not for {here}, the address at which Flower's programs reach the SuperLink, so "
                    "that no run would start: get a certificate for this address, and use another one for a reverse "
                    "proxy in front of it"
                )
            console.print(f"Nodes that may join: {', '.join(read_public_keys(public_keys))}.", soft_wrap=True)
        check_file(database, "--database")
        if ready is not None:
            check_file(ready, "--ready")
        if log is not None:
            check_file(log, "--log", new_folder=True)
        command = superlink_command(host, port, database, certificate, key, authority)
        show(command, console)
        if check:
            console.print("Checked, not started.")
            return
        check_port_free(host, port, "the server")
        if ready is not None:
            ready.unlink(missing_ok=True)
        known = Names(database.with_name(f"{database.name}.nodes.json"))
        screen = server_screen(console, log or database.with_suffix(".log"), verbose, known)
        console.print(f"Flower's output is in {screen.log}.", markup=False, soft_wrap=True, highlight=False)

        def once_started(started: subprocess.Popen[bytes]) -> None:
            if not superlink_answers(port, started, encrypted=not insecure):
                raise RunError(f"the SuperLink did not start: see {screen.log}")
            if public_keys is not None and authority is not None:
                known.add(register_nodes(public_keys, f"{here}:{port}", authority, console))
            console.print(
                "\nReady. For `flwr run` on this machine, in config.toml in $FLWR_HOME (~/.flwr):\n", soft_wrap=True
            )
            toml = connection("lab", f"{here}:{port}", authority and authority.absolute())
            console.print(toml, markup=False, soft_wrap=True, highlight=False)
            screen.print(f"listening on {host}:{port}, waiting for nodes and runs")
            if ready is not None:
                ready.touch()

        status = run_to_the_end(command, flower_environment(), once_started, screen)
    raise typer.Exit(status)


def superlink_command(
    host: str, port: int, database: Path, certificate: Path | None, key: Path | None, authority: Path | None
) -> list[str]:
    """Return the command that starts Flower's SuperLink, insecure without a certificate."""
    safe = ["--insecure"]
    if certificate and key and authority:
        safe = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(authority)]
        safe.append("--enable-supernode-auth")
    return ["flower-superlink", *safe, "--host", host, "--port", str(port), "--database", str(database)]


def names_of_certificate(certificate: Path, key: Path, authority: Path) -> list[str]:
    """Return the names and addresses for which a server's certificate is valid.

    Raises
    ------
    RunError
        When a file cannot be read, the certificate has expired, has no host names, or does not match key or authority.
    """
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        signer = x509.load_pem_x509_certificate(authority.read_bytes())
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"cannot read the server's certificates and key: {error}") from None
    left = loaded.not_valid_after_utc - datetime.now(UTC)
    if left < timedelta(0):
        raise RunError(f"{certificate} expired on {loaded.not_valid_after_utc:%Y-%m-%d}: nodes would refuse the server")
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != loaded.public_key().public_bytes(*form):
        raise RunError(f"{key} is not the key of {certificate}")
    try:
        loaded.verify_directly_issued_by(signer)
    except Exception:
        raise RunError(f"{certificate} is not signed by {authority}: nodes would refuse the server") from None
    if left < _SOON:
        Console().print(f"The certificate expires in {left.days} days.", style="yellow")
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise RunError(
            f"{certificate} has no host names (subject alternative names): nodes would refuse the server"
        ) from None
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


class Names:
    """Names of nodes by their SuperLink ids, stored in a file next to its database.

    The SuperLink returns an id only when a key is registered, and never a name.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._names: dict[str, str] = {}
        # Without a valid file, nodes are shown by id.
        with suppress(OSError, ValueError):
            self._names = json.loads(file.read_text())

    def add(self, names: Mapping[str, str]) -> None:
        """Add names of nodes, and write the file."""
        from fedgraph.support.files import write_atomically

        self._names |= names
        write_atomically(self._file, json.dumps(self._names).encode())

    def of(self, number: str) -> str:
        """Return the name of a node, or ``node <id>``."""
        return self._names.get(number, f"node {number}")


def server_screen(console: Console, log: Path, verbose: bool, known: Names) -> Screen:
    """Return the screen of a server, which shows connections of nodes and progress of runs."""
    screen = Screen(
        console,
        log,
        verbose,
        {
            r"\bActivated node_id=(\d+)": lambda match: f"{known.of(match[1])} connected",
            r"\bDeactivated node_id=(\d+)": lambda match: f"{known.of(match[1])} left",
            # An error to Flower, but here a key that is registered already.
            _ALREADY: lambda match: None,
            # Flower's programs lose their connection when the server ends.
            r"\bConnection attempt failed\b": lambda match: None if screen.ending else match.string,
        },
    )
    return screen


def register_nodes(public_keys: Path, superlink: str, authority: Path, console: Console) -> dict[str, str]:
    """Register the keys of nodes that may join, and return the names of new ones by their ids.

    Raises RunError, with Flower's message, when the SuperLink refuses a key.
    """
    from fedgraph.federation.grids import connection_file, flower_environment, program

    with tempfile.TemporaryDirectory(prefix="fedgraph-register-") as home:
        connection_file(Path(home), superlink, authority.absolute())
        numbers: dict[str, str] = {}
        for file in sorted(public_keys.glob("*.pub")):
            name = file.name.removesuffix(".pub")
            done = subprocess.run(
                [program("flwr"), "supernode", "register", str(file), "here", "--name", name, "--format", "json"],
                env=flower_environment(Path(home)), capture_output=True, text=True, check=False,
            )  # fmt: skip
            output = f"{done.stdout}\n{done.stderr}"
            ids = re.findall(r'"node-id": "?(\d+)', done.stdout)
            if not ids and _ALREADY not in output:
                raise RunError(f"the SuperLink refuses the key of {name}: {output.strip()}")
            console.print(f"  {name}: {'may join' if ids else 'known already'}", highlight=False)
            numbers |= dict.fromkeys(ids, name)
    return numbers
