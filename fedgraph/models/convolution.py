"""Convolutions of many clients: folded into channels, all of them in one grouped convolution, or of one client alone.

A grouped convolution of many clients suits a GPU. On a CPU it is the slowest way: there clients are computed one after
the other (:mod:`fedgraph.training.working_set`), with channels last in memory, as PyTorch's kernels like it best.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def folded(images: Tensor) -> Tensor:
    """Fold clients into channels: ``[clients, batch, channels, ...]`` -> ``[batch, clients * channels, ...]``."""
    values = images.transpose(0, 1).flatten(1, 2)
    return values.to(memory_format=torch.channels_last) if _convolve_clients(images) else values


def unfolded(values: Tensor, clients: int) -> Tensor:
    """Return ``[batch, clients * channels, ...]`` as ``[clients, batch, channels, ...]``; undoes :func:`folded`."""
    return values.unflatten(1, (clients, -1)).transpose(0, 1)


def convolution(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Convolve each client's channels with its own kernels, with a margin that keeps the size of images.

    Returns ``[batch, clients * channels_out, height, width]``.

    Parameters
    ----------
    values : ``[batch, clients * channels_in, height, width]``, of :func:`folded`.
    weight : ``[clients, channels_out, channels_in, 3, 3]``.
    bias : ``[clients, channels_out]``.
    """
    kernels = weight.flatten(0, 1)
    if _convolve_clients(weight):
        kernels = kernels.to(memory_format=torch.channels_last)
    return functional.conv2d(values, kernels, None if bias is None else bias.flatten(), padding=1, groups=len(weight))


def _convolve_clients(tensor: Tensor) -> bool:
    return len(tensor) == 1 and tensor.device.type == "cpu"
