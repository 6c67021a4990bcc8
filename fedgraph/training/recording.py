"""Steps of training on a GPU, recorded as CUDA graphs: one launch in place of hundreds of small kernels."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from fedgraph.models import Batch
from fedgraph.support.status import ONCE
from fedgraph.training.optimisers import Optimiser, clip_rows
from fedgraph.training.settings import TrainSettings

log = logging.getLogger("fedgraph")


class Differentiate(Protocol):
    """Forward and backward pass of all clients."""

    def __call__(
        self, models: Tensor, buffers: Mapping[str, Tensor], batch: Batch, *, draws: Tensor | None
    ) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
        """Return sums ``[2, clients]``, the gradient, and changed buffers; ``draws`` are keys of random numbers."""


PLAIN_STEPS = 16
"""Steps before one is recorded by default, which takes as long as some ten plain steps."""

_SHAPES = 4
"""Most shapes of minibatches that are recorded for a block, such as those of an epoch's full and last ones."""

_WARM_UP = 2
_recording = threading.Lock()
"""PyTorch waits for the whole GPU before it records, which a recording of another thread does not survive."""


@dataclass(eq=False)
class BlockState:
    """What training changes in a block of clients, in place.

    parameters : of the trained ones, ``[clients, parameters]``.
    moments    : of the optimiser, with a leading client axis.
    buffers    : such as running statistics, likewise.
    total      : sums of weighted losses and of weights, float64 ``[2, clients]``.
    """

    parameters: Tensor
    moments: dict[str, Tensor]
    buffers: Mapping[str, Tensor]
    total: Tensor

    @torch.no_grad()
    def add(self, sums: Tensor, changed: Mapping[str, Tensor]) -> None:
        """Add the sums of the first clients, and write their changed buffers."""
        self.total[:, : sums.shape[1]] += sums
        for name, value in changed.items():
            self.buffers[name][: len(value)].copy_(value)

    @torch.no_grad()
    def update(self, settings: TrainSettings, gradient: Tensor, rate: float | Tensor) -> None:
        """Take a step of the first clients against their ``gradient``, which is overwritten."""
        if settings.clip_norm is not None:
            clip_rows(gradient, settings.clip_norm)
        default, own = (0.0, rate) if isinstance(rate, Tensor) else (rate, None)
        Optimiser(settings, default, self.moments).step(self.parameters, gradient, own)

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors."""
        yield from (self.parameters, *self.moments.values(), *self.buffers.values(), self.total)


class FixedBlock(BlockState):
    """A block whose tensors stay where they are, so that steps of all its clients can be recorded and replayed.

    A recorded step computes what the plain one does, bit for bit. If it cannot be recorded, as when it waits for the
    GPU, it is computed plainly.

    Parameters
    ----------
    settings : TrainSettings
        Optimiser and clipping.
    like : BlockState
        A block of the same shapes.
    """

    def __init__(self, settings: TrainSettings, like: BlockState) -> None:
        super().__init__(
            torch.empty_like(like.parameters),
            {name: torch.empty_like(value) for name, value in like.moments.items()},
            {name: torch.empty_like(value) for name, value in like.buffers.items()},
            torch.empty_like(like.total),
        )
        self._settings = settings
        self._rate = self.parameters.new_zeros(len(self.parameters))
        self._pool: Any = None
        self._steps: dict[object, _Step] = {}

    def load(self, state: BlockState) -> None:
        """Copy the state of a block before its first step."""
        _copy(state.tensors(), self.tensors())

    def copy_to(self, moments: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Copy moments and buffers to those of a block."""
        _copy((*self.moments.values(), *self.buffers.values()), (*moments.values(), *buffers.values()))

    def step(
        self,
        differentiate: Differentiate,
        batch: Batch,
        rate: float | Tensor,
        term: Callable[[], Tensor] | None,
        keys: Tensor | None = None,
    ) -> None:
        """Take one step of all clients.

        Parameters
        ----------
        differentiate : callable
            Forward and backward pass, the same in every step.
        batch : Batch
            A minibatch of every client. Only some shapes are recorded.
        rate : float or Tensor
            Learning rate, or that of each client.
        term : callable, optional
            Returns what is added to the gradient; it is never recorded.
        keys : Tensor, optional
            Keys of random numbers, int64 ``[clients]``.
        """
        _ = self._rate.copy_(rate) if isinstance(rate, Tensor) else self._rate.fill_(rate)
        step = self._step(batch, keys)
        step.fill(batch, keys)

        def differentiated() -> None:
            # When recorded, the gradient is at the same place in every replay.
            found = differentiate(self.parameters, self.buffers, step.batch, draws=step.keys)
            sums, step.gradient, changed = found
            self.add(sums, changed)

        def updated() -> None:
            self.update(self._settings, step.gradient, self._rate)

        def whole() -> None:
            differentiated()
            updated()

        if term is None:
            self._do(step, "whole", whole)
        else:
            self._do(step, "gradient", differentiated)
            with torch.no_grad():
                step.gradient += term()
            self._do(step, "update", updated, step.gradient)
        step.left = max(0, step.left - 1)

    def _step(self, batch: Batch, keys: Tensor | None) -> _Step:
        """Return the tensors of minibatches of these shapes."""
        shapes = tuple(part.shape for part in batch)
        if shapes in self._steps:
            return self._steps[shapes]
        step = _Step(
            Batch(*(torch.empty_like(part, memory_format=torch.contiguous_format) for part in batch)),
            None if keys is None else torch.empty_like(keys),
            self.parameters,
            left=0 if self._settings.compile is True else PLAIN_STEPS,
            records=len(self._steps) < _SHAPES,
        )
        if step.records:
            self._steps[shapes] = step
        return step

    def _do(self, step: _Step, name: str, work: Callable[[], None], *changed: Tensor) -> None:
        """Do some work on the tensors of the block and on ``changed``, recorded if it is time for it."""
        if name not in step.graphs and step.records and not step.left:
            self._record(step, name, work, *changed)
        if name in step.graphs:
            step.graphs[name].replay()
        else:
            work()

    def _record(self, step: _Step, name: str, work: Callable[[], None], *changed: Tensor) -> None:
        # Recording runs it several times.
        changing = (*self.tensors(), *changed)
        before = [each.clone() for each in changing]
        try:
            step.graphs[name] = recorded(work, self._pool)
            self._pool = step.graphs[name].pool()
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            step.records = False
            asked = self._settings.compile is True
            log.log(
                logging.WARNING if asked else logging.DEBUG,
                "[train] compile: recording CUDA graphs failed on this node, which computes without them (%s)",
                (str(error).strip().splitlines() or [type(error).__name__])[0],
                extra=ONCE,
            )
        finally:
            _copy(before, changing)


@dataclass(eq=False)
class _Step:
    """Tensors of the steps of a block with minibatches of one shape, and what is recorded of them.

    left : plain steps before one is recorded. records : whether one is.
    """

    batch: Batch
    keys: Tensor | None
    gradient: Tensor
    left: int
    records: bool
    graphs: dict[str, Any] = field(default_factory=dict)

    def fill(self, batch: Batch, keys: Tensor | None) -> None:
        """Copy a minibatch, and the keys of its random numbers."""
        _copy(batch, self.batch)
        if self.keys is not None and keys is not None:
            self.keys.copy_(keys)


def recorded(work: Callable[[], None], pool: Any) -> Any:
    """Record a function without arguments as a CUDA graph.

    Parameters
    ----------
    pool : memory of other graphs that never run at the same time, or None.
    """
    with _recording:
        apart = torch.cuda.Stream()
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):
            for _ in range(_WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(apart)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile, as for other nodes of this process.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            work()
        return graph


def _copy(values: Iterable[Tensor], into: Iterable[Tensor]) -> None:
    for target, value in zip(into, values, strict=True):
        target.copy_(value)
