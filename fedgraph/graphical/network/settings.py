"""Settings of neural graphical models and neural graph revealers: their networks and training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedgraph.support.settings import Settings


class NGMSettings(Settings):
    """A neural graphical model (NGM): a network that predicts every feature of a table from its neighbours in a graph.

    Attributes
    ----------
    architecture : ``masked``: every feature has its own hidden units that only see its neighbours, so no other feature
        can have an influence; ``path-norm``: the paper's perceptron, in which all features share the hidden units and
        a penalty on paths between features that are not neighbours enforces the graph approximately. Keys that begin
        with path apply to the latter only.
    hidden         : units of each hidden layer: for every feature in ``masked`` (None: 16), in total in ``path-norm``
        (None: 100).
    layers         : hidden layers.
    loss           : of binary and categorical features: ``cross-entropy``, or the ``squared`` error of their units as
        in the paper. For numbers it is the squared error.
    epochs         : largest number of passes over the training rows.
    batch_size     : rows of a step; None: all at once, as in the paper.
    learning_rate  : of Adam; in the paper 0.001.
    patience       : epochs without a better fit to held-out rows after which training ends.
    compile        : train ``masked`` networks with included native code, where the node has a C++ compiler: several
        times as fast, and equal to float tolerance.
    path_weight    : lambda, the weight of the penalty on forbidden paths.
    path_norm      : of the matrix of these paths: its largest singular value (``spectral``), the sum of its entries
        (``l1``), or the largest sum of the paths to one unit (``column-sum``).
    path_rows      : paths are ``normalised`` as in the authors' program, or ``plain``. The former are relative: a path
        seems to fade when others of its input grow.
    path_log       : penalise the logarithm of the norm, which has no lower bound, instead of the norm itself.
    path_tolerance : largest strength of forbidden paths between two units, as plain products of weights: the best fit
        of all epochs within it is kept, or the best fit overall, with a warning, if there is none.
    """

    architecture: Literal["masked", "path-norm"] = "masked"
    hidden: int | None = Field(default=None, ge=1)
    layers: int = Field(default=2, ge=1)
    loss: Literal["cross-entropy", "squared"] = "cross-entropy"
    epochs: int = Field(default=500, ge=1)
    batch_size: int | None = Field(default=256, ge=1)
    learning_rate: float = Field(default=3e-3, gt=0)
    patience: int = Field(default=20, ge=1)
    compile: bool = True
    path_weight: float = Field(default=1.0, ge=0)
    path_norm: Literal["spectral", "l1", "column-sum"] = "spectral"
    path_rows: Literal["normalised", "plain"] = "normalised"
    path_log: bool = True
    path_tolerance: float = Field(default=0.1, ge=0)

    @property
    def width(self) -> int:
        """``hidden``, or its default by architecture."""
        return self.hidden or (16 if self.architecture == "masked" else 100)


class NGRSettings(NGMSettings):
    """A neural graph revealer (NGR): a network that starts from all features and learns which ones it needs.

    A ``masked`` network is then trained on over the found graph, without the penalty, so that only neighbours have any
    influence.

    Attributes
    ----------
    sparsity    : gamma, the weight of the penalty on dependencies. ``masked`` (None: 0.02): for each standard deviation
        by which paths from another feature can move a feature, its loss grows by this share of the loss of predicting
        the mean. ``path-norm`` (None: 100, as in the paper): of the norm of all paths.
    path_weight : lambda, of the norm of the paths from features to themselves.
    threshold   : two features have an edge when their dependence, in standard deviations per standard deviation, is
        not less.
    """

    sparsity: float | None = Field(default=None, ge=0)
    path_weight: float = Field(default=100.0, ge=0)
    path_norm: Literal["spectral", "l1", "column-sum"] = "column-sum"
    path_log: bool = False
    threshold: float = Field(default=0.1, ge=0)

    @property
    def gamma(self) -> float:
        """``sparsity``, or its default by architecture."""
        if self.sparsity is not None:
            return self.sparsity
        return 0.02 if self.architecture == "masked" else 100.0
