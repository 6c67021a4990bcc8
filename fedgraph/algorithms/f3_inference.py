"""Inference with a fusion model that a run of F3 has trained: owners send embeddings of new samples.

Ma, Hoang, Chen (UAI 2023), lines 8 to 11 of algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedgraph.algorithms.f3_settings import F3InferenceSettings
from fedgraph.algorithms.owners import OwnersAlgorithm, build_outcome, bytes_per_owner, owner_metrics, samples
from fedgraph.algorithms.phases import Outcome, Phase, PhaseRun, Without
from fedgraph.data import SPLITS
from fedgraph.fusion import FittedFusion, JoinedSamples, Prediction, write_predictions
from fedgraph.messages import EmbedRequest
from fedgraph.privacy.noise import privacy_facts
from fedgraph.support.errors import DataError, ExperimentError

_LENGTH = "differ in length from those that the fusion model was trained on"
_MODELS = (
    "are by other models than those of training; these owners have to use their frozen models from then (node config "
    "model-dir, model, models)"
)


class F3Inference(OwnersAlgorithm[F3InferenceSettings]):
    """One exchange: embeddings of the samples by the same frozen models, which the fusion model then predicts from.

    Owners that are absent, or lack a sample, are masked; with ``[experiment] on-missing = "skip"`` a run continues
    without them.
    """

    name = "f3-inference"
    title = "Predictions of new samples by a fusion model that a run of f3 has trained"
    needs = "[f3-inference] run, the folder of that run; `fedgraph predict` sees to it"
    defences = ("clip",)
    default_client = "fedgraph.clients.f3:F3Client"

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Ask for embeddings, and predict their samples with the trained fusion model.

        Raises DataError or ExperimentError without a fusion model, or if owners no longer have the models of training.
        """
        settings = self.settings
        fusion = trained_fusion(run, settings.run)
        request = EmbedRequest((settings.samples,), fingerprints=fusion.models)
        joined = yield from samples(run, request, fusion.owners)
        joined = yield from unchanged(fusion, joined, settings.samples, sent=True)
        prediction = fusion.predict(joined.embeddings, joined.present, settings.draws, run.seed)
        facts = {"bytes_per_owner": bytes_per_owner(joined, len(joined.keys))}
        return predicted(settings, fusion, joined, prediction, facts)


def predicted(
    settings: F3InferenceSettings,
    fusion: FittedFusion,
    joined: JoinedSamples,
    prediction: Prediction,
    facts: dict[str, Any],
) -> Outcome:
    """Return the predictions as a file, and metrics where the samples have labels."""
    probabilities, deviation = prediction.probabilities, prediction.deviation
    return build_outcome(
        joined,
        owner_metrics(joined, prediction, tuple(split for split in SPLITS if split == settings.samples)),
        parameters=fusion.parameters,
        rounds=0,
        facts={"predictions": len(joined.keys), **facts, **privacy_facts(settings.noise, len(joined.owners))},
        arrays=fusion.network.state_dict(),
        files={"predictions.csv": lambda path: write_predictions(path, joined, probabilities, deviation)},
    )


def trained_fusion(run: PhaseRun, folder: str) -> FittedFusion:
    """Read the fusion model in a run folder. Raises ExperimentError when the run has none."""
    path = run.other_run(folder).path / "fusion.safetensors"
    if not path.is_file():
        raise ExperimentError(f"{folder} has no fusion model: it is not a finished run of f3, or one of a vote")
    return FittedFusion.read(path)


def unchanged(fusion: FittedFusion, joined: JoinedSamples, split: str, sent: bool = False) -> Phase[JoinedSamples]:
    """Return the samples of the owners whose answers fit the data that the fusion model was trained on.

    Nodes refuse to answer with other models than those requested, but answers are untrusted. ``sent`` is whether
    embeddings were requested, so that owners that sent none for their samples do not fit either. Raises DataError for
    other classes, and where no sample is left.
    """
    if joined.classes != fusion.classes:
        raise DataError(
            f"the classes are {', '.join(joined.classes)}; in training they were {', '.join(fusion.classes)}"
        )
    present = (joined.present.any(0) if sent else joined.sizes > 0).tolist()

    def differing(found: Sequence[Any], wanted: Sequence[Any]) -> list[str]:
        each = zip(fusion.owners, present, found, wanted, strict=True)
        return [owner for owner, is_there, own, known in each if is_there and own != known]

    lengths = differing(joined.sizes.tolist(), fusion.sizes.tolist())
    others = differing(joined.fingerprints, fusion.fingerprints)
    lost = dict.fromkeys(others, f"its embeddings {_MODELS}") | dict.fromkeys(lengths, f"its embeddings {_LENGTH}")
    if lost:
        text = f"{', '.join(lengths)} {_LENGTH}" if lengths else f"{', '.join(others)} {_MODELS}"
        yield Without(lost, DataError(f"embeddings of {text}"))
        joined = joined.without(lost)
    if not joined.keys:
        raise DataError(
            f"no owner has a sample of the split '{split}' to predict: unlabelled samples, and those of new-share, are "
            "new; labelled ones are for train, validation and test"
        )
    return joined
