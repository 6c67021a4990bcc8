"""The owners' own models, trained locally or existing, and then frozen.

Ma, Hoang, Chen (UAI 2023), eq. 3 and lines 2 and 3 of algorithm 1.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import pad

from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData, cohort_data, sample_folds
from fedgraph.fusion.owner_models.local_model import ModelStore, Represented, check_not_raw, content, fingerprint_of
from fedgraph.fusion.owner_models.pretraining import initial_models, pretrain, represent, some_clients
from fedgraph.fusion.owner_models.single import SingleOwner
from fedgraph.models import FrozenLayers, ModelChoice, ScikitSettings, StackedModel, build, parse_model
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.settings import Settings
from fedgraph.training import Cohort, TrainSettings

log = logging.getLogger("fedgraph")

_WITHOUT_EFFECT = ("workers", "threads", "block-size", "device")
"""Keys of ``[train]`` that affect the speed of training, not its result."""

_TRIED = 16
"""Number of samples of a trial evaluation before training."""


class LocalModelSettings(Settings):
    """Settings of the owners' own models; ``[train] local-epochs`` is the maximum number of epochs.

    Attributes
    ----------
    local_patience : epochs without improvement on its own validation samples after which an owner stops training
                   and keeps its best model.
    local_monitor : criterion: ``accuracy``, as in the released program, or ``loss``. With few columns a model often
                   predicts only the largest class, and its accuracy does not improve.
    tied_output : all owners train with the same random, frozen output layer, which aligns their embeddings (row J of
                   table 2).
    """

    local_patience: PositiveInt = 20
    local_monitor: Literal["accuracy", "loss"] = "loss"
    tied_output: bool = False


@dataclass(frozen=True)
class Embedded:
    """Embeddings and predictions of samples by the frozen models of some owners.

    Attributes
    ----------
    sizes : Tensor
        Length of each owner's embedding, int64 ``[owners]``.
    embeddings : Tensor
        float32 ``[owners, samples, size]``, 0 beyond an owner's own size and where it lacks a sample.
    predictions : Tensor
        Probabilities, float32 ``[owners, samples, classes]``; 0 where an owner lacks a sample.
    fingerprints : tuple of str
        Fingerprints of the owners' frozen models.
    """

    sizes: Tensor
    embeddings: Tensor
    predictions: Tensor
    fingerprints: tuple[str, ...]


@dataclass(frozen=True)
class StackedOwners:
    """Owners whose models have one architecture, computed together.

    Attributes
    ----------
    rows : Tensor
        Positions in the data, int64 ``[owners]``.
    cohort : Cohort
        Cohort of these owners.
    inputs : Tensor
        float32 ``[owners, samples, *input_shape]``.
    parameters : Tensor
        float32 ``[owners, parameters]``.
    fingerprints : tuple of str
        Fingerprints of the frozen models.
    """

    rows: Tensor
    cohort: Cohort
    inputs: Tensor
    parameters: Tensor
    fingerprints: tuple[str, ...]


@dataclass(frozen=True)
class LocalStage:
    """The stage of F3 that provides the frozen models of a node's owners.

    Attributes
    ----------
    data : OwnerData
        Data of the owners of a node.
    description : str
        Description of the data, part of a model's fingerprint.
    choice : ModelChoice
        Architecture of each owner.
    train : TrainSettings
        Settings of the training.
    settings : LocalModelSettings
        Early stopping, and whether output layers are tied.
    seed : int
        Seeds all random numbers, together with the owner's name.
    store : ModelStore
        Store of frozen models.
    brought : mapping of str to str
        Existing models by owner, as :func:`load_local_model` reads them.
    wanted : mapping of str to str
        Fingerprints of the required models by owner; other owners use any.
    pre_trained : bool
        Whether models are trained, or used as initialised.
    folds : int
        Number of folds of the training samples, each embedded by a model trained on the others; 1 for a single model.
    """

    data: OwnerData
    description: str
    choice: ModelChoice
    train: TrainSettings
    settings: LocalModelSettings
    seed: int
    store: ModelStore
    brought: Mapping[str, str]
    wanted: Mapping[str, str]
    pre_trained: bool = True
    folds: int = 1

    def embed(self) -> Embedded:
        """Compute embeddings and predictions of all samples by the owners' frozen models, trained if necessary.

        Raises FedgraphError when a model does not fit an owner's data, cannot be read, is not the required one, or
        cannot be trained without a fold.
        """
        whole = self._embedded()
        if self.folds == 1 or self.wanted:
            return whole
        if self.brought:
            raise ExperimentError(
                f"folds = {self.folds}: the existing model of owner '{min(self.brought)}' cannot be trained without "
                "some of its samples; leave out folds"
            )
        fold = sample_folds(self.data.keys, self.folds, self.seed)
        training, left_out = (SAMPLE_SPLITS.index(name) for name in ("train", "new"))
        for number in range(self.folds):
            held = (self.data.split == training) & (fold == number)
            split = self.data.split.masked_fill(held, left_out)
            found = replace(self, data=replace(self.data, split=split))._embedded()
            whole.embeddings[:, held] = found.embeddings[:, held]
            whole.predictions[:, held] = found.predictions[:, held]
        return whole

    def _embedded(self) -> Embedded:
        """See :meth:`embed`; a single model embeds all samples."""
        parts: dict[int, tuple[Represented, str]] = {}
        for row, owner in enumerate(self.data.owners):
            if owner in self.brought:
                parts[row] = self._single(row).brought(self.brought[owner])
        for group in self.stacked():
            whole = represent(group.cohort.model, group.parameters, group.inputs)
            for place, row in enumerate(group.rows.tolist()):
                own = Represented(whole.embeddings[place], whole.probabilities[place])
                parts[row] = own, group.fingerprints[place]
        for row, (owner, number, _) in enumerate(self._owners()):
            table = self._table(number)
            if owner not in self.brought and isinstance(table, ScikitSettings):
                parts[row] = self._single(row).fitted(table, self.seed)
        for row, (_, fingerprint) in parts.items():
            # A model trained earlier may have another preparation.
            if self.data.owners[row] not in self.wanted:
                self.store.keep_preparation(fingerprint, self.data.preparations[row])
        return self._assembled([parts[row] for row in range(len(self.data.owners))])

    def stacked(self) -> list[StackedOwners]:
        """Return the owners with models of this project or ``torch.nn``, by architecture and input shape.

        Raises ExperimentError when ``[train]`` has steps instead of epochs.
        """
        groups: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for row, (owner, number, task) in enumerate(self._owners()):
            if owner not in self.brought and not isinstance(self._table(number), ScikitSettings):
                groups.setdefault((number, task.input_shape), []).append(row)
        if groups and self.train.local_epochs is None and self.train.local_steps is not None:
            raise ExperimentError("[train] local-steps: owners train their models in epochs; give local-epochs")
        return [self._group(number, rows) for (number, _), rows in groups.items()]

    def _single(self, row: int) -> SingleOwner:
        return SingleOwner(self.data, row, self.wanted.get(self.data.owners[row]))

    def _owners(self) -> list[tuple[str, int, Any]]:
        numbers = self.choice.numbers(self.data.owners)
        return list(zip(self.data.owners, numbers, self.data.tasks, strict=True))

    def _table(self, number: int) -> Settings:
        table = {key: value for key, value in self.choice.tables[number].items() if key != "variants"}
        return parse_model(table, self.choice.places[number])

    def _group(self, number: int, rows: Sequence[int]) -> StackedOwners:
        chosen = torch.tensor(rows)
        data = OwnerData(
            owners=tuple(self.data.owners[row] for row in rows),
            keys=self.data.keys,
            split=self.data.split,
            labels=self.data.labels,
            inputs=tuple(self.data.inputs[row] for row in rows),
            present=self.data.present[chosen],
            shared=self.data.shared,
            tasks=tuple(self.data.tasks[row] for row in rows),
            preparations=tuple(self.data.preparations[row] for row in rows),
        )
        tied = self.settings.tied_output
        model: StackedModel = build(self.choice.tables[number], data.tasks[0])
        if tied:
            model = FrozenLayers(model, model.head_tensors)
        initial = initial_models(model, self.seed, data.owners, tied_head=tied)
        _check_hidden_layer(model, initial, data)
        fingerprints = tuple(self._fingerprint(row, number) for row in rows)
        kept = self._kept(data.owners, fingerprints, initial) if self.pre_trained else {}
        untrained = [data.owners[row] for row in kept]
        whole = cohort_data(data, untrained)
        cohort = Cohort(model, whole, self.train, self.seed)
        parameters = self._frozen(cohort, initial, fingerprints, kept) if self.pre_trained else initial
        # All splits share the inputs of all owners, concatenated.
        inputs: Tensor = whole.splits["train"].inputs.unflatten(0, (len(rows), -1))  # type: ignore[attr-defined]
        return StackedOwners(chosen, cohort, inputs, parameters, fingerprints)

    def _kept(self, owners: Sequence[str], fingerprints: Sequence[str], initial: Tensor) -> dict[int, Tensor]:
        """Return the frozen models in the store, by row of ``initial``, each ``[parameters]``."""
        result = {}
        for row, (owner, fingerprint) in enumerate(zip(owners, fingerprints, strict=True)):
            kept = self.store.load(fingerprint)
            if kept is None:
                if owner in self.wanted:
                    raise RunError(
                        f"owner '{owner}' no longer has the frozen model {fingerprint} whose embeddings trained the "
                        f"fusion model; it was stored in {self.store.folder}"
                    )
            elif kept.shape != initial[row].shape:
                raise RunError(f"owner '{owner}': its frozen model has {len(kept)} parameters, not {initial.shape[1]}")
            elif owner in self.data.unscaled:
                raise DataError(
                    f"owner '{owner}' has no training samples, by which its features were scaled for its frozen model; "
                    'set [data] scaling = "none", also in training, or keep its training samples in its data'
                )
            else:
                result[row] = kept
        return result

    def _frozen(
        self, cohort: Cohort, initial: Tensor, fingerprints: Sequence[str], kept: Mapping[int, Tensor]
    ) -> Tensor:
        """Return the owners' frozen models; those not in the store are trained and stored."""
        result = initial.clone()
        for row, parameters in kept.items():
            result[row] = parameters
        missing = [row for row in range(len(initial)) if row not in kept]
        if missing:
            chosen = torch.tensor(missing)
            part = Cohort(cohort.model, some_clients(cohort.data, chosen), cohort.settings, cohort.seed)
            settings = self.settings
            trained = pretrain(
                part, initial[chosen], self.train.local_epochs or 0, settings.local_patience, settings.local_monitor
            )
            result[chosen] = trained.parameters
            log.info(
                "trained %d local models, best after %d to %d epochs, validation accuracy %.3f to %.3f",
                len(missing), *trained.best_epochs.aminmax(), *trained.accuracy.aminmax(),
            )  # fmt: skip
            for row in missing:
                self.store.save(fingerprints[row], result[row])
        return result

    def _fingerprint(self, row: int, number: int) -> str:
        owner = self.data.owners[row]
        if owner in self.wanted:
            return self.wanted[owner]
        train = {key: value for key, value in self.train.as_table().items() if key not in _WITHOUT_EFFECT}
        table = self._table(number).as_table()
        samples = (content(self.data, row, split) for split in ("train", "validation"))
        return fingerprint_of(self.description, table, train, self.settings.as_table(), self.seed, owner, *samples)

    def _assembled(self, parts: Sequence[tuple[Represented, str]]) -> Embedded:
        own = [represented.embeddings for represented, _ in parts]
        sizes = torch.tensor([embeddings.shape[1] for embeddings in own])
        present = self.data.present[..., None]
        whole = torch.stack([pad(embeddings, (0, int(sizes.max()) - embeddings.shape[1])) for embeddings in own])
        predictions = torch.stack([represented.probabilities for represented, _ in parts])
        return Embedded(
            sizes=sizes,
            embeddings=torch.where(present, whole, 0.0),
            predictions=torch.where(present, predictions, 0.0),
            fingerprints=tuple(fingerprint for _, fingerprint in parts),
        )


def _check_hidden_layer(model: StackedModel, initial: Tensor, data: OwnerData) -> None:
    """Refuse a model without a hidden layer before training, by samples of one of the owners that share it."""
    owner = int(data.present.sum(1).argmax())
    some = data.inputs[owner][data.present[owner]][:_TRIED]
    if not len(some):
        return
    with torch.no_grad():
        embeddings, _ = model.embed(model.layout.unflatten(initial[owner : owner + 1]), some[None], training=False)
    remedy = (
        "give [model] a hidden layer, or, for a custom module, name another layer whose input is the embedding by "
        "embedding-layer"
    )
    check_not_raw(some, embeddings[0], data.owners, remedy)
