"""IPA on the client: one peer trains and also updates the others' parameters (Gorbett et al. 2023, algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraph.algorithms.ipa import IPASettings
from fedgraph.clients.engine.base import CohortClient, trained_on
from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.update_release import UpdateRelease
from fedgraph.experiment import Experiment
from fedgraph.messages import WorkReply
from fedgraph.models import finite_rows
from fedgraph.support.errors import ReplyError
from fedgraph.support.settings import value_at
from fedgraph.training import fresh_state
from fedgraph.training.alignment import Distance, FixedAlignment, PeerAlignment

_PURPOSE = "alignment-optimiser"


class IPAClient(CohortClient[IPASettings]):
    """Answers a training request with the turn of one peer, which receives and returns all parameters.

    The moments of the optimiser, including those of the others' parameters, stay on this node if ``[train]
    keep-optimizer`` is set. A peer is evaluated after its turn. When all train at once, only their own parameters
    change, and they are evaluated before training, as in other methods. Models are evaluated without the noise on
    shared parameters, unless it protects privacy.
    """

    noise: ClassVar[str] = "privacy"
    _shared: Tensor | None = None

    @classmethod
    def sends_as(cls, experiment: Experiment, node: Node) -> list[str]:
        """Describe what leaves the node, see ``fedgraph.clients.engine.disclosure``."""
        table = experiment.method_table
        protection = ""
        if table.get("privacy") is not None:
            protection = "; the changes of a turn with noise that guarantees (epsilon, delta), and no losses"
        elif table.get("noise"):
            protection = "; with a little noise, without a guarantee"
        return [f"the parameters of each client's model, and of others' models as updated in its turn{protection}"]

    @classmethod
    def refuses_function(cls, method: Mapping[str, Any]) -> str:
        """See :class:`CohortClient`: a turn updates the others in each step of fedgraph's own training."""
        moves = method.get("turns") == "sequential" and bool(method.get("moves-others"))
        return "a turn updates the other peers in each step: set [ipa] moves-others = false" if moves else ""

    def reply(self) -> WorkReply:
        """Train, then evaluate the result."""
        self._check_peers()
        if not self.request.train or "peers" in self.request.shared:
            return super().reply()
        if len(self.request.clients) != 1:
            raise ReplyError("the peers of IPA take turns: only one can train per request")
        stacked, training = self.train()
        self.node.done.append(trained_on(self.cohort, self.request.round))
        metrics = self.evaluate_after(self.request.round)
        return WorkReply(self.request.clients, stacked, {**metrics, **training}, self.kept_models)

    def at_server(self) -> Tensor:
        """Return the models as received or, after a turn, as shared, possibly with noise."""
        return self.completed(self.sent if self._shared is None else self._shared)

    def _check_peers(self) -> None:
        """Raise ReplyError if models or weights of other peers have wrong shapes."""
        if not self.request.train:
            return
        shared, width = self.request.shared, self.layers.shared.num_parameters
        at_once = "peers" in shared
        peers = shared["peers"] if at_once else shared["others"]
        weights = self.request.stacked["weights"] if at_once else shared["weights"]
        expected = (len(self.request.clients), len(peers)) if at_once else (len(peers),)
        aligned = at_once or int((shared["there"] > 0).sum()) == len(peers)
        if peers.shape[1:] != (width,) or weights.shape != expected or not aligned:
            raise ReplyError("the request needs a model and a weight for each peer")

    def train(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Run the peer's turn; return its parameters and the others' for sharing."""
        release = UpdateRelease(self, self.settings.noise, self.settings.privacy)
        if "peers" in self.request.shared:
            stacked, training = super().train()
            own, _ = self.layers.split(stacked["parameters"])
            shared = release(self.sent[:, None], own[:, None])
            return {"parameters": shared[:, 0]}, release.publishable(training)
        alignment, given = self.alignment, self.request.shared["others"]
        result = self.train_from(self.start(), alignment)
        own, _ = self.layers.split(result.parameters)
        others, trainable = alignment.others.cpu(), alignment.others.shape[1]
        if trainable < given.shape[1]:
            others = torch.cat([others, given[:, trainable:]], dim=1)
        moved = torch.cat([own, others])
        if bool(finite_rows(moved).all()):
            self._keep(alignment)
        leaving = 1 + len(alignment.others) if alignment.moves else 1
        # Models are large, so those before the turn are only put together where they are needed.
        before = moved if release.changes_nothing else torch.cat([self.sent, given])
        shared = release(before[None, :leaving], moved[None, :leaving])
        self._shared = shared[:, 0]
        self.models = self.completed(self._shared) if release.privacy is not None else result.parameters
        returned = {"others": shared[:, 1:]} if alignment.moves else {}
        return {"parameters": shared[:, 0], **returned}, release.publishable({"loss": result.loss})

    @cached_property
    def alignment(self) -> PeerAlignment:
        """The alignment term of this peer and the others."""
        cohort = self.cohort
        trainable = cohort.model.layout.num_trainable
        shared = self.request.shared
        return PeerAlignment(
            others=shared["others"][:, :trainable].to(cohort.device, copy=True),
            weights=shared["weights"].to(cohort.device),
            distance=self._distance(),
            moves=self.settings.moves_others,
            settings=cohort.settings,
            round=self.request.round,
            moments={name: value[self._present].to(cohort.device) for name, value in self._moments.items()},
            num_examples=cohort.data.splits["train"].num_examples.to(cohort.device),
            least=cohort.least_examples,
        )

    def gradient_term(self) -> FixedAlignment:
        """Return the term for simultaneous training."""
        device, trainable = self.cohort.device, self.cohort.model.layout.num_trainable
        peers, weights = self.request.shared["peers"].to(device), self.request.stacked["weights"].to(device)
        return FixedAlignment(peers[:, :trainable].contiguous(), weights, self._distance())

    def _distance(self) -> Distance:
        settings = self.settings
        strength = value_at(settings.lambda_alignment, self.request.round)
        return Distance(strength, settings.lambda_scale == "batch-sum", settings.power)

    @property
    def _there(self) -> Tensor:
        """Which of the peers of this one are present now: some join later."""
        return self.request.shared["there"] > 0

    @cached_property
    def _present(self) -> Any:
        """Index of the moments of the peers that are present: a view if all are."""
        return 0 if bool(self._there.all()) else (0, self._there)

    @cached_property
    def _moments(self) -> dict[str, Tensor]:
        """Moments of the optimiser for all peers of this one, each with a client axis of 1."""
        cohort = self.cohort
        if not self.settings.moves_others:
            return {}
        shape = (len(self._there), cohort.model.layout.num_trainable)
        # Zeros that take no memory, since models are large.
        fresh = {name: value.expand(shape[: value.dim()]) for name, value in fresh_state(cohort.settings, 1, 1).items()}
        if not (cohort.settings.keep_optimizer and fresh):
            return {name: value[None].clone() for name, value in fresh.items()}
        return self.recall(_PURPOSE, fresh)

    def _keep(self, alignment: PeerAlignment) -> None:
        if self.cohort.settings.keep_optimizer and alignment.moments:
            for name, value in alignment.moments.items():
                self._moments[name][self._present] = value  # the same memory on a CPU if all are present
            self.remember(_PURPOSE, self._moments)
