"""Settings of graph recovery."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedgraph.support.settings import Settings


class RecoverySettings(Settings):
    """How a client's feature graph is found.

    Attributes
    ----------
    method : ``graphical-lasso``: the l1-penalised Gaussian likelihood, its penalty by cross-validation; ``uglad``: the
        same likelihood without penalty, minimised by an unrolled network (Shrivastava et al., 2022), the paper's own;
        ``ges``: the moral graph of the Bayesian network with the best BIC that greedy equivalence search finds
        (Chickering, 2002), numbers cut into categories at their quantiles; ``expert``: a graph from a file.
    transform  : of every unit before correlations: ``normal-scores``, the normal quantiles of its ranks, so that
        neither outliers nor monotone transformations count, or ``none``. Units of two values do not change.
    threshold  : features are linked if a partial correlation between their units is beyond it,
    deviations : and beyond this many standard errors of a correlation, ``1 / sqrt(rows)``.
    target_neighbours : least number of neighbours of features that must be predicted: the strongest of those that are
        not beyond the thresholds are added; in small tables they may have none. Not for ``ges`` and ``expert``.
    penalty    : of the graphical lasso, on the scale of correlations; None: by cross-validation.
    folds      : of the cross-validation.
    steps      : L, the unrolled steps of uGLAD.
    epochs, learning_rate : of Adam, which trains uGLAD. As released: 250 epochs at 0.002, at which it takes 800.
    file       : of the expert's graph; see ``read_feature_graph`` for its formats.
    moral      : read it as a Bayesian network, whose moral graph is taken.
    """

    method: Literal["graphical-lasso", "uglad", "ges", "expert"] = "graphical-lasso"
    transform: Literal["normal-scores", "none"] = "normal-scores"
    threshold: float = Field(default=0.05, ge=0, lt=1)
    deviations: float = Field(default=3.0, ge=0, allow_inf_nan=False)
    target_neighbours: int = Field(default=0, ge=0)
    penalty: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    folds: int = Field(default=5, ge=2)
    steps: int = Field(default=15, ge=1)
    epochs: int = Field(default=100, ge=1)
    learning_rate: float = Field(default=0.01, gt=0, allow_inf_nan=False)
    file: str | None = None
    moral: bool = False

    @model_validator(mode="after")
    def _expert_has_a_file(self) -> RecoverySettings:
        if (self.method == "expert") != (self.file is not None):
            raise ValueError('file: method = "expert" needs a file, and no other method takes one')
        return self
