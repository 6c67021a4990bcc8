"""The settings of a run that every strategy shares."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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
    """Settings of a run that do not depend on the strategy.

    Attributes
    ----------
    layout : Layout
        Names and shapes of the trained model.
    client : str
        Dotted path of the client class.
    experiment : str
        Part of the experiment that is sent to nodes, as JSON.
    run : str
        Name under which nodes keep their clients' state.
    attempts : mapping of str to int
        The last round that counts of each attempt at the run, see :class:`fedgraph.training.ClientState`.
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
        Returns the initial model ``[parameters]`` of a client by name, if clients start from different models.
    defence : DefenceTable
        The table ``[defence]``.
    frozen : FrozenLayers or None
        Layers that are never trained: sent to nodes once, and hidden from the strategy. None to send them like others.
    """

    layout: Layout
    client: str
    experiment: str
    run: str
    attempts: Mapping[str, int] = field(default_factory=dict)
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
        """Return whether models are evaluated after ``server_round`` even if more rounds follow."""
        return bool(self.splits) and server_round % self.every == 0

    def splits_after(self, server_round: int) -> tuple[SplitName, ...]:
        """Return the splits on which models are evaluated after ``server_round``."""
        return self.splits if self.evaluates(server_round) else ()

    def keep_from(self, server_round: int) -> int:
        """Return the first round that a run killed in ``server_round`` would repeat: that after its last checkpoint."""
        finished = server_round - 1
        return finished - finished % self.checkpoint_every + 1
