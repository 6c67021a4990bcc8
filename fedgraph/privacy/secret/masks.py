"""Masks that cancel in a sum, so that only the sum of several clients' whole numbers can be learned.

Bonawitz et al.: Practical Secure Aggregation for Privacy-Preserving Machine Learning (CCS 2017), section 4.1, without
the recovery of clients that drop out: then the others begin again with new keys. Each two clients agree on a secret
(X25519), and both derive the same numbers from it (ChaCha20): one adds them, the other subtracts them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from fedgraph.privacy.secret.sealed import KeyPair
from fedgraph.support.errors import ReplyError


def masked(values: Tensor, client: str, keys: KeyPair, public: Mapping[str, str], run: str) -> Tensor:
    """Add the masks that ``client`` shares with all others to its values, modulo 2^64.

    Returns int64 ``[numbers]``. Raises ReplyError when the keys are not usable, are those of fewer than two clients, or
    lack the client's own.

    Parameters
    ----------
    values : Tensor
        int64 ``[numbers]``.
    client : str
        Name of the client.
    keys : KeyPair
        Keys of the client, used once: with the same keys and other clients, differences of answers would disclose
        values.
    public : mapping of str to str
        Public keys of all participants, including the client, as hexadecimal digits by name.
    run : str
        Name of the run; another run has other masks.
    """
    if public.get(client) != keys.public.hex():
        raise ReplyError(f"the keys of masks lack that of client '{client}', or have another in its place")
    if len(public) < 2:
        raise ReplyError(f"masks need two clients at least, and only '{client}' has a key")
    total = values.numpy().astype(np.uint64)
    for other in sorted(set(public) - {client}):
        first, second = sorted((client, other))
        try:
            secret = keys.private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public[other])))
        except ValueError as error:
            raise ReplyError(f"the public key of client '{other}' cannot be used: {error}") from None
        purpose = json.dumps(["fedgraph mask 1", run, first, second]).encode()
        key = HKDF(SHA256(), 32, None, purpose).derive(secret)
        stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * len(total)))
        mask = np.frombuffer(stream, np.uint64)
        total = total + mask if client == first else total - mask
    return torch.from_numpy(total.astype(np.int64))
