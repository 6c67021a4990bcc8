"""Predictions of new data by the models of a finished run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedgraph.data import UNNAMED, CohortData, Preprocessing
from fedgraph.data.preprocessing import NewData, Predicted, latest, stacked
from fedgraph.runs.models import RunModels
from fedgraph.support.errors import DataError, RunError
from fedgraph.training import Cohort, TrainSettings

_ALL_HAVE = ("centre", "spread", "fill", "mean", "std")
"""Scales that have to be alike for a global model to have them."""


@dataclass(frozen=True)
class Predictor:
    """The models of a run, and the preprocessing of its clients.

    Attributes
    ----------
    models : RunModels
        The models.
    preprocessing : mapping of str to Preprocessing
        By client, as far as it is here.
    horizons : tuple of int
        Forecast steps that are measured by themselves.
    """

    models: RunModels
    preprocessing: Mapping[str, Preprocessing]
    horizons: tuple[int, ...] = ()

    def predict(self, place: Path, client: str | None = None, windows: int | None = None) -> Predicted:
        """Predict what a file contains.

        Parameters
        ----------
        place : Path
            The file, or folder.
        client : str, optional
            The client whose data it is, where the file does not say so.
        windows : int, optional
            Of series: the latest windows, at most so many.

        Raises
        ------
        RunError
            When the run has no model for a client, or lacks its preprocessing.
        DataError
            When the file cannot be read as those of training were.
        """
        if not self.preprocessing:
            raise RunError(no_preprocessing(self.models, client))
        if client is None and len(self.models) == 1:
            client = next(iter(self.models))
        new = next(iter(self.preprocessing.values())).form.read(place, client)
        rows, scales, notes = [], [], list(new.notes)
        for name in new.names:
            rows.append(self._row(name, notes))
            scales.append(self._scales(name, new))
        data = latest(new.cohort(stacked(scales)), windows)

        def cohort(data: CohortData) -> Cohort:
            return Cohort(self.models.stacked, data, TrainSettings(), 0)

        return Predicted.of(new, data, torch.stack(rows), cohort, self.horizons, notes)

    def read(self, place: Path, names: Sequence[str]) -> tuple[NewData, CohortData]:
        """Read and scale the data of these clients, all of them and in this order.

        Raises
        ------
        DataError
            When the file lacks one, or has others.
        """
        if not self.preprocessing:
            raise RunError(no_preprocessing(self.models, None))
        new = next(iter(self.preprocessing.values())).form.read(place, None)
        lacking = [name for name in names if name not in new.names]
        others = [name for name in new.names if name not in names]
        if lacking or others:
            told = f"lacks '{lacking[0]}'" if lacking else f"has '{others[0]}', who was not in the run"
            raise DataError(f"{place} {told}: all clients of the run are predicted together, {', '.join(names[:8])}")
        new = new.in_order(names)
        return new, new.cohort(stacked([self._scales(name, new) for name in names]))

    def scales_of(self, client: str | None) -> tuple[Preprocessing, dict[str, Tensor]]:
        """Return form and scales for the module of a client, or of the global model, for which all have to be alike.

        Raises
        ------
        RunError
            When they are not here, or differ.
        """
        if not self.preprocessing or (client is not None and client not in self.preprocessing):
            raise RunError(no_preprocessing(self.models, client))
        first = self.preprocessing[next(iter(self.preprocessing)) if client is None else client]
        if client is not None:
            return first, first.of(client)
        own = [found.of(name) for name, found in self.preprocessing.items()]
        if any(not torch.equal(one[name], own[0][name]) for one in own for name in _ALL_HAVE):
            raise RunError(
                f"{self.models.path}: the global model takes inputs on the scale of each client, and has none of its "
                "own: module(raw=False) returns it for scaled inputs, and predict measures the scale of new clients"
            )
        return first, own[0]

    def _row(self, name: str, notes: list[str]) -> Tensor:
        """Return the model for a client, ``[parameters]``; that of all for one whom the run does not know."""
        if name in self.models:
            return self.models.row(name)
        if self.models.shared is None:
            whose = "say whose data it is (client)" if name == UNNAMED else f"the run has no client '{name}'"
            raise RunError(f"{self.models.path}: {whose}, and there is no global model; clients: {self.models.some()}")
        who = "no client is named" if name == UNNAMED else f"'{name}' was not in the run"
        notes.append(
            f"{who}: the global model predicts, on the scale of the new data itself where clients have their own"
        )
        return self.models.row(None)

    def _scales(self, name: str, new: NewData) -> dict[str, Tensor]:
        if name in self.preprocessing:
            return self.preprocessing[name].of(name)
        if name in self.models:
            raise RunError(no_preprocessing(self.models, name))
        try:
            return new.measured(name, next(iter(self.preprocessing.values())).first())
        except DataError as error:
            raise DataError(
                f"{error}: name the client whose data it is (client), one of {self.models.some()}"
            ) from None


def no_preprocessing(models: RunModels, client: str | None) -> str:
    """Say where the preprocessing of a client is."""
    who = "its clients" if client is None else f"'{client}'"
    place = models.place(Preprocessing.FOLDER)
    return (
        f"{models.path}: how the data of {who} become inputs is kept by their nodes, as scales are data: copy the "
        f"folder {place} of the node's state folder (node config state-dir, by default ~/.fedgraph/state) to "
        f"{models.path / 'nodes' / place}, beside what other nodes have there, or predict on the node, with a copy of "
        "this run folder. Runs of older versions have not kept it, nor do data sets that do not say it"
    )
