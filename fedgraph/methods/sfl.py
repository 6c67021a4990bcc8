"""SFL, what both sides agree on: the settings of all its variants (Chen et al. 2022)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from fedgraph.methods.baselines import FineTuningSettings
from fedgraph.models import PersonalLayersSettings


class SFLSettings(PersonalLayersSettings):
    """``[sfl]``, ``[sfl-per]`` and ``[sfl-lg]``.

    Attributes
    ----------
    alpha           : share of the graph in the aggregation; 0 leaves every client its own model.
    hops            : K, how often the normalised adjacency is applied.
    normalisation   : ``random-walk``: rows sum to one, so that equal models stay as they are; ``symmetric`` (GCN): also
                      rescales the models of clients with few or many neighbours. Self loops are added where missing.
    mixes           : what goes over the graph: the clients' ``models``, or the ``updates`` that training made to them.
                      A client then keeps its trained model and moves on in the direction in which its neighbourhood
                      moved: V = server-momentum V + mix of updates, U = Theta + server-learning-rate V. Running
                      statistics stay those of its own model.
    server_learning_rate, server_momentum : used only with mixes = ``updates``.
    weighting       : ``examples``: clients are weighted by their training examples, so that those with few rely on
                      others and contribute little; ``none``: all have the same weight.
    everybody       : weight of all clients together in the mean, beside 1 for a client's own neighbourhood, so that
                      clients without neighbours receive something too.
    lambda_global   : lambda_1, weight of the distance to the read-out w beside the mean loss of a minibatch (eq. 3).
                      The released program has 0.3, but its distances have no gradient: 0 in effect.
    lambda_personal : lambda_2, weight of the distance to the personalised model u_i; likewise.
    distance        : ``euclidean`` norm, or half of it ``squared``.
    start           : clients train from their ``personalised`` model, or all from the ``read-out``.
    released        : behave like the authors' released program, whose distance terms have no gradient and whose clients
                      start from the read-out; replaces both lambdas and start.
    """

    alpha: float = Field(default=1.0, ge=0, le=1)
    hops: int = Field(default=3, ge=0)
    normalisation: Literal["random-walk", "symmetric"] = "random-walk"
    mixes: Literal["models", "updates"] = "models"
    server_learning_rate: float = Field(default=0.1, gt=0)
    server_momentum: float = Field(default=0.9, ge=0, lt=1)
    weighting: Literal["none", "examples"] = "none"
    everybody: float = Field(default=0.0, ge=0)
    lambda_global: float = Field(default=0.0, ge=0)
    lambda_personal: float = Field(default=0.0, ge=0)
    distance: Literal["euclidean", "squared"] = "euclidean"
    start: Literal["personalised", "read-out"] = "personalised"
    released: bool = False

    @model_validator(mode="after")
    def _fit_together(self) -> SFLSettings:
        if self.normalisation == "symmetric" and (self.weighting == "examples" or self.everybody):
            raise ValueError('weighting = "examples" and everybody are means: they need normalisation = "random-walk"')
        return self

    @model_validator(mode="after")
    def _released_stands_for_others(self) -> SFLSettings:
        fixed = {"lambda_global": 0.0, "lambda_personal": 0.0, "start": "read-out"}
        return self.model_copy(update=fixed) if self.released else self


class SFLPerSettings(SFLSettings):
    """``[sfl-per]``: SFL+PER, every client has a last layer of its own; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("head.*",)


class SFLLGSettings(SFLSettings):
    """``[sfl-lg]``: SFL+LG, every client has a representation of its own; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class SFLFineTuningSettings(SFLSettings, FineTuningSettings):
    """``[sfl-ft]``: the keys of ``[sfl]``, and how a copy of each personalised model is fine-tuned for evaluation.

    Attributes
    ----------
    local_epochs, local_steps : passes over a client's examples, or minibatches; by default those of ``[train]``.
    learning_rate : the same after every round; by default that of ``[train]`` in the round to come.
    """


class SFLStarSettings(SFLSettings):
    """``[sfl-star]``: the keys of ``[sfl]``, and how the client graph is learned. A given graph is not needed.

    Attributes
    ----------
    learner     : ``smoothness``: the sparse graph without isolated clients on which the models are smoothest
                  (Kalofolias 2016); ``kernel``: a Gaussian kernel of the distances to the nearest; ``encoder``: trained
                  embeddings of the clients, as in the paper, fitted to that kernel.
    features    : what distances are measured on: the trained ``parameters``, or their ``updates`` by training.
    neighbours  : approximate number of neighbours of a client.
    beta        : weight of the learned graph beside 1 - beta for the given graph, both on one scale: rows of the
                  learned one are scaled to the mean row sum of the given one, without self loops. Without a given graph
                  only the learned one is used, its rows scaled to add up to neighbours, so that a client counts as much
                  as a neighbour does on average; beta is then not used.
    momentum    : share of earlier rounds in the distances, below 1; 0 uses this round only.
    released    : as for ``[sfl]``; and the graph is what the released program learns: every round a new encoder takes
                  ten steps towards the *distances*, which leaves it random. Its rows are divided by their sum, as are
                  those of the given graph with self loops, and beta of it is mixed in. The learned graph has no self
                  loops: without a given graph a client receives the models of others only, or its own where it has no
                  neighbour. Replaces all keys above except beta, and normalisation.
    """

    learner: Literal["smoothness", "kernel", "encoder"] = "smoothness"
    features: Literal["parameters", "updates"] = "parameters"
    neighbours: int = Field(default=4, ge=1)
    beta: float = Field(default=0.05, ge=0, le=1)
    momentum: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _released_learns_every_round(self) -> SFLStarSettings:
        fixed = {"learner": "encoder", "features": "parameters", "momentum": 0.0}
        return self.model_copy(update={**fixed, "normalisation": "random-walk"}) if self.released else self


class SFLColdStartSettings(SFLSettings):
    """``[sfl-cold-start]``: the keys of ``[sfl]`` with other defaults, and how cold clients use the models of others.

    Attributes
    ----------
    everybody   : as for ``[sfl]``, but for cold clients only; warm ones use their neighbourhood only.
    cold_below  : clients with fewer training examples than this share of the median are cold.
    temperature : tolerance for models with a larger loss on a cold client's own examples. A model whose loss there is
                  above the best one's by this share of it (0.06: by 6 %) keeps 1 / e of the weight that the graph gives
                  it; 0 leaves the weights to the graph. The models travel to that client, its losses stay there.
    """

    alpha: float = Field(default=0.3, ge=0, le=1)
    hops: int = Field(default=1, ge=0)
    weighting: Literal["none", "examples"] = "examples"
    everybody: float = Field(default=1.0, ge=0)
    start: Literal["personalised", "read-out"] = "read-out"
    cold_below: float = Field(default=0.1, gt=0, le=1)
    temperature: float = Field(default=0.06, ge=0)
