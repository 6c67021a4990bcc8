"""Messages that only one receiver can open, for shares that travel through the server: HPKE, RFC 9180.

X25519, HKDF-SHA256 and ChaCha20-Poly1305 as the ``cryptography`` package combines them; a fresh key per message.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from fedgraph.support.errors import ReplyError, RunError

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
PUBLIC_BYTES = PRIVATE_BYTES = 32
"""Length of a public key, and of a private one."""

OVERHEAD = PUBLIC_BYTES + 16
"""Number of bytes that sealing adds to a message: the sender's ephemeral public key and a tag."""


@dataclass(frozen=True)
class Context:
    """Context of a sealed message. It is not sent, but a message opens only in the context in which it was sealed.

    Attributes
    ----------
    run : str
        Name of the run.
    owner : str
        Sender.
    aggregator : str
        Receiver.
    request : str
        The request that it answers, so that an earlier message cannot replace a later one.
    """

    run: str
    owner: str
    aggregator: str
    request: str

    def to_bytes(self) -> bytes:
        """Return an unambiguous encoding."""
        return json.dumps(["fedgraph share 1", self.run, self.owner, self.aggregator, self.request]).encode()


@dataclass(frozen=True)
class KeyPair:
    """Keys of an aggregator, or of a client for masks. Only ``public`` (32 bytes) may leave its node.

    Attributes
    ----------
    private : X25519PrivateKey
        The private key.
    """

    private: X25519PrivateKey = field(repr=False)

    @classmethod
    def create(cls) -> KeyPair:
        """Create a new pair from the operating system's entropy."""
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, data: bytes) -> KeyPair:
        """Return the pair of ``private_bytes``. Raises RunError when ``data`` is not a private key."""
        try:
            return cls(X25519PrivateKey.from_private_bytes(data))
        except ValueError as error:
            raise RunError(f"a private key has 32 bytes, not {len(data)}; delete the file and start again") from error

    def private_bytes(self) -> bytes:
        """Return the private key, 32 bytes to be stored on its own node, readable only by its owner."""
        return self.private.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return self.private.public_key().public_bytes_raw()


def is_public_key(public: bytes) -> bool:
    """Check that secrets can be agreed on with a public key that another party sent.

    Returns False for other than 32 bytes, and for the few keys that would give the same secret with every other.
    """
    try:
        X25519PrivateKey.generate().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def fingerprint(public: bytes) -> str:
    """Return the SHA-256 of a public key, to compare or to pin in a node's configuration. 64 hexadecimal digits."""
    return hashlib.sha256(public).hexdigest()


def seal(public: bytes, plaintext: bytes, context: Context) -> bytes:
    """Encrypt ``plaintext`` so that only the holder of the private key can open it, in the same context.

    The result is 48 bytes longer than the plaintext. Raises RunError naming the aggregator for an invalid key.
    """
    try:
        return _SUITE.encrypt(plaintext, X25519PublicKey.from_public_bytes(public), context.to_bytes())
    except ValueError as error:
        raise RunError(f"the public key given for aggregator '{context.aggregator}' cannot be used: {error}") from error


def open_sealed(keys: KeyPair, sealed: bytes, context: Context) -> bytes:
    """Decrypt a message that was sealed for these keys in this context.

    Raises ReplyError when it was changed on the way, sealed for another key, or belongs to
    another run, owner, aggregator or request.
    """
    try:
        return _SUITE.decrypt(sealed, keys.private, context.to_bytes())
    except (InvalidTag, ValueError) as error:
        short = f" (it has {len(sealed)} bytes, fewer than any sealed message)" if len(sealed) < OVERHEAD else ""
        raise ReplyError(
            f"the share from owner '{context.owner}' for aggregator '{context.aggregator}' cannot be opened{short}: it "
            f"was changed on the way, sealed for another key, or is not of run '{context.run}' and request "
            f"'{context.request}'"
        ) from error
