"""The server's part of F3: embeddings of all owners in, one prediction out (Ma, Hoang, Chen; UAI 2023).

Settings, the fusion network that they describe, its training, and predictions. Frozen models of owners are in
:mod:`fedgraph.fusion.owner_models`.

    >>> from fedgraph.fusion import FusionSettings
    >>> FusionSettings(graph="none").alignment
    'soft'
"""

from fedgraph.fusion.alignment import HardAlignment, Parameterisation, sinkhorn
from fedgraph.fusion.build import build_network, check_fusion
from fedgraph.fusion.learning import class_weights, learn, optimizer_of
from fedgraph.fusion.model_file import FittedFusion
from fedgraph.fusion.network import FusionNetwork, GraphFusion
from fedgraph.fusion.prediction import Prediction, predict
from fedgraph.fusion.scores import decided, log_loss, owner_scores, scores
from fedgraph.fusion.secret import SecretFusion, Stages
from fedgraph.fusion.settings import FusionSettings, Rate, SingleFusion
from fedgraph.fusion.training import FusionData, FusionEpoch, fit

__all__ = [
    "FittedFusion",
    "FusionData",
    "FusionEpoch",
    "FusionNetwork",
    "FusionSettings",
    "GraphFusion",
    "HardAlignment",
    "Parameterisation",
    "Prediction",
    "Rate",
    "SecretFusion",
    "SingleFusion",
    "Stages",
    "build_network",
    "check_fusion",
    "class_weights",
    "decided",
    "fit",
    "learn",
    "log_loss",
    "optimizer_of",
    "owner_scores",
    "predict",
    "scores",
    "sinkhorn",
]
