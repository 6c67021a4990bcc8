"""Random numbers of a module's forward pass from a generator of your own, so that several threads may draw at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_GENERATED: frozenset[Callable[..., Any]] = frozenset(
    (
        *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal, torch.bernoulli, torch.multinomial),
        *(Tensor.bernoulli, Tensor.bernoulli_, Tensor.normal_, Tensor.uniform_, Tensor.exponential_, Tensor.random_),
        *(Tensor.multinomial, Tensor.log_normal_, Tensor.cauchy_, Tensor.geometric_),
    )
)
"""Functions that take a generator."""


class OwnDraws(TorchFunctionMode):
    """Within this context, what a thread draws comes from ``generator``: dropout, and functions that take a generator.

    Whatever else draws, such as a recurrent layer with dropout inside, still does so from torch's own generator, which
    all threads share.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, with the generator where it draws."""
        kwargs = dict(kwargs or {})
        if func is functional.dropout:
            return self._dropout(*args, **kwargs)
        if func is functional.dropout2d:
            return self._dropout(*args, **{**kwargs, "whole_channels": True})
        if func in _GENERATED and kwargs.get("generator") is None:
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, whole_channels: bool = False
    ) -> Tensor:
        """Set values, or whole channels ``[batch, channels, ...]``, to 0 with probability ``p``, and scale the rest."""
        if not training or p == 0:
            return input
        shape = (*input.shape[:2], *[1] * (input.dim() - 2)) if whole_channels else input.shape
        kept = torch.empty(shape, dtype=input.dtype).bernoulli_(1 - p, generator=self.generator)
        if p < 1:
            kept.div_(1 - p)
        return input.mul_(kept) if inplace else input * kept
