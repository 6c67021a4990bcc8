"""F3, federated feature fusion: one exchange of embeddings, then a fusion model with a learned consensus graph.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
algorithm 1. https://proceedings.mlr.press/v216/ma23b.html
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.federation import JoinedSamples
from fedgraph.fusion import (
    FittedFusion,
    FusionData,
    FusionSettings,
    Prediction,
    calibration,
    check_fusion,
    fit,
    owner_scores,
    scores,
    votes,
)
from fedgraph.graph import write_graph
from fedgraph.messages import to_record
from fedgraph.methods.f3 import F3Settings
from fedgraph.privacy.noise import privacy_facts
from fedgraph.runs import write_entropies, write_predictions
from fedgraph.strategies.engine.owners import OwnersStrategy, outcome_of
from fedgraph.strategies.engine.phases import Outcome
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.files import replacing

log = logging.getLogger("fedgraph")

_NOTED_GAIN = 0.02
_ENSEMBLES = ("vote", "threshold", "best-owner")


class F3Phases(OwnersStrategy[F3Settings]):
    """Collects embeddings once and trains the fusion model on them; nothing is sent back to the owners."""

    name = "f3"
    title = "Federated feature fusion: owners' frozen models, one exchange of embeddings, a learned graph"
    defences = ("clip",)
    # The fusion is trained from the start again, from what the owners have sent.
    may_change = (*FusionSettings.keys(), "vote")

    def check(self) -> None:
        """Raise ExperimentError for a fusion model that cannot be built, or votes that would need noisy predictions."""
        if self.settings.fusion not in _ENSEMBLES:
            check_fusion(self.settings, self.plan.graph_given)
        elif self.settings.noise is not None:
            raise self._without_predictions()

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Train the fusion model, or fuse the owners' predictions, and predict all samples.

        Raises
        ------
        FedgraphError
            As ``samples``, and where the fusion cannot be trained on the answers.
        """
        joined = self.samples(grid)
        graph = self.plan.graph_of(joined.federation())
        if self.settings.fusion in _ENSEMBLES:
            return self._vote(joined)
        given = None if graph is None else graph.dense().float()
        data = FusionData(
            joined.embeddings, joined.present, joined.labels, joined.split, joined.sizes, len(joined.classes), given
        )
        self.settings.warn_of_unaligned(joined.owners, joined.present, joined.of_split("train"))
        found = fit(self.settings, data, self.plan.seed, self.record_epoch)
        fusion = FittedFusion(
            found.network, self.settings, joined.owners, joined.sizes, joined.classes, joined.fingerprints, given,
            self.plan.seed,
        )  # fmt: skip
        fusion.write(self.plan.folder.fusion)
        self._write_learned(fusion)
        prediction = fusion.predict(joined.embeddings, joined.present)
        arrays = to_record(found.network.state_dict())
        facts = {"fusion": found.facts(), "notes": self._threshold_notes(joined, prediction)}
        return self._outcome(joined, prediction, fusion.parameters, found.epoch, facts), arrays

    def _threshold_notes(self, joined: JoinedSamples, prediction: Prediction) -> list[str]:
        """Return a note where, of two classes, another threshold than 0.5 would clearly be right more often."""
        if len(joined.classes) != 2 or self.settings.calibrated:
            return []
        rows = joined.of_split("validation")
        now, best = calibration.better_threshold(prediction.probabilities[rows], joined.labels[rows])
        if best - now < _NOTED_GAIN:
            return []
        return [
            f"of the validation samples {now:.0%} are predicted rightly with the threshold 0.5, and {best:.0%} with "
            "another one: set [f3] calibrated = true for probabilities that are frequencies"
        ]

    def _vote(self, joined: JoinedSamples) -> tuple[Outcome, ArrayRecord]:
        """Fuse the owners' own predictions: rows B to D of table 2."""
        if not joined.predictions.shape[2]:
            raise self._without_predictions()
        validation = joined.of_split("validation")
        if self.settings.fusion != "vote" and not len(validation):
            raise DataError(
                f"[f3] fusion = '{self.settings.fusion}' chooses by validation samples, of which there are none: check "
                "the shares of splits"
            )
        said, present = joined.predictions, joined.present
        known = said[validation], present[validation], joined.labels[validation]
        facts: dict[str, Any] = {}
        if self.settings.fusion == "vote":
            probabilities = votes.majority_vote(said, present, self.settings.vote)
        elif self.settings.fusion == "threshold":
            facts["threshold"] = votes.best_threshold(*known)
            probabilities = votes.thresholded(said, present, facts["threshold"])
        else:
            ranking = votes.ranked_owners(*known)
            facts["owner"] = joined.owners[int(ranking[0])]
            probabilities = votes.best_owner(said, present, ranking)
        prediction = Prediction(probabilities, torch.zeros_like(probabilities))
        return self._outcome(joined, prediction, torch.zeros(0), 1, {"fusion": facts}), ArrayRecord()

    def _without_predictions(self) -> ExperimentError:
        return ExperimentError(
            f"[f3] fusion = '{self.settings.fusion}' needs the predictions of the owners' own models, which they do "
            "not send with noise, or which not all nodes have sent"
        )

    def _outcome(
        self, joined: JoinedSamples, prediction: Prediction, parameters: Tensor, rounds: int, facts: dict[str, Any]
    ) -> Outcome:
        folder = self.plan.folder.path
        write_predictions(folder / "predictions.csv", joined, prediction.probabilities, prediction.deviation)
        if joined.predictions.shape[2]:
            write_entropies(folder / "entropies.csv", joined)
        facts = facts | privacy_facts(self.settings.noise)
        metrics = measured(joined, prediction, self.plan.splits)
        facts = facts | {
            "bytes_per_owner": bytes_per_owner(joined, len(joined.keys)),
            "training_bytes_per_owner": bytes_per_owner(joined, num_learned_from(joined)),
        }
        return outcome_of(joined, metrics, parameters, rounds, facts)

    def _write_learned(self, fusion: FittedFusion) -> None:
        """Write the learned graph and the alignment to the run folder."""
        folder, matrices = self.plan.folder.path, fusion.alignment
        if fusion.graph is not None and self.settings.graph != "given":
            write_graph(fusion.graph, folder / "learned-graph.npz")
        if matrices is not None:
            with replacing(folder / "alignment.npz") as path, path.open("wb") as stream:
                np.savez(stream, owners=np.array(fusion.owners), matrices=matrices.numpy())


def measured(joined: JoinedSamples, prediction: Prediction, splits: tuple[str, ...]) -> dict[str, Tensor]:
    """Return metrics as ``<split>/<metric>`` -> float64 ``[owners]``.

    They are those of the joint prediction, the same for all owners, and with ``-local`` those of each owner's own.
    """
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
