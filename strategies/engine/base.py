"""What a method of rounds overrides. Its rounds are run by :mod:`strategies.engine.loop`."""

from __future__ import annotations

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
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State
from fedgraph.support.settings import S
from strategies.engine.absence import AbsencePolicy
from strategies.engine.loop import Progress, RoundLoop
from strategies.engine.nodes import Nodes
from strategies.engine.replies import Replies
from strategies.engine.strategy import EvaluateFn, MethodStrategy

__all__ = ["CohortStrategy", "Replies"]

Outgoing = tuple[dict[str, Tensor], dict[str, Tensor]]


class CohortStrategy(MethodStrategy[S]):
    """Sends every client a model of its own and gets a trained one back; one exchange per round.

    The models that go out are evaluated where they arrive before they are trained, so a round costs one exchange; a
    last one measures the final models. A method overrides ``aggregate`` and, where clients need more than a model,
    ``outgoing`` and ``reply_shapes``.

    Parameters
    ----------
    settings : the method's table of the experiment, of the class in brackets.
    federation : who takes part.
    plan : the run.

    Attributes
    ----------
    models : ``[clients, parameters]``, as they stand.
    progress : how far the run has come.
    """

    default_client: ClassVar[str] = "clients.engine.base:CohortClient"
    needs_graph: ClassVar[bool] = False

    def __init__(self, settings: S, federation: Federation, plan: RunPlan) -> None:
        if self.needs_graph and federation.graph is None:
            raise ExperimentError(
                f'{type(self).__name__} needs a client graph: give the experiment [graph] source = "data", '
                '"labels", "complete" or "file"'
            )
        self.settings = settings
        self.federation = federation
        self.plan = plan
        self.layout = self.shared_layout()
        self.models = torch.zeros(len(federation.names), self.layout.num_parameters)
        self.absence = AbsencePolicy(federation, plan)
        self.progress = Progress()

    # ---- what a method overrides -----------------------------------------------------------------------------------

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """The next model of every client in ``replies``, ``[present, parameters]``."""
        raise NotImplementedError

    def outgoing(self, server_round: int) -> Outgoing:
        """Tensors for the clients: stacked ones ``[clients, ...]``, of which each gets its row, and shared ones."""
        return {"parameters": self.models}, {}

    def shared_with(self, positions: Tensor, measures: bool) -> dict[str, Tensor]:
        """Further shared tensors for the node of the clients at ``positions``; ``measures``: before they train."""
        return {}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """What a client must send back and in which shape, without the client axis."""
        return {"parameters": (self.layout.num_parameters,)}

    def shared_layout(self) -> Layout:
        """What the server gets to see of a model: all but the ``personal_layers`` of the settings.

        ``layout`` and ``models`` are of this part.
        """
        if not isinstance(self.settings, PersonalLayersSettings):
            return self.plan.layout
        return PersonalLayers.of(self.plan.layout, self.settings.personal_layers).shared

    def train_round(self, server_round: int, nodes: Nodes) -> Replies:
        """The exchanges of a round: by default one, in which the models are measured, if it is time, and trained."""
        splits = self.plan.splits_after(server_round - 1)
        return nodes.ask(server_round, *self.outgoing(server_round), splits, self.reply_shapes(), self.shared_with)

    def measure(self, server_round: int, nodes: Nodes) -> Replies:
        """The exchange in which the models are measured as they stand."""
        return nodes.ask(server_round, *self.outgoing(server_round), self.plan.splits, further=self.shared_with)

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """When a round measures models: with its replies, before they are trained or after, or in an exchange apart."""
        return "before"

    @property
    def moves_after_measuring(self) -> bool:
        """Whether a round goes on changing models that it has measured; at the end they are then measured once more."""
        return False

    @property
    def restorable(self) -> bool:
        """Whether ``replace_models`` brings earlier models back in whole; not where clients keep a part of them."""
        return len(self.layout.names) == len(self.plan.layout.names)

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Give every client the initial model of its architecture."""
        arrays, architectures = from_record(initial_arrays), self.plan.architectures
        if architectures is not None:
            self.models = architectures.repeated(arrays)
        else:
            self.models = self.layout.row(arrays).repeat(len(self.federation.names), 1)

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """Put what ``aggregate`` made of ``replies`` into ``models``; clients that are absent keep what they have."""
        everybody = len(replies.names) == len(self.federation.names)
        self.models = models if everybody else self.models.index_copy(0, replies.positions, models)

    def replace_models(self, models: Tensor) -> None:
        """Go on with other models ``[clients, parameters]``, such as the best of the run."""
        self.models = models

    def global_model(self) -> Tensor | None:
        """The read-out, ``[parameters]``: the mean of the clients' models.

        None for a method that has none, and where architectures differ.
        """
        return self.models.mean(dim=0) if self.plan.architectures is None else None

    def global_arrays(self) -> ArrayRecord | None:
        """The read-out as named arrays."""
        row = self.global_model()
        return None if row is None else to_record(self.layout.row_state(row))

    def learned_graph(self) -> ClientGraph | None:
        """The client graph that the method learned, for the run folder; None for a method that learns none."""
        return None

    def facts(self) -> dict[str, Any]:
        """Further entries of ``summary.json``, once the run has come to its end."""
        return {}

    def state(self) -> State:
        """What a resumed run needs; a method with more to remember adds its own keys."""
        return {"models": self.models, "absence": self.absence.state(), "progress": self.progress.state()}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        self.models = state["models"]
        self.absence.load_state(state["absence"])
        self.progress = Progress.of_state(state["progress"])

    # ---- the run ---------------------------------------------------------------------------------------------------

    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Rounds up to ``num_rounds``, from those that are behind it; see :class:`RoundLoop`."""
        ordered = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid, self.federation)
        nodes = Nodes(ordered, self.federation, self.plan, timeout)
        return RoundLoop(self, nodes, evaluate_fn).run(initial_arrays, num_rounds)
