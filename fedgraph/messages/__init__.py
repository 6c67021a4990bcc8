"""Typed requests and replies, converted to and from Flower records; messages of nodes are checked before use.

>>> import torch
>>> from fedgraph.messages import checked_arrays, from_record, to_record
>>> from_record(to_record({"weights": torch.ones(2)}))
{'weights': tensor([1., 1.])}
"""

from fedgraph.messages.array_records import checked_arrays, from_record, to_record
from fedgraph.messages.cohort import Identity, WorkReply, WorkRequest
from fedgraph.messages.content import check_content, mark_empty
from fedgraph.messages.embeddings import EmbedReply, EmbedRequest
from fedgraph.messages.envelope import (
    CHALLENGE_KEY,
    CLIENT_KEY,
    EXPERIMENT_KEY,
    KEEP_KEY,
    PROOF_KEY,
    ROUND_KEY,
    RUN_KEY,
    Request,
    error_content,
    is_unreachable,
    read_error,
    read_hosts,
    read_proof,
    unpacking_reply,
    unpacking_request,
)

__all__ = [
    "CHALLENGE_KEY",
    "CLIENT_KEY",
    "EXPERIMENT_KEY",
    "KEEP_KEY",
    "PROOF_KEY",
    "ROUND_KEY",
    "RUN_KEY",
    "EmbedReply",
    "EmbedRequest",
    "Identity",
    "Request",
    "WorkReply",
    "WorkRequest",
    "check_content",
    "checked_arrays",
    "error_content",
    "from_record",
    "is_unreachable",
    "mark_empty",
    "read_error",
    "read_hosts",
    "read_proof",
    "to_record",
    "unpacking_reply",
    "unpacking_request",
]
