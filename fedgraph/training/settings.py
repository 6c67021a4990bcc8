"""The table ``[train]`` of an experiment: local training within a round."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationInfo, field_validator, model_validator

from fedgraph.models.native.loader import can_compile
from fedgraph.support.devices import chosen
from fedgraph.support.settings import Schedule, Settings, parse, value_at

Beta = Annotated[float, Field(ge=0, lt=1)]


_LEARNING_RATES = {"sgd": 0.1, "adam": 0.001, "adamw": 0.001}
"""Default learning rates."""


class TrainSettings(Settings):
    """Settings of local training.

    Attributes
    ----------
    optimizer, momentum, nesterov, weight_decay, betas : as in torch.optim; momentum and nesterov for sgd, betas for
        adam and adamw.
    learning_rate : by default 0.1 for sgd, 0.001 for adam and adamw.
    batch_size : examples per minibatch.
    local_epochs or local_steps : passes over a client's examples, or minibatches, per round (0 = no training); one
        epoch by default.
    learning_rate_decay : factor per round; round 1 has ``learning_rate``.
    learning_rate_factor : further factor: a number, or by round, ``[[1, 1.0], [801, 0.2]]`` for a fifth of the rate
        from round 801.
    warmup_epochs : local epochs of each round with a linear increase of the rate from 0, by minibatch; not with
        local_steps.
    final_learning_rate : after the warm-up, the rate decreases linearly to this at the end of the round; None:
        constant. Decay and factor apply to it too.
    clip_norm : maximum Euclidean norm of a client's gradient.
    loss                : ``auto`` is cross-entropy for classification, mae for forecasts, mse for regression.
    drop_last : drop an epoch's last minibatch if it is not full (never a client's only one).
    workers : blocks of clients that are computed in parallel; None uses all cores of the node.
    threads             : intra-op threads of each worker. Several wait for each other without pause: beside other
        programs, or with fewer cores than threads, one is many times as fast.
    device : ``auto`` uses a GPU if the node has one.
    block_size : number of clients that are computed together; None determines it from the model.
    compile             : train with compiled code. ``auto`` uses included native code, which fedgraph's recurrent
        models, its ``mlp`` and the alignment of IPA have, if the node has a C++ compiler, and builds it in a second;
        ``native`` warns if it cannot be used; ``true`` uses ``torch.compile`` for other models, stacked, which takes
        minutes and pays off only for large ones. Each step is equal to float tolerance. On a GPU a step is recorded as
        a CUDA graph, with the same bits, after 16 plain ones: unless this is ``false``, for blocks of up to 67 million
        parameters; ``true`` records blocks of any size, and at once.
    precision           : ``bf16`` computes the forward pass under autocast; parameters and updates stay float32.
    keep_optimizer : keep optimiser moments between rounds.
    function : ``package.module:function`` that trains a client instead: it is called as ``train(model, examples)``,
        with those keys of this table that its parameters name. See
        :class:`fedgraph.training.own_function.OwnFunction`.
    """

    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = Field(default=0.1, gt=0)
    learning_rate_decay: float = Field(default=1.0, gt=0, le=1)
    learning_rate_factor: Schedule = 1.0
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(default=0.0, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    batch_size: int = Field(default=32, ge=1)
    local_epochs: int | None = Field(default=None, ge=0)
    local_steps: int | None = Field(default=None, ge=0)
    warmup_epochs: float = Field(default=0.0, ge=0)
    final_learning_rate: float | None = Field(default=None, ge=0)
    clip_norm: float | None = Field(default=None, gt=0)
    loss: Literal["auto", "cross-entropy", "mae", "mse", "huber"] = "auto"
    drop_last: bool = False
    workers: int | None = Field(default=None, ge=1)
    threads: int = Field(default=1, ge=1)
    device: Literal["cpu", "auto", "cuda"] = "auto"
    block_size: int | None = Field(default=None, ge=1)
    compile: bool | Literal["native", "auto"] = "auto"
    precision: Literal["float32", "bf16"] = "float32"
    keep_optimizer: bool = False
    function: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _default_learning_rate(cls, table: Any) -> Any:
        if isinstance(table, dict) and all(table.get(name) is None for name in ("learning-rate", "learning_rate")):
            return {**table, "learning-rate": _LEARNING_RATES.get(table.get("optimizer", "sgd"), 0.1)}
        return table

    @model_validator(mode="before")
    @classmethod
    def _one_epoch_by_default(cls, table: Any) -> Any:
        names = {"local-epochs", "local_epochs", "local-steps", "local_steps"}
        if isinstance(table, dict) and all(table.get(name) is None for name in names):
            return {**table, "local-epochs": 1}
        return table

    @field_validator("local_steps")
    @classmethod
    def _epochs_or_steps(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("local_epochs") is not None:
            raise ValueError("set either local-epochs or local-steps, not both")
        return value

    @field_validator("warmup_epochs")
    @classmethod
    def _warmup_needs_epochs(cls, value: float, info: ValidationInfo) -> float:
        if value and info.data.get("local_steps") is not None:
            raise ValueError(
                "the number of steps per epoch differs between clients, and so would the warm-up with local-steps; "
                "use local-epochs, or leave out warmup-epochs"
            )
        return value

    @field_validator("nesterov")
    @classmethod
    def _nesterov_needs_momentum(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("momentum") == 0:
            raise ValueError("Nesterov's method needs a momentum above 0")
        return value

    @property
    def compiles(self) -> bool:
        """Whether included native code is used on this node."""
        return can_compile() if self.compile == "auto" else bool(self.compile)

    def rate(self, round: int) -> float:
        """Return the (maximum) learning rate of a round, from 1."""
        round = max(round, 1)
        changed = self.learning_rate_decay ** (round - 1) * value_at(self.learning_rate_factor, round)
        return self.learning_rate * changed

    def second(
        self,
        where: str,
        local_epochs: int | None = None,
        local_steps: int | None = None,
        learning_rate: float | None = None,
    ) -> TrainSettings:
        """Return these settings with another length or learning rate, if given, for a second training.

        A given rate is used in every round. Raises ExperimentError, naming ``where`` (``[ditto]``), when both lengths
        are given or do not fit the other settings.
        """
        table = self.as_table()
        if local_epochs is not None or local_steps is not None:
            lengths = {"local-epochs": local_epochs, "local-steps": local_steps}
            table = {key: value for key, value in table.items() if key not in lengths}
            table |= {key: value for key, value in lengths.items() if value is not None}
        if learning_rate is not None:
            table |= {"learning-rate": learning_rate, "learning-rate-decay": 1.0, "learning-rate-factor": 1.0}
        return parse(TrainSettings, table, where)

    def torch_device(self) -> torch.device:
        """Return the device of the tensors. Raises ExperimentError when CUDA is required and not available."""
        return chosen(self.device, "[train] device")
