"""The device of a computation; how a GPU computes there; and which part of it a node has.

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
"""Of the memory of a GPU that is free, where others have taken too much of it."""


def chosen(device: str, where: str) -> torch.device:
    """Return the device that a setting asks for; a GPU is set up by :func:`repeatable`.

    Raises ExperimentError when CUDA is demanded and not available.

    Parameters
    ----------
    device : ``auto`` is a GPU where there is one.
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
    """Have this process compute the same twice on a GPU, and float32 in float32: without TF32.

    Only operations of a user's own module that PyTorch has no repeatable form of differ; it warns of each.
    """
    # Read when cuBLAS is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Every fresh tensor would be filled with NaN.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def room(device: torch.device) -> float:
    """Return the bytes of a GPU that this process may count on: the same in every run on the same GPU.

    That is its share (:func:`gpu_share`) of the whole memory, and less only where others have taken half of that.
    """
    free, total = torch.cuda.mem_get_info(device)
    there = free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    own = gpu_share() * total
    return own if there >= own / 2 else _SHARE_OF_FREE * there


def gpu_share() -> float:
    """Return which part of a GPU is this node's: that which Ray has given it, where it runs on Ray, else all of it."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 1.0
    given = ray.get_runtime_context().get_assigned_resources().get("GPU", 1.0)
    return min(1.0, float(given)) or 1.0
