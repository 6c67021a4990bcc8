"""Functions compiled by ``torch.compile`` on a CPU, with the plain function as fallback."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree

log = logging.getLogger("fedgraph")

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

SHAPES = 8
"""Maximum number of sets of argument shapes per compiled function; others use the plain function."""

_building = threading.Lock()


class Compiled(Generic[Arguments, Result]):
    """A function that is compiled on the first call with a set of argument shapes, which takes seconds.

    Gradients are those of the plain function; results agree to float tolerance, and random numbers are the same. If
    compilation fails (for example without a C++ compiler), a warning is logged once and the plain function is used.
    Thread-safe. Every new set of shapes is compiled separately: call the plain ``function`` for rare shapes.

    function : the plain function. failed : whether compiling has failed.
    """

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        self.function = function
        self.failed = False
        self._built: dict[Any, Callable[Arguments, Result]] = {}

    def __call__(self, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        """Return the result of the function; errors are those of the function."""
        if self.failed:
            return self.function(*args, **kwargs)
        tensors = [leaf for leaf in _pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        key = (torch.is_grad_enabled(), *((each.shape, each.stride(), each.dtype, each.device) for each in tensors))
        built = self._built.get(key)
        if built is not None:
            return built(*args, **kwargs)
        if len(self._built) < SHAPES:
            with _building:
                return self._first(key, *args, **kwargs)
        return self.function(*args, **kwargs)

    def _first(self, key: Any, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # Another thread may have compiled it.
        built = self._built.get(key)
        if self.failed or (built is None and len(self._built) >= SHAPES):
            return self.function(*args, **kwargs)
        try:
            if built is None:
                built = _build(self.function)
            result = built(*args, **kwargs)
        except Exception as error:
            # Raises an error of the function again.
            result = self.function(*args, **kwargs)
            self.failed = True
            reason = str(error).strip().splitlines() or [type(error).__name__]
            log.warning(
                "[train] compile: torch.compile failed on this node, which computes without it (%s); install a C++ "
                "compiler such as g++, or set compile to false",
                reason[0],
            )
            return result
        self._built[key] = built
        return result


def _build(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return function(*args, **kwargs)

    # Compiled graphs are cached per code object, in limited number: a copy excludes those compiled elsewhere.
    call.__code__ = call.__code__.replace()
    # Without the C++ wrapper, kernels hold Python's global lock.
    return torch.compile(call, fullgraph=True, dynamic=False, options={"fallback_random": True, "cpp_wrapper": True})
