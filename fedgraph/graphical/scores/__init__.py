"""Evaluation of models of tables: predictions, conditional distributions, samples, and baselines."""

from fedgraph.graphical.scores.model_scores import hide_values, score_model, score_queries, score_samples
from fedgraph.graphical.scores.sample_quality import FEWEST_ROWS, SampleQuality, sample_quality
from fedgraph.graphical.scores.target_scores import score_targets
from fedgraph.graphical.scores.yardsticks import TargetModel, Yardstick, fit_targets

__all__ = [
    "FEWEST_ROWS",
    "SampleQuality",
    "TargetModel",
    "Yardstick",
    "fit_targets",
    "hide_values",
    "sample_quality",
    "score_model",
    "score_queries",
    "score_samples",
    "score_targets",
]
