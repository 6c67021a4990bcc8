"""The server part of F3: predictions from the embeddings of all owners (Ma, Hoang, Chen; UAI 2023).

Settings, fusion networks, training and prediction. The owners' frozen models are in
:mod:`fedgraph.fusion.owner_models`.

    >>> from fedgraph.fusion import FusionSettings
    >>> FusionSettings(graph="none").alignment
    'soft'

:class:`FusionClassifier` is a scikit-learn estimator that needs no federation::

    from fedgraph import FusionClassifier

    fusion = FusionClassifier().fit({"mercy": embeddings, "ucla": others}, labels)
    fusion.predict_proba({"mercy": new}), fusion.graph_
"""

from typing import TYPE_CHECKING, Any

from fedgraph.fusion.build import build_network, check_fusion
from fedgraph.fusion.fusion_settings import FusionSettings, Rate, SingleFusion
from fedgraph.fusion.joined_samples import JoinedSamples, check_shared
from fedgraph.fusion.learning import learn, make_optimizer
from fedgraph.fusion.model_file import FittedFusion, fit_joined
from fedgraph.fusion.network import FusionNetwork
from fedgraph.fusion.prediction import Prediction, predict
from fedgraph.fusion.prediction_files import write_entropies, write_predictions
from fedgraph.fusion.scores import decided, log_loss, owner_scores, scores
from fedgraph.fusion.secret import SecretFusion, Stages
from fedgraph.fusion.training import FusionData, FusionEpoch

if TYPE_CHECKING:
    from fedgraph.fusion.classifier import FusionClassifier

__all__ = [
    "FittedFusion",
    "FusionClassifier",
    "FusionData",
    "FusionEpoch",
    "FusionNetwork",
    "FusionSettings",
    "JoinedSamples",
    "Prediction",
    "Rate",
    "SecretFusion",
    "SingleFusion",
    "Stages",
    "build_network",
    "check_fusion",
    "check_shared",
    "decided",
    "fit_joined",
    "learn",
    "log_loss",
    "make_optimizer",
    "owner_scores",
    "predict",
    "scores",
    "write_entropies",
    "write_predictions",
]


def __getattr__(name: str) -> Any:
    """Import the classifier on first use: importing scikit-learn takes a second, and runs do not need it."""
    if name != "FusionClassifier":
        raise AttributeError(f"module 'fedgraph.fusion' has no attribute '{name}'")
    from fedgraph.fusion.classifier import FusionClassifier

    return FusionClassifier
