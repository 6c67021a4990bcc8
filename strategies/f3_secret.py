"""Inference on secret shares: neither an aggregator nor the server sees an embedding of the samples.

Ma, Hoang, Chen (UAI 2023), section 5 and lines 8 to 11 of algorithm 1. What is and what is not protected:
``fedgraph.privacy``.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.federation import JoinedSamples, OrderedGrid, Traffic, join, nodes_may_come, split_replies
from fedgraph.fusion import FittedFusion, SecretFusion, Stages
from fedgraph.messages import EmbedRequest
from fedgraph.methods.f3_secret import (
    STEP,
    ComputeReply,
    ComputeRequest,
    F3SecretSettings,
    Introduction,
    ShareReply,
    ShareRequest,
    sealed_bytes,
)
from fedgraph.privacy.secret import fingerprint, odd_one_out
from fedgraph.strategies.engine.owners import OwnersStrategy
from fedgraph.strategies.engine.phases import Outcome
from fedgraph.strategies.f3_inference import fusion_file, predicted, unchanged, without
from fedgraph.support.errors import ExperimentError, IdentityError, RunError

log = logging.getLogger("fedgraph")

_POLL_SECONDS = 0.5
_UNOPENED = "cannot open shares, which were changed on the way, or sealed for another key, run or request, of"


class F3Secret(OwnersStrategy[F3SecretSettings]):
    """Three exchanges: introductions; sealed shares from owners; shares of the first layer's result from aggregators.

    Aggregators that do not answer are left out as long as at least ``threshold`` do. One more checks the others; with
    two more, the one that all others contradict is known, and left out where some may be absent. Owners whose shares so
    many aggregators cannot open that too few are left count as absent.
    """

    name = "f3-secret"
    title = "Such predictions on secret shares: neither the server nor any aggregator sees an embedding"
    needs = "[f3-secret] run, and nodes with node config 'aggregator'; `fedgraph predict --secret` plays them"
    default_client = "fedgraph.clients.f3_secret:SecretClient"

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Predict the samples on secret shares. A run that was stopped starts again.

        Raises
        ------
        FedgraphError
            As ``F3Inference``; when the fusion has no linear first stage or its result would reveal embeddings; when
            too few aggregators answer, or their answers contradict each other.
        """
        settings = self.settings
        fusion = FittedFusion.read(fusion_file(settings.run))
        secret = SecretFusion(
            fusion.network, fusion.sizes, fusion.owners, settings, settings.draws, self.plan.seed,
            fusion.settings.average,
        )  # fmt: skip
        answers = self._introductions(grid)
        introduced = {node: answer.owners for node, answer in answers.items()}
        joined = join(introduced, fusion.owners, self.plan.tolerant, embedded=False)
        self.check_owners_present(joined)
        joined = unchanged(self, fusion, joined)
        nodes = self._aggregators(answers)
        public = {name: answers[node].public for name, node in nodes.items()}
        for name, key in public.items():
            log.info("aggregator '%s' has the key with the fingerprint %s", name, fingerprint(key))
        # Refused before any owner is asked to share.
        stages = secret.stages(joined.present)
        request = secrets.token_hex(16)
        joined, sealed = self._sealed(grid, fusion, joined, public, request)
        if not torch.equal(joined.present, stages.present):
            stages = secret.stages(joined.present)
        while True:
            shares, unopened = self._computed(grid, fusion, joined, nodes, stages, sealed, request)
            if not unopened:
                break
            joined = self._present(fusion, joined, unopened)
            sealed = {owner: parts for owner, parts in sealed.items() if owner not in unopened}
            stages = secret.stages(joined.present)
        shares, points = self._agreeing(shares, tuple(nodes))
        prediction = secret.prediction(stages, torch.stack(list(shares.values())), points)
        facts = {
            "bytes_per_owner": max(each.numel() for each in sealed.values()),
            "aggregators": {name: fingerprint(key) for name, key in public.items()},
            "aggregators_used": list(shares),
            "probability_error_bound": secret.error_bound(stages),
        }
        return predicted(self, fusion, joined, prediction, facts)

    def _introductions(self, grid: Grid) -> dict[int, Introduction]:
        """Run the first exchange; repeated when another node connects, until there are enough aggregators."""
        plan = self.plan
        request = EmbedRequest(
            (self.settings.samples,), False, client=plan.client, experiment=plan.experiment, run=plan.folder.name
        )
        deadline = time.monotonic() + plan.roll_call.wait
        while True:
            # Of these exchanges only the last one counts, as for any opening query.
            self.traffic, asked = Traffic(), set(grid.get_node_ids())
            answers = self.ask(grid, request.pack(), EmbedRequest.message_type, Introduction.unpack)
            there = sum(answer.aggregator is not None for answer in answers.values())
            if there >= self.settings.aggregators:
                return answers
            log.info("waiting for nodes: only %d of %d aggregators are connected", there, self.settings.aggregators)
            asked |= set(answers)
            while set(grid.get_node_ids()) <= asked:
                if time.monotonic() > deadline or not nodes_may_come(grid):
                    return answers
                time.sleep(_POLL_SECONDS)

    def _aggregators(self, answers: Mapping[int, Introduction]) -> dict[str, int]:
        """Return the node of each aggregator, in the order of their names, which is that of their points."""
        nodes: dict[str, int] = {}
        for node, answer in answers.items():
            if answer.aggregator is None:
                continue
            if answer.aggregator in nodes:
                raise IdentityError(
                    f"aggregator '{answer.aggregator}' is there twice, on node {nodes[answer.aggregator]} and on node "
                    f"{node}: give each its own name (node config 'aggregator')"
                )
            nodes[answer.aggregator] = node
        wanted, threshold, listed = self.settings.aggregators, self.settings.threshold, ", ".join(sorted(nodes))
        if len(nodes) > wanted:
            raise ExperimentError(
                f"{len(nodes)} nodes aggregate ({listed}), but [f3-secret] aggregators is {wanted}: raise it, or end "
                "those that shall hold no shares"
            )
        if len(nodes) < wanted:
            missing = (
                f"only {len(nodes)} of {wanted} aggregators are there ({listed or 'none'}); a node aggregates with the "
                "node config 'aggregator = \"name\"'"
            )
            if len(nodes) < threshold or not self.plan.tolerant:
                raise RunError(f'{missing}. [experiment] on-missing = "skip" goes on with {threshold} or more')
            log.warning("going on, although %s", missing)
        return dict(sorted(nodes.items()))

    def _sealed(
        self, grid: Grid, fusion: FittedFusion, joined: JoinedSamples, public: Mapping[str, bytes], request: str
    ) -> tuple[JoinedSamples, dict[str, Tensor]]:
        """Run the second exchange: sealed shares by owner, uint8 ``[aggregators, bytes]``, and their samples."""
        plan, ordered = self.plan, OrderedGrid(grid, joined.federation(), self.traffic)
        counts, sizes = joined.present.sum(0).tolist(), fusion.sizes.tolist()
        hosted = {node: [joined.owners[place] for place in places.tolist()] for node, places in joined.hosts.items()}
        lengths = {
            owner: sealed_bytes(count, size)
            for owner, count, size in zip(joined.owners, counts, sizes, strict=True)
        }  # fmt: skip
        messages = []
        for node, owners in hosted.items():
            fingerprints = {owner: fusion.models[owner] for owner in owners}
            asked = ShareRequest(
                request, self.settings.samples, fingerprints, public,
                client=plan.client, experiment=plan.experiment, run=plan.folder.name,
            )  # fmt: skip
            messages.append(Message(asked.pack(), node, STEP))

        def read(node: int, content: RecordDict) -> ShareReply:
            return ShareReply.unpack(content, {owner: lengths[owner] for owner in hosted[node]}, len(public))

        found, problems = split_replies(ordered.send_and_receive(messages, timeout=plan.timeout), hosted, read)
        lost: dict[str, str] = {}
        for node, problem in problems.items():
            first, *others = hosted[node]
            lost |= {first: problem, **dict.fromkeys(others, f"is on the node of {first}")}
        if lost:
            joined = self._present(fusion, joined, lost)
        return joined, {owner: parts for reply in found.values() for owner, parts in reply.sealed.items()}

    def _present(self, fusion: FittedFusion, joined: JoinedSamples, lost: Mapping[str, str]) -> JoinedSamples:
        """The samples without some owners. Raises as ``check_owners_present`` and ``unchanged``."""
        left = without(joined, lost)
        self.check_owners_present(left)
        return unchanged(self, fusion, left)

    def _computed(
        self,
        grid: Grid,
        fusion: FittedFusion,
        joined: JoinedSamples,
        nodes: Mapping[str, int],
        stages: Stages,
        sealed: Mapping[str, Tensor],
        request: str,
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Run the third exchange: shares of the first layer's result, ``Stages.shape``, by aggregator that answered.

        Where the plan tolerates absent owners, those without whom enough aggregators could have computed are returned
        in place of results, with reasons.
        """
        plan, names = self.plan, tuple(nodes)
        hosts = {node: torch.tensor([place]) for place, node in enumerate(nodes.values())}
        ordered = OrderedGrid(grid, replace(joined.federation(), names=names, hosts=hosts), self.traffic)
        asked = ComputeRequest(
            client=plan.client,
            experiment=plan.experiment,
            run=plan.folder.name,
            request=request,
            aggregator="",
            owners=joined.owners,
            keys=joined.keys,
            sizes=fusion.sizes,
            fingerprints=fusion.fingerprints,
            present=joined.present.T,
            patterns=stages.patterns,
            mixing=stages.stage.mixing,
            projections=stages.stage.projections,
            sealed={},
        )
        messages = []
        for place, (name, node) in enumerate(nodes.items()):
            own = replace(asked, aggregator=name, sealed={owner: parts[place] for owner, parts in sealed.items()})
            messages.append(Message(own.pack(), node, STEP))

        def read(node: int, content: RecordDict) -> ComputeReply:
            return ComputeReply.unpack(content, stages.shape, sealed)

        found, problems = split_replies(ordered.send_and_receive(messages, timeout=plan.timeout), hosts, read)
        answers = {name: found[node] for name, node in nodes.items() if node in found}
        computed = {name: answer.shares for name, answer in answers.items() if answer.shares is not None}
        reasons = {name: problems[node] for name, node in nodes.items() if node in problems}
        reasons |= {
            name: f"{_UNOPENED} {', '.join(answer.unopened)}" for name, answer in answers.items() if answer.unopened
        }
        for name, reason in reasons.items():
            log.warning("nothing usable from aggregator %s: %s", name, reason)
        if len(computed) >= self.settings.threshold:
            return computed, {}
        if self.plan.tolerant:
            # A few aggregators that say so leave nobody out: the others are enough.
            by = {owner: [name for name, answer in answers.items() if owner in answer.unopened] for owner in sealed}
            most = len(names) - self.settings.threshold
            unopened = {owner: f"{', '.join(who)}: {_UNOPENED} it" for owner, who in by.items() if len(who) > most}
            if unopened:
                return {}, unopened
        listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise RunError(
            f"the answers of {self.settings.threshold} aggregators are needed, but {len(computed)} came ({listed})"
        )

    def _agreeing(
        self, shares: Mapping[str, Tensor], aggregators: Sequence[str]
    ) -> tuple[dict[str, Tensor], list[int]]:
        """The shares without those of an aggregator that all others contradict, and the points that they are from."""
        left, point_of = dict(shares), {name: place for place, name in enumerate(aggregators, 1)}
        points = [point_of[name] for name in left]
        odd = odd_one_out(torch.stack(list(left.values())), points, self.settings.threshold)
        if odd is not None and self.plan.tolerant:
            name = list(left)[odd]
            log.warning("the shares of aggregator %s contradict those of all others, and are left out", name)
            del left[name], points[odd]
        return left, points
