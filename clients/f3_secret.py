"""The client class of inference on secret shares: owners share their embeddings, aggregators compute on shares.

Ma, Hoang, Chen (UAI 2023), section 5 and line 9 of algorithm 1. Guarantees are described in ``fedgraph.privacy``.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedgraph.algorithms.f3_secret_messages import (
    TAG_BYTES,
    ComputeReply,
    ComputeRequest,
    Introduction,
    ShareReply,
    ShareRequest,
    binding,
    sealed_bytes,
)
from fedgraph.algorithms.f3_settings import F3SecretSettings
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.node import Node
from fedgraph.clients.f3 import SAMPLE_FACTS, F3Client
from fedgraph.data.owners import OwnerSource
from fedgraph.federation import listed
from fedgraph.messages import EmbedReply, EmbedRequest
from fedgraph.privacy import ONCE
from fedgraph.privacy.secret import (
    AppliedMaps,
    Context,
    KeyPair,
    ShareSettings,
    encode,
    field,
    fingerprint,
    folder_of,
    on_shares,
    open_sealed,
    own_keys,
    seal,
    split,
)
from fedgraph.support.errors import DataError, IdentityError, ReplyError, RunError, counted
from fedgraph.support.settings import Configured

log = logging.getLogger("fedgraph")


class SecretClient(Configured[F3SecretSettings]):
    """Serves the owners of one node, and the node as an aggregator.

    A node aggregates if its node config has the name ``aggregator``; it needs neither owners nor data. Node config
    ``aggregator-fingerprints`` of a node with owners pins the aggregators that may receive shares: a comma-separated
    list of ``name=fingerprint``.
    """

    noise: ClassVar[str] = "noise"
    sends: ClassVar[tuple[str, ...]] = (
        *SAMPLE_FACTS,
        "secret shares of an embedding of each sample, one per aggregator, encrypted for it",
    )
    keeps: ClassVar[tuple[str, ...]] = ("features", "each owner's own model", "embeddings in the clear")

    def __init__(self, node: Node, experiment: str) -> None:
        self.node = node
        assignment = Assignment.of(experiment)
        self.settings = assignment.method_as(F3SecretSettings)
        # Settings that owners and aggregators must agree on.
        self.sharing = assignment.method_as(ShareSettings)

    @classmethod
    def handle(cls, message: Message, node: Node) -> RecordDict:
        """Answer a message; called by the ClientApp."""
        if message.metadata.message_type == EmbedRequest.message_type:
            requested = EmbedRequest.unpack(message.content)
            return cls(node, requested.experiment).introduce(requested).pack()
        config: Any = message.content.config_records["config"]
        step = config.get("step")
        if step == "share":
            shared = ShareRequest.unpack(message.content)
            return cls(node, shared.experiment).share(shared).pack()
        if step == "compute":
            computed = ComputeRequest.unpack(message.content)
            return cls(node, computed.experiment).compute(computed).pack()
        raise ReplyError(f"unknown step '{step}' in the request: server and node run different versions of fedgraph")

    def introduce(self, request: EmbedRequest) -> Introduction:
        """Return the samples of this node's owners, and its public key if it aggregates, without embeddings.

        Raises ReplyError when the server requests embeddings in the clear.
        """
        if request.embeddings:
            raise ReplyError("the server requests embeddings in the clear, although this run uses secret shares")
        name, owners = self.aggregator, F3Client(self.node, request).reply()
        return Introduction(owners) if name is None else Introduction(owners, name, self._keys(name).public)

    @property
    def aggregator(self) -> str | None:
        """Name of this node as an aggregator, or None."""
        if self.node.aggregator is not None:
            return self.node.aggregator
        simulated, divided = self.settings.simulated_aggregators, self.node.partition()
        return f"aggregator-{divided[0]:03d}" if divided is not None and divided[0] < simulated else None

    def share(self, request: ShareRequest) -> ShareReply:
        """Return embeddings of the requested owners, as shares sealed for the aggregators.

        Raises ReplyError for aggregators that this node has not pinned, or too few. Raises FedgraphError when an owner
        lacks the frozen model, or an embedding cannot be shared.
        """
        self._check_aggregators(request.aggregators)
        requested = EmbedRequest(
            (request.split,), fingerprints=request.fingerprints,
            client=request.client, experiment=request.experiment, run=request.run,
        )  # fmt: skip
        owners = F3Client(self.node, requested)
        clear = owners.reply()
        self.node.done[:] = [f"sent embeddings of {counted(len(clear.keys), 'row')} as secret shares"]
        return ShareReply({owner: self._sealed(owner, owners.source, clear, request) for owner in request.fingerprints})

    def _sealed(self, owner: str, source: OwnerSource, clear: EmbedReply, request: ShareRequest) -> Tensor:
        """Return an owner's sealed shares, uint8 ``[aggregators, bytes]``."""
        if owner not in clear.clients:
            raise ReplyError(f"this node hosts {', '.join(clear.clients)}, not {owner}")
        row = clear.clients.index(owner)
        places, size = clear.present[row].nonzero().flatten(), int(clear.sizes[row])
        keys = [clear.keys[place] for place in places.tolist()]
        embeddings = clear.embeddings[row, places, :size]
        model = clear.fingerprints[row]
        # New random bits for other scales would average out, as noise does: an embedding is encoded once.
        scales = [self.settings.fractional_bits, self.settings.random_bits]
        noise = None if self.settings.noise is None else self.settings.noise.as_table()
        ledger = self.node.ledger(request.run, owner, f"shares of embeddings by model {model[:16]}")
        rows = source.identities(owner, keys, clear.classes)
        try:
            drawn = encode(embeddings, self.settings)
        except DataError as error:
            # The magnitude of an embedding must not leave this node.
            log.error("owner '%s': %s", owner, error)
            raise ReplyError(
                f"owner '{owner}' has embeddings that cannot be shared, see its node's log: raise 'largest' (now "
                f"{self.settings.largest:g}), or check the outputs of its local model"
            ) from None
        encoded = ledger.rows(rows, [*scales, noise], ONCE, lambda missing: drawn[missing])
        secret = self.node.secret
        # For the aggregators, which must recognise samples by more than keys, which the server names.
        tags = b"".join(hmac.digest(secret, f"{row} {owner}".encode(), "sha256")[:TAG_BYTES] for row in rows.tolist())
        shares = split(encoded, len(request.aggregators), self.settings.threshold)
        bound = binding(request.request, self.sharing, keys, size, model)
        sealed = [
            seal(public, field.to_bytes(share) + tags, Context(request.run, owner, name, bound))
            for share, (name, public) in zip(shares, request.aggregators.items(), strict=True)
        ]
        whole = torch.frombuffer(bytearray(b"".join(sealed)), dtype=torch.uint8)
        return whole.reshape(len(sealed), sealed_bytes(len(keys), size))

    def _check_aggregators(self, aggregators: Mapping[str, bytes]) -> None:
        if len(aggregators) < self.settings.threshold or len(set(aggregators.values())) < len(aggregators):
            raise ReplyError(
                f"the request has {len(set(aggregators.values()))} different aggregators, fewer than the threshold of "
                f"{self.settings.threshold} or than its names ({', '.join(aggregators)})"
            )
        if "aggregator-fingerprints" not in self.node.config:
            return
        pinned = _pinned(str(self.node.config["aggregator-fingerprints"]))
        for name, public in aggregators.items():
            if pinned.get(name) != fingerprint(public):
                raise ReplyError(
                    f"aggregator '{name}' has the key {fingerprint(public)}, but node config 'aggregator-fingerprints' "
                    f"has {pinned.get(name, 'none')} for it; no share is sent to it"
                )

    def compute(self, request: ComputeRequest) -> ComputeReply:
        """Compute this aggregator's share of the first stage; name the owners whose shares cannot be opened.

        Raises ReplyError for a request to another aggregator, and ExperimentError when the server would learn too much,
        see ``check_leaks``.
        """
        if request.aggregator != self.aggregator:
            raise ReplyError(f"the request is for aggregator '{request.aggregator}', but this is '{self.aggregator}'")
        owners, samples = request.present.shape
        folder, keys = folder_of(self.node.state_dir, request.aggregator), self._keys(request.aggregator)
        shares = torch.zeros(owners, samples, request.projections.shape[2], dtype=torch.int64)
        applied, unopened = [], []
        for row, (owner, model) in enumerate(zip(request.owners, request.fingerprints, strict=True)):
            if owner not in request.sealed:
                continue
            places, size = request.present[row].nonzero().flatten(), int(request.sizes[row])
            named = [request.keys[place] for place in places.tolist()]
            bound = binding(request.request, self.sharing, named, size, model)
            context = Context(request.run, owner, request.aggregator, bound)
            try:
                opened = open_sealed(keys, request.sealed[owner].numpy().tobytes(), context)
                length = len(opened) - TAG_BYTES * len(named)
                shares[row, places, :size] = field.from_bytes(opened[:length], (len(named), size))
                tags = [opened[at : at + TAG_BYTES].hex() for at in range(length, len(opened), TAG_BYTES)]
            except ReplyError as error:
                log.warning("%s", error)
                unopened.append(owner)
                continue
            applied.append((AppliedMaps(folder, owner, model, size), tags, request.projections[row, :, :size]))
        # Only after all shares are opened: a request that is not computed costs nothing.
        if unopened:
            return ComputeReply(None, tuple(unopened))
        for maps, tags, projection in applied:
            maps.allow(tags, projection, self.settings)
        return ComputeReply(on_shares(request.mixing, request.projections, request.patterns, shares))

    def _keys(self, name: str) -> KeyPair:
        try:
            return own_keys(folder_of(self.node.state_dir, name))
        except OSError as error:
            raise RunError(f"aggregator '{name}' cannot keep its key: {error}") from error


def _pinned(text: str) -> dict[str, str]:
    """Read fingerprints by aggregator. Raises IdentityError for a malformed entry."""
    pinned = {}
    for entry in listed(text):
        name, _, known = (part.strip() for part in entry.rpartition("="))
        if not name or len(known) != 64:
            raise IdentityError(
                f"invalid entry '{entry}' of node config 'aggregator-fingerprints': expected 'name=fingerprint', with "
                "the 64 hexadecimal digits that `python -m fedgraph.privacy.secret` prints on its node"
            )
        pinned[name] = known.lower()
    return pinned
