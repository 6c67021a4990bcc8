"""Which clients a node hosts, from its node config, and how it proves that it may.

It signs what it says with a key that the run knows by their names: ECDSA over SHA-256 with keys as ``ssh-keygen -t
ecdsa`` makes them, which are also those with which Flower's SuperNodes authenticate themselves. What is signed holds
the run's challenge and Flower's id of the node, so that a signature is of use in one run and from one node only.
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

from fedgraph.support.errors import ExperimentError, IdentityError


def listed(text: str) -> list[str]:
    """The entries of a list in a node config; as in a CSV file, one with a comma in it stands in double quotes."""
    return next(csv.reader([text], skipinitialspace=True), [])


def named_clients(node_config: Mapping[str, Any]) -> tuple[str, ...]:
    """The clients that a node config names, ``clients = "a,b"``."""
    return tuple(name.strip() for name in listed(str(node_config.get("clients", ""))) if name.strip())


def hosted_clients(node_config: Mapping[str, Any], known: Sequence[str]) -> tuple[str, ...]:
    """The clients of a node, a subset of the data set's ``known`` clients.

    Node config ``clients = "a,b"`` names them; otherwise ``partition-id`` of ``num-partitions`` deals the known
    clients out in contiguous blocks whose sizes differ by at most one.

    Raises
    ------
    IdentityError
        When the node config has neither, names an unknown client or one twice, or counts partitions wrongly.
    """
    if "clients" in node_config:
        names = named_clients(node_config)
        unknown = [name for name in names if name not in set(known)]
        if unknown:
            raise IdentityError(
                f"node config 'clients' names {', '.join(unknown)}, which this node's data does not have; "
                f"it has {', '.join(known[:8])}{', ...' if len(known) > 8 else ''} ({len(known)} clients)"
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
    """What nobody can have signed before."""
    return secrets.token_hex(16)


def prove(private_key: Path, challenge: str, node: int, clients: Iterable[str]) -> bytes:
    """The signature of a node with the id ``node`` under what it says of its ``clients``.

    Raises
    ------
    IdentityError
        When the file is not there or holds no such key.
    """
    try:
        key = load_ssh_private_key(private_key.expanduser().read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise IdentityError(f"node config 'private-key': cannot read {private_key}: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"node config 'private-key': {private_key} is not a key of `ssh-keygen -t ecdsa`")
    return key.sign(_signed(challenge, node, clients), _METHOD)


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
    """Public keys by client, from the files NAME.pub of a folder.

    Raises
    ------
    ExperimentError
        When there are none, or one is no such key.
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
