"""Inference on secret shares: neither an aggregator nor the server sees an embedding of the samples.

Ma, Hoang, Chen (UAI 2023), section 5 and lines 8 to 11 of algorithm 1. What is and what is not protected:
``fedgraph.privacy``.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace

import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.federation import JoinedSamples, OrderedGrid, Traffic, join, split_replies
from fedgraph.fusion import FittedFusion, SecretFusion, Stages
from fedgraph.messages import EMBED, EmbedRequest
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
from fedgraph.privacy.secret import fingerprint
from fedgraph.support.errors import ExperimentError, IdentityError, RunError
from strategies.engine.owners import OwnersStrategy
from strategies.engine.phases import Outcome
from strategies.f3_inference import fusion_file, predicted, unchanged, without

log = logging.getLogger("fedgraph")

_POLL_SECONDS = 0.5


class F3Secret(OwnersStrategy[F3SecretSettings]):
    """Three exchanges: introductions; sealed shares from owners; shares of the first layer's result from aggregators.

    Aggregators that do not answer are left out as long as at least ``threshold`` do; additional ones check each other.
    """

    name = "f3-secret"
    title = "Such predictions on secret shares: neither the server nor any aggregator sees an embedding"
    needs = "[f3-secret] run, and nodes with node config 'aggregator'; `fedgraph predict --secret` plays them"
    default_client = "clients.f3_secret:SecretClient"

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
        shares = self._computed(grid, fusion, joined, nodes, stages, sealed, request)
        points = [place for place, name in enumerate(nodes, 1) if name in shares]
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
        request = EmbedRequest(plan.client, plan.experiment, plan.folder.name, (self.settings.samples,), False)
        deadline = time.monotonic() + plan.roll_call.wait
        while True:
            # Of these exchanges only the last one counts, as for any opening query.
            self.traffic, asked = Traffic(), set(grid.get_node_ids())
            answers = self.ask(grid, request.pack(), EMBED, Introduction.unpack)
            there = sum(answer.aggregator is not None for answer in answers.values())
            if there >= self.settings.aggregators:
                return answers
            log.info("waiting for nodes: only %d of %d aggregators are connected", there, self.settings.aggregators)
            asked |= set(answers)
            while set(grid.get_node_ids()) <= asked:
                if time.monotonic() > deadline:
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
                plan.client, plan.experiment, plan.folder.name, request, self.settings.samples, fingerprints, public
            )
            messages.append(Message(asked.pack(), node, STEP))

        def read(node: int, content: RecordDict) -> ShareReply:
            return ShareReply.unpack(content, {owner: lengths[owner] for owner in hosted[node]}, len(public))

        found, problems = split_replies(ordered.send_and_receive(messages, timeout=plan.timeout), hosted, read)
        lost: dict[str, str] = {}
        for node, problem in problems.items():
            first, *others = hosted[node]
            lost |= {first: problem, **dict.fromkeys(others, f"is on the node of {first}")}
        if lost:
            joined = without(joined, lost)
            self.check_owners_present(joined)
            joined = unchanged(self, fusion, joined)
        return joined, {owner: parts for reply in found.values() for owner, parts in reply.sealed.items()}

    def _computed(
        self,
        grid: Grid,
        fusion: FittedFusion,
        joined: JoinedSamples,
        nodes: Mapping[str, int],
        stages: Stages,
        sealed: Mapping[str, Tensor],
        request: str,
    ) -> dict[str, Tensor]:
        """Run the third exchange: shares of the first layer's result, ``Stages.shape``, by aggregator that answered."""
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
            return ComputeReply.unpack(content, stages.shape)

        found, problems = split_replies(ordered.send_and_receive(messages, timeout=plan.timeout), hosts, read)
        reasons = {name: problems[node] for name, node in nodes.items() if node in problems}
        for name, reason in reasons.items():
            log.warning("nothing usable from aggregator %s: %s", name, reason)
        if len(found) < self.settings.threshold:
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise RunError(
                f"the answers of {self.settings.threshold} aggregators are needed, but {len(found)} came ({listed})"
            )
        return {name: found[node].shares for name, node in nodes.items() if node in found}
