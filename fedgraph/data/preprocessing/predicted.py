"""Predictions of new data by trained models, and how far they are off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedgraph.data.preprocessing.preprocessing import NewData

if TYPE_CHECKING:
    import pandas as pd

    from fedgraph.data.base import CohortData


@dataclass(frozen=True)
class Predicted:
    """Predictions, and how far they are off where that is known.

    Attributes
    ----------
    table : data frame
        A row for each prediction.
    metrics : dict of str to Tensor
        By name as in the run, ``[clients]``; empty where nothing is known to compare with.
    names : tuple of str
        The clients.
    notes : tuple of str
        What one should know of the data, and of who predicted.
    """

    table: pd.DataFrame
    metrics: Mapping[str, Tensor]
    names: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        new: NewData,
        data: CohortData,
        models: Tensor,
        cohort: Callable[[CohortData], Any],
        horizons: Sequence[int],
        notes: Sequence[str] = (),
    ) -> Predicted:
        """Predict new data, and measure what is known of them.

        Parameters
        ----------
        new : NewData
            What was read.
        data : CohortData
            The same, scaled.
        models : Tensor
            Of its clients, ``[clients, parameters]``.
        cohort : callable
            Makes clients of data, or of a part of it: a :class:`fedgraph.training.Cohort`.
        horizons : sequence of int
            Forecast steps that are measured by themselves.
        notes : sequence of str
            What one should know.
        """
        outputs = cohort(data).predict(models, "test")
        known, metrics = new.known(data), dict[str, Tensor]()
        if known is not None:
            measured = cohort(known).evaluate(models, "test", horizons)
            metrics = {name: values for name, values in measured.items() if not values.isnan().all()}
        return cls(new.answers(data, outputs), metrics, new.names, tuple(dict.fromkeys(notes)))
