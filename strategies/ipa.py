"""IPA, iterative parameter alignment: peers keep their own models and pull each other's together in training.

Gorbett, Shirazi, Ray: Cross-Silo Federated Learning Across Divergent Domains with Iterative Parameter Alignment (IEEE
Big Data 2023), algorithm 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.methods.ipa import IPASettings
from fedgraph.privacy.noise import NoiseSettings, privacy_facts
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator


class IPA(CohortStrategy[IPASettings]):
    """Passes theta*, the parameters of all peers, from one peer to the next; the server computes nothing with them.

    A round is one turn of every peer, each an exchange with its node alone. A peer is evaluated right after its turn,
    as in the paper, and once more at the end, when the turns of others have moved it: the metrics of ``summary.json``
    are those of the final models of the run, and those right after the last turn have names that end in
    ``-after-turn``. A peer that does not answer keeps its parameters in theta*, where the turns of others continue to
    move them, and takes its next turn when it is back; a peer that joins late enters with its own. With simultaneous
    turns a round is one exchange.

    Raises
    ------
    ExperimentError
        For fewer than two clients, unknown clients in ``joins``, or settings that the run cannot follow.
    """

    name = "ipa"
    title = "Iterative parameter alignment: peers keep different models and pull them together as they train"
    needs = "two clients at least; [train] keep-optimizer = true for the paper's Adam"
    paper = "https://arxiv.org/abs/2311.04818"
    default_client = "fedgraph.clients.ipa:IPAClient"
    # Turns change models one after the other, with no aggregation that a defence could come before.
    defences = ()

    def __init__(self, settings: IPASettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        if self.settings.neighbours_only and federation.graph is None:
            raise ExperimentError("[ipa] neighbours-only needs a client graph: give the experiment a [graph] source")
        if len(federation.names) < 2:
            raise ExperimentError("IPA aligns peers with each other and needs two clients at least")
        strangers = sorted(set(self.settings.joins) - set(federation.names))
        if strangers:
            raise ExperimentError(f"[ipa] joins: there is no client {', '.join(strangers)} in this experiment's data")
        self._joins = torch.tensor([self.settings.joins.get(name, 1) for name in federation.names])
        if bool((self._joins > 1).all()):
            raise ExperimentError("[ipa] joins: nobody is there in the first round; let one peer start it")
        if self.settings.privacy is not None:
            self._check_privacy(self.settings.privacy)

    def _check_privacy(self, privacy: NoiseSettings) -> None:
        """Raise ExperimentError for more turns than releases, and for metrics of clients' own data, without noise."""
        rounds = self.plan.rounds
        if privacy.releases < rounds:
            raise ExperimentError(
                f"[ipa] privacy: {rounds} rounds are as many releases of a peer, but releases = {privacy.releases}; "
                f"set it to {rounds} or, for rounds that are repeated after a stop, more"
            )
        data = json.loads(self.plan.experiment).get("data", {})
        own = [split for split in self.plan.splits if split != "test" or data.get("test") != "shared"]
        if own:
            raise ExperimentError(
                f"[ipa] privacy: metrics of clients' own data ({', '.join(own)}) would leave without noise; measure on "
                'what all share ([evaluation] splits = ["test"] with [data] test = "shared"), or nothing (splits = [])'
            )

    @cached_property
    def _known(self) -> Tensor:
        """Which peers each peer may align with, bool ``[peers, peers]``."""
        known = ~torch.eye(len(self.federation.names), dtype=torch.bool)
        if self.settings.neighbours_only:
            assert self.federation.graph is not None
            known &= self.federation.graph.dense() != 0
        return known

    def weights(self, server_round: int) -> Tensor:
        """Return c_ij with which peer i aligns with peer j, ``[peers, peers]``; 0 for itself and unknown peers."""
        there = (self._joins <= server_round).float()
        counts = self.federation.num_examples["train"] * there
        share = counts / counts.sum() if self.settings.weights == "examples" else there
        return share * self._known

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Draw a model for each peer, or one for all."""
        super().initialise(initial_arrays)
        names = self.federation.names
        if self.settings.initialisation == "own":
            self.models = self.exchanged(self.plan.initial_models(names))
        if self.settings.initial_weights == "kaiming-normal":
            keys = names if self.settings.initialisation == "own" else ("",) * len(names)
            self.models = torch.stack([self._kaiming(row, key) for row, key in zip(self.models, keys, strict=True)])

    def _kaiming(self, row: Tensor, key: str) -> Tensor:
        """Redraw the weights with at least two dimensions of a model ``[parameters]`` (He et al. 2015)."""
        random, state = generator(self.plan.seed, "initial weights", key), self.layout.row_state(row)
        for name, value in state.items():
            if value.dim() > 1 and name not in self.layout.buffers:
                state[name] = torch.randn(value.shape, generator=random) * math.sqrt(2 / value[0].numel())
        return self.layout.row(state)

    def order(self, server_round: int) -> list[int]:
        """Return the order of turns, as positions of the peers that have joined."""
        peers = (self._joins <= server_round).nonzero().flatten()
        if self.settings.order == "ring":
            return peers.tolist()
        random = generator(self.plan.seed, "order of peers", server_round)
        return peers[torch.randperm(len(peers), generator=random)].tolist()

    @property
    def moves_after_measuring(self) -> bool:
        """Whether the turns of other peers move a peer after its own."""
        return self.measures == "after" and self.settings.moves_others

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """``after`` for sequential turns, in which a peer is evaluated right after its turn, as in the paper."""
        return "after" if self.settings.turns == "sequential" else "before"

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Return every peer's own model: the one it sent, or as the turns have left it."""
        return self.models[replies.positions] if self.settings.turns == "sequential" else replies.parameters

    def facts(self) -> dict[str, Any]:
        """Return the privacy guarantee of the noise."""
        return dict(privacy_facts(self.settings.privacy))

    def train_round(self, server_round: int, nodes: Nodes) -> Replies:
        """Run a turn of every peer, or one exchange in which each aligns with all others as of the last round."""
        if self.settings.turns == "sequential":
            self.models = self.models.clone()
            return self._joined([self._turn(position, server_round, nodes) for position in self.order(server_round)])
        splits = self.plan.splits_after(server_round - 1)
        stacked = {"parameters": self.models, "weights": self.weights(server_round)}
        return nodes.ask(server_round, stacked, {"peers": self.models}, splits, self.reply_shapes())

    def _turn(self, position: int, server_round: int, nodes: Nodes) -> Replies:
        """Train one peer, and write the result to ``models``."""
        weights = self.weights(server_round)[position]
        peers = weights.nonzero().flatten()
        there = (weights[self._known[position]] != 0).float()
        # A turn also returns the parameters of the peers that are aligned with.
        others = {"others": (len(peers), self.layout.num_parameters)} if self.moves_after_measuring else {}
        replies = nodes.ask_one(
            position,
            server_round,
            stacked={"parameters": self.models[position : position + 1]},
            shared={"others": self.models[peers], "weights": weights[peers], "there": there},
            splits=self.plan.splits_after(server_round),
            shapes={**self.reply_shapes(), **others},
        )
        if replies.names:
            self.models[position] = replies.parameters[0]
            if others:
                self.models[peers] = replies.tensors["others"][0]
        return replies

    def _joined(self, turns: Sequence[Replies]) -> Replies:
        """Join the replies of all turns in the order of the peers' names; parameters are in ``models`` already."""
        heard = sorted((turn for turn in turns if turn.names), key=lambda turn: int(turn.positions[0]))
        absent = {name: reason for turn in turns for name, reason in turn.absent.items()}
        names = {name for turn in heard for name in turn.metrics}
        nothing = torch.full((1,), torch.nan, dtype=torch.float64)
        metrics = {name: torch.cat([turn.metrics.get(name, nothing) for turn in heard]) for name in sorted(names)}
        positions = torch.tensor([int(turn.positions[0]) for turn in heard], dtype=torch.int64)
        kept = tuple(name for turn in heard for name in turn.kept)
        return replace(Replies.of(self.federation, positions, {}, metrics, absent), kept=kept)
