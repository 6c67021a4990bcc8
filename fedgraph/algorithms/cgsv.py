"""CGSV: clients keep their own models, and receive a share of the aggregate in proportion to their contribution.

Xu, Lyu, Ma, Miao, Foo, Low: Gradient Driven Rewards to Guarantee Fairness in Collaborative Machine Learning (NeurIPS
2021). The cosine gradient Shapley value is the cosine of a client's update and the aggregate.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Clients, Round, State
from fedgraph.algorithms.model_rows import Models, matrix, written
from fedgraph.graph import weighted_mean
from fedgraph.support.settings import Settings

_LEAST_IMPORTANCE = 1e-3
"""Lower bound of the released program, before importances are scaled to add up to 1."""


class CGSVSettings(Settings):
    """``[cgsv]``.

    Attributes
    ----------
    alpha       : weight of a client's earlier importance against 1 - alpha for this round's contribution.
    beta        : degree of altruism: the larger it is, the less the shares that clients receive differ, noticeably so
                  near the number of clients. The authors' program has 0.5 to 2, and 1e7, where all clients receive
                  everything.
    update_norm : Gamma, the norm that every client's update is scaled to; the authors' program has 0.5 for MNIST and
                  0.15 for CIFAR-10.
    released    : as in the authors' program. In the first round clients are weighted by their training examples, and
                  their importance is their contribution in it; it stays above zero; and a client receives its share of
                  the largest numbers of every layer, not of the whole model.
    """

    alpha: float = Field(default=0.95, ge=0, lt=1)
    beta: float = Field(default=1.0, gt=0)
    update_norm: float = Field(default=0.5, gt=0)
    released: bool = False


class CGSV(Algorithm[CGSVSettings]):
    """``w_i <- w_i + v_i``, with v_i the largest entries, a share q_i, of ``u_N = sum_i r_i u_i``, and else zero.

    ``u_i = Gamma D_i / ||D_i||`` is the change of w_i by client i's training, which v_i replaces; ``r_i <- alpha r_i +
    (1 - alpha) cos(u_i, u_N)``, clamped to zero from below and scaled to add up to 1; ``q_i = tanh(beta r_i) / max_j
    tanh(beta r_j)``.

    Absent clients keep their model and importance, and the others redistribute theirs; earlier answers that replace
    missing ones are ignored, as they are not updates of the current model. Clients without training examples have no
    importance. Running statistics are not part of an update: they are averaged by importance over the clients present.
    The state has r as ``importance``, float64 ``[clients]``, which adds up to 1. Before the first round it is NaN, and
    so is that of a client that joins an app later: such a client begins with what it would have had in the first round,
    and the others have the rest.
    """

    name = "cgsv"
    title = "Gradient rewards in proportion to contribution, by cosine similarity (CGSV)"
    paper = "https://proceedings.neurips.cc/paper/2021/hash/8682cc30db9c025ecd3fee433f8ab54c-Abstract.html"

    @classmethod
    def uses_graph(cls, settings: CGSVSettings) -> bool:
        """See :class:`Algorithm`: weights are inferred."""
        return False

    def init(self, clients: Clients, models: Models) -> State:
        """Return the models; importances follow from numbers of examples, which are known with the first answers."""
        return {"models": models, "importance": torch.full((len(clients),), torch.nan, dtype=torch.float64)}

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Add to every client's model its share of the aggregate."""
        answers = yield self.ask(clients, state)
        present, fresh, trainable = answers.positions, answers.fresh, clients.layout.num_trainable
        importance = self.with_new(clients, state["importance"])
        theta, models = answers.parameters, matrix(state["models"])[present]
        weights = importance[present] * fresh
        # Gamma changes neither cosines nor the order: it is applied at the end.
        updates = theta[:, :trainable] - models[:, :trainable]
        normalize(updates, dim=1, out=updates)
        aggregate = weighted_mean(updates, weights)
        contributions = updates @ normalize(aggregate, dim=0)
        importance = self.weighed(number, importance, present[fresh], contributions[fresh])
        granted = self.places(clients, aggregate) < (self.shares(importance)[present] * fresh)[:, None]
        models[:, :trainable] += torch.mul(granted, self.settings.update_norm * aggregate, out=updates)
        models[fresh, trainable:] = weighted_mean(theta[:, trainable:], weights)
        return {"models": written(state["models"], present, models), "importance": importance}

    def with_new(self, clients: Clients, importance: Tensor) -> Tensor:
        """Return r with that of clients which have none yet, before the first round all; the others share the rest."""
        new, initial = importance.isnan(), self.initial_importance(clients)
        return torch.where(new, initial, importance * (1 - initial[new].sum())) if bool(new.any()) else importance

    def initial_importance(self, clients: Clients) -> Tensor:
        """Return r before the first round: the same for all that train, or by examples as released."""
        examples = clients.num_examples
        weights = (examples if self.settings.released else examples > 0).double()
        return weights / weights.sum().clamp(min=1)

    def shares(self, importance: Tensor) -> Tensor:
        """Return q, the share of the aggregate's entries that a client receives, float64 ``[clients]``, at most 1."""
        rewards = torch.tanh(self.settings.beta * importance)
        return rewards / rewards.max().clamp(min=torch.finfo(rewards.dtype).tiny)

    def weighed(self, number: int, importance: Tensor, present: Tensor, contributions: Tensor) -> Tensor:
        """Return r once clients ``present`` have redistributed theirs by their contributions ``[present]``."""
        released, alpha = self.settings.released, self.settings.alpha
        before = importance[present]
        total = before.sum()
        earlier = torch.zeros_like(before) if released and number == 1 else alpha * before / total
        after = (earlier + (1 - alpha) * contributions).clamp(min=_LEAST_IMPORTANCE if released else 0.0)
        # Otherwise there is no importance to redistribute, or no client has contributed, now or before.
        if bool(total > 0) and bool(after.sum() > 0):
            return importance.index_copy(0, present, total * after / after.sum())
        return importance

    def places(self, clients: Clients, aggregate: Tensor) -> Tensor:
        """Return for each entry of the aggregate the share of larger ones in its ranking, float64 ``[trainable]``."""
        layers = clients.layout.part(set(clients.layout.names) - clients.layout.buffers).sizes
        together = aggregate.abs().split(layers if self.settings.released else len(aggregate))
        return torch.cat([_ranked(magnitudes) for magnitudes in together])


def _ranked(magnitudes: Tensor) -> Tensor:
    """Rank from 0 for the largest, in steps of ``1 / numbers``; of equal ones the first counts as larger."""
    order = magnitudes.argsort(descending=True, stable=True)
    steps = torch.arange(len(order), dtype=torch.float64) / len(order)
    return torch.empty_like(steps).index_copy_(0, order, steps)
