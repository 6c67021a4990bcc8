"""An owner whose model is computed by itself: one that the owner brought along, or one of scikit-learn."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData
from fedgraph.fusion.owner_models.base import LocalModel, Represented
from fedgraph.fusion.owner_models.fingerprint import content, fingerprint_of
from fedgraph.fusion.owner_models.loading import load_local_model
from fedgraph.fusion.owner_models.raw import refuse_raw
from fedgraph.fusion.owner_models.scikit import fitted
from fedgraph.models import ScikitSettings
from fedgraph.support.errors import RunError

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class SingleOwner:
    """One owner of a node; its methods give its samples as its model sees them, and the model's fingerprint.

    row    : its position in ``data``.
    wanted : the fingerprint of the model that it must use; None for whichever it has.
    """

    data: OwnerData
    row: int
    wanted: str | None

    @property
    def name(self) -> str:
        """The owner's."""
        return self.data.owners[self.row]

    def brought(self, given: str) -> tuple[Represented, str]:
        """By a model that the owner has already, as ``load_local_model`` reads it; the fingerprint is of its files.

        Raises
        ------
        FedgraphError
            When it cannot be read, does not fit the data, is not the one wanted, or puts samples out as embeddings.
        """
        model = load_local_model(given, self.data.tasks[self.row])
        self._refuse_other(model.fingerprint, f"the model '{given}' is not")
        found = self._represented(model)
        if self.name in self.data.unscaled:
            log.warning(
                "owner '%s' has no training samples here to scale its features by: its model '%s' sees them as they "
                "are", self.name, given,
            )  # fmt: skip
        self._refuse_raw(found, "bring a model with a hidden layer before its last linear one")
        return found, model.fingerprint

    def fitted(self, settings: ScikitSettings, seed: int) -> tuple[Represented, str]:
        """By a scikit-learn model, fitted anew each time; the fingerprint is of its settings and training samples.

        Raises
        ------
        FedgraphError
            When it cannot be fitted, is not the one wanted, or puts samples out as embeddings.
        """
        training = self.data.present[self.row] & (self.data.split == SAMPLE_SPLITS.index("train"))
        inputs, labels = self.data.inputs[self.row][training], self.data.labels[training]
        fingerprint = fingerprint_of(settings.as_table(), seed, self.name, content(self.data, self.row, "train"))
        self._refuse_other(fingerprint, "its settings or training samples are no longer those of")
        model = fitted(settings, inputs, labels, self.data.tasks[self.row].output_shape[0], seed, self.name)
        found = self._represented(model)
        self._refuse_raw(found, "name a feature transformer for it by [model] transformer")
        return found, fingerprint

    def _represented(self, model: LocalModel) -> Represented:
        """The samples as the model sees them; it is not asked about those that the owner lacks."""
        there = self.data.present[self.row]
        found = model.represent(self.data.inputs[self.row][there])
        return Represented(
            *(values.new_zeros(len(there), *values.shape[1:]).index_put_((there,), values) for values in found)
        )

    def _refuse_raw(self, found: Represented, remedy: str) -> None:
        there = self.data.present[self.row]
        refuse_raw(self.data.inputs[self.row][there], found.embeddings[there], [self.name], remedy)

    def _refuse_other(self, fingerprint: str, reason: str) -> None:
        if self.wanted not in (None, fingerprint):
            raise RunError(f"owner '{self.name}': {reason} the model whose embeddings the fusion model was trained on")
