"""SFL with layers that every client keeps for itself, and with fine-tuning (Chen et al. 2022, table 4)."""

from __future__ import annotations

from fedgraph.algorithms.exchange import Clients
from fedgraph.algorithms.global_model import FineTuningSettings
from fedgraph.algorithms.sfl import SFL, SFLSettings


class SFLPerSettings(SFLSettings):
    """``[sfl-per]``: SFL+PER, every client has its own last layer; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("head.*",)


class SFLLGSettings(SFLSettings):
    """``[sfl-lg]``: SFL+LG, every client has its own representation; otherwise as SFL."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class SFLFineTuningSettings(SFLSettings, FineTuningSettings):
    """``[sfl-ft]``: the keys of ``[sfl]``, and how a copy of each personalised model is fine-tuned for evaluation.

    Attributes
    ----------
    local_epochs, local_steps : passes over a client's examples, or minibatches; by default those of ``[train]``.
    learning_rate : constant over rounds; by default that of ``[train]`` in the next round.
    """


class SFLPer(SFL[SFLPerSettings]):
    """SFL of the representation; every client has its own last layer (table 4)."""

    name = "sfl-per"
    title = "SFL with a personal last layer (SFL+PER)"


class SFLLG(SFL[SFLLGSettings]):
    """SFL of the last layer; every client has its own representation (table 4)."""

    name = "sfl-lg"
    title = "SFL of the last layer, with personal representations (SFL+LG)"


class SFLFineTuning(SFL[SFLFineTuningSettings]):
    """SFL with fine-tuning; fine-tuned copies are only evaluated, and the run folder contains SFL's models."""

    name = "sfl-ft"
    title = "SFL, measured after each client has fine-tuned its personalised model"
    paper = ""
    default_client = "fedgraph.clients.sfl:SFLFineTuningClient"

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        super().check(clients)
        if clients.facts.train is not None:
            self.settings.training(clients.facts.train, "[sfl-ft]")
