"""Test certificates and keys for a federation, and the command ``fedgraph test-credentials`` that makes them.

They are for testing: whoever can read the folder can be any of the nodes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from rich.console import Console

from fedgraph.support.errors import RunError
from fedgraph.support.terminal import messages_for_people

_CURVE = ec.SECP384R1()
_HASH = hashes.SHA384()


@dataclass(frozen=True)
class Credentials:
    """Paths of the files in a folder of test credentials.

    Attributes
    ----------
    authority : Path
        Certificate of the certificate authority, for every node and for those who submit runs.
    certificate, key : Path
        Certificate and private key of the server.
    public_keys : Path
        Folder with NAME.pub of every node, for the server.
    """

    folder: Path

    @property
    def authority(self) -> Path:
        """``ca.crt``."""
        return self.folder / "ca.crt"

    @property
    def certificate(self) -> Path:
        """``server/server.crt``."""
        return self.folder / "server" / "server.crt"

    @property
    def key(self) -> Path:
        """``server/server.key``."""
        return self.folder / "server" / "server.key"

    @property
    def public_keys(self) -> Path:
        """``public-keys``."""
        return self.folder / "public-keys"

    def private_key(self, node: str) -> Path:
        """Return the path ``nodes/NAME`` of a node's private key, for this node only."""
        from fedgraph.support.files import file_name

        return self.folder / "nodes" / file_name(node)


def make_test_credentials(folder: Path, hosts: Iterable[str], nodes: Iterable[str], days: float = 30) -> Credentials:
    """Write all files into a folder that does not exist yet, or is empty.

    Parameters
    ----------
    folder : Path
        The folder.
    hosts : iterable of str
        Names and addresses under which nodes reach the server.
    nodes : iterable of str
        A name for each node; the name of the client that it hosts where the run asks for proof (``[clients]
        public-keys``).
    days : float, default 30
        Validity of the certificates from now; negative for certificates that expired that many days ago.

    Raises
    ------
    RunError
        When the folder is not empty or cannot be written, or two nodes have one name.
    """
    from fedgraph.support.files import file_name

    found, names = Credentials(folder), list(nodes)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty: delete it, or name a new folder for the test credentials")
    if len({file_name(name) for name in names}) < len(names):
        raise RunError(f"node names must differ: {', '.join(names)}")
    try:
        for each in (found.certificate.parent, found.public_keys, found.folder / "nodes"):
            each.mkdir(parents=True)
        authority_key, authority = _authority(days)
        key, certificate = _server(list(hosts), authority_key, authority, days)
        found.authority.write_bytes(authority.public_bytes(Encoding.PEM))
        found.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_private(found.key, key, PrivateFormat.PKCS8)
        for name in names:
            own = ec.generate_private_key(_CURVE)
            _write_private(found.private_key(name), own, PrivateFormat.OpenSSH)
            public = own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            (found.public_keys / f"{file_name(name)}.pub").write_bytes(public + b" " + file_name(name).encode() + b"\n")
    except OSError as error:
        raise RunError(f"cannot write test credentials: {error}") from None
    return found


def _authority(days: float) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(_CURVE)
    name = _name("fedgraph, for testing only")
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only",
         "decipher_only"), False,
    )  # fmt: skip
    builder = _builder(name, name, key, days).add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
    builder = builder.add_extension(
        x509.KeyUsage(digital_signature=True, key_cert_sign=True, crl_sign=True, **usage), True
    )
    return key, builder.sign(key, _HASH)


def _server(
    hosts: list[str], authority_key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, days: float
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(_CURVE)
    alternatives = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    builder = _builder(_name(hosts[0]), authority.subject, key, days)
    builder = builder.add_extension(alternatives, False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), False
    )
    return key, builder.sign(authority_key, _HASH)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    # The certificate must be valid for a clock that is slightly slow.
    begin = now - timedelta(hours=1) + min(timedelta(days=days), timedelta(0))
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def credentials_for_testing(
    folder: Annotated[Path, typer.Argument(help="New folder for them.")],
    node: Annotated[list[str], typer.Option(help="A node, named after the client that it hosts; once for each.")],
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the server; once for each.")] = None,
    days: Annotated[int, typer.Option(min=1, help="How long they are valid.")] = 30,
) -> None:
    """Make certificates and keys for TESTING.

    They are those of an authority, a certificate for the server, and a key for each node.
    """
    with messages_for_people():
        made = make_test_credentials(folder, [*(host or []), "localhost", "127.0.0.1"], node, days)
    lines = {
        made.authority: "for every node, and for those who submit runs",
        made.certificate.parent: "for the server alone",
        made.public_keys: "for the server",
        made.folder / "nodes": "a private key for each node; give each node its own and nothing else",
    }
    console = Console()
    for path, whose in lines.items():
        console.print(f"{path}: {whose}", soft_wrap=True, highlight=False)
    console.print(
        "These are for testing. For real data, have a certificate made by an authority that your sites trust, and let "
        "each site make its own key (ssh-keygen -t ecdsa -b 384 -N '' -f NAME) and send you NAME.pub only.",
        style="yellow",
        soft_wrap=True,
    )
