"""An algorithm as a Flower strategy, for any ClientApp: Flower's own loop, and a node is a client."""

from __future__ import annotations

from typing import Any, ClassVar

from flwr.serverapp.strategy import FedAvg

from fedgraph.algorithms import Algorithm

_SAID_BY_THE_ALGORITHM = (
    *("name", "title", "needs", "paper", "settings_type", "uses_graph", "needs_graph", "own_models"),
    *("mixes_models", "defences", "may_change"),
)


class FlowerStrategy(FedAvg):
    """Base class."""

    algorithm_class: ClassVar[type[Algorithm[Any]]]

    def __init_subclass__(cls, **named: Any) -> None:
        """Take over what the algorithm says of itself."""
        super().__init_subclass__(**named)
        if "algorithm_class" in vars(cls):
            for attribute in _SAID_BY_THE_ALGORITHM:
                setattr(cls, attribute, getattr(cls.algorithm_class, attribute))
