"""Training of a fusion network on embeddings: Adam, early stopping, choice of learning rate (F3, appendix F)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedgraph.data.owners import NO_LABEL, SAMPLE_SPLITS
from fedgraph.fusion.build import build_network
from fedgraph.fusion.calibration import Calibration, calibrate
from fedgraph.fusion.ensemble import FusionEnsemble, mixture_weights
from fedgraph.fusion.fusion_settings import FusionSettings
from fedgraph.fusion.kernel import CompiledPasses, suits
from fedgraph.fusion.learning import learn, make_optimizer
from fedgraph.fusion.network import FusionNetwork
from fedgraph.fusion.prediction import predict
from fedgraph.fusion.scores import area_under_roc, log_loss
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.randomness import generator
from fedgraph.support.threads import pinned_threads

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class FusionData:
    """Training data of a fusion network; only samples of the splits train and validation are used.

    Attributes
    ----------
    embeddings : Tensor
        float32 ``[samples, owners, size]``, 0 beyond an owner's own size.
    present : Tensor
        bool ``[samples, owners]``; values where an owner lacks a sample are ignored.
    labels : Tensor
        int64 ``[samples]``.
    split : Tensor
        Index into ``SAMPLE_SPLITS``, ``[samples]``.
    sizes : Tensor
        Length of each owner's embedding, int64 ``[owners]``.
    classes : int
        Number of classes.
    given_graph : Tensor or None
        A given graph, ``[owners, owners]``.
    """

    embeddings: Tensor
    present: Tensor
    labels: Tensor
    split: Tensor
    sizes: Tensor
    classes: int
    given_graph: Tensor | None = None

    def of_split(self, name: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return embeddings, presence and labels of a split.

        Raises DataError when it is empty, lacks labels, or has non-finite embeddings.
        """
        rows = (self.split == SAMPLE_SPLITS.index(name)).nonzero().flatten()
        if not len(rows):
            raise DataError(f"no {name} samples to fit the fusion network: check the shares of splits, and overlap")
        present, labels = self.present[rows], self.labels[rows]
        embeddings = torch.where(present[..., None], self.embeddings[rows], 0.0)
        if not bool(((labels > NO_LABEL) & (labels < self.classes)).all()):
            raise DataError(f"{name} samples have labels outside 0 to {self.classes - 1}")
        if not bool(embeddings.isfinite().all()):
            owner = int((~embeddings.isfinite()).any(2).any(0).nonzero()[0])
            raise DataError(f"embeddings of the owner at position {owner} are not finite in {name} samples")
        return embeddings, present, labels


@dataclass(frozen=True)
class FusionEpoch:
    """Losses of one epoch.

    Attributes
    ----------
    learning_rate : float
        Learning rate of the training.
    epoch : int
        Counted from 1.
    training_loss : float
        Mean per sample.
    validation_loss : float
        Loss of predictions averaged over draws.
    """

    learning_rate: float
    epoch: int
    training_loss: float
    validation_loss: float


@dataclass(frozen=True)
class FusionFit:
    """A fitted network with the weights of its best epoch.

    Attributes
    ----------
    fusion : kind of network, as ``FusionSettings.fusion``.
    learning_rate, epoch : origin of the weights; epochs count from 1.
    quality : value of ``monitor`` at that epoch, larger is better: the area under the ROC curve, or minus the loss.
    history : all epochs of all learning rates with finite losses.
    diverged : learning rates that led to a non-finite loss.
    calibration : change of its logits after training.
    owner_dropout : value used in training.
    members : of an ensemble, whose learning rate and epoch are those of the best member.
    """

    fusion: str
    network: FusionNetwork
    learning_rate: float
    epoch: int
    validation_loss: float
    quality: float
    history: tuple[FusionEpoch, ...] = ()
    diverged: tuple[float, ...] = ()
    calibration: Calibration | None = None
    owner_dropout: float = 0.0
    members: tuple[FusionFit, ...] = ()

    def facts(self) -> dict[str, Any]:
        """Return its entry in the summary of a run, and of each member of an ensemble with its weight."""
        found: dict[str, Any] = {
            "learning_rate": self.learning_rate,
            "epoch": self.epoch,
            "epochs": len(self.history),
            "validation_loss": self.validation_loss,
        }
        if self.owner_dropout:
            found["owner_dropout"] = self.owner_dropout
        if self.calibration is not None:
            found["calibration"] = self.calibration.facts()
        if self.diverged:
            found["diverged_learning_rates"] = list(self.diverged)
        if isinstance(self.network, FusionEnsemble):
            weights = self.network.weights.tolist()
            found["members"] = [
                {"fusion": each.fusion, "weight": weight, **each.facts()}
                for weight, each in zip(weights, self.members, strict=True)
            ]
        return found


def fit(
    settings: FusionSettings, data: FusionData, seed: int, on_epoch: Callable[[FusionEpoch], None] | None = None
) -> FusionFit:
    """Train the network of ``settings`` per owner dropout and learning rate, from the same start; keep the best.

    Members of an ensemble are trained separately, and may have different learning rates. Training stops after
    ``patience`` epochs without improvement of ``monitor`` in validation, which uses the same drawn graphs in every
    epoch. On a CPU, one intra-op thread computes everything except the drawn graphs, so results do not depend on the
    number of cores. A learning rate at which training diverges is skipped with a warning. Returns the network with the
    weights of its best epoch. Raises DataError without usable training or validation samples, and RunError when
    training diverges at every learning rate.

    Parameters
    ----------
    settings : settings of the network and its training.
    seed : seed of the initial weights, the order of samples and the graphs.
    """
    device = settings.torch_device()
    training = tuple(part.to(device) for part in data.of_split("train"))
    # Predictions are compared with labels on the CPU.
    *seen, wanted = data.of_split("validation")
    embeddings, present = (part.to(device) for part in seen)
    validation = embeddings, present, wanted
    fits = [_fit_one(each, data, training, validation, own, on_epoch) for each, own in settings.networks(seed)]
    if settings.fusion != "ensemble":
        return fits[0]
    ensemble = FusionEnsemble([each.network for each in fits]).eval()
    if settings.member_weights == "validation":
        embeddings, present, labels = validation
        probabilities = [
            predict(each.network, embeddings, present, settings.draws, seed).probabilities for each in fits
        ]
        ensemble.weights.copy_(mixture_weights(torch.stack(probabilities)[:, torch.arange(len(labels)), labels]))
    loss, quality = _validated(ensemble, validation, settings, seed)
    return replace(
        max(fits, key=lambda each: each.quality),
        calibration=None,
        fusion=settings.fusion,
        network=ensemble,
        validation_loss=loss,
        quality=quality,
        history=tuple(epoch for each in fits for epoch in each.history),
        diverged=tuple(sorted({rate for each in fits for rate in each.diverged})),
        members=tuple(fits),
    )


def _fit_one(
    settings: FusionSettings,
    data: FusionData,
    training: tuple[Tensor, ...],
    validation: tuple[Tensor, Tensor, Tensor],
    seed: int,
    on_epoch: Callable[[FusionEpoch], None] | None,
) -> FusionFit:
    """Train one network; see :func:`fit`."""
    history: list[FusionEpoch] = []
    diverged: dict[float, _DivergedError] = {}
    best: FusionFit | None = None

    def record(epoch: FusionEpoch) -> None:
        history.append(epoch)
        if on_epoch is not None:
            on_epoch(epoch)

    for single, rate in settings.trials():
        network = build_network(settings, data.sizes, data.classes, data.given_graph, seed).to(training[0].device)
        try:
            found = _fit_at(rate, network, single, training, validation, seed, record)
        except _DivergedError as error:
            diverged[rate] = error
            log.warning("%s; this learning rate is skipped", error)
            continue
        if best is None or found.quality > best.quality:
            best = found
    if best is None:
        reasons = "; ".join(str(error) for error in diverged.values())
        raise RunError(f"{reasons}. Use smaller learning-rates")
    best.network.eval()
    if settings.calibrated:
        calibration = calibrate(best.network, validation, settings.draws, seed, settings.average)
        loss, quality = _validated(best.network, validation, settings, seed)
        best = replace(best, calibration=calibration, validation_loss=loss, quality=quality)
    return replace(best, history=tuple(history), diverged=tuple(diverged))


class _DivergedError(Exception):
    """Training led to a non-finite loss."""


def _fit_at(
    rate: float,
    network: FusionNetwork,
    settings: FusionSettings,
    training: tuple[Tensor, ...],
    validation: tuple[Tensor, Tensor, Tensor],
    seed: int,
    record: Callable[[FusionEpoch], None],
) -> FusionFit:
    """Train ``network`` at one learning rate; raises _DivergedError."""
    embeddings, present, labels = training
    if network.scaling is not None:
        network.scaling.fit(embeddings, present)
    training = network.scaled(embeddings, present), present, labels
    passing = (CompiledPasses if suits(network, settings, len(labels)) else _Passes)(network, settings, rate)
    kept: dict[str, Tensor] = {}
    best, best_epoch, best_loss = float("-inf"), 0, float("inf")
    for epoch in range(1, settings.epochs + 1):
        with pinned_threads(1):
            random = generator(seed, "fusion epoch", epoch)
            loss = passing(training, random)
            network.settle(*training[:2])
        validation_loss, quality = _validated(network, validation, settings, seed)
        if not (math.isfinite(loss) and math.isfinite(validation_loss)):
            raise _DivergedError(
                f"fusion training diverged in epoch {epoch} at the learning rate {rate}: the training loss is {loss}, "
                f"the validation loss {validation_loss}"
            )
        record(FusionEpoch(rate, epoch, loss, validation_loss))
        if quality > best:
            best, best_epoch, best_loss = quality, epoch, validation_loss
            kept = {name: value.clone() for name, value in network.state_dict().items()}
        elif epoch - best_epoch >= settings.patience:
            break
    network.load_state_dict(kept)
    (share,) = settings.dropout_shares
    return FusionFit(settings.fusion, network, rate, best_epoch, best_loss, best, owner_dropout=share)


class _Passes:
    """Training by operations of PyTorch, with the arguments of :class:`fedgraph.fusion.kernel.CompiledPasses`."""

    def __init__(self, network: FusionNetwork, settings: FusionSettings, rate: float) -> None:
        self._network, self._settings = network, settings
        (self._owner_dropout,) = settings.dropout_shares
        self._optimizer = make_optimizer(network, settings, rate, fused=True)

    def __call__(self, training: Sequence[Tensor], random: torch.Generator) -> float:
        """Train for one pass over the training samples in random order; return the mean loss per sample."""
        embeddings, present, labels = training
        self._network.train()
        order = torch.randperm(len(labels), generator=random).to(labels.device)
        total = torch.zeros((), device=labels.device)
        for rows in order.split(self._settings.batch_size):
            part = embeddings[rows], present[rows], labels[rows]
            loss = learn(self._network, self._optimizer, *part, random, self._owner_dropout)
            total += loss * len(rows)
        return float(total) / len(labels)


def _validated(
    network: FusionNetwork,
    validation: tuple[Tensor, Tensor, Tensor],
    settings: FusionSettings,
    seed: int,
) -> tuple[float, float]:
    """Return the validation loss and the value of ``settings.monitor``, larger is better."""
    embeddings, present, labels = validation
    probabilities = predict(network, embeddings, present, settings.draws, seed, settings.average).probabilities
    loss = log_loss(probabilities, labels)
    if settings.monitor == "loss" or not math.isfinite(loss):
        return loss, -loss
    area = area_under_roc(probabilities, labels)
    if math.isnan(area):
        raise DataError("monitor = 'auc' needs validation samples of at least two classes: use monitor = 'loss'")
    return loss, area
