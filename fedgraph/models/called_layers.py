"""Layers that a module calls, and what they are called with: embeddings are the input of the last linear one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

Result = TypeVar("Result")


def last_linear(module: nn.Module, *inputs: Tensor, **named: Tensor) -> str | None:
    """Find the ``nn.Linear`` that is called last for ``inputs``.

    Returns its name within ``module``; None if no such layer is called.
    """
    layers = {name: layer for name, layer in module.named_modules() if name and isinstance(layer, nn.Linear)}
    return last_called(layers, lambda: module(*inputs, **named))


def last_called(layers: Mapping[str, nn.Module], call: Callable[[], object]) -> str | None:
    """Return the name of the layer that ``call`` calls last; None if it calls none of them."""
    called: list[str] = []
    hooks = [
        layer.register_forward_pre_hook(lambda layer, given, name=name: called.append(name))
        for name, layer in layers.items()
    ]
    try:
        with torch.no_grad():
            call()
    finally:
        for hook in hooks:
            hook.remove()
    return called[-1] if called else None


def with_input_of(module: nn.Module, layer: str, call: Callable[[], Result]) -> tuple[Tensor | None, Result]:
    """Run ``call`` and record the input of one layer of ``module``.

    Parameters
    ----------
    module : nn.Module
        The module that ``call`` uses.
    layer : str
        Name of the layer.
    call : callable
        Without arguments.

    Returns
    -------
    input : Tensor or None
        Of the last call of the layer; None if it is not called, or not with a tensor.
    result : Any
        Of ``call``.
    """
    seen: list[object] = []
    hook = module.get_submodule(layer).register_forward_pre_hook(lambda layer, given: seen.extend(given[:1]))
    try:
        result = call()
    finally:
        hook.remove()
    last = seen[-1] if seen else None
    return (last if isinstance(last, Tensor) else None), result
