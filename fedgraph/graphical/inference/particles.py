"""Rows drawn from graphical models given what is known of them, by a sequential Monte Carlo sampler.

It starts from those rows of the joint distribution that agree with what is known. One known feature after the other
takes its value: each row gets a weight, the likelihood of the value given all else in the row; where few rows have most
of the weight, rows are resampled by their weights, and a Gibbs sweep redraws everything that is not yet fixed.

Del Moral, Doucet, Jasra: Sequential Monte Carlo samplers, Journal of the Royal Statistical Society B 68 (2006) 411.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedgraph.graphical.inference.full_conditionals import FullConditionals, Noise
from fedgraph.graphical.inference.gibbs import Gibbs
from fedgraph.graphical.inference.joint_rows import OVERRELAXATION
from fedgraph.graphical.inference.kept_rows import KeptRows
from fedgraph.graphical.inference.relevance import Relevant
from fedgraph.graphical.network.parts import colour_classes

LAST_SWEEPS = 5
"""Number of sweeps after all known features have taken their values."""

NOWHERE = -1e30
"""Replaces unknown values where rows are compared."""

_STEPS = 12
"""Known features are divided into at most about this many groups, each of which takes its values at once."""
_SMALL = 1e-6
"""Variance of probabilities or of numbers in [0, 1] below which precision does not matter."""
_FEW_CLUSTERS = 10
_FEW = 0.5
"""Rows are resampled when their effective number is below this share of the rows."""


@dataclass(frozen=True)
class Cloud:
    """Rows drawn given what is known in each of some queried rows, with equal weights.

    units     : ``[clients, units, asked * draws]``.
    ancestors : the kept row that each comes from, int64 ``[clients, asked, draws]``.
    """

    units: Tensor
    ancestors: Tensor

    def effective(self, values: Tensor) -> Tensor:
        """Return effective sample sizes ``[clients, asked]`` of means of ``values`` ``[clients, asked, draws, ...]``.

        It is the number of independent rows of the joint distribution that would give means as good, the least over all
        values. Rows with a common ancestor are a cluster: Gibbs sweeps change values within a row, but not
        which side of a near-deterministic relation it is on. So the number of rows is divided by the design effect of
        the clusters (Kish, Survey sampling, 1965; as an estimate of the sampler's variance: Chan, Lai, Annals of
        Statistics 41 (2013) 2877); where clusters are too few for that, they are counted, weighted by their sizes.
        """
        draws = self.ancestors.shape[2]
        ordered, order = self.ancestors.sort(2)
        new = torch.ones_like(ordered, dtype=torch.bool)
        new[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
        cluster = torch.zeros_like(ordered).scatter_(2, order, new.long().cumsum(2) - 1)
        sizes = torch.zeros(ordered.shape).scatter_add_(2, cluster, torch.ones(ordered.shape))
        clusters = draws**2 / sizes.square().sum(2)
        apart = (values - values.mean(2, keepdim=True)).flatten(3)
        sums = torch.zeros_like(apart).scatter_add_(2, cluster[..., None].expand_as(apart), apart)
        alone, together = apart.square().sum(2), sums.square().sum(2)
        # Values that hardly vary are known well enough.
        effects = torch.where(alone > _SMALL * draws, together / alone.clamp(min=1e-30), 1.0).amax(2).clamp(min=1)
        return torch.where(clusters < _FEW_CLUSTERS, clusters, draws / effects)


class _Step(NamedTuple):
    """Known features of one class that take their values at once, bool ``[clients, asked, features]``."""

    place: int
    features: Tensor


def cloud(kept: KeptRows, units: Tensor, relevant: Relevant, draws: int, noise: Callable[[int], Noise]) -> Cloud:
    """Draw the relevant unknown features of each of the rows ``units`` ``[clients, asked, units]``, NaN for unknown.

    Other features are left as they are in the kept rows.

    noise : of each sweep, by its number.
    """
    schema = kept.network.schema
    unit_feature, latent = schema.unit_feature, relevant.unknown | relevant.known
    classes = colour_classes(kept.network.adjacency)
    conditionals = kept.conditionals(latent.flatten(0, 1).any(0))
    fixed, weights = _first(kept, units, relevant, classes, draws)
    first = noise(0)
    ancestors = systematic(weights, draws, first.single())
    chosen = ancestors.flatten(1)[..., None].expand(-1, -1, kept.units.shape[2])
    values = units.repeat_interleave(draws, 1).transpose(1, 2)

    def spread(features: Tensor) -> Tensor:
        """Expand bool ``[clients, asked, features]`` to ``[clients, units, asked * draws]``."""
        return features[..., unit_feature].repeat_interleave(draws, 1).transpose(1, 2)

    chains = Gibbs(conditionals, kept.units.gather(1, chosen).transpose(1, 2).contiguous(), spread(relevant.unknown))
    chains.put(values, spread(fixed))
    log_weights = torch.zeros(ancestors.shape)
    chains.unknown = spread(latent & ~fixed)
    if bool(fixed.any()):
        chains.sweep(first, shift=kept.shift)
    for step in _steps(relevant.known & ~fixed, classes):
        log_weights = log_weights + _told(conditionals, chains, values, spread(step.features), kept.shift).view(
            ancestors.shape
        )
        fixed = fixed | step.features
        chains.put(values, spread(step.features))
        poor = (1 / log_weights.softmax(2).square().sum(2) < _FEW * draws) & step.features.any(2)
        if bool(poor.any()):
            moved = noise(1 + step.place)
            ancestors, log_weights = _redrawn(chains, ancestors, log_weights, poor, moved)
            chains.unknown = spread((latent & ~fixed) & poor[..., None])
            chains.sweep(moved, OVERRELAXATION, shift=kept.shift)
    uneven = (log_weights != log_weights[..., :1]).any(2)
    if bool(uneven.any()):
        ancestors, log_weights = _redrawn(chains, ancestors, log_weights, uneven, noise(-1))
    chains.unknown = spread(relevant.unknown)
    for sweep in range(LAST_SWEEPS):
        chains.sweep(noise(-2 - sweep), OVERRELAXATION, shift=kept.shift)
    return Cloud(torch.where(values.isnan(), chains.units, values), ancestors)


def systematic(weights: Tensor, draws: int, start: Tensor) -> Tensor:
    """Draw places ``[clients, asked, draws]`` by systematic resampling with ``weights`` ``[clients, asked, places]``.

    start : in [0, 1), ``[clients, asked or 1]``.
    """
    sums = weights.double().cumsum(2)
    at = (torch.arange(draws) + start[..., None].double()) / draws
    wanted = (at * sums[..., -1:]).expand(*weights.shape[:2], -1).contiguous()
    return torch.searchsorted(sums, wanted, right=True).clamp(max=weights.shape[2] - 1)


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's index among the distinct ``rows`` ``[clients, rows, ...]``, and where these first occur."""
    distinct, place = rows.transpose(0, 1).flatten(1).unique(dim=0, return_inverse=True)
    first = torch.full((len(distinct),), len(place)).scatter_reduce_(0, place, torch.arange(len(place)), "amin")
    return place, first


def _first(
    kept: KeptRows, units: Tensor, relevant: Relevant, classes: list[Tensor], draws: int
) -> tuple[Tensor, Tensor]:
    """Return which known features are fixed in the choice of the kept rows, and the weights of the kept rows.

    Features of one class are taken as long as enough rows are left, the most surprising first: these need many rows,
    and at no later point are there more.
    """
    schema, known = kept.network.schema, relevant.known
    surprise = _surprise(kept, units) * known
    of_class = torch.stack([surprise[..., some].sum(2) for some in classes], 2)
    class_of = torch.zeros(len(schema.features), dtype=torch.int64)
    for place, some in enumerate(classes):
        class_of[some] = place
    candidates = known & (class_of == of_class.argmax(2, keepdim=True))
    order = torch.where(candidates, surprise, -1.0).argsort(dim=2, descending=True, stable=True)
    rank = order.argsort(2)
    fixed = torch.zeros_like(known)
    told = torch.zeros(*units.shape[:2], kept.units.shape[1])
    open_rows = candidates.any(2)
    for place in range(int(candidates.sum(2).max()) if candidates.numel() else 0):
        feature = candidates & (rank == place) & open_rows[..., None]
        if not bool(feature.any()):
            break
        more = told + kept.log_likelihood(units, feature)
        enough = 1 / more.softmax(2).square().sum(2) >= draws
        taken = feature.any(2) & (enough | (place == 0))
        told = torch.where(taken[..., None], more, told)
        fixed |= feature & taken[..., None]
        open_rows = open_rows & taken & enough
    return fixed, told.softmax(2)


def _surprise(kept: KeptRows, units: Tensor) -> Tensor:
    """Return how far each feature's value is from its usual values, ``[clients, asked, features]``, above 0."""
    network = kept.network
    state = network.state(kept.parameters)
    mean, deviation = state["mean"][:, None], state["deviation"][:, None]
    values = torch.where(units.isnan(), mean, units)
    number = 0.5 * ((values - mean) / deviation).square()
    shares = mean.clamp(1e-6, 1 - 1e-6)
    alone = torch.tensor([feature.width == 1 for feature in network.schema.features])[network.schema.unit_feature]
    category = -values * shares.log() - torch.where(alone, (1 - values) * (-shares).log1p(), 0.0)
    found = torch.where(network.heads.is_number, number, category)
    return found @ network.membership + 1e-3


def _steps(known: Tensor, classes: list[Tensor]) -> list[_Step]:
    """Divide the known features, bool ``[clients, asked, features]``, into groups of features that are no neighbours.

    The group of a feature does not depend on other rows.
    """
    size = -(-known.shape[2] // _STEPS)
    steps = []
    for number, some in enumerate(classes):
        own = torch.zeros_like(known)
        own[..., some] = known[..., some]
        group = torch.where(own, (own.long().cumsum(2) - 1) // size, -1)
        for place in range(int(group.max()) + 1 if group.numel() else 0):
            steps.append(_Step(number * known.shape[2] + place, group == place))
    return steps


def _told(
    conditionals: FullConditionals, chains: Gibbs, values: Tensor, chosen: Tensor, shift: Tensor | None
) -> Tensor:
    """Compute log-likelihoods of the ``chosen`` units of ``values`` given all else in the rows, ``[clients, rows]``."""
    found = torch.zeros(len(values), values.shape[2])
    for part in conditionals.parts:
        wanted = chosen[:, part.units]
        rows = wanted.any(1).any(0).nonzero()[:, 0]
        if len(rows):
            wanted = wanted.index_select(2, rows)
            own = values[:, part.units].index_select(2, rows)
            predicted = part(chains.inputs.index_select(2, rows), shift)
            told = conditionals.log_likelihood(part, predicted, torch.where(wanted, own, 0.0))
            found.index_add_(1, rows, torch.where(wanted, told, 0.0).sum(1))
    return found


def _redrawn(
    chains: Gibbs, ancestors: Tensor, log_weights: Tensor, chosen: Tensor, noise: Noise
) -> tuple[Tensor, Tensor]:
    """Resample rows by their weights where ``chosen``, bool ``[clients, asked]``; leave others unchanged."""
    draws = ancestors.shape[2]
    drawn = systematic(log_weights.softmax(2), draws, noise.single())
    places = torch.where(chosen[..., None], drawn, torch.arange(draws).expand_as(ancestors))
    first = torch.arange(ancestors.shape[1])[:, None] * draws
    chains.select((places + first).flatten(1))
    return ancestors.gather(2, places), torch.where(chosen[..., None], 0.0, log_weights)
