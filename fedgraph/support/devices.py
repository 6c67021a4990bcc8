"""Devices of computations, reproducible settings of GPUs, and a node's share of a GPU.

>>> from fedgraph.support.devices import chosen
>>> chosen("cpu", "[train] device")
device(type='cpu')
"""

from __future__ import annotations

import os
import sys

import torch
import torch.utils.deterministic

from fedgraph.support.errors import ExperimentError

_SHARE_OF_FREE = 0.8
"""Share of the free memory of a GPU that is used if other processes use much of it."""

_MOST_PINNED = 1 << 30


def chosen(device: str, where: str) -> torch.device:
    """Return the device of a setting; a GPU is configured by :func:`repeatable`.

    Raises ExperimentError when CUDA is required and not available.

    Parameters
    ----------
    device : ``auto`` is a GPU if available.
    where : name of the setting, for the error.
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise ExperimentError(
            f"{where}: 'cuda' was asked for, but this node has no CUDA device that PyTorch can use; set it to 'cpu', "
            "or to 'auto' to use one where there is one"
        )
    if device == "cpu" or not available:
        return torch.device("cpu")
    repeatable()
    return torch.device("cuda")


def repeatable() -> None:
    """Make GPU computations of this process deterministic, without TF32.

    PyTorch warns about operations of custom modules without a deterministic implementation.
    """
    # Read when cuBLAS is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Otherwise every new tensor is filled with NaN.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def results(rows: int, columns: int, device: torch.device) -> torch.Tensor:
    """Return an empty float32 matrix on the CPU for what ``device`` computes.

    For a GPU it is in pinned memory up to 1 GiB, to which a GPU copies ten times as fast.
    """
    pinned = device.type == "cuda" and torch.cuda.is_available() and 4 * rows * columns <= _MOST_PINNED
    return torch.empty(rows, columns, pin_memory=pinned)


def room(device: torch.device) -> float:
    """Return the GPU memory in bytes for this process, reproducible on the same GPU.

    It is the share (:func:`gpu_share`) of the whole memory, less only if other processes use half of that.
    """
    free, total = torch.cuda.mem_get_info(device)
    present = free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    own = gpu_share() * total
    return own if present >= own / 2 else _SHARE_OF_FREE * present


def gpu_share() -> float:
    """Return the share of a GPU of this node: as assigned by Ray, else 1."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 1.0
    given = ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0)
    return min(1.0, float(given)) or 1.0
