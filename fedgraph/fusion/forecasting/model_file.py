"""``fusion.safetensors`` of forecasts: the server's network after a run, with everything needed for inference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from fedgraph.fusion.forecasting.fusion import ForecastFusion, ForecastFusionSettings
from fedgraph.support.errors import RunError
from fedgraph.support.files import load_state, save_state
from fedgraph.support.settings import select_settings


@dataclass(frozen=True)
class FittedForecasts:
    """A fitted network with its settings and owners.

    Attributes
    ----------
    network : ForecastFusion
        The network.
    settings : ForecastFusionSettings
        Its settings.
    owners : tuple of str
        In the order of its inputs.
    """

    network: ForecastFusion
    settings: ForecastFusionSettings
    owners: tuple[str, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """The length of an embedding, and of a forecast."""
        return self.network.alignment.shape[1], self.network.second.shape[2]

    def write(self, path: Path) -> None:
        """Write the network atomically."""
        settings = select_settings(ForecastFusionSettings, self.settings.as_table(), "the fusion's settings").as_table()
        state = {"settings": settings, "owners": list(self.owners), "sizes": list(self.sizes)}
        save_state(path, {**state, "network": self.network.state_dict()})

    @classmethod
    def read(cls, path: Path) -> FittedForecasts:
        """Read a network. Raises RunError when the file is missing, broken or not such a network."""
        state = load_state(path)
        try:
            settings, owners = ForecastFusionSettings.model_validate(state["settings"]), tuple(state["owners"])
            # Replaced by the weights of the file.
            graph = torch.zeros(len(owners), len(owners)) if "hops" in state["network"] else None
            size, steps = state["sizes"]
            network = ForecastFusion(len(owners), size, steps, settings, graph, torch.Generator())
            network.load_state_dict(state["network"])
        except Exception as error:
            raise RunError(f"{path} is not a forecasting network of this version: {error}") from None
        return cls(network, settings, owners)
