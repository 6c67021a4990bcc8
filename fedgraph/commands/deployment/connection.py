"""Checks of the connection to a SuperLink, with messages that say what to do."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fedgraph.support.errors import RunError

if TYPE_CHECKING:
    import httpx

MOST_PORT = 65535

_SECONDS = 10.0
_MOST_AHEAD, _MOST_BEHIND = 5.0, 300.0
"""Seconds by which the clock of a node may differ from that of the server, which checks times of signatures."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine, which are reached without a proxy."""

_ADVICE = {
    "certificate has expired": "ask the operator of the server for a new one",
    "unable to get local issuer certificate": "the server's certificate is from another authority than yours",
    "self-signed certificate": "the server's certificate is from another authority than yours",
    "certificate signature failure": "the server's certificate is from another authority than yours",
    "mismatch": "the server's certificate is for other names: use one of those, or ask its operator to add yours",
}


@dataclass
class Route:
    """The route to a server, as found by Flower's HTTP client.

    Attributes
    ----------
    address : str
        ``host:port`` of the server.
    peers : list of tuple
        Host and port of every attempted connection, to the server or a proxy.
    """

    address: str
    peers: list[tuple[str, int]] = field(default_factory=list)

    def note(self, event: str, info: dict[str, Any]) -> None:
        """Record a connection; called by the client for every event."""
        if event.endswith("connect_tcp.started"):
            self.peers.append((str(info["host"]), int(info["port"])))

    @property
    def proxy(self) -> str:
        """The proxy as ``host:port`` and the variable that sets it; empty without one."""
        others = [peer for peer in self.peers if peer != host_and_port(self.address)]
        if not others:
            return ""
        host, port = others[-1]
        return f"{host}:{port} ({_variable(host)})"

    @property
    def in_words(self) -> str:
        """Text to append to the address of the server."""
        return f" through the proxy {self.proxy}" if self.proxy else ""


def check_superlink(address: str, authority: Path | None) -> Route:
    """Connect like a node, and check the server's certificate and this machine's clock.

    Uses Flower's HTTP client, which respects ``https_proxy``, ``http_proxy``, ``all_proxy`` and ``no_proxy``. A server
    on this machine is reached without a proxy.

    Parameters
    ----------
    address : str
        ``host:port``.
    authority : Path or None
        Certificate of the authority that signed the server's; None to check only an unencrypted connection.

    Returns
    -------
    Route
        The route to the server.

    Raises
    ------
    RunError
        When the server cannot be reached, its certificate is invalid, or this machine's clock is wrong.
    """
    host, _ = host_and_port(address)
    route, context = Route(address), trusting(authority)
    began = time.time()
    answer = _answer(route, context, past_proxies=host in LOOPBACK)
    if context is None:
        if route.proxy and answer is not None and answer.status_code >= 400:
            raise RunError(
                f"got {answer.status_code} {answer.reason_phrase} instead of a reply of the server "
                f"{address}{route.in_words}: {_let_through(address)}"
            )
        if answer is None and not route.proxy and _speaks_tls(address):
            raise RunError(
                f"the server {address} speaks TLS: give --root-certificates, the certificate of its authority, in "
                "place of --insecure"
            )
        return route
    ahead = None if answer is None else _seconds_ahead(began, answer)
    if ahead is not None and not -_MOST_BEHIND <= ahead <= _MOST_AHEAD:
        raise RunError(
            f"the clock of this machine is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} that of the "
            f"server {address}, which refuses nodes more than {_MOST_AHEAD:.0f} s ahead or {_MOST_BEHIND:.0f} s "
            "behind: synchronise it over the network"
        )
    return route


def trusting(authority: Path | None) -> ssl.SSLContext | None:
    """Return how to check a server's certificate; None without an authority, for an unencrypted connection.

    Raises RunError when the file is not the certificate of an authority.
    """
    try:
        return None if authority is None else ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise RunError(f"{authority} is not a certificate of an authority ({error})") from None


def _answer(route: Route, context: ssl.SSLContext | None, past_proxies: bool) -> httpx.Response | None:
    """Request the server's health like Flower's client; None if it does not reply to such requests."""
    import httpx  # which Flower brings

    address = route.address
    url = f"{'http' if context is None else 'https'}://{address}/health"
    try:
        with httpx.Client(verify=context or True, timeout=_SECONDS, trust_env=not past_proxies) as client:
            return client.get(url, extensions={"trace": route.note})
    except httpx.ProxyError as error:
        raise RunError(f"cannot reach the server {address}{route.in_words}: {error}; {_let_through(address)}") from None
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise _not_connected(route, error) from None
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise RunError(f"the proxy set in the environment cannot be used: {error}") from None
    except httpx.TransportError:
        return None


def _speaks_tls(address: str) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = host_and_port(address)
    try:
        with (
            socket.create_connection((host, port), _SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True
    except OSError:
        return False


def _not_connected(route: Route, error: Exception) -> RunError:
    """Explain a failed connection by its causes in the operating system and in TLS."""
    address, way = route.address, route.in_words
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = cause.verify_message
            advice = next((text for part, text in _ADVICE.items() if part in reason), "ask the operator of the server")
            return RunError(f"the certificate of the server {address}{way} is not trusted: {reason}; {advice}")
        if isinstance(cause, ssl.SSLError):
            return RunError(f"{address}{way} does not use TLS ({cause.reason}); was the server started with it?")
    advice = "is it running, and does a firewall block it?"
    if route.proxy:
        advice = "is the proxy running? Flower uses it too"
    elif ignored := next((name for name in ("grpc_proxy", "GRPC_PROXY") if os.environ.get(name)), ""):
        advice += f" {ignored} is set, but Flower ignores it: set https_proxy"
    return RunError(f"cannot reach the server {address}{way}: {str(error) or type(error).__name__}; {advice}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _let_through(address: str) -> str:
    host, _ = host_and_port(address)
    return f"allow {address} in the proxy for this machine, or bypass it with no_proxy={host}"


def _variable(host: str) -> str:
    """Return the name of the environment variable that sets a proxy; its value may contain a password."""
    for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        value = os.environ.get(name, "")
        if value and urlsplit(value if "://" in value else f"http://{value}").hostname == host.lower():
            return name
    return "from the settings of the system"


def _seconds_ahead(began: float, answer: httpx.Response) -> float | None:
    """Return by how much this machine's clock is at least ahead of the server's; None without a Date header."""
    try:
        server = parsedate_to_datetime(answer.headers.get("Date", "")).timestamp()
    except (TypeError, ValueError):
        return None
    # The header has whole seconds, of a moment after the request.
    later = time.time()
    return began - server - 1 if began - server > 1 else min(later - server, 0.0)


def check_port_free(host: str, port: int, what: str) -> None:
    """Raise RunError if ``what``, a program in words, cannot listen on this port."""
    with _socket_of(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            used = error.errno == errno.EADDRINUSE
            raise RunError(
                f"{what} cannot listen on port {port} of {host}: "
                + ("it is in use. Stop the program that uses it, or choose another --port" if used else str(error))
            ) from None


def check_host(host: str) -> None:
    """Raise RunError for an address to listen on that this machine does not have, whichever ports are in use."""
    try:
        with _socket_of(host) as probe:
            probe.bind((host, 0))
    except (OSError, UnicodeError) as error:
        raise RunError(f"--host {host} is no address of this machine: {error}") from None


def _socket_of(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)


def check_writable(folder: Path, option: str) -> None:
    """Raise RunError if a folder, which may not exist yet, cannot be written to."""
    if reason := _not_written(folder.expanduser().absolute(), new=True):
        raise RunError(f"{option} {folder} cannot be written to: {reason}")


def check_file(file: Path, option: str, new_folder: bool = False) -> None:
    """Raise RunError if a file cannot be written. Its folder must exist, unless it may be a ``new_folder``."""
    place = file.expanduser().absolute()
    if place.is_dir():
        raise RunError(f"cannot write {option} {file}: it is a folder")
    if place.exists() and not place.is_file():
        return  # a device, such as /dev/null
    if reason := _not_written(place.parent, new_folder):
        raise RunError(f"cannot write {option} {file}: its folder is missing or not writable ({reason})")


def _not_written(folder: Path, new: bool) -> str:
    """Return why a folder, or if it is ``new``, the nearest one above it that exists, cannot be written to."""
    if new:
        folder = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with TemporaryDirectory(dir=folder):
            return ""
    except OSError as error:
        return f"{error.strerror}: {folder}"


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port``. Raises RunError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) <= MOST_PORT:
        raise RunError(f"'{address}' must be host:port, with a port of 1 to {MOST_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)
