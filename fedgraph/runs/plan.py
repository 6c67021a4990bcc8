"""What a strategy needs to know about its run, beside its own settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.defence import DefenceTable
from fedgraph.messages.frozen_layers import FrozenLayers
from fedgraph.models import Layout
from fedgraph.runs.callbacks import Callback
from fedgraph.support.settings import parse
from fedgraph.training import TrainSettings


@dataclass(frozen=True)
class RunPlan:
    """The part of a run that is the same for every strategy.

    Attributes
    ----------
    layout : Layout
        Names and shapes of the model that is trained.
    client : str
        Dotted path of the client class that answers the requests.
    experiment : str
        Part of the experiment that nodes get, as JSON.
    run : str
        Name under which nodes keep their clients' state.
    rounds : int
        Maximum number of rounds.
    seed, min_clients, on_missing, checkpoint_every
        As in ``[experiment]`` and ``[output]``.
    splits : tuple of str
        Splits on which models are evaluated, every ``every`` rounds and after the last.
    every : int
        Rounds between evaluations.
    callbacks : sequence of Callback
        Callbacks that watch the run.
    initial_model_of : callable or None
        Returns the initial model ``[parameters]`` of a client, given its name, where each client starts from its own.
    defence : DefenceTable
        The table ``[defence]``.
    frozen : FrozenLayers or None
        Layers that are never trained, which nodes are sent once and the strategy does not see; None where they are sent
        like others.
    """

    layout: Layout
    client: str
    experiment: str
    run: str
    rounds: int = 0
    seed: int = 0
    splits: tuple[SplitName, ...] = ("validation", "test")
    every: int = 1
    min_clients: int = 1
    on_missing: Literal["fail", "skip", "keep-last"] = "fail"
    checkpoint_every: int = 1
    callbacks: Sequence[Callback] = field(default_factory=tuple)
    initial_model_of: Callable[[str], Tensor] | None = None
    defence: DefenceTable = field(default_factory=DefenceTable)
    frozen: FrozenLayers | None = None

    @property
    def train(self) -> TrainSettings:
        """Settings of local training."""
        return parse(TrainSettings, json.loads(self.experiment).get("train", {}), "[train]")

    def evaluates(self, server_round: int) -> bool:
        """Check whether the models after ``server_round`` rounds are evaluated even if more rounds follow."""
        return bool(self.splits) and server_round % self.every == 0

    def splits_after(self, server_round: int) -> tuple[SplitName, ...]:
        """Return the splits on which the models after ``server_round`` rounds are evaluated; empty if they are not."""
        return self.splits if self.evaluates(server_round) else ()

    def keep_from(self, server_round: int) -> int:
        """Return the first round that may still have to be repeated while the run is in ``server_round``.

        A killed run continues after its last checkpoint, which was written after a multiple of ``checkpoint_every``.
        """
        finished = server_round - 1
        return finished - finished % self.checkpoint_every + 1
