"""Random numbers of a module's forward pass as hashes, so that many clients are computed at once, each with its own.

A number depends on the client's key for the step, on how many draws the forward pass made before, and on the position
in the drawn tensor: position ``(i, j, ...)`` is hashed as ``key + i m_0 + j m_1 + ...`` with odd 63-bit factors ``m``,
as SplitMix64 hashes multiples of its own. So neither the clients of a block nor the length to which minibatches are
padded change it, and it is the same on every device. A GPU is neither waited for nor sent anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedgraph.models.own_draws import OwnDraws
from fedgraph.support.randomness import derive_seed, hashed

_SELU_LEAST = -1.7580993408473766

_keys: ContextVar[Tensor | None] = ContextVar("keys of the clients' draws", default=None)


def drawing_from(source: torch.Generator | Tensor | None) -> AbstractContextManager[object]:
    """Return the context in which a forward pass in training draws from a source of its own.

    Parameters
    ----------
    source : torch.Generator, Tensor or None
        A generator, see :class:`fedgraph.models.own_draws.OwnDraws`; or the key of each client for this forward pass,
        int64 ``[clients]`` on the device of the model, see :class:`HashedDraws`; or None, which changes nothing.
    """
    if source is None:
        return nullcontext()
    return _by_keys(source) if isinstance(source, Tensor) else OwnDraws(source)


@contextmanager
def _by_keys(keys: Tensor) -> Iterator[None]:
    token = _keys.set(keys)
    try:
        yield
    finally:
        _keys.reset(token)


def keys_of_draws() -> Tensor | None:
    """Return the keys of :func:`drawing_from`, int64 ``[clients]``; None outside of its context."""
    return _keys.get()


class HashedDraws(TorchFunctionMode):
    """Within this context, one forward pass of one client draws hashes of its ``key``, int64 without dimensions.

    These are the draws of all dropout functions, ``rand``, ``randn``, ``bernoulli``, and of the methods that fill a
    tensor by these laws. Works within ``vmap``.
    """

    def __init__(self, key: Tensor) -> None:
        super().__init__()
        self.key = key
        self.count = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch, or its counterpart where it draws."""
        kwargs = kwargs or {}
        elsewhere = kwargs.get("generator") is not None or kwargs.get("out") is not None or kwargs.get("requires_grad")
        if func not in _COUNTERPARTS or elsewhere:
            return func(*args, **kwargs)
        return _COUNTERPARTS[func](self, *args, **{name: each for name, each in kwargs.items() if name not in _PLAIN})

    def _numbers(self, shape: Sequence[int]) -> Tensor:
        """Return the next draw: random int32 of a shape. A hash has the numbers of two neighbours on the last axis."""
        *outer, last = shape or (1,)
        places = self.key + _wrapped(_factor("draw") * self.count)
        self.count += 1
        for axis, size in enumerate((*outer, (last + 1) // 2)):
            places = places[..., None] + torch.arange(size, device=self.key.device) * _factor(axis)
        wide = hashed(places)
        # The halves of a number, the lower one first. Not every PyTorch has `vmap` of a view as another type.
        halves = torch.stack([wide << 32 >> 32, wide >> 32], dim=-1).to(torch.int32)
        return halves.flatten(-2)[..., :last].reshape(shape)

    def kept(self, shape: Sequence[int], probability: float) -> Tensor:
        """Return bool of a shape, each True with the same probability, below 1."""
        return self._numbers(shape) < min(math.floor(probability * 2**32) - 2**31, 2**31 - 1)

    def uniform(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return uniform numbers in [0, 1) of a floating-point type, multiples of 2^-24 or of what the type has."""
        _check_real(dtype)
        bits = min(24, 2 - math.frexp(torch.finfo(dtype).eps)[1])
        whole = (self._numbers(shape) >> (32 - bits)).bitwise_and_((1 << bits) - 1)
        return whole.to(dtype).mul_(2.0**-bits)

    def normal(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """Return standard normal numbers, by the inverse of their distribution function at 2^23 points."""
        _check_real(dtype)
        odd = (self._numbers(shape) >> 8) | 1
        return odd.to(torch.float32).mul_(2.0**-23).erfinv_().mul_(math.sqrt(2)).to(dtype)


def _dropout(
    draws: HashedDraws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, apart: int = 99
) -> Tensor:
    """Set values to 0 with probability ``p``, those alike on the first ``apart`` axes together, and scale the rest."""
    if not training or p == 0:
        return input
    scales = _scales(draws, input, 1 - p, apart)
    if p < 1:
        scales.mul_(1 / (1 - p))
    return input.mul_(scales) if inplace else input * scales


def _channels(
    draws: HashedDraws, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, whole: int = 5
) -> Tensor:
    """Drop whole channels of examples ``[batch, channels, ...]`` of ``whole`` axes, or of one example without batch."""
    return _dropout(draws, input, p, training, inplace, apart=1 if input.dim() < whole else 2)


def _alpha_dropout(
    draws: HashedDraws, input: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False, apart: int = 99
) -> Tensor:
    """Set values to the least of SELU with probability ``p``, keeping mean and variance (Klambauer et al. 2017)."""
    if not training or p == 0:
        return input
    if p == 1:
        return input.mul_(0) if inplace else input * 0
    kept = _scales(draws, input, 1 - p, apart)
    scale = ((1 - p) * (1 + p * _SELU_LEAST**2)) ** -0.5
    shift = (1 - kept - p).mul_(scale * _SELU_LEAST)
    kept.mul_(scale)
    return input.mul_(kept).add_(shift) if inplace else input * kept + shift


def _scales(draws: HashedDraws, like: Tensor, probability: float, apart: int) -> Tensor:
    """Return 1 with a probability, else 0, in the type of a tensor, that broadcast along its axes from ``apart`` on."""
    kept = draws.kept(like.shape[:apart], probability)
    return kept.to(like.device, like.dtype)[(..., *[None] * (like.dim() - kept.dim()))]


def _created(law: Callable[..., Tensor], draws: HashedDraws, *size: Any, **named: Any) -> Tensor:
    """Return a tensor as ``torch.rand`` and ``torch.randn`` do."""
    given = named.get("size", size)
    shape = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
    dtype, device = named.get("dtype") or torch.get_default_dtype(), named.get("device") or torch.get_default_device()
    return law(draws, shape, dtype).to(device)


def _created_like(law: Callable[..., Tensor], draws: HashedDraws, input: Tensor, **named: Any) -> Tensor:
    """Return a tensor as ``torch.rand_like`` and ``torch.randn_like`` do."""
    dtype, device = named.get("dtype") or input.dtype, named.get("device") or input.device
    return law(draws, input.shape, dtype).to(device)


def _bernoulli(draws: HashedDraws, input: Tensor, p: float | None = None) -> Tensor:
    """Return 1 with the probabilities ``input``, or ``p``, else 0, in the type of ``input``."""
    return (draws.uniform(input.shape) < (input if p is None else p)).to(input.dtype)


def _bernoulli_(draws: HashedDraws, self: Tensor, p: float | Tensor = 0.5) -> Tensor:
    return self.copy_(draws.uniform(self.shape) < p)


def _uniform_(draws: HashedDraws, self: Tensor, *bounds: float, **named: float) -> Tensor:
    given = {**dict(zip(("from", "to"), bounds, strict=False)), **named}
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    return self.copy_(draws.uniform(self.shape, self.dtype).mul_(high - low).add_(low))


def _normal_(draws: HashedDraws, self: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    return self.copy_(draws.normal(self.shape, self.dtype).mul_(std).add_(mean))


def _check_real(dtype: torch.dtype) -> None:
    if not dtype.is_floating_point:
        raise TypeError(f"random numbers of type {dtype} are not drawn by hashing")


@cache
def _factor(axis: int | str) -> int:
    """Return an odd 63-bit number."""
    return derive_seed(0, "draws", axis) | 1


def _wrapped(value: int) -> int:
    """Return the int64 of the same lowest 64 bits."""
    return (value + 2**63) % 2**64 - 2**63


_PLAIN = frozenset(("generator", "out", "requires_grad", "layout", "memory_format", "pin_memory", "names"))
"""Arguments that change nothing, as far as they get here."""

_COUNTERPARTS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.dropout: _dropout,
    functional.dropout1d: partial(_channels, whole=3),
    functional.dropout2d: partial(_dropout, apart=2),  # of three axes, the first is the batch
    functional.dropout3d: partial(_channels, whole=5),
    functional.alpha_dropout: _alpha_dropout,
    functional.feature_alpha_dropout: partial(_alpha_dropout, apart=2),
    torch.rand: partial(_created, HashedDraws.uniform),
    torch.randn: partial(_created, HashedDraws.normal),
    torch.rand_like: partial(_created_like, HashedDraws.uniform),
    torch.randn_like: partial(_created_like, HashedDraws.normal),
    torch.bernoulli: _bernoulli,
    Tensor.bernoulli: _bernoulli,
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
}
