"""IPA, iterative parameter alignment: peers keep models of their own and pull one another's together as they train.

Gorbett, Shirazi, Ray: Cross-Silo Federated Learning Across Divergent Domains with Iterative Parameter Alignment (IEEE
Big Data 2023), algorithm 1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from torch import Tensor

from fedgraph.federation import Federation, OrderedGrid
from fedgraph.methods.ipa import IPASettings
from fedgraph.privacy.noise import NoiseSettings, privacy_facts
from fedgraph.runs import RunPlan
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State
from fedgraph.support.randomness import generator
from strategies.engine.base import CohortStrategy, Replies


class IPA(CohortStrategy[IPASettings]):
    """Carries theta*, the parameters of all peers, from one to the next; the server computes nothing with them.

    A round is one turn of every peer, each an exchange with its node alone; a peer is measured right after its turn, as
    in the paper, and once more at the end, when the turns of others have moved it: the metrics of ``summary.json`` are
    of the models that the run ends with, and those right after the last turn have names that end with ``-after-turn``.
    One that does not answer keeps its parameters in theta*, where the others' turns go on moving them, and takes its
    next turn when it is back; one that joins late enters with its own. With simultaneous turns a round is one exchange.
    """

    name = "ipa"
    title = "Iterative parameter alignment: peers keep different models and pull them together as they train"
    needs = "two clients at least; [train] keep-optimizer = true for the paper's Adam"
    paper = "https://arxiv.org/abs/2311.04818"
    default_client = "clients.ipa:IPAClient"

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
            self._refuse_what_would_leave(self.settings.privacy)
        self._node_of = {place: node for node, rows in federation.hosts.items() for place in rows.tolist()}
        self._peers = torch.arange(0)

    def _refuse_what_would_leave(self, privacy: NoiseSettings) -> None:
        """More turns than releases, and metrics of data that a client has for itself: those are without noise."""
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
        """With whom each peer may align, bool ``[peers, peers]``."""
        known = ~torch.eye(len(self.federation.names), dtype=torch.bool)
        if self.settings.neighbours_only:
            assert self.federation.graph is not None
            known &= self.federation.graph.dense() != 0
        return known

    def weights(self, server_round: int) -> Tensor:
        """c_ij with which peer i aligns with peer j, ``[peers, peers]``; 0 for itself and whom it does not know."""
        there = (self._joins <= server_round).float()
        counts = self.federation.num_examples["train"] * there
        share = counts / counts.sum() if self.settings.weights == "examples" else there
        return share * self._known

    def begin(self, initial_arrays: ArrayRecord) -> None:
        """Give every peer a model drawn for itself, or all the same."""
        super().begin(initial_arrays)
        names = self.federation.names
        if self.settings.initialisation == "own":
            assert self.plan.draw is not None
            self.models = torch.stack([self.plan.draw(name) for name in names])
        if self.settings.initial_weights == "kaiming-normal":
            keys = names if self.settings.initialisation == "own" else ("",) * len(names)
            self.models = torch.stack([self._kaiming(row, key) for row, key in zip(self.models, keys, strict=True)])

    def _kaiming(self, row: Tensor, key: str) -> Tensor:
        """A model ``[parameters]`` whose weights, all of two dimensions and more, are drawn anew (He et al. 2015)."""
        random, state = generator(self.plan.seed, "initial weights", key), self.layout.row_state(row)
        for name, value in state.items():
            if value.dim() > 1 and name not in self.layout.buffers:
                state[name] = torch.randn(value.shape, generator=random) * math.sqrt(2 / value[0].numel())
        return self.layout.row(state)

    def order(self, server_round: int) -> list[int]:
        """Who takes its turn when, as positions of those who have joined."""
        peers = (self._joins <= server_round).nonzero().flatten()
        if self.settings.order == "ring":
            return peers.tolist()
        random = generator(self.plan.seed, "order of peers", server_round)
        return peers[torch.randperm(len(peers), generator=random)].tolist()

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """With simultaneous turns also whom to align with and how much."""
        if self.settings.turns == "sequential" or not self._training:
            return super().outgoing(server_round)
        return {"parameters": self.models, "weights": self.weights(server_round)}, {"peers": self.models}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """In a turn also the parameters of the peers that one is aligned with."""
        shapes = super().reply_shapes()
        if self._sends_others:
            shapes["others"] = (len(self._peers), self.layout.num_parameters)
        return shapes

    @property
    def _sends_others(self) -> bool:
        return self.settings.turns == "sequential" and bool(self.settings.moves_others)

    @property
    def moves_after_measuring(self) -> bool:
        """The turns of the others, after a peer's own."""
        return self._sends_others

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Every peer goes on with its own."""
        return replies.parameters

    def state(self) -> State:
        """Also what peers measured right after their turn, which the end of the run needs."""
        return {**super().state(), "measured": dict(self._measured), "last-evaluated": self._last_evaluated}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        super().load_state(state)
        self._measured, self._last_evaluated = state.get("measured", {}), state.get("last-evaluated")

    def facts(self) -> dict[str, Any]:
        """What noise guarantees."""
        return dict(privacy_facts(self.settings.privacy))

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: OrderedGrid, timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """A turn of every peer."""
        if self.settings.turns == "simultaneous":
            return super().train_round(server_round, arrays, config, grid, timeout)
        if server_round == 1 and self.plan.evaluates(0):
            messages = self.configure_evaluate(0, arrays, config, grid)
            self.aggregate_evaluate(0, grid.send_and_receive(messages, timeout=timeout))
        self.models = self.models.clone()
        turns = [self._turn(position, server_round, grid, timeout) for position in self.order(server_round)]
        replies = self._joined(turns)
        self.absence.enforce(server_round, replies)
        if self.plan.evaluates(server_round):
            self._record_evaluation(server_round, replies)
        loss = self._record_training(server_round, replies)
        return self.global_arrays(), MetricRecord({"loss": float(loss.nanmean())})

    def _turn(self, position: int, server_round: int, grid: OrderedGrid, timeout: float) -> Replies:
        """One peer trains; what came back is in ``models``."""
        node, plan, weights = self._node_of[position], self.plan, self.weights(server_round)[position]
        self._peers = weights.nonzero().flatten()
        there = (weights[self._known[position]] != 0).float()
        self._asked, self._training = {node: torch.tensor([position])}, True
        request = self.request(
            server_round,
            clients=(self.federation.names[position],),
            stacked={"parameters": self.models[position : position + 1]},
            shared={"others": self.models[self._peers], "weights": weights[self._peers], "there": there},
            splits=plan.splits if plan.evaluates(server_round) else (),
        )
        connected = node in set(grid.get_node_ids())
        messages = [Message(request.pack(), node, MessageType.TRAIN, group_id=str(server_round))] if connected else []
        replies, _ = self.collect(grid.send_and_receive(messages, timeout=timeout))
        if replies.names:
            self.models[position] = replies.parameters[0]
            if self._sends_others:
                self.models[self._peers] = replies.tensors["others"][0]
        return replies

    def _joined(self, turns: Sequence[Replies]) -> Replies:
        """The replies of all turns in the order of the peers' names, without parameters, which are in ``models``."""
        heard = sorted((turn for turn in turns if turn.names), key=lambda turn: int(turn.positions[0]))
        absent = {name: reason for turn in turns for name, reason in turn.absent.items()}
        names = {name for turn in heard for name in turn.metrics}
        nothing = torch.full((1,), torch.nan, dtype=torch.float64)
        metrics = {name: torch.cat([turn.metrics.get(name, nothing) for turn in heard]) for name in sorted(names)}
        positions = torch.tensor([int(turn.positions[0]) for turn in heard], dtype=torch.int64)
        return Replies.of(self.federation, positions, {}, metrics, absent)
