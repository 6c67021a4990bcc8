"""Algorithms with one model for all clients: all train it, and the results are combined."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Answers, Ask, Clients, Round, State
from fedgraph.algorithms.model_rows import Models, check_rows, combined, filled, matrix, written
from fedgraph.graph import attention_from_distances
from fedgraph.models import PersonalLayersSettings
from fedgraph.support.settings import S, Settings
from fedgraph.training import TrainSettings


class GlobalModel(Algorithm[S]):
    """Averages the clients' models, weighted by training examples; subclasses override ``update``."""

    defences = (*Algorithm.defences, "average", "trim")

    @classmethod
    def uses_graph(cls, settings: S) -> bool:
        """See :class:`Algorithm`: an average does not."""
        return False

    def update(self, clients: Clients, model: Tensor, answers: Answers) -> Tensor:
        """Return the next global model ``[parameters]``; by default as FedAvg (McMahan et al. 2017, algorithm 1)."""
        return answers.average(answers.num_examples)

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Train the global model at all clients, and aggregate; absent clients get the result too."""
        answers = yield self.ask(clients, state)
        model, meaning = self.update(clients, self.readout(clients, state), answers), "a number for each parameter"
        where = f"{self.class_name}.update, in round {number}, returned"
        check_rows(where, model, state["models"].shape[1:], meaning, state["models"])
        return {**state, "models": filled(state["models"], model)}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send the global model to all."""
        return Ask({}, {"parameters": self.readout(clients, state)}, models=("parameters",))

    def readout(self, clients: Clients, state: State) -> Tensor:
        """Return the global model, ``[parameters]``."""
        return combined(state["models"], lambda rows: rows[0])

    def replaced(self, clients: Clients, state: State, models: Tensor) -> State:
        """Return a state that continues with another model; all rows are the same."""
        return {**state, "models": filled(state["models"], models[0])}

    def saved(self, state: State) -> State:
        """Return the state with the global model once."""
        return {**state, "models": state["models"][:1]}

    def loaded(self, clients: Clients, state: State) -> State:
        """Return the state with the global model for all clients."""
        return {**state, "models": state["models"][:1].expand(len(clients), -1)}


class FedPerSettings(PersonalLayersSettings):
    """``[fedper]``: by default the last layer stays with the client."""

    personal_layers: tuple[str, ...] = ("head.*",)


class FedPer(GlobalModel[FedPerSettings]):
    """FedAvg of the representation; every client has its own last layer.

    Arivazhagan et al., Federated Learning with Personalization Layers (2019), algorithm 1.
    """

    name = "fedper"
    title = "FedAvg with a personal last layer (FedPer)"
    paper = "https://arxiv.org/abs/1912.00818"
    default_client = "fedgraph.clients.fedper:PersonalLayersClient"


class LGFedAvgSettings(PersonalLayersSettings):
    """``[lg-fedavg]``: by default all layers but the last stay with the client."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class LGFedAvg(GlobalModel[LGFedAvgSettings]):
    """FedAvg of the last layer; every client has its own representation.

    Liang et al., Think Locally, Act Globally (2020), algorithm 1.
    """

    name = "lg-fedavg"
    title = "FedAvg of the last layer, with personal representations (LG-FedAvg)"
    paper = "https://arxiv.org/abs/2001.01523"
    default_client = "fedgraph.clients.fedper:PersonalLayersClient"


class FedAttSettings(Settings):
    """``[fedatt]``.

    Attributes
    ----------
    step : epsilon, the step size of the server; with 1 each layer becomes the attentive mean of the clients' layers.
    """

    step: float = Field(default=1.0, gt=0)


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


class FedAvgOwnStart(GlobalModel):
    """Federated averaging in which every client starts the first round from its own initialisation.

    Averages of models with different initialisations perform badly (Gorbett, Shirazi, Ray; IEEE Big Data 2023, section
    IV.B).
    """

    name = "fedavg-own-start"
    title = "Federated averaging of models that start from initialisations of their own"

    def init(self, clients: Clients, models: Models) -> State:
        """Draw a model for each client."""
        return {"models": written(models, torch.arange(len(clients)), clients.drawn_models())}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send the clients' own models in the first round, then the global one."""
        models = matrix(state["models"])
        differ = bool((models != models[:1]).any())
        return Ask({"parameters": models}) if differ else super().ask(clients, state)

    def replaced(self, clients: Clients, state: State, models: Tensor) -> State:
        """Return a state that continues with one model for all, or with the initial models."""
        return {**state, "models": models}


class FineTuningSettings(Settings):
    """``[fedavg-ft]``, and part of ``[sfl-ft]``: how a copy of a model is fine-tuned before it is evaluated.

    Attributes
    ----------
    local_epochs, local_steps : passes over a client's examples, or minibatches; by default those of ``[train]``.
    learning_rate : constant over rounds; by default that of ``[train]`` in the next round.
    """

    local_epochs: int | None = Field(default=None, ge=0)
    local_steps: int | None = Field(default=None, ge=0)
    learning_rate: float | None = Field(default=None, gt=0)

    def training(self, train: TrainSettings, where: str) -> TrainSettings:
        """Return the settings of fine-tuning, those of ``train`` where these give none.

        Raises ExperimentError, naming ``where``, if the two do not fit together.
        """
        return train.second(where, self.local_epochs, self.local_steps, self.learning_rate)


class FedAvgFineTuning(GlobalModel[FineTuningSettings]):
    """FedAvg; fine-tuned copies are only evaluated, and the run folder contains the global model.

    Wang et al., Federated Evaluation of On-device Personalization (2019), section 3; a common baseline since.
    """

    name = "fedavg-ft"
    title = "FedAvg, measured after each client has fine-tuned the global model"
    paper = "https://arxiv.org/abs/1910.10252"
    default_client = "fedgraph.clients.fedavg:FineTuningClient"

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        if clients.facts.train is not None:
            self.settings.training(clients.facts.train, "[fedavg-ft]")


class DittoSettings(Settings):
    """``[ditto]``.

    Attributes
    ----------
    lambda_personal : weight of half the squared distance between a client's own model and the global one; 0 trains each
                      client on its own. The paper searches 0.05 to 2.
    """

    lambda_personal: float = Field(default=0.1, ge=0)


class Ditto(GlobalModel[DittoSettings]):
    """FedAvg; the clients' own models, which are evaluated, are pulled towards the global one and stay with them.

    Li et al., Ditto: Fair and Robust Federated Learning Through Personalization (ICML 2021), algorithm 1.
    """

    name = "ditto"
    title = "FedAvg, and a personal model per client, regularised towards the global one (Ditto)"
    paper = "https://arxiv.org/abs/2012.04221"
    default_client = "fedgraph.clients.ditto:DittoClient"

    def restorable(self, clients: Clients) -> bool:
        """Return False: the clients' own models are not at the server."""
        return False
