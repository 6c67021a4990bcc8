"""Settings of the baseline methods, and the second local training that some of them have."""

from __future__ import annotations

from pydantic import Field, model_validator

from fedgraph.models import PersonalLayersSettings
from fedgraph.support.settings import Settings, parse
from fedgraph.training import TrainSettings

STOCK_TERMS = {"proximal-mu": "proximal-mu", "clipping-norm": "clipping_norm"}
"""How strategies of Flower change the training of clients: tensor of a request ``[clients]``, and Flower's key."""


class FineTuningSettings(Settings):
    """``[fedavg-ft]``, and part of ``[sfl-ft]``: how a copy of a model is fine-tuned before it is evaluated.

    Attributes
    ----------
    local_epochs, local_steps : passes over a client's examples, or minibatches; by default those of ``[train]``.
    learning_rate : the same after every round; by default that of ``[train]`` in the round to come.
    """

    local_epochs: int | None = Field(default=None, ge=0)
    local_steps: int | None = Field(default=None, ge=0)
    learning_rate: float | None = Field(default=None, gt=0)

    def training(self, train: TrainSettings, where: str) -> TrainSettings:
        """Return the settings of fine-tuning, those of ``train`` where these give none.

        Raises ExperimentError, naming ``where``, if the two do not fit together.
        """
        return second_training(train, where, self.local_epochs, self.local_steps, self.learning_rate)


class FedPerSettings(PersonalLayersSettings):
    """``[fedper]``: by default the last layer stays with the client."""

    personal_layers: tuple[str, ...] = ("head.*",)


class LGFedAvgSettings(PersonalLayersSettings):
    """``[lg-fedavg]``: by default all layers but the last stay with the client."""

    personal_layers: tuple[str, ...] = ("!head.*",)


class FedAttSettings(Settings):
    """``[fedatt]``.

    Attributes
    ----------
    step : epsilon, the step size of the server; with 1 each layer becomes the attentive mean of the clients' layers.
    """

    step: float = Field(default=1.0, gt=0)


class DittoSettings(Settings):
    """``[ditto]``.

    Attributes
    ----------
    lambda_personal : weight of half the squared distance between a client's own model and the global one; 0 trains each
                      client on its own. The paper searches 0.05 to 2.
    personal_epochs, personal_steps : passes over a client's examples, or minibatches, on which its own model is trained
                      in each round; by default those of ``[train]``.
    """

    lambda_personal: float = Field(default=0.1, ge=0)
    personal_epochs: int | None = Field(default=None, ge=0)
    personal_steps: int | None = Field(default=None, ge=0)

    def training(self, train: TrainSettings) -> TrainSettings:
        """Return the settings for training the own models, those of ``train`` where these give none.

        Raises ExperimentError if the two do not fit together.
        """
        return second_training(train, "[ditto]", self.personal_epochs, self.personal_steps)

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> DittoSettings:
        if self.personal_epochs is not None and self.personal_steps is not None:
            raise ValueError("give either personal-epochs or personal-steps, not both")
        return self


class ScaffoldSettings(Settings):
    """``[scaffold]``; ``[train] optimizer`` must be sgd, without momentum that is kept from round to round.

    Control variates are a round old. Where clients differ much and train long, the corrected steps can diverge at a
    learning rate that works for FedAvg; choose a smaller ``learning-rate`` then.

    Attributes
    ----------
    server_learning_rate : eta_g, step size of the global model towards the mean of the clients' models.
    """

    server_learning_rate: float = Field(default=1.0, gt=0)


class DriftSettings(Settings):
    """Settings of methods that penalise how far clients have drifted from the global model."""

    alpha: float = Field(default=0.01, gt=0)


class FedDynSettings(DriftSettings):
    """``[feddyn]``.

    Attributes
    ----------
    alpha : weight of the pull towards the global model, and of the accumulated drift. The smaller it is, the further
            clients move in a round, and the global model moves by the drift too: 0.01 to 0.1 in the paper.
    """


class FedDCSettings(DriftSettings):
    """``[feddc]``; ``[train] optimizer`` must be sgd, without momentum that is kept from round to round.

    Attributes
    ----------
    alpha : weight of the penalty on the distance of a client's model, less its drift, from the global one; 0.1 in the
            paper, and 0.01 on CIFAR.
    """

    alpha: float = Field(default=0.1, gt=0)


class CGSVSettings(Settings):
    """``[cgsv]``.

    Attributes
    ----------
    alpha       : weight of a client's earlier importance beside 1 - alpha for this round's contribution.
    beta        : degree of altruism: the larger it is, the less the shares that clients receive differ, noticeably so
                  near the number of clients. The authors' program has 0.5 to 2, and 1e7, with which all clients receive
                  everything.
    update_norm : Gamma, the norm that every client's update is scaled to; the authors' program has 0.5 for MNIST and
                  0.15 for CIFAR-10.
    released    : as in the authors' program. In the first round clients are weighted by their training examples, and
                  their importance is their contribution in it; it stays above zero; and a client receives its share of
                  the largest numbers of every layer, not of the whole model.
    """

    alpha: float = Field(default=0.95, ge=0, lt=1)
    beta: float = Field(default=1.0, gt=0)
    update_norm: float = Field(default=0.5, gt=0)
    released: bool = False


def second_training(
    train: TrainSettings,
    where: str,
    local_epochs: int | None = None,
    local_steps: int | None = None,
    learning_rate: float | None = None,
) -> TrainSettings:
    """Return ``train`` with another length or learning rate where one is given; a given rate holds in every round.

    Raises ExperimentError, naming ``where`` (``[ditto]``), when both lengths are given or do not fit ``train``.
    """
    table = train.as_table()
    if local_epochs is not None or local_steps is not None:
        lengths = {"local-epochs": local_epochs, "local-steps": local_steps}
        table = {key: value for key, value in table.items() if key not in lengths}
        table |= {key: value for key, value in lengths.items() if value is not None}
    if learning_rate is not None:
        table |= {"learning-rate": learning_rate, "learning-rate-decay": 1.0, "learning-rate-factor": 1.0}
    return parse(TrainSettings, table, where)


class PFedGraphSettings(Settings):
    """``[pfedgraph]``.

    Attributes
    ----------
    alpha : how close the weights of a client's mixture stay to the shares of training examples: a very large alpha is
            FedAvg; towards 0 a client hears those alone whose models changed in the same direction.
    lambda_similarity : weight of the cosine between a client's model and its mixture in its loss.
    """

    alpha: float = Field(default=0.8, gt=0, allow_inf_nan=False)
    lambda_similarity: float = Field(default=0.01, ge=0, allow_inf_nan=False)
