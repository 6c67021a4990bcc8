"""The scale of a client's readings (mean and standard deviation): measured, reported, or known in advance."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedgraph.support.errors import DataError

Singles = NDArray[np.float32]
Mask = NDArray[np.bool_]
Doubles = NDArray[np.float64]

_Mean = Annotated[float, Field(gt=-1e30, lt=1e30, allow_inf_nan=False)]
_Deviation = Annotated[float, Field(gt=1e-30, lt=1e30, allow_inf_nan=False)]
Scale = tuple[_Mean, _Deviation]
"""Mean and standard deviation of a client's readings, such that z-scores in float32 are finite."""

_ONE_STEP_IN = 24
"""At least one in this many of the last steps must have a reading (an hour of a day)."""

log = logging.getLogger("fedgraph")


def measured(values: Singles, valid: Mask) -> tuple[Doubles, Doubles]:
    """Return mean and standard deviation over time of the valid readings, ``[clients, features]``; NaN without any.

    values, valid : ``[clients, time, features]``.
    """
    count = valid.sum(axis=1)
    some = np.maximum(count, 1)
    mean = np.where(valid, values, 0.0).sum(axis=1, dtype=np.float64) / some
    deviation = np.where(valid, values - mean[:, None], 0.0)
    std = np.sqrt((deviation**2).sum(axis=1) / some)
    return np.where(count > 0, mean, np.nan), np.where(count > 0, std, np.nan)


def usable(mean: Doubles, std: Doubles) -> tuple[Singles, Singles]:
    """Return a scale for z-scores: a constant series gets the deviation 1, one without readings 0 and 1."""
    unread = np.isnan(mean)
    mean, std = np.where(unread, 0.0, mean), np.where(unread, 1.0, std)
    std = np.where(std <= 1e-6 * np.maximum(1.0, np.abs(mean)), 1.0, std)
    return mean.astype(np.float32), std.astype(np.float32)


def pooled(mean: Doubles, std: Doubles, count: NDArray[np.int64] | Doubles) -> tuple[float, float]:
    """Return mean and standard deviation of all readings, from those of each client and their numbers.

    With counts n, means m and deviations s: ``m = sum_i n_i m_i / n``, ``s^2 = sum_i n_i (s_i^2 + (m_i - m)^2) / n``.

    mean, std, count : ``[clients]``; clients with a count of 0 are ignored. Raises DataError when all are 0.
    """
    some = count > 0
    if not some.any():
        raise DataError("no client has a valid reading in the training part, so there is no pooled scale")
    mean, std, shares = mean[some], std[some], count[some] / count[some].sum()
    centre = float(shares @ mean)
    return centre, float(np.sqrt(shares @ (std**2 + (mean - centre) ** 2)))


def reported(values: Singles, valid: Mask, is_cold: Mask, last: int) -> Doubles:
    """Return statistics of training readings from which scales of others are inferred, ``[clients, 5]``.

    Mean and standard deviation of the ``last`` steps, then of all steps, and the number of readings of all steps. The
    first two are NaN for a client of whose last steps hardly any was read, the second two for a cold client, who has no
    others; its number is 0.

    values, valid : ``[clients, time]``, the training part; of a cold client nothing before the last steps is valid.
    is_cold       : ``[clients]``.
    """
    lately = slice(max(values.shape[1] - last, 0), None)
    recent = np.stack(measured(values[:, lately, None], valid[:, lately, None]))[..., 0]
    recent[:, valid[:, lately].mean(axis=1) * _ONE_STEP_IN < 1] = np.nan
    whole = np.stack(measured(values[..., None], valid[..., None]))[..., 0]
    whole[:, is_cold] = np.nan
    count = np.where(is_cold, 0, valid.sum(axis=1))
    return np.concatenate([recent, whole, count[None]]).T


def replace_known(
    mean: Singles,
    std: Singles,
    names: Sequence[str],
    known: Mapping[str, Scale],
    all_names: Collection[str],
) -> None:
    """Replace the scales of ``names`` that are ``known`` from elsewhere, in ``mean`` and ``std``, ``[clients]``.

    Unknown names are logged, as another node may know them; raises DataError if all ``known`` are missing in
    ``all_names``, the clients of the data set.
    """
    unknown = sorted(set(known) - set(all_names))
    if unknown:
        text = f"`scales` names unknown clients: {', '.join(unknown[:5])} (of {len(all_names)} clients)"
        if len(unknown) == len(known):
            raise DataError(text)
        log.warning("%s", text)
    for row, name in enumerate(names):
        if name in known:
            mean[row], std[row] = known[name]
