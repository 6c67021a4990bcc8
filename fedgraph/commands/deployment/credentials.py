"""The command ``fedgraph test-credentials``: certificates and keys for testing.

Whoever can read their folder can impersonate any node.
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
        Certificate of the authority, for nodes and for users who submit runs.
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
        """Return the path ``nodes/NAME`` of a node's private key, for that node only."""
        from fedgraph.support.files import file_name

        return self.folder / "nodes" / file_name(node)


def make_test_credentials(folder: Path, hosts: Iterable[str], nodes: Iterable[str], days: float = 30) -> Credentials:
    """Write all files into a new or empty folder.

    Parameters
    ----------
    folder : Path
        The folder.
    hosts : iterable of str
        Names and addresses of the server.
    nodes : iterable of str
        A name for each node: that of its client if the run requires proof (``[clients] public-keys``).
    days : float, default 30
        Validity of the certificates from now; negative for certificates that expired that many days ago.

    Raises
    ------
    RunError
        When the folder is not empty or cannot be written, or node names repeat.
    """
    from fedgraph.support.files import file_name, private_folder

    paths, names = Credentials(folder), list(nodes)
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty: delete it, or choose a new folder for the test credentials")
    if len({file_name(name) for name in names}) < len(names):
        raise RunError(f"node names must differ: {', '.join(names)}")
    try:
        for each in (paths.certificate.parent, paths.public_keys):
            each.mkdir(parents=True)
        private_folder(paths.folder / "nodes")
        authority_key, authority = _authority(days)
        key, certificate = _server(list(hosts), authority_key, authority, days)
        paths.authority.write_bytes(authority.public_bytes(Encoding.PEM))
        paths.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
        _write_private(paths.key, key, PrivateFormat.PKCS8)
        for name in names:
            private = ec.generate_private_key(_CURVE)
            _write_private(paths.private_key(name), private, PrivateFormat.OpenSSH)
            public = private.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            (paths.public_keys / f"{file_name(name)}.pub").write_bytes(public + b" " + file_name(name).encode() + b"\n")
    except OSError as error:
        raise RunError(f"cannot write test credentials: {error}") from None
    return paths


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
    # Tolerate clocks that are slightly slow.
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
    folder: Annotated[Path, typer.Argument(help="New folder for the credentials.")],
    node: Annotated[list[str], typer.Option(help="A node, named after its client; repeat for each.")],
    host: Annotated[list[str] | None, typer.Option(help="Name or address of the server; repeat for each.")] = None,
    days: Annotated[int, typer.Option(min=1, help="Validity of the certificates.")] = 30,
) -> None:
    """Make certificates and keys for TESTING.

    Writes an authority, a certificate for the server, and a key for each node.
    """
    with messages_for_people():
        made = make_test_credentials(folder, [*(host or []), "localhost", "127.0.0.1"], node, days)
    lines = {
        made.authority: "for every node, and for users who submit runs",
        made.certificate.parent: "for the server only",
        made.public_keys: "for the server",
        made.folder / "nodes": "private keys: give each node only its own",
    }
    console = Console()
    for path, whose in lines.items():
        console.print(f"{path}: {whose}", soft_wrap=True, highlight=False)
    console.print(
        "These are for testing. For real data, get a certificate from an authority that your sites trust, and let each "
        "site make its own key (ssh-keygen -t ecdsa -b 384 -N '' -f NAME) and send you only NAME.pub.",
        style="yellow",
        soft_wrap=True,
    )
