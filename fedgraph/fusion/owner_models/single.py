"""Owners whose models are evaluated one at a time: existing models, and those of scikit-learn."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from torch import Tensor

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
from fedgraph.fusion.scores import decided
from fedgraph.models import ScikitSettings
from fedgraph.support.errors import FedgraphError, RunError

log = logging.getLogger("fedgraph")

_FEWEST_SAMPLES, _MUCH_BETTER = 20, 0.1
"""Training samples, and how much more often a model must be right, to say that it expects other units."""


def _share_right(probabilities: Tensor, labels: Tensor) -> float:
    return float((decided(probabilities) == labels).float().mean())


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
        preparation = replace(self.data.preparations[self.row], shape=())  # the model itself may take any
        fingerprint = fingerprint_of(model.fingerprint, preparation.table())
        self._check_same_model(fingerprint, f"the model '{path}', with inputs scaled as here, is not")
        found = self._represented(model)
        if self.name in self.data.unscaled:
            log.warning(
                "owner '%s' has no training samples to scale its features by: its model '%s' gets unscaled features",
                self.name, path,
            )  # fmt: skip
        else:
            self._warn_of_scale(model, path, found)
        self._check_not_raw(found, "use a model with a hidden layer before the last linear one, or name its layer (#)")
        return found, fingerprint

    def _warn_of_scale(self, model: LocalModel, path: str, found: Represented) -> None:
        """Warn of a model that is right much more often on training samples in other units than it gets."""
        training = self.data.present[self.row] & (self.data.split == SAMPLE_SPLITS.index("train"))
        inputs, labels = self.data.inputs[self.row][training], self.data.labels[training]
        centre, spread = self.data.preparations[self.row].centre, self.data.preparations[self.row].spread
        if len(labels) < _FEWEST_SAMPLES:
            return
        as_given = _share_right(found.probabilities[training], labels)
        for scaling, others in (("none", inputs * spread + centre), ("client", (inputs - centre) / spread)):
            try:
                right = _share_right(model.represent(others).probabilities, labels)
            except FedgraphError:  # such as outputs that are not finite: not what it expects
                continue
            if right > as_given + _MUCH_BETTER:
                log.warning(
                    "owner '%s': its model '%s' is right on %.0f %% of its training samples, and on %.0f %% with "
                    '[data] scaling = "%s": was it fitted to features %s?',
                    self.name, path, 100 * as_given, 100 * right, scaling,
                    "in their units" if scaling == "none" else "scaled to z-scores",
                )  # fmt: skip

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
