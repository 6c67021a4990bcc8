"""Federated averaging: Flower's own strategy, and two variants as baselines.

McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data (AISTATS 2017).
"""

from __future__ import annotations

from flwr.app import ArrayRecord
from flwr.serverapp import strategy
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.methods.baselines import FineTuningSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import Replies
from fedgraph.strategies.engine.global_model import GlobalModelStrategy


class FedAvg(strategy.FedAvg):
    """Flower's strategy, unchanged."""

    name = "fedavg"
    title = "Federated averaging, Flower's own strategy"
    needs = "nothing"
    paper = "https://arxiv.org/abs/1602.05629"


class FedAvgOwnStart(GlobalModelStrategy):
    """Federated averaging in which every client starts the first round from its own initialisation.

    Averages of models with different initialisations perform badly (Gorbett, Shirazi, Ray; IEEE Big Data 2023, section
    IV.B).
    """

    name = "fedavg-own-start"
    title = "Federated averaging of models that start from initialisations of their own"

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Draw a model for each client."""
        super().initialise(initial_arrays)
        self.models = self.exchanged(self.plan.initial_models(self.federation.names))

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return all clients' own models while they differ, which is in the first round, then the global one."""
        differ = bool((self.models != self.models[:1]).any())
        return ({"parameters": self.models}, {}) if differ else super().outgoing(server_round)

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """Write the global model for all clients, including absent ones."""
        super().replace_models(models)

    def replace_models(self, models: Tensor) -> None:
        """Continue with one model for all, or with the models that they started from."""
        self.models = models.expand(len(self.federation.names), -1)


class FedAvgFineTuning(GlobalModelStrategy[FineTuningSettings]):
    """FedAvg; fine-tuned copies are only evaluated, and the run folder contains the global model.

    Wang et al., Federated Evaluation of On-device Personalization (2019), section 3; a common baseline since.
    """

    name = "fedavg-ft"
    title = "FedAvg, measured after each client has fine-tuned the global model"
    paper = "https://arxiv.org/abs/1910.10252"
    default_client = "fedgraph.clients.fedavg:FineTuningClient"

    def __init__(self, settings: FineTuningSettings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        settings.training(plan.train, "[fedavg-ft]")
