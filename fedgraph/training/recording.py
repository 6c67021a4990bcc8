"""Steps of training on a GPU, recorded as CUDA graphs: one launch in place of hundreds of small kernels."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
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

    def add(self, sums: Tensor, changed: Mapping[str, Tensor]) -> None:
        """Add the sums of the first clients, and write their changed buffers."""
        self.total[:, : sums.shape[1]] += sums
        for name, value in changed.items():
            self.buffers[name][: len(value)].copy_(value)

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
    differentiate : callable
        Forward and backward pass of all clients.
    settings : TrainSettings
        Optimiser and clipping.
    like : BlockState
        A block of the same shapes.
    """

    def __init__(self, differentiate: Differentiate, settings: TrainSettings, like: BlockState) -> None:
        super().__init__(
            torch.empty_like(like.parameters),
            {name: torch.empty_like(value) for name, value in like.moments.items()},
            {name: torch.empty_like(value) for name, value in like.buffers.items()},
            torch.empty_like(like.total),
        )
        self.differentiate, self.settings = differentiate, settings
        self.rate = self.parameters.new_zeros(len(self.parameters))
        self.pool: Any = None
        self._steps: dict[object, _Step] = {}

    def load(self, state: BlockState) -> None:
        """Copy the state of a block before its first step."""
        _copy(state.tensors(), self.tensors())

    def copy_to(self, moments: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Copy moments and buffers to those of a block."""
        _copy((*self.moments.values(), *self.buffers.values()), (*moments.values(), *buffers.values()))

    def step(
        self, batch: Batch, rate: float | Tensor, term: Callable[[], Tensor] | None, keys: Tensor | None = None
    ) -> None:
        """Take one step of all clients.

        Parameters
        ----------
        batch : Batch
            A minibatch of every client. Only some shapes are recorded.
        rate : float or Tensor
            Learning rate, or that of each client.
        term : callable, optional
            Returns what is added to the gradient; it is never recorded.
        keys : Tensor, optional
            Keys of random numbers, int64 ``[clients]``.
        """
        _ = self.rate.copy_(rate) if isinstance(rate, Tensor) else self.rate.fill_(rate)
        shapes = tuple(part.shape for part in batch)
        found = self._steps.get(shapes)
        if found is None:
            found = _Step(self, batch, keys, records=len(self._steps) < _SHAPES)
            if found.records:
                self._steps[shapes] = found
        found.take(batch, term, keys)


class _Step:
    """Steps of a block with minibatches of one shape."""

    def __init__(self, block: FixedBlock, batch: Batch, keys: Tensor | None, records: bool) -> None:
        self._block = block
        self._batch = Batch(*(torch.empty_like(part, memory_format=torch.contiguous_format) for part in batch))
        self._keys = None if keys is None else torch.empty_like(keys)
        self._gradient = block.parameters
        self._left = 0 if block.settings.compile is True else PLAIN_STEPS
        self._graphs: dict[Callable[[], None], Any] = {}
        self.records = records

    def take(self, batch: Batch, term: Callable[[], Tensor] | None, keys: Tensor | None) -> None:
        """Take a step; see :meth:`FixedBlock.step`."""
        _copy(batch, self._batch)
        if self._keys is not None and keys is not None:
            self._keys.copy_(keys)
        if term is None:
            self._do(self._whole)
        else:
            self._do(self._differentiate)
            with torch.no_grad():
                self._gradient += term()
            self._do(self._update)
        self._left = max(0, self._left - 1)

    def _whole(self) -> None:
        self._differentiate()
        self._update()

    def _differentiate(self) -> None:
        block = self._block
        # When recorded, the gradient is at the same place in every replay.
        sums, self._gradient, changed = block.differentiate(
            block.parameters, block.buffers, self._batch, draws=self._keys
        )
        block.add(sums, changed)

    def _update(self) -> None:
        self._block.update(self._block.settings, self._gradient, self._block.rate)

    def _do(self, work: Callable[[], None]) -> None:
        if work not in self._graphs and self.records and not self._left:
            self._record(work)
        if work in self._graphs:
            self._graphs[work].replay()
        else:
            work()

    def _record(self, work: Callable[[], None]) -> None:
        # Recording runs it several times.
        changing = (*self._block.tensors(), *([self._gradient] if work == self._update else []))
        before = [each.clone() for each in changing]
        try:
            self._graphs[work] = recorded(work, self._block)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            self.records = False
            asked = self._block.settings.compile is True
            log.log(
                logging.WARNING if asked else logging.DEBUG,
                "[train] compile: recording CUDA graphs failed on this node, which computes without them (%s)",
                (str(error).strip().splitlines() or [type(error).__name__])[0],
                extra=ONCE,
            )
        finally:
            _copy(before, changing)


def recorded(work: Callable[[], None], block: FixedBlock) -> Any:
    """Record a function without arguments and result as a CUDA graph, in the memory of the other graphs of a block."""
    with _recording:
        apart = torch.cuda.Stream()
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart):
            for _ in range(_WARM_UP):
                work()
        torch.cuda.current_stream().wait_stream(apart)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU meanwhile, as for other nodes of this process.
        with torch.cuda.graph(graph, pool=block.pool, capture_error_mode="thread_local"):
            work()
        block.pool = graph.pool()
        return graph


def _copy(values: Iterable[Tensor], into: Iterable[Tensor]) -> None:
    for target, value in zip(into, values, strict=True):
        target.copy_(value)
