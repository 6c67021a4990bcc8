"""SFL, structured federated learning: aggregate models over the client graph (Chen et al. 2022, algorithm 1)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.client_graph import ClientGraph
from fedgraph.personal_layers import PersonalLayersSettings
from fedgraph.settings import Settings
from strategies.base import CohortStrategy, Replies


class SFLSettings(PersonalLayersSettings):
    """``[sfl]``, ``[sfl-per]`` and ``[sfl-lg]``.

    alpha           : share of the graph in the aggregation; 0 leaves every client its own model.
    hops            : K, how often the normalised adjacency is applied.
    normalisation   : ``random-walk``: rows sum to one, so that equal models stay as they are; ``symmetric`` (GCN): also
                      rescales the models of clients with few or many neighbours. Self loops are added where missing.
    lambda_global   : weight of the distance to the read-out w in the local objective.
    lambda_personal : weight of the distance to the personalised model u_i.
    distance        : ``euclidean`` norm, or half of it ``squared``.
    lambda_scale    : whether the lambdas are read against the loss summed over a batch, or its mean.
    start           : clients train from their ``personalised`` model, or all from the ``read-out``.
    released        : behave like the authors' released program, whose distance terms have no gradient and whose
                      clients start from the read-out.
    """

    alpha: float = Field(default=1.0, ge=0, le=1)
    hops: int = Field(default=3, ge=0)
    normalisation: Literal["random-walk", "symmetric"] = "random-walk"
    lambda_global: float = Field(default=0.3, ge=0)
    lambda_personal: float = Field(default=0.3, ge=0)
    distance: Literal["euclidean", "squared"] = "euclidean"
    lambda_scale: Literal["batch-sum", "batch-mean"] = "batch-sum"
    start: Literal["personalised", "read-out"] = "personalised"
    released: bool = False

    @model_validator(mode="after")
    def _released_stands_for_others(self) -> SFLSettings:
        fixed = {"lambda_global": 0.0, "lambda_personal": 0.0, "start": "read-out"}
        return self.model_copy(update=fixed) if self.released else self


class SFL(CohortStrategy):
    """U = (1 - alpha) Theta + alpha A_hat^K Theta; row i is client i's next model, the mean of rows the read-out."""

    settings_type: ClassVar[type[Settings]] = SFLSettings
    needs_graph: ClassVar[bool] = True

    def relations(self, server_round: int, replies: Replies) -> ClientGraph:
        """The client graph of this round among those present: the given one."""
        assert replies.graph is not None
        return replies.graph

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Every client's personalised model, and the read-out for all."""
        return {"parameters": self.models}, {"global": self.models.mean(dim=0)}

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """One propagation over the graph among those present."""
        spread = self.relations(server_round, replies).propagate(
            replies.parameters, hops=self.settings.hops, normalisation=self.settings.normalisation
        )
        return spread if self.settings.alpha == 1 else torch.lerp(replies.parameters, spread, self.settings.alpha)


class SFLPerSettings(SFLSettings):
    """``[sfl-per]``: SFL+PER, every client has a last layer of its own; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("head.*",)


class SFLLGSettings(SFLSettings):
    """``[sfl-lg]``: SFL+LG, every client has a representation of its own; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class SFLPer(SFL):
    """The representation goes over the graph, the last layer does not (table 4)."""

    settings_type: ClassVar[type[Settings]] = SFLPerSettings


class SFLLG(SFL):
    """The last layer goes over the graph, the representation does not (table 4)."""

    settings_type: ClassVar[type[Settings]] = SFLLGSettings
