"""CNFGNN: a recurrent model on every client, a graph network over all hidden states at the server, trained in turns.

Meng, Rambhatla, Liu: Cross-Node Federated Graph Neural Network for Spatio-Temporal Data Modeling (KDD 2021), algorithms
1 and 2.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import torch
from flwr.app import ArrayRecord
from torch import Tensor
from torch.func import functional_call

from fedgraph.data import SPLITS, SplitName
from fedgraph.federation import Federation
from fedgraph.fusion.forecasting import GraphNetwork
from fedgraph.methods.cnfgnn import CNFGNNSettings
from fedgraph.models import ContextForecaster, Layout, initial_model, parse_model
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.global_model import GlobalModelStrategy
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import State
from fedgraph.support.randomness import derive_seed, generator
from fedgraph.support.threads import pinned_threads
from fedgraph.training import Optimiser, TrainSettings, fresh_state

_AT_ONCE = 64
_TRAINING = TrainSettings(optimizer="adam")


class CNFGNN(GlobalModelStrategy[CNFGNNSettings]):
    """A round: clients train with fixed graph embeddings, their models are averaged, the graph network is trained.

    1. Each client is sent the model and, for the windows of the round, the graph embeddings; it trains, and its model
       is averaged with those of the others (FedAvg).
    2. Clients encode other windows by the new model, and send the hidden states.
    3. The graph network is trained on these by split learning. Each step is an exchange: embeddings of a few windows go
       out, and gradients of each client's loss with respect to its own come back. Nothing else of the loss does.
    4. What it makes of the windows of 2. goes out in the next round.

    A round takes two exchanges and one for each step of the graph network. An evaluation takes two: hidden states go
    up, and graph embeddings come down. In place of the paper's decoder, a recurrent network that starts from hidden
    state and graph embedding, there is a perceptron of both; the paper passes over all windows where the windows of a
    round are drawn here; the graph network is narrower, and takes means where the released program adds up. Without a
    client graph an owner's graph embedding depends on its own hidden state alone, as a control.

    Raises
    ------
    ExperimentError
        If the data is no time series, or the model not recurrent.
    """

    name = "cnfgnn"
    title = "Recurrent models on clients, a graph network over their hidden states at the server (CNFGNN)"
    needs = "clients that are time series, such as metr-la, a recurrent model, and a client graph ([graph])"
    paper = "https://arxiv.org/abs/2106.05223"
    default_client = "fedgraph.clients.cnfgnn:CNFGNNClient"

    @classmethod
    def uses_graph(cls, settings: CNFGNNSettings) -> bool:
        """See :class:`MethodStrategy`: the server's network does."""
        return True

    def __init__(self, settings: CNFGNNSettings, federation: Federation, plan: RunPlan) -> None:
        if federation.task.kind != "forecast":
            raise ExperimentError(f"cnfgnn forecasts time series, and this data is for {federation.task.kind}")
        self.model = ContextForecaster(parse_model(json.loads(plan.experiment)["model"]), federation.task)
        super().__init__(settings, federation, plan)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derive_seed(plan.seed, "graph network"))
            self.network = GraphNetwork(self.model.context_size, settings.hidden, settings.layers, federation.graph)
        self.network_layout = Layout.of(self.network.state_dict())
        self.weights = self.network_layout.row(self.network.state_dict())[None]
        self.moments = fresh_state(_TRAINING, 1, self.weights.shape[1])
        self._places: dict[SplitName, Tensor] = {}
        self._states: tuple[Tensor, Tensor] | None = None

    def shared_layout(self) -> Layout:
        """Return the layout of the clients' models."""
        return self.model.layout

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Give every client the same initial model."""
        self.replace_models(initial_model(self.model, self.plan.seed)[None])

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """``apart``: an evaluation has exchanges of its own."""
        return "apart"

    @property
    def restorable(self) -> bool:
        """False: the graph network that belongs to earlier models is gone."""
        return False

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def train_round(self, server_round: int, nodes: Nodes) -> Replies:
        """Train the clients with graph embeddings of the windows that were encoded last."""
        if self._states is None:
            self._states = self._encode_sample(server_round - 1, nodes)
        places, states = self._states
        stacked = {"windows/train": places, "graph/train": self._embeddings(states, places >= 0)}
        return nodes.ask(server_round, stacked, {"parameters": self.models[0]}, (), self.reply_shapes())

    def finish_round(self, server_round: int, nodes: Nodes) -> None:
        """Have windows encoded by the new model, and train the graph network on them."""
        places, states = self._states = self._encode_sample(server_round, nodes)
        settings, rate = self.settings, self.settings.server_learning_rate
        random = generator(self.plan.seed, "graph network batches", server_round)
        optimiser = Optimiser(_TRAINING, rate, self.moments)
        for _ in range(settings.server_steps):
            chosen = torch.randint(places.shape[1], (settings.server_batch_size,), generator=random)
            windows = places[:, chosen]
            row = self.weights[0].clone().requires_grad_()
            with pinned_threads(1):
                found = self._network(row, states[:, chosen], windows >= 0)
            stacked = {"windows/train": windows, "graph/train": found.detach()}
            shapes = {"gradients": tuple(found.shape[1:])}
            replies = nodes.ask(server_round, stacked, {}, (), shapes)
            self.absence.enforce(server_round, replies)
            gradients = torch.zeros_like(found)
            gradients[replies.positions] = replies.tensors["gradients"] / max(1, len(replies.names))
            with pinned_threads(1):
                (gradient,) = torch.autograd.grad(found, row, gradients)
            optimiser.step(self.weights, gradient[None])

    def measure(self, server_round: int, nodes: Nodes) -> Replies:
        """Evaluate the current models with graph embeddings of all windows."""
        splits, every = self.plan.splits, self._all_places(nodes, server_round)
        places = {split: every[split] for split in splits}
        states = self._encoded(server_round, nodes, places)
        stacked = {f"windows/{split}": windows for split, windows in places.items()}
        stacked |= {f"graph/{split}": self._embeddings(states[split], places[split] >= 0) for split in splits}
        return nodes.ask(server_round, stacked, {"parameters": self.models[0]}, splits)

    def _encode_sample(self, server_round: int, nodes: Nodes) -> tuple[Tensor, Tensor]:
        """Draw the windows of a round: which examples of each client they are, and their hidden states."""
        every = self._all_places(nodes, server_round)["train"]
        random = generator(self.plan.seed, "windows", server_round)
        chosen = torch.randperm(every.shape[1], generator=random)[: self.settings.windows]
        places = every[:, chosen]
        return places, self._encoded(server_round, nodes, {"train": places})["train"]

    def _encoded(self, server_round: int, nodes: Nodes, places: dict[SplitName, Tensor]) -> dict[SplitName, Tensor]:
        """Hidden states ``[clients, windows, size]`` by the current model; 0 of clients that do not answer."""
        stacked = {f"windows/{split}": windows for split, windows in places.items()}
        size = self.model.context_size
        shapes = {f"hidden/{split}": (windows.shape[1], size) for split, windows in places.items()}
        replies = nodes.ask(server_round, stacked, {"parameters": self.models[0]}, (), shapes)
        self.absence.enforce(server_round, replies)
        found = {}
        for split, windows in places.items():
            found[split] = torch.zeros(*windows.shape, size)
            found[split][replies.positions] = replies.tensors[f"hidden/{split}"]
        return found

    def _all_places(self, nodes: Nodes, server_round: int) -> dict[SplitName, Tensor]:
        """The windows of all clients side by side: which example of each client they are, ``[clients, windows]``.

        It is -1 where a client lacks the window. Clients are asked once when their examples start.
        """
        if not self._places:
            room = {split: self.federation.room(split, self.plan.on_missing != "fail") for split in SPLITS}
            shapes = {f"starts/{split}": (count,) for split, count in room.items()}
            shared = {"examples": torch.tensor(list(room.values()))}
            replies = nodes.ask(server_round, {}, shared, (), shapes, types=dict.fromkeys(shapes, "int64"))
            self.absence.enforce(server_round, replies)
            for split in SPLITS:
                starts = replies.tensors[f"starts/{split}"]
                keys = starts[starts >= 0].unique()
                owners, examples = (starts >= 0).nonzero(as_tuple=True)
                places = torch.full((len(self.federation.names), len(keys)), -1)
                places[replies.positions[owners], torch.searchsorted(keys, starts[owners, examples])] = examples
                self._places[split] = places
        return self._places

    # ---- the graph network -----------------------------------------------------------------------------------------

    def _network(self, row: Tensor, states: Tensor, present: Tensor) -> Tensor:
        state = {name: value[0] for name, value in self.network_layout.unflatten(row[None]).items()}
        found: Tensor = functional_call(self.network, state, (states, present))
        return found

    def _embeddings(self, states: Tensor, present: Tensor) -> Tensor:
        """What the graph network makes of hidden states, ``[clients, windows, size]``."""
        with torch.no_grad(), pinned_threads(1):
            parts = zip(states.split(_AT_ONCE, 1), present.split(_AT_ONCE, 1), strict=True)
            return torch.cat([self._network(self.weights[0], *part) for part in parts], 1)

    def facts(self) -> dict[str, Any]:
        """Return how many parameters the graph network has, and why a client's model is none by itself."""
        why = "a client forecasts with what the graph network makes of the hidden states of all clients at that time"
        return {"parameters_at_server": self.weights.shape[1], "no_module": why}

    def state(self) -> State:
        """Return what a resumed run needs, with the graph network and the moments of its optimiser."""
        return {**super().state(), "network": self.weights, "moments": self.moments}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        super().load_state(state)
        self.weights = state["network"].clone()
        self.moments = {name: value.clone() for name, value in state["moments"].items()}
