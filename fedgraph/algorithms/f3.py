"""F3, federated feature fusion: one exchange of embeddings, then a fusion model with a learned consensus graph.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
algorithm 1. https://proceedings.mlr.press/v216/ma23b.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedgraph.algorithms.f3_settings import F3Settings
from fedgraph.algorithms.owners import (
    OwnersAlgorithm,
    build_outcome,
    bytes_per_owner,
    notes_on_shared,
    num_learned_from,
    owner_metrics,
    report_epoch,
    samples,
)
from fedgraph.algorithms.phases import Outcome, Phase, PhaseRun
from fedgraph.fusion import (
    FittedFusion,
    FusionData,
    FusionSettings,
    JoinedSamples,
    Prediction,
    calibration,
    check_fusion,
    fit_joined,
    votes,
    write_entropies,
    write_predictions,
)
from fedgraph.graph import write_graph
from fedgraph.privacy.noise import privacy_facts
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.files import replacing

_NOTED_GAIN = 0.02
_ENSEMBLES = ("vote", "threshold", "best-owner")


class F3(OwnersAlgorithm[F3Settings]):
    """A round of embeddings, and a fit without an exchange; nothing is sent back to the owners."""

    name = "f3"
    title = "Federated feature fusion: owners' frozen models, one exchange of embeddings, a learned graph"
    defences = ("clip",)
    # The fusion is retrained on the embeddings that owners have sent.
    may_change = ("preset", *FusionSettings.keys(), "vote")
    no_predictions = "models stay with their owners, who are asked for embeddings: fedgraph.predict(run, data) does it"
    default_client = "fedgraph.clients.f3:F3Client"

    def check(self, run: PhaseRun) -> None:
        """Raise ExperimentError for a fusion model that cannot be built, or votes that would need noisy predictions."""
        if self.settings.fusion not in _ENSEMBLES:
            check_fusion(self.settings, run.graph_given)
        elif self.settings.noise is not None:
            raise self._without_predictions()

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Ask for embeddings, fit the fusion model, or fuse the owners' own predictions, and predict all samples.

        Raises DataError or RunError when the fusion cannot be trained on the answers.
        """
        joined = yield from samples(run)
        notes = notes_on_shared(joined)
        graph = run.graph_of(joined)
        if self.settings.fusion in _ENSEMBLES:
            return self._vote(run, joined, notes)
        adjacency = None if graph is None else graph.dense().float()
        data = FusionData(
            joined.embeddings, joined.present, joined.labels, joined.split, joined.sizes, len(joined.classes), adjacency
        )
        report = partial(report_epoch, run)
        fusion, found = fit_joined(
            self.settings, data, joined.owners, joined.classes, run.seed, joined.fingerprints, report
        )
        prediction = fusion.predict(joined.embeddings, joined.present)
        facts = {"fusion": found.facts(), "notes": [*notes, *self._threshold_notes(joined, prediction)]}
        files = {"fusion.safetensors": fusion.write, **self._learned(fusion)}
        learned = {"parameters": fusion.parameters, "rounds": found.epoch, "arrays": found.network.state_dict()}
        return self._outcome(run, joined, prediction, facts, files, **learned)

    def _threshold_notes(self, joined: JoinedSamples, prediction: Prediction) -> list[str]:
        """Return a note where, of two classes, another threshold than 0.5 would clearly be right more often."""
        if len(joined.classes) != 2 or self.settings.calibrated:
            return []
        rows = joined.of_split("validation")
        now, best = calibration.better_threshold(prediction.probabilities[rows], joined.labels[rows])
        if best - now < _NOTED_GAIN:
            return []
        return [
            f"{now:.0%} of the validation samples are predicted correctly with the threshold 0.5, and {best:.0%} with "
            "another one: set [f3] calibrated = true for calibrated probabilities"
        ]

    def _vote(self, run: PhaseRun, joined: JoinedSamples, notes: list[str]) -> Outcome:
        """Fuse the owners' own predictions: rows B to D of table 2."""
        if not joined.predictions.shape[2]:
            raise self._without_predictions()
        validation = joined.of_split("validation")
        if self.settings.fusion != "vote" and not len(validation):
            raise DataError(
                f"[f3] fusion = '{self.settings.fusion}' needs validation samples: check the shares of splits"
            )
        predictions, present = joined.predictions, joined.present
        known = predictions[validation], present[validation], joined.labels[validation]
        facts: dict[str, Any] = {}
        if self.settings.fusion == "vote":
            probabilities = votes.majority_vote(predictions, present, self.settings.vote)
        elif self.settings.fusion == "threshold":
            facts["threshold"] = votes.best_threshold(*known)
            probabilities = votes.thresholded(predictions, present, facts["threshold"])
        else:
            ranking = votes.ranked_owners(*known)
            facts["owner"] = joined.owners[int(ranking[0])]
            probabilities = votes.best_owner(predictions, present, ranking)
        prediction = Prediction(probabilities, torch.zeros_like(probabilities))
        return self._outcome(run, joined, prediction, {"fusion": facts, "notes": notes}, {})

    def _without_predictions(self) -> ExperimentError:
        return ExperimentError(
            f"[f3] fusion = '{self.settings.fusion}' needs the predictions of the owners' own models, which are not "
            "sent with noise, or which some nodes did not send"
        )

    def _outcome(
        self,
        run: PhaseRun,
        joined: JoinedSamples,
        prediction: Prediction,
        facts: dict[str, Any],
        files: dict[str, Callable[[Path], object]],
        **learned: Any,
    ) -> Outcome:
        predicted = prediction.probabilities, prediction.deviation
        files["predictions.csv"] = lambda path: write_predictions(path, joined, *predicted)
        if joined.predictions.shape[2]:
            files["entropies.csv"] = lambda path: write_entropies(path, joined)
        facts |= privacy_facts(self.settings.noise, len(joined.owners))
        facts |= {
            "bytes_per_owner": bytes_per_owner(joined, len(joined.keys)),
            "training_bytes_per_owner": bytes_per_owner(joined, num_learned_from(joined)),
        }
        return build_outcome(joined, owner_metrics(joined, prediction, run.splits), facts=facts, files=files, **learned)

    def _learned(self, fusion: FittedFusion) -> dict[str, Callable[[Path], object]]:
        """Return the learned graph and the alignment as files."""
        files: dict[str, Callable[[Path], object]] = {}
        if fusion.graph is not None and self.settings.graph != "given":
            files["learned-graph.npz"] = partial(write_graph, fusion.graph)
        if fusion.alignment is not None:
            files["alignment.npz"] = partial(write_alignment, fusion.owners, fusion.alignment)
        return files


def write_alignment(owners: tuple[str, ...], matrices: Tensor, file: Path) -> None:
    """Write the matrices P_i of all owners, ``[owners, aligned, size]``, as NumPy's ``.npz``."""
    with replacing(file) as path, path.open("wb") as stream:
        np.savez(stream, owners=np.array(owners), matrices=matrices.numpy())
