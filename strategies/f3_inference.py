"""Inference with a fusion model that a run of F3 has trained: owners send embeddings of new samples.

Ma, Hoang, Chen (UAI 2023), lines 8 to 11 of algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from typing_extensions import TypeVar

from fedgraph.data import SPLITS
from fedgraph.federation import JoinedSamples
from fedgraph.fusion import FittedFusion, Prediction
from fedgraph.messages import to_record
from fedgraph.methods.f3 import F3InferenceSettings
from fedgraph.privacy.noise import privacy_facts
from fedgraph.runs import RunFolder, write_predictions
from fedgraph.strategies.engine.f3 import bytes_per_owner, measured
from fedgraph.strategies.engine.owners import OwnersStrategy, outcome_of
from fedgraph.strategies.engine.phases import Outcome
from fedgraph.support.errors import DataError, ExperimentError

SomeInference = TypeVar("SomeInference", bound=F3InferenceSettings)


class F3Inference(OwnersStrategy[F3InferenceSettings]):
    """One exchange: embeddings of the samples by the same frozen models, which the fusion model then predicts from.

    Owners that are absent, or lack a sample, are masked; with ``[experiment] on-missing = "skip"`` a run continues
    without them.
    """

    name = "f3-inference"
    title = "Predictions of new samples by a fusion model that a run of f3 has trained"
    needs = "[f3-inference] run, the folder of that run; `fedgraph predict` sees to it"
    defences = ("clip",)

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Ask for embeddings and predict their samples with the trained fusion model.

        Raises
        ------
        FedgraphError
            As ``samples``; when there is no fusion model, or owners no longer have the models it was trained on.
        """
        settings = self.settings
        fusion = FittedFusion.read(fusion_file(settings.run))
        joined = self.samples(grid, (settings.samples,), owners=fusion.owners, fingerprints=fusion.models)
        joined = unchanged(self, fusion, joined, sent=True)
        prediction = fusion.predict(joined.embeddings, joined.present, settings.draws, self.plan.seed)
        return predicted(
            self, fusion, joined, prediction, {"bytes_per_owner": bytes_per_owner(joined, len(joined.keys))}
        )


def predicted(
    strategy: OwnersStrategy[SomeInference],
    fusion: FittedFusion,
    joined: JoinedSamples,
    prediction: Prediction,
    facts: dict[str, Any],
) -> tuple[Outcome, ArrayRecord]:
    """Write the predictions, and return the outcome with metrics where the samples have labels."""
    path, settings = strategy.plan.folder.path / "predictions.csv", strategy.settings
    write_predictions(path, joined, prediction.probabilities, prediction.deviation)
    facts = {"predictions": len(joined.keys), **facts, **privacy_facts(settings.noise)}
    metrics = measured(joined, prediction, tuple(split for split in SPLITS if split == settings.samples))
    return outcome_of(joined, metrics, fusion.parameters, 0, facts), to_record(fusion.network.state_dict())


def fusion_file(run: str) -> Path:
    """Return the path of the fusion model in a run folder. Raises ExperimentError when the run has none."""
    path = RunFolder.open(run).fusion
    if not path.is_file():
        raise ExperimentError(f"{run} has no fusion model: it is no finished run of f3, or one of a vote")
    return path


def unchanged(
    strategy: OwnersStrategy[SomeInference], fusion: FittedFusion, joined: JoinedSamples, sent: bool = False
) -> JoinedSamples:
    """Return the samples of the owners whose answers fit the data that the fusion model was trained on.

    Nodes refuse to answer with other models than those asked for, but answers are untrusted. ``sent`` is whether
    embeddings were asked for, so that owners that sent none for their samples do not fit either.

    Raises
    ------
    DataError
        For other classes, where no sample is left, and for owners that do not fit, unless the plan is tolerant.
    """
    if joined.classes != fusion.classes:
        raise DataError(
            f"the classes are {', '.join(joined.classes)}; in training they were {', '.join(fusion.classes)}"
        )
    there = (joined.present.any(0) if sent else joined.sizes > 0).tolist()

    def differing(found: Sequence[Any], wanted: Sequence[Any]) -> list[str]:
        each = zip(fusion.owners, there, found, wanted, strict=True)
        return [owner for owner, is_there, own, known in each if is_there and own != known]

    lengths = differing(joined.sizes.tolist(), fusion.sizes.tolist())
    others = differing(joined.fingerprints, fusion.fingerprints)
    if lengths and not strategy.plan.tolerant:
        raise DataError(f"embeddings of {', '.join(lengths)} {_LENGTH}")
    if others and not strategy.plan.tolerant:
        raise DataError(f"embeddings of {', '.join(others)} {_MODELS}")
    lost = dict.fromkeys(others, f"its embeddings {_MODELS}") | dict.fromkeys(lengths, f"its embeddings {_LENGTH}")
    if lost:
        joined = without(joined, lost)
        strategy.check_owners_present(joined)
    if not joined.keys:
        raise DataError(
            f"no owner has a sample of the split '{strategy.settings.samples}' to predict: samples without a label are "
            "new, and new-share makes some; those with one are for train, validation and test"
        )
    return joined


_LENGTH = "have another length than those that the fusion model was trained on"
_MODELS = (
    "are by other models than those whose embeddings the fusion model was trained on; these owners have to use the "
    "frozen models that they had then (node config model-dir, model, models)"
)


def without(joined: JoinedSamples, lost: Mapping[str, str]) -> JoinedSamples:
    """Return the remaining samples after some owners have sent nothing usable, with their columns empty."""
    stay = torch.tensor([owner not in lost for owner in joined.owners])
    present = joined.present & stay
    hosts = {node: columns[stay[columns]] for node, columns in joined.hosts.items()}
    left = replace(
        joined,
        hosts={node: columns for node, columns in hosts.items() if len(columns)},
        present=present,
        embeddings=joined.embeddings * stay[:, None],
        predictions=joined.predictions * stay[:, None],
        absent={**joined.absent, **lost},
    )
    return left.only(present.any(1))
