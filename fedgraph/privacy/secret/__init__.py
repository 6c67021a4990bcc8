"""Secret shares, masks that cancel in a sum, sealed messages, and the fusion's first layer on shares.

>>> import torch
>>> from fedgraph.privacy.secret import reconstruct, split
>>> shares = split(torch.tensor([7]), shares=3, threshold=2)
>>> reconstruct(shares[1:], [2, 3], threshold=2)
tensor([7])
"""

from fedgraph.privacy.secret.aggregator_files import AppliedMaps, folder_of, own_keys
from fedgraph.privacy.secret.field import PRIME
from fedgraph.privacy.secret.first_stage import (
    FirstStage,
    check_leaks,
    error_bound,
    on_shares,
    outcome,
    project,
    quantised,
)
from fedgraph.privacy.secret.masks import masked
from fedgraph.privacy.secret.sealed import (
    OVERHEAD,
    PUBLIC_BYTES,
    Context,
    KeyPair,
    fingerprint,
    is_public_key,
    open_sealed,
    seal,
)
from fedgraph.privacy.secret.shamir import ShareSettings, encode, odd_one_out, reconstruct, split

__all__ = [
    "OVERHEAD",
    "PRIME",
    "PUBLIC_BYTES",
    "AppliedMaps",
    "Context",
    "FirstStage",
    "KeyPair",
    "ShareSettings",
    "check_leaks",
    "encode",
    "error_bound",
    "fingerprint",
    "folder_of",
    "is_public_key",
    "masked",
    "odd_one_out",
    "on_shares",
    "open_sealed",
    "outcome",
    "own_keys",
    "project",
    "quantised",
    "reconstruct",
    "seal",
    "split",
]
