"""FedAvg of the shared layers, the others stay with the clients: FedPer and LG-FedAvg.

Arivazhagan et al., Federated Learning with Personalization Layers (2019), algorithm 1: the last layers are personal.
Liang et al., Think Locally, Act Globally (2020), algorithm 1: the representation is personal, the last layer shared.
"""

from __future__ import annotations

from typing import ClassVar

from fedgraph.models import PersonalLayersSettings
from fedgraph.support.settings import Settings
from strategies.engine.global_model import GlobalModelStrategy


class FedPerSettings(PersonalLayersSettings):
    """``[fedper]``: by default the last layer stays with the client."""

    personal_layers: tuple[str, ...] = ("head.*",)


class LGFedAvgSettings(PersonalLayersSettings):
    """``[lg-fedavg]``: by default all layers but the last stay with the client."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class FedPer(GlobalModelStrategy):
    """Shares the representation; every client has a last layer of its own."""

    settings_type: ClassVar[type[Settings]] = FedPerSettings


class LGFedAvg(GlobalModelStrategy):
    """Shares the last layer; every client has a representation of its own."""

    settings_type: ClassVar[type[Settings]] = LGFedAvgSettings
