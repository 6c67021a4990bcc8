"""One graph of all clients' rows, recovered from sums over rows, so that no client reveals a row.

Dependencies that are rare at each client, such as those of a rare disease, are missing in the union of the clients'
graphs. Sums give the graph of the pooled rows, bitwise identical for any partition of the rows among clients.

The sums are those of pairwise-complete correlations (:mod:`fedgraph.graphical.recovery.correlation`). Units are clipped
to [0, 1] and rounded to 1/256, so that sums are integers: independent of order, maskable
(:mod:`fedgraph.privacy.secret.masks`), and of bounded sensitivity to one row, for noise
(:mod:`fedgraph.privacy.noise.counts`). Numbers are correlated in their units, as ranks cannot be computed from sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.recovery.correlation import MIN_COUNT, Moments, correlation, positive_definite
from fedgraph.graphical.recovery.lasso import lasso_precision
from fedgraph.graphical.recovery.recover import Recovered, linked
from fedgraph.graphical.recovery.settings import RecoverySettings
from fedgraph.privacy.noise import CountNoiseSettings, noise_multiplier_for, standard_laplace, standard_normal
from fedgraph.support.errors import ReplyError, RunError

STEPS = 256
"""Number of steps of a unit from 0 to 1."""

_PENALTIES = tuple(10 ** (-exponent / 4) for exponent in range(1, 13))
_GAMMA = 0.5
"""Gamma of the extended BIC (Foygel, Drton 2010): the additional cost of an edge among many units."""


@dataclass(frozen=True)
class UnitSums:
    """Sums over rows, whole numbers.

    Attributes
    ----------
    counts : Tensor
        Rows in which both of two features are known, int64 ``[features, features]``.
    sums : Tensor
        Sums of each unit, in steps, over the rows in which its feature and another are known, int64 ``[units,
        features]``.
    products : Tensor
        Products of two units, in steps squared, int64 ``[units, units]``.
    """

    counts: Tensor
    sums: Tensor
    products: Tensor

    @classmethod
    def of(cls, units: Tensor, schema: Schema) -> UnitSums:
        """Sum over the rows of ``units`` ``[rows, units]``, NaN for missing."""
        unit_feature, features = schema.unit_feature, len(schema.features)
        first = torch.searchsorted(unit_feature, torch.arange(features))
        # Sums in float64 are exact up to 2^53, far beyond any table.
        known = (~units.isnan())[:, first].double()
        steps = (units.double().clamp(0, 1) * STEPS).round().nan_to_num(0.0)
        return cls((known.T @ known).long(), (steps.T @ known).long(), (steps.T @ steps).long())

    @classmethod
    def width(cls, schema: Schema) -> int:
        """Return the length of :meth:`flat`."""
        units, features = len(schema.unit_feature), len(schema.features)
        return features * (features + 1) // 2 + units * features + units * (units + 1) // 2

    def flat(self) -> Tensor:
        """Return all sums once, int64 ``[numbers]``: of symmetric matrices, the upper halves."""
        halves = [each[*torch.triu_indices(*each.shape)] for each in (self.counts, self.products)]
        return torch.cat([halves[0], self.sums.flatten(), halves[1]])

    @classmethod
    def from_flat(cls, flat: Tensor, schema: Schema) -> UnitSums:
        """Return the sums from :meth:`flat`; matrices are symmetric in any case.

        Raises ReplyError when the length or the dtype is another.
        """
        units, features = len(schema.unit_feature), len(schema.features)
        if flat.shape != (cls.width(schema),) or flat.dtype != torch.int64:
            raise ReplyError(f"the sums are {flat.dtype} {list(flat.shape)}, not int64 [{cls.width(schema)}]")
        ends = features * (features + 1) // 2, units * features, units * (units + 1) // 2
        counts, sums, products = flat.split(ends)
        return cls(_whole(counts, features), sums.reshape(units, features), _whole(products, units))

    def check(self, schema: Schema, rows: int) -> UnitSums:
        """Check that the sums can be those of ``rows`` rows, and return them.

        Raises ReplyError when no rows add up to these sums.
        """
        own = self.counts.diagonal()
        of_unit = self.counts[schema.unit_feature]
        of_pair = of_unit[:, schema.unit_feature]
        fits = [
            bool((own <= rows).all()) and bool((self.counts >= 0).all()),
            bool((self.counts <= torch.minimum(own, own[:, None])).all()),
            bool(((self.sums >= 0) & (self.sums <= STEPS * of_unit)).all()),
            bool(((self.products >= 0) & (self.products <= STEPS * STEPS * of_pair)).all()),
        ]
        if not all(fits):
            raise ReplyError(f"the sums are impossible for {rows:,} rows")
        return self

    def moments(self, schema: Schema) -> tuple[Moments, Tensor]:
        """Return the moments of standardised units, and the variances of the units, float64 ``[units]``.

        Sums with noise may be those of no rows: then counts are at least 1 and variances not below 0.
        """
        of = schema.unit_feature
        counts = self.counts[of][:, of].double().clamp(min=1)
        sums, products = self.sums[:, of].double() / STEPS, self.products.double() / STEPS**2
        mean = sums.diagonal() / counts.diagonal()
        spread = products - mean * sums - (mean * sums).T + counts * mean * mean[:, None]
        variance = (spread.diagonal() / counts.diagonal()).clamp(min=0)
        scale = torch.where(variance > 0, variance.rsqrt(), 0.0)
        return Moments(spread * scale * scale[:, None], counts), variance


def with_noise(
    sums: UnitSums, schema: Schema, noise: CountNoiseSettings, generator: torch.Generator | None = None
) -> UnitSums:
    """Add noise to sums that leave a client, with the guarantee of ``noise`` for a row; they remain whole numbers.

    The counts, sums and products of a row have norms of at most F, the number of features (embeddings count once for
    each of their numbers), as the units of a feature have a norm of at most 1. As no entry is negative, replacing a row
    moves the vector by at most ``sqrt(6) F``. For Laplace noise, the L1 norm of a row is at most 3 F^2. The units of a
    row must depend on this row only: ranges measured on the same rows move with each of them. Returns the noisy sums.

    Parameters
    ----------
    sums : UnitSums
        Sums of one client.
    schema : Schema
        Schema of the sums.
    noise : CountNoiseSettings
        Mechanism, epsilon and delta.
    generator : torch.Generator, optional
        Source of the noise, for tests and simulations only.
    """
    size = sum(feature.size for feature in schema.features)
    if noise.mechanism == "gaussian":
        deviation = noise_multiplier_for(noise.epsilon, noise.delta) * math.sqrt(6) * size
    else:
        deviation = 6 * size**2 / noise.epsilon
    sums_of_one = torch.full_like(sums.sums, STEPS), torch.full_like(sums.products, STEPS**2)
    units = UnitSums(torch.ones_like(sums.counts), *sums_of_one).flat()
    standard = standard_normal if noise.mechanism == "gaussian" else standard_laplace
    drawn = deviation * standard(units.shape, generator) * units
    return UnitSums.from_flat(sums.flat() + drawn.round().long(), schema)


def recover_from_sums(
    settings: RecoverySettings, schema: Schema, sums: UnitSums, targets: Sequence[str] = ()
) -> Recovered:
    """Recover the graph of all rows together: the graphical lasso, its penalty by the extended BIC, and the thresholds.

    Features among ``targets`` get at least ``target-neighbours`` neighbours. Returns the graph, and its partial
    correlations. Raises RunError when the solver fails for every penalty.
    """
    moments, variance = sums.moments(schema)
    kept = _varying(sums, schema, variance, MIN_COUNT)
    moments = Moments(moments.products[kept][:, kept], moments.counts[kept][:, kept])
    count = int(kept.sum())
    precision = torch.eye(count, dtype=torch.float64)
    if count > 1:
        precision = _by_ebic(moments) if settings.penalty is None else lasso_precision(moments, settings.penalty)
    return linked(settings, schema.names, kept, schema.unit_feature, moments, precision, targets)


def _varying(sums: UnitSums, schema: Schema, variance: Tensor, min_count: int) -> Tensor:
    """Return which units to correlate, as :func:`fedgraph.graphical.recovery.correlation.varying_units`.

    Of numbers, all that vary are kept.
    """
    place = torch.arange(len(schema.unit_feature))
    of_rows = sums.counts.diagonal()[schema.unit_feature]
    ones = sums.sums[place, schema.unit_feature] / STEPS
    kept = variance > 1e-8
    for feature, own in zip(schema.features, schema.slices.values(), strict=True):
        if not feature.is_scaled:
            kept[own] &= torch.minimum(ones[own], of_rows[own] - ones[own]) >= min_count
            if feature.width > 1:
                kept[own.start + int(ones[own].argmax())] = False
    return kept


def _by_ebic(moments: Moments) -> Tensor:
    """Return the precision matrix of least extended BIC, over penalties that are shares of the largest correlation.

    ``n (tr(S P) - log det P) + E log n + 4 gamma E log p`` of p units and E pairs of them, where n is the mean of the
    rows that pairs have.
    """
    from sklearn.covariance import log_likelihood  # takes half a second

    found = positive_definite(correlation(moments))
    rows, size = float(moments.counts.mean()), len(found)
    largest = float((found - torch.eye(size)).abs().max())
    best, least, worse = None, math.inf, 0
    for share in _PENALTIES:
        # The criterion has about one minimum, and the solver becomes slower beyond it.
        if worse == 2:
            break
        try:
            precision = lasso_precision(moments, share * largest)
        except FloatingPointError:
            break
        edges = int((precision.triu(1).abs() > 1e-9).sum())
        # scikit-learn's likelihood is per row, halved and without the constant.
        fit = -2 * rows * float(log_likelihood(np.asarray(found), precision.numpy()))
        score = fit + edges * (math.log(rows) + 4 * _GAMMA * math.log(size))
        worse += 1
        if score < least:
            best, least, worse = precision, score, 0
    if best is None:
        raise RunError("the graphical lasso fails for sums over all clients: raise penalty of [fedngm.recovery]")
    return best


def _whole(half: Tensor, size: int) -> Tensor:
    """Return the symmetric matrix of which ``half`` is the upper half."""
    matrix = half.new_zeros(size, size)
    matrix[*torch.triu_indices(size, size)] = half
    return matrix + matrix.triu(1).T
