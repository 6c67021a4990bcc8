"""A frozen model that somebody else has made, evaluated in batches of a size that it can take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.fusion.owner_models.base import BATCH, Represented, check_shapes, represented
from fedgraph.models import TaskSpec
from fedgraph.support.errors import ExperimentError
from fedgraph.support.threads import pinned_threads

Run = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Inputs ``[batch, *input_shape]`` -> embeddings ``[batch, ...]`` and outputs ``[batch, classes]``."""

_TRIED = 3
"""Samples on which a model is tried: not 1 or 2, with which programs of a fixed batch size are mostly made."""


@dataclass(frozen=True)
class BatchedModel:
    """A model of one owner; see :class:`fedgraph.fusion.owner_models.base.LocalModel`.

    run         : one batch through the model.
    task        : what it is for.
    where       : what it is called in messages.
    fingerprint : what tells it from other models.
    smallest, largest : number of samples that it can take at once; fewer are filled up with zeros.

    Raises
    ------
    ExperimentError
        When it cannot be evaluated on a few samples, or what it puts out has another shape than the task needs.
    """

    run: Run
    task: TaskSpec
    where: str
    fingerprint: str
    smallest: int = 1
    largest: int = BATCH

    def __post_init__(self) -> None:
        embeddings, outputs = self._evaluate(torch.zeros(_TRIED, *self.task.input_shape))
        check_shapes(embeddings, outputs, self.task.output_shape[0], self.where)

    def represent(self, inputs: Tensor) -> Represented:
        """Inputs ``[samples, *input_shape]``; see :class:`fedgraph.fusion.owner_models.base.LocalModel`."""
        embeddings, outputs = self._evaluate(inputs)
        return represented(embeddings, outputs, self.task.output_shape[0], self.where)

    def _evaluate(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        parts = []
        with torch.no_grad(), pinned_threads(1):
            for some in inputs.float().split(max(self.smallest, min(BATCH, self.largest))):
                filled = torch.cat([some, some.new_zeros(max(0, self.smallest - len(some)), *some.shape[1:])])
                parts.append([self._checked(value, len(filled))[: len(some)] for value in self._run(filled)])
        embeddings, outputs = (torch.cat(part) for part in zip(*parts, strict=True))
        return embeddings, outputs

    def _run(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        try:
            return self.run(inputs)
        except ExperimentError:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExperimentError(
                f"{self.where} cannot be evaluated on {len(inputs)} samples of the shape {tuple(inputs.shape[1:])}: "
                f"{reason}; it has to take any number of samples of the shape that this data set has"
            ) from error

    def _checked(self, value: object, samples: int) -> Tensor:
        """``[samples, numbers]``."""
        if not isinstance(value, Tensor) or value.shape[:1] != (samples,):
            found = list(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ExperimentError(
                f"{self.where}: embeddings and outputs for {samples} samples have to be tensors [samples, ...], but "
                f"one of them is {found}"
            )
        return value.flatten(1).float()
