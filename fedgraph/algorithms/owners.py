"""Common parts of methods over owners of different features: one exchange for their samples, and the outcome."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.joining import join
from fedgraph.algorithms.phases import Keep, Opening, Outcome, Phase, PhasedAlgorithm, PhaseRun, Recall, Without
from fedgraph.defence import bounded_embeddings
from fedgraph.fusion import FusionEpoch, JoinedSamples, Prediction, check_shared, owner_scores, scores
from fedgraph.messages import EmbedReply, EmbedRequest
from fedgraph.support.errors import counted
from fedgraph.support.settings import S

log = logging.getLogger("fedgraph")

_LOGGED_EPOCHS = 50


class OwnersAlgorithm(PhasedAlgorithm[S]):
    """Base class of algorithms that ask all owners once for their part of the shared samples."""

    needs = "clients that hold different features of the same samples, such as metr-la-rush-hour"
    paper = "https://proceedings.mlr.press/v216/ma23b.html"
    word = "owner"


def samples(
    run: PhaseRun, request: EmbedRequest | None = None, owners: Collection[str] | None = None
) -> Phase[JoinedSamples]:
    """Return all owners' parts of the shared samples, by one exchange or from the state of a stopped run.

    Raises DataError or IdentityError as :func:`fedgraph.algorithms.joining.join`.

    Parameters
    ----------
    request : what is requested; by default embeddings of the samples of training, validation and test.
    owners : owners that get a column, whether they answer or not; by default those that answer.
    """
    request = request or EmbedRequest()
    if request.embeddings:
        kept = yield Recall((request.splits, dict(request.fingerprints)))
        if kept:
            return _bounded(run, JoinedSamples.of_state(kept["samples"]))
    answers = yield Opening(request, EmbedReply.unpack, EmbedRequest.message_type, owners)
    joined, _ = yield from join_answers(run, answers, owners, request.embeddings)
    if request.embeddings:
        yield Keep({"samples": joined.state()})
    return _bounded(run, joined)


def join_answers(
    run: PhaseRun, answers: Mapping[int, EmbedReply], owners: Collection[str] | None, embedded: bool
) -> Phase[tuple[JoinedSamples, dict[str, str]]]:
    """Join the answers of all nodes, without owners with unusable answers; also returns the reasons."""
    joined, absent = join(answers, None if owners is None else tuple(owners), run.tolerant, embedded)
    yield Without(absent)
    log.info("%d samples of %d owners", len(joined.keys), len(joined.owners))
    return joined, absent


def notes_on_shared(joined: JoinedSamples) -> list[str]:
    """Log and return a sentence for each owner that shares no sample. Raises DataError if no two owners share one."""
    notes = check_shared(joined.owners, joined.present, joined.keys)
    for note in notes:
        log.warning("%s", note)
    return notes


def _bounded(run: PhaseRun, joined: JoinedSamples) -> JoinedSamples:
    """Bound the influence of single owners, by [defence]."""
    times = run.defence.clip
    if not times or not joined.embeddings.shape[2]:
        return joined
    return replace(joined, embeddings=bounded_embeddings(joined.embeddings, joined.present, times))


def report_epoch(run: PhaseRun, epoch: FusionEpoch) -> None:
    """Report an epoch of the fusion, and log every 50th."""
    losses = {
        "learning_rate": epoch.learning_rate,
        "training_loss": epoch.training_loss,
        "validation_loss": epoch.validation_loss,
    }
    run.on_epoch("fusion", epoch.epoch, losses)
    if epoch.epoch % _LOGGED_EPOCHS == 0:
        log.info(
            "fusion at the learning rate %g, epoch %d: training loss %.4f, validation loss %.4f",
            epoch.learning_rate, epoch.epoch, epoch.training_loss, epoch.validation_loss,
        )  # fmt: skip


def build_outcome(joined: JoinedSamples, metrics: Mapping[str, Tensor], **further: Any) -> Outcome:
    """Return the outcome of a run over owners; ``further`` are fields of :class:`Outcome`."""
    shared, every = int((joined.present.sum(1) > 1).sum()), len(joined.keys)
    common = "" if shared == every else f"; {shared:,} of {counted(every, 'sample')} are held by several owners"
    measured_on = f"{len(joined.owners)} owners, one prediction per sample from all of them together{common}"
    if joined.predictions.shape[2]:
        measured_on += "; own model (-local): each owner's alone"
    return Outcome(joined.owners, measured_on, metrics, task=joined.task, **further)


def owner_metrics(joined: JoinedSamples, prediction: Prediction, splits: tuple[str, ...]) -> dict[str, Tensor]:
    """Return metrics as ``<split>/<metric>``, float64 ``[owners]``, and with ``-local`` those of own models."""
    metrics: dict[str, Tensor] = {}
    for split in splits:
        rows = joined.of_split(split)
        whole = scores(prediction.probabilities[rows], joined.labels[rows])
        metrics |= {
            f"{split}/{name}": torch.full((len(joined.owners),), value, dtype=torch.float64)
            for name, value in whole.items()
        }
        if joined.predictions.shape[2]:
            own = owner_scores(joined.predictions[rows], joined.present[rows], joined.labels[rows])
            metrics |= {f"{split}/{name}-local": values for name, values in own.items()}
    return metrics


def bytes_per_owner(joined: JoinedSamples, samples: int) -> int:
    """Return the bytes of ``samples`` from the owner with the longest embedding: embeddings, predictions and mask."""
    return samples * (4 * (int(joined.sizes.max()) + joined.predictions.shape[2]) + 1)


def num_learned_from(joined: JoinedSamples) -> int:
    """Return the number of training and validation samples."""
    return len(joined.of_split("train")) + len(joined.of_split("validation"))
