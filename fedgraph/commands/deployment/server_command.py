"""The command ``fedgraph server``: check certificates, start the SuperLink, let in the nodes whose keys are known."""

from __future__ import annotations

import json
import os
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

from fedgraph.commands.deployment.connection import check_port_free
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
    database: Annotated[Path, typer.Option(help="File that outlives a restart.")] = Path("superlink.db"),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port of nodes and of `flwr`.")] = 8000,
    insecure: Annotated[bool, typer.Option(help="Neither encrypted nor authenticated.")] = False,
    ready: Annotated[
        Path | None, typer.Option(help="File to make once all these nodes may join, for health checks.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option(help="File for all that Flower says, instead of one beside the database.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show all that Flower says, too.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Only check, do not start.")] = False,
) -> None:
    """Start the server that nodes connect to.

    It is Flower's SuperLink, with TLS, authenticated nodes and a database; runs go to the folder `runs` here. It shows
    who connects and how runs go on, with warnings and errors; all else that Flower says is in a log file.
    """
    from fedgraph.federation import read_public_keys
    from fedgraph.federation.grids import connection, flower_environment, superlink_answers

    console = Console()
    with messages_for_people():
        given = (certificate, key, authority, public_keys)
        if insecure == any(each is not None for each in given) or not (insecure or all(each for each in given)):
            raise RunError(
                "give --certificate, --key, --authority and --public-keys; or --insecure alone, on a network that only "
                "you use. `fedgraph test-credentials` makes some to try things out"
            )
        # Flower's own programs, and the registration below, connect to this address.
        here = "127.0.0.1" if host == "0.0.0.0" else host
        names = [here]
        if certificate and key and authority and public_keys:
            names = names_of_certificate(certificate, key, authority)
            console.print(f"The certificate is for {', '.join(names)}.", soft_wrap=True)
            if here not in names:
                raise RunError(
                    f"{certificate} is not for {here}, under which Flower's own programs reach the SuperLink: no run "
                    "would start. Have one made that is, and put what faces the sites before it, under another one"
                )
            console.print(f"Nodes that may join: {', '.join(read_public_keys(public_keys))}.", soft_wrap=True)
        if not os.access(database.expanduser().absolute().parent, os.W_OK):
            raise RunError(f"cannot write --database {database}: its folder is not there, or is not yours")
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
        console.print(f"All that Flower says is in {screen.log}.", markup=False, soft_wrap=True, highlight=False)

        def once_started(started: subprocess.Popen[bytes]) -> None:
            if not superlink_answers(port, started, encrypted=not insecure):
                raise RunError(f"the SuperLink did not start; what it said is in {screen.log}, and some of it above")
            if public_keys is not None and authority is not None:
                known.add(register_nodes(public_keys, f"{here}:{port}", authority, console))
            console.print(
                "\nReady. For `flwr run` on this machine, in config.toml in $FLWR_HOME (~/.flwr):\n", soft_wrap=True
            )
            told = connection("lab", f"{here}:{port}", authority and authority.absolute())
            console.print(told, markup=False, soft_wrap=True, highlight=False)
            screen.print(f"listening on {host}:{port}, waiting for nodes and runs")
            if ready is not None:
                ready.touch()

        status = run_to_the_end(command, flower_environment(), once_started, screen)
    raise typer.Exit(status)


def superlink_command(
    host: str, port: int, database: Path, certificate: Path | None, key: Path | None, authority: Path | None
) -> list[str]:
    """Return the command that starts Flower's SuperLink; without a certificate, nothing is encrypted or checked."""
    safe = ["--insecure"]
    if certificate and key and authority:
        safe = ["--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--ssl-ca-certfile", str(authority)]
        safe.append("--enable-supernode-auth")
    return ["flower-superlink", *safe, "--host", host, "--port", str(port), "--database", str(database)]


def names_of_certificate(certificate: Path, key: Path, authority: Path) -> list[str]:
    """Return the names and addresses that a server's certificate is valid for.

    Raises
    ------
    RunError
        When a file cannot be read, the certificate is no longer valid or names no host, the key is not its, or another
        authority has signed it.
    """
    try:
        own = x509.load_pem_x509_certificate(certificate.read_bytes())
        signer = x509.load_pem_x509_certificate(authority.read_bytes())
        private = load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"cannot read the server's certificates and key: {error}") from None
    left = own.not_valid_after_utc - datetime.now(UTC)
    if left < timedelta(0):
        raise RunError(
            f"{certificate} has expired on {own.not_valid_after_utc:%Y-%m-%d}: nodes would refuse the server"
        )
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if private.public_key().public_bytes(*form) != own.public_key().public_bytes(*form):
        raise RunError(f"{key} is not the key of {certificate}")
    try:
        own.verify_directly_issued_by(signer)
    except Exception:
        raise RunError(f"{certificate} is not signed by {authority}: nodes would refuse the server") from None
    if left < _SOON:
        Console().print(f"The certificate expires in {left.days} days.", style="yellow")
    try:
        told = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise RunError(
            f"{certificate} names no host (subject alternative names): nodes would refuse the server"
        ) from None
    return [*told.get_values_for_type(x509.DNSName), *map(str, told.get_values_for_type(x509.IPAddress))]


class Names:
    """Names of nodes by the numbers that the SuperLink gives them, kept in a file beside its database.

    It tells a number only when a key is registered, and the names to nobody.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._names: dict[str, str] = {}
        # Without the file, or with one that is damaged, nodes are shown by their numbers.
        with suppress(OSError, ValueError):
            self._names = json.loads(file.read_text())

    def add(self, names: Mapping[str, str]) -> None:
        """Remember names of further nodes."""
        from fedgraph.support.files import write_atomically

        self._names |= names
        write_atomically(self._file, json.dumps(self._names).encode())

    def of(self, number: str) -> str:
        """Return the name of a node, or its number in words."""
        return self._names.get(number, f"node {number}")


def server_screen(console: Console, log: Path, verbose: bool, known: Names) -> Screen:
    """Return what shows a server: which nodes come and go, and how runs go on."""
    screen = Screen(
        console,
        log,
        verbose,
        {
            r"\bActivated node_id=(\d+)": lambda found: f"{known.of(found[1])} connected",
            r"\bDeactivated node_id=(\d+)": lambda found: f"{known.of(found[1])} left",
            # An error to Flower; here a key that the database remembers.
            _ALREADY: lambda found: None,
            # Flower's own programs miss their server when it ends.
            r"\bConnection attempt failed\b": lambda found: None if screen.ending else found.string,
        },
    )
    return screen


def register_nodes(public_keys: Path, superlink: str, authority: Path, console: Console) -> dict[str, str]:
    """Register the keys of nodes that may join; keys that a SuperLink already has are kept.

    Returns
    -------
    dict of str to str
        Names of those that it has not had, by the numbers that it gives them.

    Raises
    ------
    RunError
        When the SuperLink refuses one, with its message.
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
            said = f"{done.stdout}\n{done.stderr}"
            given = re.findall(r'"node-id": "?(\d+)', done.stdout)
            if not given and _ALREADY not in said:
                raise RunError(f"the SuperLink does not take the key of {name}: {said.strip()}")
            console.print(f"  {name}: {'may join' if given else 'known already'}", highlight=False)
            numbers |= dict.fromkeys(given, name)
    return numbers
