"""Correction of client drift: by control variates (SCAFFOLD), by the drift itself (FedDyn), and by both (FedDC)."""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Answers, Ask, Clients, Round, State
from fedgraph.algorithms.global_model import GlobalModel
from fedgraph.algorithms.model_rows import Models, filled, matrix
from fedgraph.graph import weighted_mean
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings


class ScaffoldSettings(Settings):
    """``[scaffold]``; ``[train] optimizer`` must be sgd, without momentum that is kept from round to round.

    Control variates are a round old. Where clients differ much and train long, training can diverge at a learning rate
    that works for FedAvg; use a smaller ``learning-rate`` then.

    Attributes
    ----------
    server_learning_rate : eta_g, step size of the global model towards the mean of the clients' models.
    """

    server_learning_rate: float = Field(default=1.0, gt=0)


class Scaffold(GlobalModel[ScaffoldSettings]):
    """x <- x + eta_g mean_i (y_i - x) over clients present, c <- mean_i c_i over all, with equal weights.

    Clients without training examples count in neither mean. The state has the control variates c_i as ``controls``,
    ``[clients, trainable]``; they are zero until a client has answered. A client sends its whole c_i, which equals the
    paper's ``c <- c + |S|/N mean (c_i+ - c_i)`` even when an answer was lost after its client had updated c_i.

    Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning (ICML 2020), algorithm 1.
    Raises ExperimentError when the training does not allow to derive gradients from the change of the parameters.
    """

    name = "scaffold"
    title = "FedAvg with control variates against client drift (SCAFFOLD)"
    needs = 'SGD ([train] optimizer = "sgd")'
    paper = "https://arxiv.org/abs/1910.06378"
    default_client = "fedgraph.clients.scaffold:ScaffoldClient"
    defences = Algorithm.defences

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        check_gradients(clients, self.name)

    def init(self, clients: Clients, models: Models) -> State:
        """Return the models, and control variates that are zero."""
        return {"models": models, "controls": torch.zeros(len(clients), clients.layout.num_trainable)}

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Have all train from x with c - c_i; buffers are averaged, since ``eta_g`` only applies to directions."""
        answers = yield self.ask(clients, state)
        x, trainable = self.readout(clients, state), clients.layout.num_trainable
        mean = weighted_mean(answers.parameters, answers.num_examples > 0)
        moved = torch.lerp(x, mean, self.settings.server_learning_rate)
        model = torch.cat([moved[:trainable], mean[trainable:]])
        return {"models": filled(state["models"], model), "controls": with_controls(state, answers)}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send x and c to all; they answer y_i and c_i."""
        return with_control(clients, state, super().ask(clients, state))


class FedDynSettings(Settings):
    """``[feddyn]``.

    Attributes
    ----------
    alpha : weight of the pull towards the global model, and of the accumulated drift. The smaller it is, the further
            clients move in a round, and the global model moves by the drift too: 0.01 to 0.1 in the paper.
    """

    alpha: float = Field(default=0.01, gt=0)


SomeDriftSettings = TypeVar("SomeDriftSettings", bound=FedDynSettings, default=FedDynSettings)


class FedDyn(GlobalModel[SomeDriftSettings]):
    """theta <- mean of theta_k over clients present, plus the mean over all clients of their drifts.

    Clients minimise ``L_k(v) - <g_k, v> + alpha/2 ||v - theta||^2``, where g_k is ``-alpha`` times their drift: the sum
    of ``theta_k - theta`` over the rounds in which their answer arrived. The paper's h is ``-alpha`` times the mean
    ``drift``, ``[trainable]``, which is all that the server keeps. Each client is sent the last such round, ``heard``
    ``[clients, 1]``, so that client and server agree after a lost answer. Clients without training examples count in
    neither mean; an earlier answer that stands in for a missing one counts only in the first.

    Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization (ICLR
    2021), algorithm 1.
    """

    name = "feddyn"
    title = "Federated learning with dynamic regularisation (FedDyn)"
    paper = "https://arxiv.org/abs/2111.04263"
    default_client = "fedgraph.clients.feddyn:DriftClient"
    defences = Algorithm.defences

    def init(self, clients: Clients, models: Models) -> State:
        """Return the models, no drift, and no client heard."""
        nothing = torch.zeros(clients.layout.num_trainable)
        return {"models": models, "drift": nothing, "heard": torch.zeros(len(clients), 1)}

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Have all train from theta; buffers are averaged, since they have no drift."""
        answers = yield self.ask(clients, state)
        return self.moved(clients, state, answers, number)

    def moved(self, clients: Clients, state: State, answers: Answers, number: int) -> State:
        """Return the next theta, mean drift, and the round in which each client was last heard."""
        trainable, trained = clients.layout.num_trainable, answers.num_examples > 0
        way = (answers.parameters - self.readout(clients, state))[answers.fresh & trained, :trainable]
        drift = state["drift"] + way.sum(0) / (clients.num_examples > 0).sum().clamp(min=1)
        now = torch.full((int(answers.fresh.sum()), 1), float(number))
        received = state["heard"].index_copy(0, answers.positions[answers.fresh], now)
        mean = weighted_mean(answers.parameters, trained)
        theta = torch.cat([mean[:trainable] + drift, mean[trainable:]])
        return {**state, "models": filled(state["models"], theta), "drift": drift, "heard": received}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send theta to all, and to each client the last round in which its answer arrived, 0 for none."""
        return replace(super().ask(clients, state), stacked={"heard": state["heard"]})


class FedDCSettings(FedDynSettings):
    """``[feddc]``; ``[train] optimizer`` must be sgd, without momentum that is kept from round to round.

    Attributes
    ----------
    alpha : weight of the penalty on the distance of a client's model, less its drift, from the global one; 0.1 in the
            paper, and 0.01 on CIFAR.
    """

    alpha: float = Field(default=0.1, gt=0)


class FedDC(FedDyn[FedDCSettings]):
    """Clients minimise ``L_i(v) + alpha/2 ||v + h_i - w||^2 + <v, c - c_i>`` with h_i their drift.

    c_i is the mean of a client's gradients in its last round and c the mean of all c_i, as in the released program and
    in :class:`Scaffold`. Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift
    Decoupling and Correction (CVPR 2022), algorithm 1.
    """

    name = "feddc"
    title = "Drift decoupling and correction: FedDyn with control variates (FedDC)"
    needs = 'SGD ([train] optimizer = "sgd")'
    paper = "https://arxiv.org/abs/2203.11751"
    default_client = "fedgraph.clients.feddc:FedDCClient"

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        check_gradients(clients, self.name)

    def init(self, clients: Clients, models: Models) -> State:
        """Return the state of FedDyn, and control variates that are zero."""
        controls = torch.zeros(len(clients), clients.layout.num_trainable)
        return {**super().init(clients, models), "controls": controls}

    def moved(self, clients: Clients, state: State, answers: Answers, number: int) -> State:
        """Return the next w, mean drift, the round in which each client was last heard, and the control variates."""
        return {**super().moved(clients, state, answers, number), "controls": with_controls(state, answers)}

    def ask(self, clients: Clients, state: State) -> Ask:
        """Send w, the last rounds of the clients, and c; they answer their model and c_i."""
        return with_control(clients, state, super().ask(clients, state))


# ---- control variates ------------------------------------------------------------------------------------------------


def with_control(clients: Clients, state: State, ask: Ask) -> Ask:
    """Send c to all in addition to what ``ask`` sends, and have them answer c_i."""
    control = weighted_mean(state["controls"], clients.num_examples > 0)
    shapes = {"parameters": (clients.layout.num_parameters,), "control": (clients.layout.num_trainable,)}
    return replace(ask, shared={**ask.shared, "control": control}, returns=shapes)


def with_controls(state: State, answers: Answers) -> Tensor:
    """Return the control variates of all clients with those that were answered."""
    controls: Tensor = state["controls"]
    return controls.index_copy(0, answers.positions, matrix(answers.tensors["control"]))


def check_gradients(clients: Clients, method: str) -> None:
    """Raise ExperimentError when the training does not allow to derive gradients from the change of the parameters."""
    train = clients.facts.train
    if train is not None and train.optimizer != "sgd":
        raise ExperimentError(
            f"[train] optimizer: {method} derives gradients from the change of parameters, which '{train.optimizer}' "
            "does not allow; use sgd"
        )
    if train is not None and train.keep_optimizer and train.momentum:
        raise ExperimentError(
            "[train] keep-optimizer: with momentum from earlier rounds, the change of parameters does not give this "
            f"round's gradients, from which {method} computes control variates; set keep-optimizer = false"
        )
