"""Baselines: every client by itself, and one model of the pooled data of all clients."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Answers, Clients, State
from fedgraph.algorithms.global_model import GlobalModel
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings


class LocalOnly(Algorithm):
    """Every client continues with its trained model, and nothing is shared."""

    name = "local"
    title = "Local training only: nothing is shared"

    @classmethod
    def uses_graph(cls, settings: Settings) -> bool:
        """Return whether a subclass has an ``aggregate`` of its own."""
        return cls.aggregate is not LocalOnly.aggregate

    @property
    def aggregates(self) -> bool:
        """False, unless a subclass overrides ``aggregate``."""
        return type(self).aggregate is not LocalOnly.aggregate

    def aggregate(self, clients: Clients, state: State, answers: Answers) -> Tensor:
        """Return the clients' own models, unchanged."""
        return answers.parameters

    def readout(self, clients: Clients, state: State) -> None:
        """Return None: there is no global model."""
        return None


class Centralised(GlobalModel):
    """Trains one model on one node that pools all clients' examples; it is evaluated on each client's own data.

    Raises ExperimentError when more than one node hosts clients.
    """

    name = "centralised"
    title = "One model trained on the pooled data of all clients"
    needs = "all clients on one node (--nodes 1)"
    default_client = "fedgraph.clients.centralised:CentralisedClient"
    defences = ()
    expected_failures: ClassVar = {"number-of-nodes": "it pools the data of all clients on one node"}

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        nodes = clients.facts.nodes
        if nodes is not None and nodes > 1:
            raise ExperimentError(
                f"centralised training needs all clients on one node, to pool their data; here {nodes} nodes host "
                "them: run it with --nodes 1"
            )

    def update(self, clients: Clients, model: Tensor, answers: Answers) -> Tensor:
        """Return the one model, which every client of the node has sent."""
        return answers.parameters[0]

    def facts(self, clients: Clients, state: State) -> dict[str, Any]:
        """Return None for the traffic per client: there are no separate clients whose messages could be counted."""
        return {"bytes_down_per_client": None, "bytes_up_per_client": None, "models_per_round": None}
