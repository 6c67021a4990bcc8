"""Which clients a node hosts according to its node config, and how it proves that it may host them.

A node signs the list of its clients with ECDSA over SHA-256. The keys are those that ``ssh-keygen -t ecdsa`` makes, the
same that Flower's SuperNodes authenticate with; the run knows the public keys by client name. The signed text contains
the challenge of the run and Flower's id of the node, so that a signature is valid in one run and from one node only.
"""

from __future__ import annotations

import csv
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from fedgraph.support.csv_text import composed
from fedgraph.support.errors import ExperimentError, IdentityError, closest_first


def listed(text: str) -> list[str]:
    """Split a comma-separated list of a node config; as in CSV, an entry with a comma is put in double quotes.

    An empty text has no entries.
    """
    return next(csv.reader([text], skipinitialspace=True), [])


def configured_clients(node_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the clients that a node config names with ``clients = "a,b"``.

    Names without surrounding blanks; empty if the node config has no ``clients``.
    """
    return tuple(composed(name.strip()) for name in listed(str(node_config.get("clients", ""))) if name.strip())


def hosted_clients(node_config: Mapping[str, Any], known: Sequence[str]) -> tuple[str, ...]:
    """Return the clients that a node hosts, a subset of the data set's ``known`` clients.

    Node config ``clients = "a,b"`` names them. Otherwise ``partition-id`` and ``num-partitions`` divide the known
    clients into contiguous blocks whose sizes differ by at most one. Raises IdentityError when the node config has
    neither, names no client, an unknown one or one twice, or when its partition numbers are not whole or out of range.
    """
    if "clients" in node_config:
        names = configured_clients(node_config)
        unknown = [name for name in names if name not in set(known)]
        if unknown:
            raise IdentityError(
                f"node config 'clients' names {', '.join(unknown)}, which this node's data does not have; "
                f"it has {closest_first(unknown, known)} ({len(known)} clients)"
            )
        if not names or len(set(names)) != len(names):
            raise IdentityError(f"node config 'clients' = '{node_config['clients']}' is empty or names a client twice")
        return names
    if "partition-id" not in node_config or "num-partitions" not in node_config:
        raise IdentityError(
            "this node does not know which clients it hosts: give it the node config key 'clients', for example "
            "--node-config 'clients=\"mercy,st-olav\"', or 'partition-id' and 'num-partitions'"
        )
    try:
        partition, partitions = int(node_config["partition-id"]), int(node_config["num-partitions"])
        if float(node_config["partition-id"]) != partition or float(node_config["num-partitions"]) != partitions:
            raise ValueError("not whole")
    except (ValueError, TypeError):
        raise IdentityError(
            f"node config 'partition-id' = '{node_config['partition-id']}' and 'num-partitions' = "
            f"'{node_config['num-partitions']}' must be whole numbers"
        ) from None
    if not 0 <= partition < partitions:
        raise IdentityError(
            f"node config 'partition-id' is {partition}; with 'num-partitions' = {partitions} it must be "
            f"0 to {partitions - 1}"
        )
    small, larger = divmod(len(known), partitions)
    start = partition * small + min(partition, larger)
    return tuple(known[start : start + small + (partition < larger)])


_PURPOSE = b"fedgraph: this node hosts these clients\0"
_METHOD = ec.ECDSA(hashes.SHA256())

PublicKeys: TypeAlias = Mapping[str, ec.EllipticCurvePublicKey]
"""Public keys by client."""


def challenge() -> str:
    """Return a random text, different in every run, to be signed by nodes."""
    return secrets.token_hex(16)


def prove(private_key: Path, challenge: str, node: int, clients: Iterable[str]) -> bytes:
    """Sign the list of clients that a node hosts.

    Raises IdentityError when the file cannot be read or contains no such key.

    Parameters
    ----------
    private_key : Path
        Private key as ``ssh-keygen -t ecdsa`` writes it, without a passphrase.
    challenge : str
        Challenge of the run.
    node : int
        Flower's id of the node.
    clients : iterable of str
        Names of the clients, in any order.
    """
    return read_private_key(private_key).sign(_signed(challenge, node, clients), _METHOD)


def read_private_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Read a private key as of :func:`prove`. Raises IdentityError when the file cannot be read or is no such key."""
    try:
        content = file.expanduser().read_bytes()
        key = load_ssh_private_key(content, password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        if not isinstance(error, OSError) and content.startswith(b"ecdsa-"):
            raise IdentityError(
                f"node config 'private-key': {file} is the public half of a key: name the private one, without .pub"
            ) from None
        raise IdentityError(f"node config 'private-key': cannot read {file}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"node config 'private-key': {file} is not a key of `ssh-keygen -t ecdsa`")
    return key


def check_proof(keys: PublicKeys, proof: bytes | None, challenge: str, node: int, clients: Iterable[str]) -> None:
    """Raise IdentityError unless ``proof`` shows that the node has the private keys of all ``clients``."""
    names = sorted(clients)
    for name in names:
        if name not in keys:
            raise IdentityError(f"client '{name}' has no public key in the folder [clients] public-keys")
    if names and proof is None:
        raise IdentityError(
            f"it says that it hosts {', '.join(names)} and gives no proof; its node config needs 'private-key'"
        )
    for name in names:
        try:
            keys[name].verify(proof or b"", _signed(challenge, node, names), _METHOD)
        except InvalidSignature:
            raise IdentityError(
                f"it says that it hosts client '{name}' and does not have the private key of '{name}'"
            ) from None


def read_public_keys(folder: Path) -> PublicKeys:
    """Read the public key of each client from the files ``NAME.pub`` of a folder.

    Returns keys by client name; names are percent-decoded file names. Raises ExperimentError when the folder contains
    no such file, or a file is not a key of ``ssh-keygen -t ecdsa``.
    """
    keys: dict[str, ec.EllipticCurvePublicKey] = {}
    for file in sorted(folder.glob("*.pub")):
        try:
            key = load_ssh_public_key(file.read_bytes())
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("another kind of key")
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise ExperimentError(
                f"[clients] public-keys: {file} is not a key of `ssh-keygen -t ecdsa` ({error})"
            ) from None
        keys[unquote(file.name.removesuffix(".pub"))] = key
    if not keys:
        raise ExperimentError(f"[clients] public-keys: there is no public key NAME.pub in {folder}")
    return keys


def _signed(challenge: str, node: int, clients: Iterable[str]) -> bytes:
    return _PURPOSE + json.dumps([challenge, node, sorted(clients)]).encode()
