"""F3 for forecasts, what both sides agree on: how encoders are trained, embeddings sent and fused."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedgraph.fusion.forecasting import ForecastFusionSettings, OwnerGraph
from fedgraph.support.settings import Settings

FITTED_ON = ("train", "validation")
"""The splits whose targets the server needs."""


def suffix_of(graph: OwnerGraph) -> str:
    """What the names of errors end with that a network over a control graph makes."""
    return f"-{'no' if graph == 'none' else graph}-graph"


class EncoderSettings(Settings):
    """What clients need to know.

    local_rounds : rounds of [train] in which each client trains its encoder, the [model], on its own windows; the one
                   that forecasts its validation windows best is kept, and frozen.
    precision    : of the embeddings that are sent.
    """

    local_rounds: int = Field(default=3, ge=1)
    precision: Literal["float16", "float32"] = "float16"

    @property
    def dtype(self) -> torch.dtype:
        """The type of the embeddings that are sent."""
        return torch.float16 if self.precision == "float16" else torch.float32


class F3ForecastSettings(ForecastFusionSettings, EncoderSettings):
    """``[f3-forecast]``: the clients' encoders, and how the server fuses their embeddings.

    encoders : the folder of a finished run of another method, such as ``sfl``, ``fedavg`` or ``local``, with the same
               [data], [model] and clients: its models are the encoders, and nothing is trained before embeddings are
               sent. They come from the server, which has them. By default each client trains its own.
    """

    encoders: str | None = None
