"""The command ``fedgraph server``: check certificates, start the SuperLink, let in the nodes whose keys are known."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from rich.console import Console

from fedgraph.commands.deployment.foreground import run_to_the_end, show
from fedgraph.support.errors import RunError
from fedgraph.support.terminal import messages_for_people

_SOON = timedelta(days=14)
_ALREADY = "already in use"
_LOOPBACK = ("127.0.0.1", "localhost")


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
    check: Annotated[bool, typer.Option("--check", help="Only check, do not start.")] = False,
) -> None:
    """Start the server that nodes connect to.

    It is Flower's SuperLink, with TLS, authenticated nodes and a database; runs go to the folder `runs` here.
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
        _check_free(host, port)
        if ready is not None:
            ready.unlink(missing_ok=True)

        def once_started(started: subprocess.Popen[bytes]) -> None:
            if not superlink_answers(port, started, encrypted=not insecure):
                raise RunError("the SuperLink did not start; what it said stands above")
            if public_keys is not None and authority is not None:
                register_nodes(public_keys, f"{here}:{port}", authority, console)
            console.print(
                "\nReady. For `flwr run` on this machine, in config.toml in $FLWR_HOME (~/.flwr):\n", soft_wrap=True
            )
            told = connection("lab", f"{here}:{port}", authority and authority.absolute())
            console.print(told, markup=False, soft_wrap=True, highlight=False)
            if ready is not None:
                ready.touch()

        status = run_to_the_end(command, flower_environment(), once_started)
    raise typer.Exit(status)


def _check_free(host: str, port: int) -> None:
    """Raise RunError when the SuperLink could not listen at this address."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            raise RunError(
                f"cannot listen at port {port} of {host}: "
                + ("it is in use, by another server perhaps. End that, or give another --port" if used else str(error))
            ) from None


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


def register_nodes(public_keys: Path, superlink: str, authority: Path, console: Console) -> None:
    """Register the keys of nodes that may join; keys that a SuperLink already has are kept.

    Raises
    ------
    RunError
        When the SuperLink refuses one, with its message.
    """
    from fedgraph.federation.grids import connection_file, flower_environment, program

    with tempfile.TemporaryDirectory(prefix="fedgraph-register-") as home:
        connection_file(Path(home), superlink, authority.absolute())
        for file in sorted(public_keys.glob("*.pub")):
            name = file.name.removesuffix(".pub")
            done = subprocess.run(
                [program("flwr"), "supernode", "register", str(file), "here", "--name", name],
                env=flower_environment(Path(home)), capture_output=True, text=True, check=False,
            )  # fmt: skip
            said = f"{done.stdout}\n{done.stderr}"
            if done.returncode and _ALREADY not in said:
                raise RunError(f"the SuperLink does not take the key of {name}: {said.strip()}")
            console.print(f"  {name}: {'known already' if done.returncode else 'may join'}", highlight=False)
