"""Settings of F3: owners' models, fusion of their embeddings, predictions of new samples (Ma, Hoang, Chen 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from fedgraph.data.owners import SampleSplit
from fedgraph.fusion import FusionSettings
from fedgraph.fusion.owner_models import LocalModelSettings
from fedgraph.privacy.noise import NoiseSettings
from fedgraph.privacy.secret import ShareSettings

Fusion = Literal["graph", "mean-pooling", "transformer", "concatenation", "ensemble", "vote", "threshold", "best-owner"]


class EmbeddingSettings(LocalModelSettings):
    """Settings that owners need: how they obtain their models, and noise on embeddings.

    Attributes
    ----------
    noise : Gaussian noise on embeddings before they leave their owner, a table ``noise``; none by default. With noise,
            owners do not send predictions.
    folds : with two or more, training samples are embedded out of fold, by a model trained on the other folds from the
            same initial weights. All other samples are embedded by the owner's own model. So a fusion model learns from
            embeddings like those of prediction.
    """

    noise: NoiseSettings | None = None
    folds: int = Field(default=1, ge=1)


class F3Settings(FusionSettings, EmbeddingSettings):
    """``[f3]``: how the server fuses what owners send, and the owners' own models.

    Attributes
    ----------
    preset : defaults of keys that are not given: ``paper``; or ``practical``, for predictions: the average of three
             graph networks with a hidden layer after the mean over owners and three concatenations, on scaled
             embeddings, stopped by the area under the ROC curve, with owner dropout if it improves validation.
    fusion : in addition to the fusion models, ``vote``, ``threshold`` and ``best-owner`` fuse the predictions of the
             owners' own models: by majority; by whether the share of owners that vote for the second of two classes
             exceeds the threshold that is best in validation; by the single owner that is best in validation.
    vote   : an owner's vote counts as one ``share``, or by its ``sharpened`` probabilities as in the released program.
    """

    filled_in: ClassVar[tuple[str, ...]] = tuple(FusionSettings.practical())

    preset: Literal["paper", "practical"] = "paper"
    fusion: Fusion = "graph"  # type: ignore[assignment]
    vote: Literal["share", "sharpened"] = "share"

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: Any) -> Any:
        if not isinstance(table, Mapping) or table.get("preset") != "practical":
            return table
        given = {key.replace("-", "_") for key in table}
        return {**{name: value for name, value in cls.practical().items() if name not in given}, **table}


class F3InferenceSettings(EmbeddingSettings):
    """``[f3-inference]``; the keys about the owners' own models are those of the run that trained the fusion model.

    Attributes
    ----------
    run     : the folder of that run.
    samples : the samples to predict: ``new`` ones, unseen by all models, or those of a split.
    draws   : number of graphs over which predictions are averaged, and their deviation is computed.
    """

    run: str
    samples: SampleSplit = "new"
    draws: int = Field(default=10, ge=1)


class F3SecretSettings(F3InferenceSettings, ShareSettings):
    """``[f3-secret]``: the keys of ``[f3-inference]``, with noise before embeddings are split, and those of the shares.

    Attributes
    ----------
    simulated_aggregators : number of owners' nodes that also act as aggregators. For trials only: such a node sees the
                embeddings of its own owners. Otherwise nodes with ``aggregator`` in their node config aggregate.
    """

    simulated_aggregators: int = Field(default=0, ge=0)
