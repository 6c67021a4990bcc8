"""CGSV: clients keep their own models, and receive a share of the aggregate in proportion to their contribution.

Xu, Lyu, Ma, Miao, Foo, Low: Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning (NeurIPS
2021). The cosine gradient Shapley value is the cosine of a client's update and the aggregate.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedgraph.federation import Federation
from fedgraph.graph import weighted_mean
from fedgraph.methods.baselines import CGSVSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy, Replies
from fedgraph.support.files import State

_LEAST_IMPORTANCE = 1e-3
"""Lower bound of the released program, before importances are scaled to add up to 1."""


class CGSV(CohortStrategy[CGSVSettings]):
    """``w_i <- w_i + v_i``, with v_i the largest entries, a share q_i, of ``u_N = sum_i r_i u_i``, and else zero.

    ``u_i = Gamma D_i / ||D_i||`` is the change of w_i by client i's training, which v_i replaces; ``r_i <- alpha r_i +
    (1 - alpha) cos(u_i, u_N)``, clamped to zero from below and scaled to add up to 1; ``q_i = tanh(beta r_i) / max_j
    tanh(beta r_j)``.

    Absent clients keep their model and their importance, and the others redistribute theirs; this also holds for
    on-missing = "keep-last", since an earlier reply is not an update of the client's current model. Clients without
    training examples start without importance, and contribute nothing. Running statistics are not part of an update:
    those of all clients present are averaged by importance, and sent to all of them.

    Attributes
    ----------
    importance : Tensor
        r, float64 ``[clients]``, adds up to 1; initially the same for all clients that train.
    """

    name = "cgsv"
    title = "Gradient rewards in proportion to contribution, by cosine similarity (CGSV)"
    paper = "https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html"

    @classmethod
    def uses_graph(cls, settings: CGSVSettings) -> bool:
        """See :class:`MethodStrategy`: weights are inferred."""
        return False

    def __init__(self, settings: CGSVSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        examples = federation.num_examples["train"]
        weights = (examples if self.settings.released else examples > 0).double()
        self.importance = weights / weights.sum().clamp(min=1)

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Return every client's model with its share of the aggregate added, ``[present, parameters]``."""
        models, fresh, trainable = self.models[replies.positions], replies.fresh, self.layout.num_trainable
        weights = self.importance[replies.positions] * fresh
        # Gamma changes neither cosines nor the order: it is applied at the end.
        updates = replies.parameters[:, :trainable] - models[:, :trainable]
        normalize(updates, dim=1, out=updates)
        aggregate = weighted_mean(updates, weights)
        contributions = updates @ normalize(aggregate, dim=0)
        self._weigh(server_round, replies.positions[fresh], contributions[fresh])
        given = self._places(aggregate) < (self.shares()[replies.positions] * fresh)[:, None]
        models[:, :trainable] += torch.mul(given, self.settings.update_norm * aggregate, out=updates)
        models[fresh, trainable:] = weighted_mean(replies.parameters[:, trainable:], weights)
        return models

    def shares(self) -> Tensor:
        """Return q, the share of the aggregate's entries that a client receives, float64 ``[clients]``, at most 1."""
        rewards = torch.tanh(self.settings.beta * self.importance)
        return rewards / rewards.max().clamp(min=torch.finfo(rewards.dtype).tiny)

    def _weigh(self, server_round: int, present: Tensor, contributions: Tensor) -> None:
        """Redistribute the importance of the clients ``present``, given their contributions ``[present]``."""
        released, alpha = self.settings.released, self.settings.alpha
        before = self.importance[present]
        total = before.sum()
        earlier = torch.zeros_like(before) if released and server_round == 1 else alpha * before / total
        after = (earlier + (1 - alpha) * contributions).clamp(min=_LEAST_IMPORTANCE if released else 0.0)
        # Otherwise there is no importance to redistribute, or no client has contributed, now or before.
        if bool(total > 0) and bool(after.sum() > 0):
            self.importance = self.importance.index_copy(0, present, total * after / after.sum())

    def _places(self, aggregate: Tensor) -> Tensor:
        """Return for each entry of the aggregate the share of larger ones in its ranking, float64 ``[trainable]``."""
        layers = self.layout.part(set(self.layout.names) - self.layout.buffers).sizes
        together = aggregate.abs().split(layers if self.settings.released else len(aggregate))
        return torch.cat([_ranked(magnitudes) for magnitudes in together])

    def state(self) -> State:
        """Return what a resumed run needs, with the importance of all clients."""
        return {**super().state(), "importance": self.importance}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.importance = state["importance"]


def _ranked(magnitudes: Tensor) -> Tensor:
    """Rank from 0 for the largest, in steps of ``1 / numbers``; of equal ones the first counts as larger."""
    order = magnitudes.argsort(descending=True, stable=True)
    steps = torch.arange(len(order), dtype=torch.float64) / len(order)
    return torch.empty_like(steps).index_copy_(0, order, steps)
