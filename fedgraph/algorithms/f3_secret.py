"""Inference on secret shares: neither an aggregator nor the server sees an embedding of the samples.

Ma, Hoang, Chen (UAI 2023), section 5 and lines 8 to 11 of algorithm 1. What is and what is not protected:
``fedgraph.privacy``.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.f3_inference import predicted, trained_fusion, unchanged
from fedgraph.algorithms.f3_secret_messages import (
    ComputeReply,
    ComputeRequest,
    Introduction,
    ShareReply,
    ShareRequest,
    sealed_bytes,
)
from fedgraph.algorithms.f3_settings import F3SecretSettings
from fedgraph.algorithms.owners import OwnersAlgorithm, join_answers
from fedgraph.algorithms.phases import Consult, Opening, Outcome, Phase, PhaseRun, Query, Without
from fedgraph.fusion import FittedFusion, JoinedSamples, SecretFusion, Stages
from fedgraph.messages import EmbedRequest
from fedgraph.privacy.secret import fingerprint, odd_one_out
from fedgraph.support.errors import ExperimentError, IdentityError, RunError, quoted

log = logging.getLogger("fedgraph")

_UNOPENED = "cannot open shares, which were altered, or sealed for another key, run or request, of"


class F3Secret(OwnersAlgorithm[F3SecretSettings]):
    """Three exchanges: introductions; sealed shares from owners; shares of the first layer's result from aggregators.

    Aggregators that do not answer are left out as long as at least ``threshold`` do. One more detects errors; two more
    identify an aggregator that all others contradict, which is left out if absences are allowed. Owners whose shares
    too few aggregators can open count as absent.
    """

    name = "f3-secret"
    title = "Such predictions on secret shares: neither the server nor any aggregator sees an embedding"
    needs = "[f3-secret] run, and nodes with node config 'aggregator'; `fedgraph predict --secret` plays them"
    default_client = "fedgraph.clients.f3_secret:SecretClient"

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Predict the samples on secret shares. A run that was stopped starts again.

        Raises DataError or ExperimentError as F3Inference; when the fusion has no linear first stage or its result
        would reveal embeddings. Raises RunError or IdentityError when too few aggregators answer, or their answers
        contradict each other.
        """
        settings = self.settings
        fusion = trained_fusion(run, settings.run)
        secret = SecretFusion(
            fusion.network, fusion.sizes, fusion.owners, settings, settings.draws, run.seed, fusion.settings.average
        )
        answers: Mapping[int, Introduction] = yield Opening(
            # The models name the classes of samples without labels.
            EmbedRequest((settings.samples,), embeddings=False, fingerprints=fusion.models), Introduction.unpack,
            EmbedRequest.message_type, fusion.owners, self._lacking,
        )  # fmt: skip
        introduced = {node: answer.owners for node, answer in answers.items()}
        joined, _ = yield from join_answers(run, introduced, fusion.owners, embedded=False)
        joined = yield from unchanged(fusion, joined, settings.samples)
        nodes = self._aggregators(answers, run.tolerant)
        public = {name: answers[node].public for name, node in nodes.items()}
        for name, key in public.items():
            log.info("aggregator '%s' has the key with the fingerprint %s", name, fingerprint(key))
        # Refused before any owner is asked to share.
        stages = secret.stages(joined.present)
        requested = _Asked(secrets.token_hex(16), fusion, nodes, public)
        joined, sealed = yield from self._sealed(requested, joined)
        if not torch.equal(joined.present, stages.present):
            stages = secret.stages(joined.present)
        while True:
            shares, unopened = yield from self._computed(run, requested, joined, stages, sealed)
            if not unopened:
                break
            yield Without(unopened)
            joined = yield from unchanged(fusion, joined.without(unopened), settings.samples)
            sealed = {owner: parts for owner, parts in sealed.items() if owner not in unopened}
            stages = secret.stages(joined.present)
        agreeing, points = self._agreeing(shares, tuple(nodes), run.tolerant)
        prediction = secret.prediction(stages, torch.stack(list(agreeing.values())), points)
        facts = {
            "bytes_per_owner": max(each.numel() for each in sealed.values()),
            "aggregators": {name: fingerprint(key) for name, key in public.items()},
            "aggregators_used": list(agreeing),
            "probability_error_bound": secret.error_bound(stages),
            "notes": self._notes(tuple(nodes), shares, agreeing),
        }
        return predicted(settings, fusion, joined, prediction, facts)

    # ---- introductions ---------------------------------------------------------------------------------------------

    def _lacking(self, answers: Mapping[int, Introduction]) -> str:
        present, wanted = sum(answer.aggregator is not None for answer in answers.values()), self.settings.aggregators
        return "" if present >= wanted else f"only {present} of {wanted} aggregators are connected"

    def _aggregators(self, answers: Mapping[int, Introduction], tolerant: bool) -> dict[str, int]:
        """Return the node of each aggregator, in the order of their names, which is that of their points."""
        nodes: dict[str, int] = {}
        for node, answer in answers.items():
            if answer.aggregator is None:
                continue
            if answer.aggregator in nodes:
                raise IdentityError(
                    f"duplicate aggregator '{answer.aggregator}', on node {nodes[answer.aggregator]} and on node "
                    f"{node}: give each its own name (node config 'aggregator')"
                )
            nodes[answer.aggregator] = node
        wanted, threshold, listed = self.settings.aggregators, self.settings.threshold, ", ".join(sorted(nodes))
        if len(nodes) > wanted:
            raise ExperimentError(
                f"{len(nodes)} nodes aggregate ({listed}), but [f3-secret] aggregators is {wanted}: raise it, or stop "
                "the others"
            )
        if len(nodes) < wanted:
            missing = (
                f"only {len(nodes)} of {wanted} aggregators are connected ({listed or 'none'}); a node aggregates with "
                "the node config 'aggregator = \"name\"'"
            )
            if len(nodes) < threshold or not tolerant:
                raise RunError(f'{missing}. [experiment] on-missing = "skip" goes on with {threshold} or more')
            log.warning("going on, although %s", missing)
        return dict(sorted(nodes.items()))

    # ---- shares ----------------------------------------------------------------------------------------------------

    def _sealed(self, asked: _Asked, joined: JoinedSamples) -> Phase[tuple[JoinedSamples, dict[str, Tensor]]]:
        """Run the second exchange; returns the samples and sealed shares, uint8 ``[aggregators, bytes]``."""
        fusion, public = asked.fusion, asked.public
        counts, sizes = joined.present.sum(0).tolist(), fusion.sizes.tolist()
        lengths = {
            owner: sealed_bytes(count, size)
            for owner, count, size in zip(joined.owners, counts, sizes, strict=True)
        }  # fmt: skip
        present = {owner for owner, count in zip(joined.owners, counts, strict=True) if count}

        def request(owners: tuple[str, ...]) -> ShareRequest:
            return ShareRequest(
                asked.identifier, self.settings.samples, {owner: fusion.models[owner] for owner in owners}, public
            )

        def read(owners: tuple[str, ...], content: Any) -> tuple[Mapping[str, Tensor], dict[str, str]]:
            return ShareReply.unpack(content, {owner: lengths[owner] for owner in owners}, len(public)).sealed, {}

        sealed: Mapping[str, Tensor] = yield Query(request, read)
        lost = present - sealed.keys()
        if lost:
            joined = yield from unchanged(fusion, joined.without(lost), self.settings.samples)
        return joined, dict(sealed)

    def _computed(
        self, run: PhaseRun, asked: _Asked, joined: JoinedSamples, stages: Stages, sealed: Mapping[str, Tensor]
    ) -> Phase[tuple[dict[str, Tensor], dict[str, str]]]:
        """Run the third exchange: shares of the first layer's result, ``Stages.shape``, by aggregator that answered.

        Where owners may be absent, the owners without whom enough aggregators could have computed are returned instead
        of results, with reasons.
        """
        names, threshold = tuple(asked.nodes), self.settings.threshold

        def request(name: str) -> ComputeRequest:
            return ComputeRequest(
                request=asked.identifier,
                aggregator=name,
                owners=joined.owners,
                keys=joined.keys,
                sizes=asked.fusion.sizes,
                fingerprints=asked.fusion.fingerprints,
                present=joined.present.T,
                patterns=stages.patterns,
                mixing=stages.stage.mixing,
                projections=stages.stage.projections,
                sealed={owner: parts[names.index(name)] for owner, parts in sealed.items()},
            )

        answers: Mapping[str, ComputeReply]
        answers, reasons = yield Consult(
            asked.nodes, request, lambda _, content: ComputeReply.unpack(content, stages.shape, sealed)
        )
        computed = {name: answer.shares for name, answer in answers.items() if answer.shares is not None}
        reasons = reasons | {
            name: f"{_UNOPENED} {', '.join(answer.unopened)}" for name, answer in answers.items() if answer.unopened
        }
        for name, reason in reasons.items():
            log.warning("nothing usable from aggregator %s: %s", name, reason)
        if len(computed) >= threshold:
            return computed, {}
        if run.tolerant:
            # A few aggregators cannot exclude an owner if the others are enough.
            by = {owner: [name for name, answer in answers.items() if owner in answer.unopened] for owner in sealed}
            most = len(names) - threshold
            # Those that can open nothing have lost their keys, which is no fault of the owners.
            without_keys = {name for name, answer in answers.items() if len(answer.unopened) == len(sealed) > 1}
            unopened = {
                owner: f"{', '.join(who)}: {_UNOPENED} it"
                for owner, who in by.items()
                if len(who) > most and not set(who) <= without_keys
            }
            if unopened:
                return {}, unopened
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise RunError(f"the answers of {threshold} aggregators are needed, but {len(computed)} came ({listed})")

    def _agreeing(
        self, shares: Mapping[str, Tensor], aggregators: Sequence[str], tolerant: bool
    ) -> tuple[dict[str, Tensor], list[int]]:
        """The shares without those of an aggregator that all others contradict, and the points that they are from."""
        left, point_of = dict(shares), {name: place for place, name in enumerate(aggregators, 1)}
        points = [point_of[name] for name in left]
        odd = odd_one_out(torch.stack(list(left.values())), points, self.settings.threshold)
        if odd is not None:
            name = list(left)[odd]
            if not tolerant:
                raise RunError(
                    f"the shares of the aggregators contradict each other: those of '{name}' do not fit those of all "
                    'others. [experiment] on-missing = "skip" goes on without it'
                )
            log.warning("the shares of aggregator %s contradict those of all others, and are left out", name)
            del left[name], points[odd]
        return left, points

    def _notes(
        self, aggregators: Sequence[str], answered: Mapping[str, Tensor], used: Mapping[str, Tensor]
    ) -> list[str]:
        """Return notes on aggregators that the result is without, and whether a false share could be found out."""
        notes, threshold = [], self.settings.threshold
        if odd := [name for name in answered if name not in used]:
            notes.append(f"the shares of aggregator {quoted(odd)} contradicted those of all others, and were left out")
        if lost := [name for name in aggregators if name not in answered]:
            unchecked = f"; from no more than {threshold}, it cannot be found out if one computed something else"
            notes.append(
                f"nothing usable from aggregator {quoted(lost)}{unchecked if len(answered) == threshold else ''}"
            )
        return notes


@dataclass(frozen=True)
class _Asked:
    """The common part of requests: an identifier, the trained fusion, and nodes and public keys of aggregators."""

    identifier: str
    fusion: FittedFusion
    nodes: Mapping[str, int]
    public: Mapping[str, bytes]
