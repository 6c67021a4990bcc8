"""Synthetic patients with chest pain at five hospitals, each with columns that others lack.

Not a published model. Causes (age, smoking, diabetes, ...) lead to a rare event in the following year, and the event to
its signs (pain, heart rate, laboratory, imaging), as in tables on heart disease. Effects have plausible signs and
sizes; some are not additive (smoking matters more with diabetes), and cholesterol has heavy tails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedgraph.data.columns.columns import Floats
from fedgraph.data.columns.table import Table
from fedgraph.support.randomness import derive_seed

HOSPITALS = "hospitals"
"""Stands for this table in place of a path."""

ROWS = 20_000

Patients = Mapping[str, Floats]
"""By column: numbers, or indices of categories, ``[...]``."""

NAMES = ("university", "cardiac", "county", "community", "rural")
"""The hospitals."""


@dataclass(frozen=True)
class NumberColumn:
    """A number: a function ``centre`` of the earlier columns, plus noise.

    Attributes
    ----------
    freedom : degrees of freedom of Student's t; infinite for normal noise.
    digits : places after the point in the table.
    is_log : the table has the exponential of it.
    at : the hospitals that measure it.
    """

    centre: Callable[[Patients], Floats]
    deviation: float
    freedom: float = np.inf
    digits: int = 0
    is_log: bool = False
    at: tuple[str, ...] = NAMES

    def drawn(self, before: Patients, uniform: Floats) -> Floats:
        """Return values by the inverse of the distribution function, at ``uniform`` between 0 and 1."""
        from scipy import stats

        noise = stats.norm.ppf(uniform) if np.isinf(self.freedom) else stats.t.ppf(uniform, self.freedom)
        value = self.centre(before) + self.deviation * noise
        return np.exp(value) if self.is_log else value

    def log_density(self, before: Patients, value: Floats) -> Floats:
        """Return the logarithm of the density at ``value``, up to a term that depends on ``value`` alone."""
        found: Floats = ((np.log(value) if self.is_log else value) - self.centre(before)) / self.deviation
        if np.isinf(self.freedom):
            return -(found**2) / 2
        return -(self.freedom + 1) / 2 * np.log1p(found**2 / self.freedom)


@dataclass(frozen=True)
class CategoryColumn:
    """A category with log-odds ``scores``, a function of the earlier columns.

    Attributes
    ----------
    scores : of the columns before: a score of each category but the first, which has 0.
    at : the hospitals that know it.
    """

    categories: tuple[str, ...]
    scores: Callable[[Patients], tuple[Floats | float, ...]]
    at: tuple[str, ...] = NAMES

    def log_shares(self, before: Patients) -> Floats:
        """Return the logarithms of the probabilities, ``[categories, ...]``."""
        scores = np.stack(np.broadcast_arrays(np.float64(0), *self.scores(before)))
        return scores - np.logaddexp.reduce(scores, axis=0)

    def drawn(self, before: Patients, uniform: Floats) -> Floats:
        """Return places of categories by the inverse of the distribution function."""
        reached = np.exp(self.log_shares(before)).cumsum(0)[:-1]
        # Columns without parents have no axis of patients yet.
        reached = reached.reshape(*reached.shape, *[1] * (uniform.ndim - reached.ndim + 1))
        return (uniform >= reached).sum(0).astype(np.float64)

    def log_density(self, before: Patients, value: Floats) -> Floats:
        """Return the logarithm of the probability of the categories ``value``."""
        shares, places = self.log_shares(before), value.astype(np.int64)
        if shares.ndim == 1:
            return shares[places]
        every, own = np.broadcast_arrays(shares, places[None])
        found: Floats = np.take_along_axis(every, own, 0)[0]
        return found


def _by_hospital(*values: float) -> Callable[[Patients], Floats]:
    return lambda row: np.array(values)[np.asarray(row["hospital"]).astype(np.int64)]


_age = _by_hospital(61, 66, 63, 56, 60)

PATIENTS: dict[str, NumberColumn | CategoryColumn] = {
    "hospital": CategoryColumn(NAMES, lambda row: tuple(np.log([0.8, 0.7, 0.6, 0.4]))),
    "age": NumberColumn(_age, 11),
    "sex": CategoryColumn(("female", "male"), lambda row: (0.2,)),
    "smoker": CategoryColumn(("no", "yes"), lambda row: (-0.9 + 0.4 * row["sex"] - 0.03 * (row["age"] - 60),)),
    "bmi": NumberColumn(lambda row: 27 + 0.5 * row["sex"] - 0.6 * row["smoker"], 4, digits=1),
    "diabetes": CategoryColumn(
        ("no", "yes"), lambda row: (-1.9 + 0.04 * (row["age"] - 60) + 0.16 * (row["bmi"] - 27),)
    ),
    "pressure": NumberColumn(
        lambda row: 132 + 0.5 * (row["age"] - 60) + 0.9 * (row["bmi"] - 27) + 5 * row["diabetes"], 13
    ),
    "cholesterol": NumberColumn(
        lambda row: 5.3 + 0.006 * (row["bmi"] - 27) + 0.004 * (1 - row["sex"]) * (row["age"] - 55), 0.12, freedom=5,
        is_log=True,
    ),
    "event": CategoryColumn(
        ("no", "yes"),
        lambda row: (
            -4.2
            + 0.05 * (row["age"] - 60)
            + 0.4 * row["sex"]
            + 0.2 * row["smoker"]
            + 0.3 * row["diabetes"]
            + 1.5 * row["smoker"] * row["diabetes"]
            + 0.05 * np.abs(row["pressure"] - 130)
            + 0.006 * (row["cholesterol"] - 200),
        ),
    ),
    # Pain is less informative for women.
    "pain": CategoryColumn(
        ("none", "atypical", "typical"),
        lambda row: (-1 + row["event"] * (1.2 - 0.4 * row["sex"]), -1.6 + row["event"] * (1.0 + 1.6 * row["sex"])),
    ),
    "rate": NumberColumn(lambda row: 165 - 0.8 * (row["age"] - 60) - 5 * row["smoker"] - 14 * row["event"], 15),
    "troponin": NumberColumn(
        lambda row: 1.6 + 0.015 * (row["age"] - 60) + 1.5 * row["event"], 0.8, digits=1, is_log=True,
        at=("university", "cardiac"),
    ),
    "ejection": NumberColumn(
        lambda row: 60 - 0.1 * (row["age"] - 60) - 9 * row["event"] - 3 * row["diabetes"], 7, at=("cardiac", "county")
    ),
    "protein": NumberColumn(
        lambda row: 0.8 + 0.06 * (row["bmi"] - 27) + 0.4 * row["smoker"] + 0.7 * row["event"], 0.8, digits=1,
        is_log=True, at=("community", "rural"),
    ),
}  # fmt: skip
"""The columns in topological order."""


def simulated(rows: int, seed: int) -> dict[str, Floats]:
    """Draw patients, with every column everywhere.

    Returns float64 ``[rows]`` by column, as it is in a table: rounded, categories by their place.
    """
    found: dict[str, Floats] = {}
    for name, column in PATIENTS.items():
        random = np.random.default_rng(derive_seed(seed, "hospitals", name))
        found[name] = column.drawn(found, random.uniform(1e-12, 1, rows))
        if isinstance(column, NumberColumn):
            least = 10.0**-column.digits if column.is_log else -np.inf
            found[name] = found[name].round(column.digits).clip(min=least)
    return found


def hospitals_table(rows: int = ROWS, seed: int = 0) -> Table:
    """Return patients as a table, with their hospital in the column ``hospital``.

    Columns that a hospital lacks are empty in its rows.
    """
    values = simulated(rows, seed)
    columns = {name: _as_column(PATIENTS[name], values[name], values["hospital"]) for name in values}
    return Table(columns, HOSPITALS)


def _as_column(column: NumberColumn | CategoryColumn, values: Floats, hospital: Floats) -> pa.Array:
    lacking: NDArray[np.bool_] = ~np.isin(hospital, [NAMES.index(name) for name in column.at])
    if isinstance(column, CategoryColumn):
        return pa.array(np.array(column.categories)[values.astype(np.int64)], mask=lacking)
    return pa.array(values, mask=lacking) if column.digits else pa.array(values.astype(np.int64), mask=lacking)
