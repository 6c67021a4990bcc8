"""CNFGNN: a recurrent model on every client, a graph network over all hidden states at the server, trained in turns.

Meng, Rambhatla, Liu: Cross-Node Federated Graph Neural Network for Spatio-Temporal Data Modeling (KDD 2021), algorithms
1 and 2.

A request whose tensors are ``windows/<split>`` alone asks for hidden states of these windows; with ``graph/<split>``,
the server's outputs for them, it is for training or evaluation, or, without a model, for gradients.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeVar

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from fedgraph.algorithms.exchange import Answers, Ask, Clients, Evaluation, Round, RunFacts, State
from fedgraph.algorithms.global_model import GlobalModel
from fedgraph.algorithms.model_rows import Models, filled, matrix
from fedgraph.data import SPLITS, CohortData, SplitName, as_file
from fedgraph.data.preprocessing import Predicted, latest
from fedgraph.fusion.forecasting import shared_windows
from fedgraph.graph import ClientGraph
from fedgraph.models import Layout, parse_model
from fedgraph.runs import Run
from fedgraph.simulations.forecasting.context import ContextForecaster, cohort_with_context, hidden_states
from fedgraph.simulations.forecasting.graph_network import GraphNetwork
from fedgraph.support.errors import ExperimentError
from fedgraph.support.files import load_state
from fedgraph.support.randomness import derive_seed, generator
from fedgraph.support.settings import Settings, parse
from fedgraph.support.threads import pinned_threads
from fedgraph.training import Cohort, Optimiser, TrainSettings, fresh_state

_AT_ONCE = 64
_TRAINING = TrainSettings(optimizer="adam")

Found = TypeVar("Found")
Asking = Generator[Ask, Answers, Found]
"""Exchanges, and their results."""
Places = dict[SplitName, Tensor]
"""Which example of each client belongs to a common window, ``[clients, windows]``; -1 for none."""


class CNFGNNSettings(Settings):
    """``[CNFGNN]``: the server's training in a round after the clients have trained.

    Attributes
    ----------
    windows              : training windows of a round, drawn anew in each and the same for all clients; clients and
                           server train on these.
    server_steps         : training steps of the graph network in a round, each an exchange: embeddings go out, and
                           their gradients come back.
    server_batch_size    : windows of such a step.
    server_learning_rate : of Adam, whose moments are kept.
    layers               : of the graph network.
    hidden               : width of its hidden layers and of its updates.
    """

    windows: int = Field(default=2560, ge=1)
    server_steps: int = Field(default=40, ge=1)
    server_batch_size: int = Field(default=48, ge=1)
    server_learning_rate: float = Field(default=0.001, gt=0)
    layers: int = Field(default=2, ge=1)
    hidden: int = Field(default=64, ge=1)


class CNFGNN(GlobalModel[CNFGNNSettings]):
    """A round: clients train with fixed graph embeddings, their models are averaged, the graph network is trained.

    1. Each client is sent the model and, for the windows of the round, the graph embeddings; it trains, and its model
       is averaged with those of the others (FedAvg).
    2. Clients encode other windows by the new model, and send the hidden states.
    3. The graph network is trained on these by split learning. Each step is an exchange: embeddings of a few windows go
       out, and gradients of each client's loss with respect to its own come back. Nothing else of the loss does.
    4. Its outputs for the windows of 2. goes out in the next round.

    A round takes two exchanges and one for each step of the graph network. An evaluation takes two: hidden states go
    up, and graph embeddings come down. Instead of the paper's decoder, a recurrent network that starts from hidden
    state and graph embedding, it is a perceptron of both; the paper passes over all windows where the windows of a
    round are drawn here; the graph network is narrower, and takes means where the released program adds up. Without a
    client graph an owner's graph embedding depends on its own hidden state alone, as a control.

    The state has the parameters of the graph network, ``network`` ``[1, parameters]``, and the moments of its
    optimiser; and, unless it has just been loaded, the ``places`` of windows and the ``sample`` that was encoded last.

    Raises
    ------
    ExperimentError
        If the data is no time series, or the model not recurrent.
    """

    title = "Recurrent models on clients, a graph network over their hidden states at the server (CNFGNN)"
    needs = "clients that are time series, such as metr-la, a recurrent model, and a client graph ([graph])"
    paper = "https://arxiv.org/abs/2106.05223"
    default_client = "fedgraph.simulations.forecasting.cnfgnn_client:CNFGNNClient"

    @classmethod
    def uses_graph(cls, settings: CNFGNNSettings) -> bool:
        """See :class:`Algorithm`: the server's network does."""
        return True

    @property
    def evaluates(self) -> Literal["before", "after", "apart"]:
        """``apart``, as an evaluation has exchanges of its own."""
        return "apart"

    def restorable(self, clients: Clients) -> bool:
        """Return False: the graph network that belongs to earlier models is gone."""
        return False

    def own_model(self, facts: RunFacts) -> ContextForecaster:
        """Return the clients' model: the recurrent one of ``[model]``, and the perceptron that forecasts."""
        assert facts.task is not None
        if facts.task.kind != "forecast":
            raise ExperimentError(f"CNFGNN forecasts time series, and this data is for {facts.task.kind}")
        return ContextForecaster(parse_model(facts.model), facts.task)

    def init(self, clients: Clients, models: Models) -> State:
        """Return the models, and a graph network that is drawn."""
        drawn = self.network(clients).state_dict()
        row = Layout.of(drawn).row(drawn)[None]
        moments = fresh_state(_TRAINING, 1, row.shape[1])
        return {"models": models, "network": row, "moments": moments, "places": {}, "sample": ()}

    def saved(self, state: State) -> State:
        """Return the state without the parts that clients can be asked for again."""
        kept = {name: value for name, value in state.items() if name not in ("places", "sample")}
        return super().saved(kept)

    def loaded(self, clients: Clients, state: State) -> State:
        """Return the state of what :meth:`saved` returned."""
        return {**super().loaded(clients, state), "places": {}, "sample": ()}

    # ---- exchanges ---------------------------------------------------------------------------------------------------

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Have clients train with graph embeddings of the last windows; encode others, and train the graph network."""
        places: Places = state["places"] or (yield from self.asked_places(clients, number - 1))
        windows, hidden = state["sample"] or (yield from self.sample(clients, state, places, number - 1))
        network = self.network(clients)
        stacked = {"windows/train": windows, "graph/train": embeddings(network, state["network"], hidden, windows >= 0)}
        answers = yield Ask(stacked, {"parameters": self.readout(clients, state)})
        model = self.update(clients, self.readout(clients, state), answers)
        after = {**state, "models": filled(state["models"], model), "places": places}
        after["sample"] = yield from self.sample(clients, after, places, number)
        return {**after, **(yield from self.trained(clients, after, network, number))}

    def evaluation(self, clients: Clients, state: State, number: int, splits: tuple[SplitName, ...]) -> Evaluation:
        """Have the models measured with graph embeddings of all windows."""
        every: Places = state["places"] or (yield from self.asked_places(clients, number))
        places, network = {split: every[split] for split in splits}, self.network(clients)
        hidden = yield from self.encoded(clients, state, places, number)
        stacked = {f"windows/{split}": windows for split, windows in places.items()}
        stacked |= {
            f"graph/{split}": embeddings(network, state["network"], hidden[split], windows >= 0)
            for split, windows in places.items()
        }
        yield Ask(stacked, {"parameters": self.readout(clients, state)}, evaluates=splits)

    def sample(self, clients: Clients, state: State, places: Places, number: int) -> Asking[tuple[Tensor, Tensor]]:
        """Draw the windows of a round: which examples of each client they are, and their hidden states."""
        every, random = places["train"], generator(clients.seed, "windows", number)
        chosen = every[:, torch.randperm(every.shape[1], generator=random)[: self.settings.windows]]
        return chosen, (yield from self.encoded(clients, state, {"train": chosen}, number))["train"]

    def encoded(self, clients: Clients, state: State, places: Places, number: int) -> Asking[Places]:
        """Ask for hidden states ``[clients, windows, size]`` by the current model; 0 of clients that do not answer."""
        size = self.own_model(clients.facts).context_size
        stacked = {f"windows/{split}": windows for split, windows in places.items()}
        shapes = {f"hidden/{split}": (windows.shape[1], size) for split, windows in places.items()}
        answers = yield Ask(stacked, {"parameters": self.readout(clients, state)}, shapes, number=max(1, number))
        found: Places = {}
        for split, windows in places.items():
            found[split] = torch.zeros(*windows.shape, size)
            found[split][answers.positions] = matrix(answers.tensors[f"hidden/{split}"])
        return found

    def asked_places(self, clients: Clients, number: int) -> Asking[Places]:
        """Ask when the examples of clients start, and put windows of the same time side by side."""
        assert clients.facts.room is not None
        room = {split: clients.facts.room(split) for split in SPLITS}
        shapes = {f"starts/{split}": (count,) for split, count in room.items()}
        shared = {"examples": torch.tensor(list(room.values()))}
        answers = yield Ask({}, shared, shapes, types=dict.fromkeys(shapes, "int64"), number=max(1, number))
        found: Places = {}
        for split in SPLITS:
            starts = matrix(answers.tensors[f"starts/{split}"])
            keys = starts[starts >= 0].unique()
            owners, examples = (starts >= 0).nonzero(as_tuple=True)
            found[split] = torch.full((len(clients), len(keys)), -1)
            found[split][answers.positions[owners], torch.searchsorted(keys, starts[owners, examples])] = examples
            if split == "train":
                shared_windows(found[split][answers.positions] >= 0, answers.names)  # raises if there is none
        return found

    # ---- the graph network -----------------------------------------------------------------------------------------

    def network(self, clients: Clients) -> GraphNetwork:
        """Return the graph network, as it is drawn."""
        return graph_network(self.own_model(clients.facts).context_size, self.settings, clients.seed, clients.graph)

    def trained(self, clients: Clients, state: State, network: GraphNetwork, number: int) -> Asking[Mapping[str, Any]]:
        """Train the graph network on the windows that were encoded last, with gradients that clients send."""
        windows, hidden = state["sample"]
        settings, random = self.settings, generator(clients.seed, "graph network batches", number)
        weights = state["network"].clone()
        moments = {name: value.clone() for name, value in state["moments"].items()}
        optimiser = Optimiser(_TRAINING, settings.server_learning_rate, moments)
        for _ in range(settings.server_steps):
            chosen = torch.randint(windows.shape[1], (settings.server_batch_size,), generator=random)
            row = weights[0].clone().requires_grad_()
            with pinned_threads(1):
                found = computed(network, row, hidden[:, chosen], windows[:, chosen] >= 0)
            stacked = {"windows/train": windows[:, chosen], "graph/train": found.detach()}
            answers = yield Ask(stacked, {}, {"gradients": tuple(found.shape[1:])})
            gradients = torch.zeros_like(found)
            gradients[answers.positions] = matrix(answers.tensors["gradients"]) / max(1, len(answers.names))
            with pinned_threads(1):
                (gradient,) = torch.autograd.grad(found, row, gradients)
            optimiser.step(weights, gradient[None])
        return {"network": weights, "moments": moments}

    @staticmethod
    def predicted(run: Run, data: Any, windows: int | None = None) -> Predicted:
        """Forecast series of all clients, whose windows the graph network of the run sees side by side."""
        experiment, names = run.experiment, list(run.models)
        settings = parse(CNFGNNSettings, experiment.method_table, "[CNFGNN]")
        model = ContextForecaster(parse_model(experiment.model), run.models.task)
        row = run.models.shared
        assert row is not None
        models = model.layout.row(row).expand(len(names), -1)
        network = graph_network(model.context_size, settings, experiment.experiment.seed, run.graph)
        weights = load_state(run.folder.checkpoint)["strategy"]["network"]
        with TemporaryDirectory() as folder:
            new, scaled = run.read(as_file(data, Path(folder)), names)

        def cohort(part: CohortData) -> Cohort:
            alone = Cohort(model, part, TrainSettings(), 0)
            return with_graph_embeddings(alone, model, models, network, weights)

        horizons = experiment.evaluation.horizons or ()
        return Predicted.of(new, latest(scaled, windows), models, cohort, horizons, new.notes)

    def facts(self, clients: Clients, state: State) -> dict[str, Any]:
        """Return how many parameters the graph network has, and why a client's model alone is incomplete."""
        why = "a client forecasts with what the graph network makes of the hidden states of all clients at that time"
        return {"parameters_at_server": state["network"].shape[1], "no_module": why}


def graph_network(size: int, settings: CNFGNNSettings, seed: int, graph: ClientGraph | None) -> GraphNetwork:
    """Return the graph network for hidden states of a size, as it is drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive_seed(seed, "graph network"))
        return GraphNetwork(size, settings.hidden, settings.layers, graph)


def with_graph_embeddings(
    cohort: Cohort, model: ContextForecaster, models: Tensor, network: GraphNetwork, weights: Tensor
) -> Cohort:
    """Return the clients with complete data and the outputs of the graph network for their test windows.

    Parameters
    ----------
    cohort : Cohort
        All clients of the graph network, in its order, with windows of the same times.
    model : ContextForecaster
        Their forecaster.
    models : Tensor
        Its parameters, ``[clients, parameters]``.
    network : GraphNetwork
        The graph network.
    weights : Tensor
        Its parameters, ``[1, parameters]``.

    Returns
    -------
    Cohort
        It forecasts the split ``test`` as the clients of a run do.
    """
    count = int(cohort.data.splits["test"].num_examples.max())
    places = torch.arange(count).expand(len(models), -1)
    hidden = hidden_states(cohort, model, models, "test", places)
    found = embeddings(network, weights, hidden, places >= 0)
    return cohort_with_context(cohort, model, {"test": places}, {"test": found})


def computed(network: GraphNetwork, row: Tensor, hidden: Tensor, present: Tensor) -> Tensor:
    """Return the outputs of the graph network ``row`` for hidden states, ``[clients, windows, size]``."""
    layout = Layout.of(network.state_dict())
    state = {name: value[0] for name, value in layout.unflatten(row[None]).items()}
    found: Tensor = functional_call(network, state, (hidden, present))
    return found


def embeddings(network: GraphNetwork, weights: Tensor, hidden: Tensor, present: Tensor) -> Tensor:
    """Return the same without gradients, a few windows at once."""
    with torch.no_grad(), pinned_threads(1):
        parts = zip(hidden.split(_AT_ONCE, 1), present.split(_AT_ONCE, 1), strict=True)
        return torch.cat([computed(network, weights[0], *part) for part in parts], 1)
