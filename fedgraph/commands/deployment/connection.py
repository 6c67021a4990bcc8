"""Check that a SuperLink can be reached safely, before Flower tries, with messages that explain what to do."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from fedgraph.support.errors import RunError

_SECONDS = 10.0
_MOST_AHEAD, _MOST_BEHIND = 5.0, 300.0
"""Seconds that the clock of a node may differ from the server's, which takes signatures of no other time."""

_ADVICE = {
    "certificate has expired": "ask the operator of the server for a new one",
    "unable to get local issuer certificate": "the server's certificate is of another authority than yours",
    "self-signed certificate": "the server's certificate is of another authority than yours",
    "certificate signature failure": "the server's certificate is of another authority than yours",
    "mismatch": "the server's certificate is for other names: use one of those, or ask its operator to add yours",
}


def check_superlink(address: str, authority: Path | None) -> None:
    """Connect as a node would, and check the server's certificate and, by it, this machine's clock.

    Parameters
    ----------
    address : str
        ``host:port``.
    authority : Path or None
        Certificate of the authority that signed the server's; None for no encryption, with only the connection checked.

    Raises
    ------
    RunError
        When the server cannot be reached, its certificate is not valid for it, or it would refuse the node for its
        clock.
    """
    host, port = host_and_port(address)
    try:
        context = None if authority is None else ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError) as error:
        raise RunError(f"{authority} is no certificate of an authority ({error})") from None
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as plain:
            if context is not None:
                with context.wrap_socket(plain, server_hostname=host):
                    pass
        ahead = None if context is None else _seconds_ahead(host, port, context)
    except ssl.SSLCertVerificationError as error:
        said = error.verify_message
        advice = next((text for part, text in _ADVICE.items() if part in said), "ask the operator of the server")
        raise RunError(f"the server {address} is not to be trusted: {said}; {advice}") from None
    except ssl.SSLError as error:
        raise RunError(f"{address} does not speak TLS ({error.reason}); was the server started with it?") from None
    except OSError as error:
        raise RunError(
            f"cannot reach the server {address}: {error}; is it running, and does a firewall let you?"
        ) from None
    if ahead is not None and not -_MOST_BEHIND <= ahead <= _MOST_AHEAD:
        raise RunError(
            f"the clock of this machine is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} that of the "
            f"server {address}, which refuses nodes more than {_MOST_AHEAD:.0f} s ahead or {_MOST_BEHIND:.0f} s "
            "behind: have it set over the network"
        )


def _seconds_ahead(host: str, port: int, context: ssl.SSLContext) -> float | None:
    """Return by how much this machine's clock is ahead of the server's, at least; None where it tells no time."""
    asking = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        asked = time.time()
        asking.request("GET", "/health")
        told = parsedate_to_datetime(asking.getresponse().getheader("Date", "")).timestamp()
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        asking.close()
    # It tells whole seconds, of a moment after the question.
    later = time.time()
    return asked - told - 1 if asked - told > 1 else min(later - told, 0.0)


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port``. Raises RunError for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal():
        raise RunError(f"'{address}' is not of the form host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)
