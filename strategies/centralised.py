"""Centralised training: one model on the pooled data of all clients, as a reference for federated methods."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import Replies
from fedgraph.strategies.engine.global_model import GlobalModelStrategy
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings


class Centralised(GlobalModelStrategy):
    """Trains one model on one node that pools all clients' examples; it is evaluated on each client's own data.

    Raises
    ------
    ExperimentError
        When more than one node hosts clients.
    """

    name = "centralised"
    title = "One model trained on the pooled data of all clients"
    needs = "all clients on one node (--nodes 1)"
    default_client = "fedgraph.clients.centralised:CentralisedClient"
    defences = ()
    expected_failures: ClassVar = {"number-of-nodes": "it pools the data of all clients, which one node must have"}

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        super().__init__(settings, federation, plan)
        if len(federation.hosts) > 1:
            raise ExperimentError(
                f"centralised training needs all clients on one node, to pool their data; here {len(federation.hosts)} "
                "nodes host them: run it with --nodes 1"
            )

    def update(self, server_round: int, replies: Replies) -> Tensor:
        """Return the one model, which every client of the node has sent."""
        return replies.parameters[0]

    def facts(self) -> dict[str, Any]:
        """Return None for the traffic per client: there are no separate clients whose messages could be counted."""
        return {"bytes_down_per_client": None, "bytes_up_per_client": None, "models_per_round": None}
