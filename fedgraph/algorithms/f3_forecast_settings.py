"""Settings of F3 for forecasts: how encoders are trained, embeddings sent and fused."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from fedgraph.data import SplitName
from fedgraph.fusion.forecasting import ForecastFusionSettings, OwnerGraph
from fedgraph.support.settings import Settings

FITTED_ON: tuple[SplitName, ...] = ("train", "validation")
"""The splits whose targets the server needs."""


LATEST_READINGS = "readings-in-latest-window"
"""Name of the metric that clients send with the latest window's embedding: its number of readings."""


def graph_suffix(graph: OwnerGraph) -> str:
    """Suffix of the names of errors of a network over a control graph."""
    return f"-{'no' if graph == 'none' else graph}-graph"


class EncoderSettings(Settings):
    """The settings that clients need.

    Attributes
    ----------
    targets      : ``shared``: clients send the target readings of training and validation windows, like labels in the
                   paper, and the server forecasts; ``private``: no reading is sent. The server learns to predict the
                   embedding of the window that starts with the forecast, and each client forecasts its readings from
                   it and its own embedding.
    local_rounds : rounds of [train] in which each client trains its encoder, the [model], on its own windows; the best
                   in validation is kept and frozen. Forecasters of private targets are trained likewise.
    precision    : of the embeddings that are sent.
    hidden       : width of the hidden layer of forecasters of private targets.
    """

    targets: Literal["shared", "private"] = "shared"
    local_rounds: int = Field(default=3, ge=1)
    precision: Literal["float16", "float32"] = "float16"
    hidden: int = Field(default=64, ge=1)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the embeddings that are sent."""
        return torch.float16 if self.precision == "float16" else torch.float32

    @property
    def returned(self) -> tuple[str, torch.dtype]:
        """Name and type of what the server returns for each window: forecasts, or embeddings of later windows."""
        return ("forecasts", torch.float32) if self.targets == "shared" else ("embeddings", self.dtype)


class F3ForecastSettings(ForecastFusionSettings, EncoderSettings):
    """``[f3-forecast]``: the clients' encoders, and how the server fuses their embeddings.

    Attributes
    ----------
    encoders : the folder of a finished run of another method, such as ``sfl``, ``fedavg`` or ``local``, with the same
               [data], [model] and clients: its models are the encoders, sent by the server. By default each client
               trains its own.
    """

    encoders: str | None = None

    @property
    def graphs(self) -> dict[str, OwnerGraph]:
        """The graphs over which networks are fitted; keys are the endings of the names of their errors."""
        controls = {graph_suffix(graph): graph for graph in self.controls if graph != self.graph}
        return {"": self.graph, **controls}


class LaterWindowsSettings(EncoderSettings):
    """The settings that clients need to forecast later windows.

    Attributes
    ----------
    windows : how many windows each client forecasts at most, the latest.
    data    : a file of new readings on every node, with the scales of the run; it need not contain those of training.
              By default the windows after those of training in ``[data]``.
    """

    windows: int = Field(default=288, ge=1)
    data: str | None = None


class F3ForecastInferenceSettings(LaterWindowsSettings):
    """``[f3-forecast-inference]``; the keys about encoders are those of the run that trained them.

    Attributes
    ----------
    run : the folder of that run.
    """

    run: str
