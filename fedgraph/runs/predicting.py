"""Predictions of new data by the models of a finished run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedgraph.data import UNNAMED, CohortData, Preprocessing
from fedgraph.data.preprocessing import NewData, Predicted, latest, stacked
from fedgraph.runs.models import RunModels
from fedgraph.support.errors import DataError, RunError, similar
from fedgraph.training import Cohort, TrainSettings

_ALL_HAVE = ("centre", "spread", "fill", "mean", "std")
"""Scales that must be equal for all clients to apply to the global model."""

_MOST_HINTS = 5
"""Number of unknown clients for which similar names are looked up."""


@dataclass(frozen=True)
class Predictor:
    """The models of a run, and the preprocessing of its clients.

    Attributes
    ----------
    models : RunModels
        The models.
    preprocessing : mapping of str to Preprocessing
        By client, as far as the run folder has it.
    horizons : tuple of int
        Forecast steps with metrics of their own.
    """

    models: RunModels
    preprocessing: Mapping[str, Preprocessing]
    horizons: tuple[int, ...] = ()

    def predict(self, place: Path, client: str | None = None, windows: int | None = None) -> Predicted:
        """Predict the data of a file or folder; see :meth:`fedgraph.runs.Run.predict`.

        Raises
        ------
        RunError
            When the run has no model for a client, or lacks its preprocessing.
        DataError
            When the file does not match the training data.
        """
        if not self.preprocessing:
            raise RunError(no_preprocessing(self.models, client))
        if client is None and len(self.models) == 1:
            client = next(iter(self.models))
        new = next(iter(self.preprocessing.values())).form.read(place, client)
        rows, scales, notes = [], [], [*new.notes, *self._notes(new.names)]
        for name in new.names:
            rows.append(self._row(name))
            scales.append(self._scales(name, new))
        data = latest(new.cohort(stacked(scales)), windows)

        def cohort(data: CohortData) -> Cohort:
            return Cohort(self.models.stacked, data, TrainSettings(), 0)

        return Predicted.of(new, data, torch.stack(rows), cohort, self.horizons, notes)

    def read(self, place: Path, names: Sequence[str]) -> tuple[NewData, CohortData]:
        """Read and scale the data of these clients, in this order. Raises DataError when the file has other clients."""
        if not self.preprocessing:
            raise RunError(no_preprocessing(self.models, None))
        new = next(iter(self.preprocessing.values())).form.read(place, None)
        missing = [name for name in names if name not in new.names]
        unknown = [name for name in new.names if name not in names]
        if missing or unknown:
            problem = f"lacks '{missing[0]}'" if missing else f"has '{unknown[0]}', who was not in the run"
            raise DataError(f"{place} {problem}: all clients of the run are predicted together, {', '.join(names[:8])}")
        new = new.in_order(names)
        return new, new.cohort(stacked([self._scales(name, new) for name in names]))

    def scales_of(self, client: str | None) -> tuple[Preprocessing, dict[str, Tensor]]:
        """Return preprocessing and scales of a client, or of the global model if all clients have the same scales.

        Raises
        ------
        RunError
            When the run folder has no scales, or clients differ in them.
        """
        if not self.preprocessing or (client is not None and client not in self.preprocessing):
            raise RunError(no_preprocessing(self.models, client))
        first = self.preprocessing[next(iter(self.preprocessing)) if client is None else client]
        if client is not None:
            return first, first.of(client)
        scales = [each.of(name) for name, each in self.preprocessing.items()]
        if any(not torch.equal(one[name], scales[0][name]) for one in scales for name in _ALL_HAVE):
            raise RunError(
                f"{self.models.path}: the global model has no scale, as each client scales its own inputs: use "
                "module(raw=False) for scaled inputs, or predict, which estimates the scale of new clients"
            )
        return first, scales[0]

    def _row(self, name: str) -> Tensor:
        """Return the model for a client, ``[parameters]``; the global model for an unknown client."""
        if name in self.models:
            return self.models.row(name)
        if self.models.shared is None:
            raise RunError(
                f"{self.models.path}: {self._unknown(name)}, and there is no global model: {self._advice(name)}"
            )
        return self.models.row(None)

    def _notes(self, names: Sequence[str]) -> Iterator[str]:
        """Yield notes on the clients that the global model predicts."""
        unknown = [name for name in names if name not in self.models]
        for place, name in enumerate(unknown):
            # Looking for similar names takes long with many clients.
            hint = similar([name], list(self.models)) if place < _MOST_HINTS else ""
            yield (
                f"{self._unknown(name)}: the global model predicts, scaled by the new data if clients have scales of "
                f"their own{hint}"
            )

    def _advice(self, name: str) -> str:
        one = f"(client=..., or --client), one of {self.models.some()}"
        if name == UNNAMED:
            return f"name a client {one}"
        hint = similar([name], list(self.models))
        return f"correct the name, or leave out the column of clients and name one {one}{hint}"

    def _unknown(self, name: str) -> str:
        """Describe a client without a model. Raises DataError for the name of a client that lost its leading zeros."""
        if name == UNNAMED:
            return "no client is named"
        if known := self._by_number.get(name.lstrip("0")):
            raise DataError(
                f"'{name}' was not in the run, and '{known}' was: the name has lost its leading zeros; read the "
                "column of clients as text (in pandas dtype=str)"
            )
        return f"'{name}' was not in the run"

    @cached_property
    def _by_number(self) -> dict[str, str]:
        """Names of clients that are numbers, by their digits without leading zeros."""
        return {name.lstrip("0"): name for name in self.models if name.isdigit()}

    def _scales(self, name: str, new: NewData) -> dict[str, Tensor]:
        if name in self.preprocessing:
            return self.preprocessing[name].of(name)
        if name in self.models:
            raise RunError(no_preprocessing(self.models, name))
        try:
            return new.measured(name, next(iter(self.preprocessing.values())).first())
        except DataError as error:
            raise DataError(f"{self._unknown(name)}, and {error}: {self._advice(name)}", error.quoted) from None


def no_preprocessing(models: RunModels, client: str | None) -> str:
    """Return an error message that says where the preprocessing of a client is."""
    who = "its clients" if client is None else f"'{client}'"
    place = models.place(Preprocessing.FOLDER)
    return (
        f"{models.path}: the preprocessing of {who} is at their nodes, since scales are private: copy the folder "
        f"{place} of the node's state folder (node config state-dir, by default ~/.fedgraph/state) to "
        f"{models.path / 'nodes' / place}, or predict on the node, with a copy of this run folder. Runs of older "
        "versions, and of data sets without a preprocessing, do not keep it"
    )
