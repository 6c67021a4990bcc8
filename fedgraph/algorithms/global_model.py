"""Algorithms with one model for all clients: all train it, and the results are combined."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.algorithms.algorithm import Algorithm, Answers, Ask, Clients, Round, State
from fedgraph.algorithms.model_rows import combined, filled
from fedgraph.graph import attention_from_distances
from fedgraph.methods.baselines import FedAttSettings, FedPerSettings, LGFedAvgSettings
from fedgraph.support.settings import S


class GlobalModel(Algorithm[S]):
    """Averages the clients' models, weighted by training examples; an algorithm overrides ``update``."""

    defences = (*Algorithm.defences, "average", "trim")

    @classmethod
    def uses_graph(cls, settings: S) -> bool:
        """See :class:`Algorithm`: an average does not."""
        return False

    def update(self, clients: Clients, model: Tensor, answers: Answers) -> Tensor:
        """Return the next global model ``[parameters]``; by default as FedAvg (McMahan et al. 2017, algorithm 1)."""
        return answers.average(answers.num_examples)

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Have all train the global model, and go on with what comes of the answers, also for absent clients."""
        answers = yield self.ask(clients, state)
        return {**state, "models": filled(state["models"], self.update(clients, self.readout(clients, state), answers))}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send the global model to all."""
        return Ask({}, {"parameters": self.readout(clients, state)}, models=("parameters",))

    def readout(self, clients: Clients, state: State) -> Tensor:
        """Return the global model, ``[parameters]``."""
        return combined(state["models"], lambda rows: rows[0])

    def replaced(self, clients: Clients, state: State, models: Tensor) -> State:
        """Return a state that goes on with another model; all rows are the same."""
        return {**state, "models": filled(state["models"], models[0])}

    def saved(self, state: State) -> State:
        """Return the state with the global model once."""
        return {**state, "models": state["models"][:1]}

    def loaded(self, clients: Clients, state: State) -> State:
        """Return the state with the global model for all clients."""
        return {**state, "models": state["models"][:1].expand(len(clients), -1)}


class FedPer(GlobalModel[FedPerSettings]):
    """FedAvg of the representation; every client has its own last layer.

    Arivazhagan et al., Federated Learning with Personalization Layers (2019), algorithm 1.
    """

    name = "fedper"
    title = "FedAvg with a personal last layer (FedPer)"
    paper = "https://arxiv.org/abs/1912.00818"


class LGFedAvg(GlobalModel[LGFedAvgSettings]):
    """FedAvg of the last layer; every client has its own representation.

    Liang et al., Think Locally, Act Globally (2020), algorithm 1.
    """

    name = "lg-fedavg"
    title = "FedAvg of the last layer, with personal representations (LG-FedAvg)"
    paper = "https://arxiv.org/abs/2001.01523"


class FedAtt(GlobalModel[FedAttSettings]):
    """w_l <- w_l - step * sum_k a_kl (w_l - w_kl), where a_l = softmax over k of ||w_l - w_kl||_2.

    A layer l is a tensor of the model, buffers included. Clients without training examples take no part. Ji et al.,
    Learning Private Neural Language Modeling with Attentive Aggregation (IJCNN 2019), eqs. 3 to 5, algorithm 2. The
    noise that the authors' programs add to every entry is left out.
    """

    name = "fedatt"
    title = "Attentive aggregation: each layer moves towards the clients, weighted by distance (FedAtt)"
    paper = "https://arxiv.org/abs/1812.07108"
    defences = Algorithm.defences

    def update(self, clients: Clients, model: Tensor, answers: Answers) -> Tensor:
        """Return the next global model ``[parameters]``."""
        layers = (answers.parameters - model).split(clients.layout.sizes, dim=1)
        distances = torch.stack([torch.linalg.vector_norm(layer, dim=1) for layer in layers])
        trained = (answers.num_examples > 0).expand_as(distances)
        attention = attention_from_distances(distances, temperature=-1, mask=trained)
        moves = [weights @ layer for weights, layer in zip(attention, layers, strict=True)]
        return model + self.settings.step * torch.cat(moves)
