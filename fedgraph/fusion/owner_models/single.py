"""Owners whose models are evaluated one at a time: existing models, and those of scikit-learn."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData
from fedgraph.fusion.owner_models.brought import load_local_model
from fedgraph.fusion.owner_models.local_model import (
    LocalModel,
    Represented,
    check_not_raw,
    content,
    fingerprint_of,
)
from fedgraph.fusion.owner_models.scikit import fitted
from fedgraph.models import ScikitSettings
from fedgraph.support.errors import RunError

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class SingleOwner:
    """One owner of a node; methods return embeddings and predictions of its samples, and the model's fingerprint.

    row    : its position in ``data``.
    wanted : the fingerprint of the required model; None for any.
    """

    data: OwnerData
    row: int
    wanted: str | None

    @property
    def name(self) -> str:
        """Name of the owner."""
        return self.data.owners[self.row]

    def brought(self, path: str) -> tuple[Represented, str]:
        """Use an existing model of the owner, loaded by ``load_local_model``.

        The fingerprint covers its files and the preparation of inputs. Raises FedgraphError when it cannot be read,
        does not fit the data, is not the required one, or returns samples as embeddings.
        """
        model = load_local_model(path, self.data.tasks[self.row])
        fingerprint = fingerprint_of(model.fingerprint, self.data.preparations[self.row].table())
        self._check_same_model(fingerprint, f"the model '{path}', with inputs scaled as here, is not")
        found = self._represented(model)
        if self.name in self.data.unscaled:
            log.warning(
                "owner '%s' has no training samples to scale its features by: its model '%s' gets unscaled features",
                self.name, path,
            )  # fmt: skip
        self._check_not_raw(found, "use a model with a hidden layer before the last linear layer")
        return found, fingerprint

    def fitted(self, settings: ScikitSettings, seed: int) -> tuple[Represented, str]:
        """Fit a scikit-learn model; the fingerprint covers its settings and training samples.

        Raises FedgraphError when it cannot be fitted, is not the required one, or returns samples as embeddings.
        """
        training = self.data.present[self.row] & (self.data.split == SAMPLE_SPLITS.index("train"))
        inputs, labels = self.data.inputs[self.row][training], self.data.labels[training]
        fingerprint = fingerprint_of(settings.as_table(), seed, self.name, content(self.data, self.row, "train"))
        self._check_same_model(fingerprint, "its settings or training samples are no longer those of")
        model = fitted(settings, inputs, labels, self.data.tasks[self.row].output_shape[0], seed, self.name)
        found = self._represented(model)
        self._check_not_raw(found, "set a feature transformer by [model] transformer")
        return found, fingerprint

    def _represented(self, model: LocalModel) -> Represented:
        """Compute embeddings and predictions of the owner's samples."""
        present = self.data.present[self.row]
        found = model.represent(self.data.inputs[self.row][present])
        return Represented(
            *(values.new_zeros(len(present), *values.shape[1:]).index_put_((present,), values) for values in found)
        )

    def _check_not_raw(self, found: Represented, remedy: str) -> None:
        present = self.data.present[self.row]
        check_not_raw(self.data.inputs[self.row][present], found.embeddings[present], [self.name], remedy)

    def _check_same_model(self, fingerprint: str, reason: str) -> None:
        if self.wanted not in (None, fingerprint):
            raise RunError(f"owner '{self.name}': {reason} the model whose embeddings the fusion model was trained on")
