"""Outputs of a graphical network: numbers and logits of categories, their losses, and draws.

Tensors have units before rows, ``[clients, units, rows]``, as they come out of matrix products. The argument ``owner``
``[units]`` numbers the features of units, 0, 1, ... in rising order. A feature with a
single unit has two categories, of which the unit is the second.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedgraph.data.schema import Schema

RAREST = 1e-4
"""Share of a category that was never observed, to avoid the logarithm of 0."""


class Heads:
    """The outputs of all features of a schema.

    Numbers have the squared error as loss. With ``cross_entropy``, outputs of binary and categorical features are
    logits with that loss; without it their units, 0 or 1, are treated as numbers.

    slopes : of each unit, ``[units]``: the derivative of the loss by its output is this times the error of its
             prediction.
    """

    def __init__(self, schema: Schema, cross_entropy: bool) -> None:
        kinds = ["number" if feature.is_scaled or not cross_entropy else feature.kind for feature in schema.features]
        self.features = len(kinds)
        self.unit_feature = schema.unit_feature
        self.is_number = torch.tensor([feature.is_scaled for feature in schema.features])[self.unit_feature]
        of_units = [kinds[feature] for feature in self.unit_feature.tolist()]
        self._squared, self._binary, self._categorical = self._kinds = tuple(
            torch.tensor([unit for unit, kind in enumerate(of_units) if kind == wanted], dtype=torch.int64)
            for wanted in ("number", "binary", "categorical")
        )
        self._only_squared = len(self._squared) == len(of_units)
        self._order = torch.cat(self._kinds).argsort()
        self.slopes = torch.ones(len(of_units)).index_fill(0, self._squared, 2.0)
        chosen = [place for place, kind in enumerate(kinds) if kind == "categorical"]
        self._chosen = torch.tensor(chosen, dtype=torch.int64)
        self._table, self._beyond = _padded_positions([schema.features[place].width for place in chosen])
        self._row = torch.searchsorted(self._chosen, self.unit_feature[self._categorical])

    def marginal(self, mean: Tensor) -> Tensor:
        """Return the outputs that represent the mean of every unit, ``[clients, units]`` each."""
        shares = mean.clamp(RAREST, 1 - RAREST)
        outputs = mean.clone()
        outputs[:, self._binary] = shares.logit()[:, self._binary]
        outputs[:, self._categorical] = shares.log()[:, self._categorical]
        return outputs

    def marginal_losses(self, mean: Tensor, deviation: Tensor) -> Tensor:
        """Return mean losses ``[clients, features]`` of predicting every unit by its mean: variances or entropies."""
        shares = mean.clamp(RAREST, 1 - RAREST)
        entropy, of_others = -shares * shares.log(), -(1 - shares) * (1 - shares).log()
        losses = torch.where(self.is_number, deviation.square(), shares * (1 - shares))
        losses[:, self._binary] = (entropy + of_others)[:, self._binary]
        losses[:, self._categorical] = entropy[:, self._categorical]
        return self._by_feature(losses, self.unit_feature)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Convert outputs to estimates of the units: numbers unchanged, logits to probabilities."""
        if self._only_squared:
            return outputs
        numbers, odds, scores = (outputs.index_select(1, units) for units in self._kinds)
        shares = (scores - self._log_sums(scores).index_select(1, self._row)).exp()
        return torch.cat([numbers, odds.sigmoid(), shares], 1).index_select(1, self._order)

    def losses(self, outputs: Tensor, targets: Tensor, observed: Tensor | None) -> Tensor:
        """Sum each feature's loss over the rows, ``[clients, features]``.

        ``observed`` is 1 for units that count and 0 for others, whose targets may be any finite numbers; None when all
        count. A feature's units count together or not at all.
        """
        if self._only_squared:
            return self._by_feature(_summed((outputs - targets).square(), observed), self.unit_feature)
        numbers, odds, scores = (outputs.index_select(1, units) for units in self._kinds)
        wanted = [targets.index_select(1, units) for units in self._kinds]
        seen = [None if observed is None else observed.index_select(1, units) for units in self._kinds]
        of_feature = None if seen[2] is None else seen[2].index_select(1, self._table[:, 0])
        sums = [
            _summed((numbers - wanted[0]).square(), seen[0]),
            _summed(functional.softplus(odds) - wanted[1] * odds, seen[1]),
            _summed(-wanted[2] * scores, seen[2]),
            _summed(self._log_sums(scores), of_feature),
        ]
        features = [*(self.unit_feature[units] for units in self._kinds), self._chosen]
        return self._by_feature(torch.cat(sums, 1), torch.cat(features))

    def _log_sums(self, scores: Tensor) -> Tensor:
        """Return the log-sum-exp of each feature's scores, which are ``[clients, categorical units, rows]``."""
        table = scores.index_select(1, self._table.flatten()).unflatten(1, self._table.shape)
        return table.masked_fill(self._beyond[:, :, None], -torch.inf).logsumexp(2)

    def _by_feature(self, sums: Tensor, features: Tensor) -> Tensor:
        return sums.new_zeros(len(sums), self.features).index_add(1, features, sums)


def _summed(values: Tensor, observed: Tensor | None) -> Tensor:
    return (values if observed is None else values * observed).sum(2)


def _padded_positions(widths: list[int]) -> tuple[Tensor, Tensor]:
    """Return positions of units of features of these widths, ``[features, widest]``, and which columns are padding."""
    width = torch.tensor(widths, dtype=torch.int64)[:, None]
    column = torch.arange(max(widths, default=1))
    beyond = column >= width
    return (width.cumsum(0) - width + column).masked_fill(beyond, 0), beyond


def normalised(estimates: Tensor, owner: Tensor) -> Tensor:
    """Return probabilities from estimates of units: cut to 0 and 1, and divided by the sum of their feature.

    Where all estimates of a feature are 0, its categories are equally probable.
    """
    shares = estimates.clamp(0, 1)
    width = owner.bincount()[owner][:, None]
    total = shares.new_zeros(len(shares), int(owner[-1]) + 1, shares.shape[2]).index_add(1, owner, shares)
    total = total.index_select(1, owner)
    several = torch.where(total > 0, shares / total.clamp(min=1e-12), 1 / width)
    return torch.where(width > 1, several, shares)


def sample_one_hot(probabilities: Tensor, owner: Tensor, uniform: Tensor) -> Tensor:
    """Draw units of categories by inverse transform sampling: 1 for the drawn category of each feature, 0 for others.

    uniform : in [0, 1), ``[clients, features, rows]``.
    """
    place = torch.arange(len(owner))
    first = torch.searchsorted(owner, owner)
    is_last = torch.searchsorted(owner, owner, right=True) - 1 == place
    is_single = (is_last & (first == place))[:, None]
    uniform = uniform.index_select(1, owner)
    # Features with several units sum to 1 and those with one are left out, so that no feature shifts the next.
    shares = probabilities.masked_fill(is_single, 0.0)
    sums = shares.cumsum(1)
    reached = uniform < sums - (sums - shares).index_select(1, first)
    # Rounding must not leave a feature without any category.
    reached |= is_last[:, None]
    earlier = reached.roll(1, 1) & (first != place)[:, None]
    return torch.where(is_single, uniform < probabilities, reached & ~earlier).to(probabilities.dtype)
