"""Base class of methods of rounds. Its rounds are run by :mod:`fedgraph.strategies.engine.loop`."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Literal

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import Tensor

from fedgraph.federation import Federation, OrderedGrid
from fedgraph.graph import ClientGraph
from fedgraph.messages import from_record, to_record
from fedgraph.models import Layout, PersonalLayers, PersonalLayersSettings
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.absence import AbsencePolicy
from fedgraph.strategies.engine.defence import Defence
from fedgraph.strategies.engine.loop import Progress, RoundLoop
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies
from fedgraph.strategies.engine.strategy import EvaluateFn, MethodStrategy
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import State
from fedgraph.support.settings import S

__all__ = ["CohortStrategy", "Replies"]

Outgoing = tuple[dict[str, Tensor], dict[str, Tensor]]


class CohortStrategy(MethodStrategy[S]):
    """Base class of strategies with a model per client; one exchange per round.

    Each client receives a model of its own and returns a trained one. Models are evaluated where they arrive before
    they are trained, so that a round takes one exchange; one more evaluates the final models. A method overrides
    ``aggregate`` and, where clients need more than a model, ``outgoing`` and ``reply_shapes``.

    Parameters
    ----------
    settings : Settings
        The method's table of the experiment, of the class in brackets.
    federation : Federation
        Clients of the run.
    plan : RunPlan
        What is the same for every strategy.

    Attributes
    ----------
    models : Tensor
        Current models, ``[clients, parameters]``.
    layout : Layout
        Names and shapes of the part of a model that the server sees.
    absence : AbsencePolicy
        Handles clients without a usable reply.
    progress : Progress
        Rounds so far, and the last metrics.
    defence : Defence
        Looks at what clients send before it is aggregated.

    Raises
    ------
    ExperimentError
        When the method needs a client graph and the experiment gives none.
    """

    default_client: ClassVar[str] = "fedgraph.clients.engine.base:CohortClient"
    needs_graph: bool = False
    defences: ClassVar[tuple[str, ...]] = ("warn", "clip", "krum")

    def __init__(self, settings: S, federation: Federation, plan: RunPlan) -> None:
        if self.needs_graph and federation.graph is None:
            raise ExperimentError(
                f'{self.class_name} needs a client graph: give the experiment [graph] source = "data", '
                '"labels", "complete" or "file"'
            )
        self.settings = settings
        self.federation = federation
        self.plan = plan
        self.layout = self.shared_layout()
        self.models = torch.zeros(len(federation.names), self.layout.num_parameters)
        self.absence = AbsencePolicy(federation, plan)
        self.progress = Progress()
        self.defence = Defence(plan.defence, federation, self.layout.num_trainable)

    # ---- what a method overrides -----------------------------------------------------------------------------------

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Compute the next model of every client in ``replies``.

        Parameters
        ----------
        server_round : int
            Number of the round, from 1.
        replies : Replies
            Usable replies; their clients are the rows of the result.

        Returns
        -------
        Tensor
            ``[present, parameters]``.
        """
        raise NotImplementedError

    def outgoing(self, server_round: int) -> Outgoing:
        """Return the tensors for the clients.

        Returns
        -------
        stacked : dict of str to Tensor
            ``[clients, ...]``, of which each client gets its row.
        shared : dict of str to Tensor
            Tensors that all clients get.
        """
        return {"parameters": self.models}, {}

    def starts(self, positions: Tensor) -> Tensor:
        """Return the models from which the clients at ``positions`` trained, ``[present, parameters]``."""
        everybody = len(positions) == len(self.federation.names)
        return self.models if everybody else self.models[positions]

    def shared_with(self, positions: Tensor, measures: bool) -> dict[str, Tensor]:
        """Return further shared tensors for the node of the clients at ``positions``.

        ``measures`` is whether the models are evaluated or predict before they are trained.
        """
        return {}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors that each client must send back, as shapes by name without the client axis."""
        return {"parameters": (self.layout.num_parameters,)}

    def shared_layout(self) -> Layout:
        """Return the part of a model that is exchanged: all but the ``personal_layers`` of the settings.

        ``layout`` and ``models`` refer to this part. Frozen layers that nodes are sent once are not in it.
        """
        return self._layers.shared

    @cached_property
    def _layers(self) -> PersonalLayers:
        personal = self.settings.personal_layers if isinstance(self.settings, PersonalLayersSettings) else ()
        return PersonalLayers.of(self.plan.layout, personal, self.plan.frozen is not None)

    def exchanged(self, models: Tensor) -> Tensor:
        """Return of whole models ``[clients, parameters]`` the part that is exchanged."""
        return self._layers.split(models)[0]

    def with_frozen(self, models: Tensor) -> tuple[Layout, Tensor]:
        """Return models ``[clients, columns]`` with the frozen layers that they all have, and their layout."""
        frozen = self.plan.frozen
        if frozen is None:
            return self.layout, models
        whole = self.plan.layout.part({*self.layout.names, *frozen.layout.names})
        parts = PersonalLayers(whole, self.layout, whole.part(()), frozen.layout)
        return whole, parts.join(models, models[:, :0], frozen.row)

    def train_round(self, server_round: int, nodes: Nodes) -> Replies:
        """Run the exchanges of a round; by default one, in which models are evaluated, if it is time, and trained."""
        splits = self.plan.splits_after(server_round - 1)
        return nodes.ask(server_round, *self.outgoing(server_round), splits, self.reply_shapes(), self.shared_with)

    def finish_round(self, server_round: int, nodes: Nodes) -> None:
        """Run further exchanges of a round, once its models are written back; by default none."""

    def measure(self, server_round: int, nodes: Nodes) -> Replies:
        """Evaluate the current models, in an exchange of its own."""
        return nodes.ask(server_round, *self.outgoing(server_round), self.plan.splits, further=self.shared_with)

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """When a round evaluates models: ``before`` or ``after`` training, with its replies, or ``apart``."""
        return "before"

    @property
    def aggregates(self) -> bool:
        """Whether replies of different clients meet in ``aggregate``; else there is nothing for ``[defence]`` to do."""
        return True

    @property
    def moves_after_measuring(self) -> bool:
        """Whether a round changes models after their evaluation; the final models are then evaluated once more."""
        return False

    @property
    def restorable(self) -> bool:
        """Whether ``replace_models`` restores earlier models in whole; False where clients keep a part of them."""
        frozen = () if self.plan.frozen is None else self.plan.frozen.layout.names
        return len(self.layout.names) + len(frozen) == len(self.plan.layout.names)

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Give every client the initial model."""
        self.models = self.layout.row(from_record(initial_arrays)).repeat(len(self.federation.names), 1)

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """Write the result of ``aggregate`` for ``replies`` to ``models``; absent clients keep their models."""
        everybody = len(replies.names) == len(self.federation.names)
        self.models = models if everybody else self.models.index_copy(0, replies.positions, models)

    def replace_models(self, models: Tensor) -> None:
        """Continue with other models ``[clients, parameters]``, such as the best of the run."""
        self.models = models

    def global_model(self) -> Tensor | None:
        """Return the read-out, ``[parameters]``: the mean of the clients' models.

        None for a method that has none.
        """
        return self.models.mean(dim=0)

    def global_arrays(self) -> ArrayRecord | None:
        """Return the read-out as named arrays."""
        row = self.global_model()
        if row is None:
            return None
        layout, rows = self.with_frozen(row[None])
        return to_record(layout.row_state(rows[0]))

    def learned_graph(self) -> ClientGraph | None:
        """Return the client graph that the method learned, for the run folder; None for a method that learns none."""
        return None

    def facts(self) -> dict[str, Any]:
        """Return further entries of ``summary.json``, at the end of the run."""
        return {}

    def state(self) -> State:
        """Return what a resumed run needs; a method that has to remember more adds its own keys."""
        return {
            "models": self.models,
            "absence": self.absence.state(),
            "progress": self.progress.state(),
            "defence": self.defence.state(),
            "frozen": "" if self.plan.frozen is None else self.plan.frozen.fingerprint,
        }

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        self.models = state["models"]
        self.absence.load_state(state["absence"])
        self.progress = Progress.of_state(state["progress"])
        self.defence.load_state(state.get("defence", {}))
        frozen = "" if self.plan.frozen is None else self.plan.frozen.fingerprint
        if state.get("frozen", "") != frozen:
            raise RunError(
                "the frozen layers of [model] are others than before the run was stopped: have its constructor give "
                "them the same values (those of a file that it reads), or begin a new run"
            )

    # ---- the run ---------------------------------------------------------------------------------------------------

    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Run the remaining rounds up to ``num_rounds``; see :class:`RoundLoop`."""
        ordered = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid, self.federation)
        nodes = Nodes(ordered, self.federation, self.plan, timeout)
        return RoundLoop(self, nodes, evaluate_fn).run(initial_arrays, num_rounds)
