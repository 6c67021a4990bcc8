"""What a model is built for, and the minibatches that it sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor


@dataclass(frozen=True)
class TaskSpec:
    """What is learned, equal for all clients of a run. Travels in the identity reply, so it is plain data.

    kind         : ``forecast`` (targets ``[steps]``), ``classification`` (class index) or ``regression`` (one number).
    input_shape  : shape of one input, e.g. ``(12, 1)`` steps x features, ``(1, 28, 28)``, ``(30,)``.
    output_shape : shape of one output of the model, e.g. ``(12,)`` steps or ``(10,)`` classes.
    step_minutes : minutes between two forecast steps; 0 when steps have no known length.
    unit         : unit of the targets for people, e.g. ``mph``; empty when there is none.
    """

    kind: Literal["forecast", "classification", "regression"]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]
    step_minutes: float = 0.0
    unit: str = ""
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()


class Batch(NamedTuple):
    """One minibatch of every client of a cohort.

    inputs  : ``[clients, batch, *input_shape]`` float32.
    targets : ``[clients, batch, *output_shape]`` float32, or ``[clients, batch]`` int64 class indices.
    weights : float32, shape of ``targets``: 1 where a target counts, 0 for padding and missing readings.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
