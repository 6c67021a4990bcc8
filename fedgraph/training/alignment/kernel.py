"""One alignment step of a peer and the others in C++, for float32 on a CPU and Adam.

It reads and writes every number once, while PyTorch operations need a dozen passes and memory for all differences.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fedgraph.models.native import loader as native
from fedgraph.models.native.alignment_source import SOURCE
from fedgraph.training.optimisers import EPSILON
from fedgraph.training.settings import TrainSettings

_PER_THREAD = 1 << 20
"""Minimum number of values per thread."""


class AdamSettings(ctypes.Structure):
    """``AdamSettings`` of :mod:`fedgraph.models.native.shared_source`, where the fields are documented."""

    _fields_ = (
        ("decoupled", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("first", "second", "rate", "epsilon", "decay")),
    )

    @classmethod
    def of(cls, settings: TrainSettings, rate: float) -> AdamSettings:
        """Return the settings of a step at this learning rate."""
        first, second = settings.betas
        return cls(settings.optimizer == "adamw", first, second, rate, EPSILON, settings.weight_decay)


class _Alignment(ctypes.Structure):
    """``Alignment`` of the C++ source, where the fields are documented."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("peers", "columns", "threads")),
        ("adam", AdamSettings),
        ("power", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("own", "weights", "steps")),
        *((name, ctypes.c_void_p) for name in ("others", "mean", "square", "added")),
    )


library = native.OnFirstUse("peer-alignment", SOURCE, "the alignment")
"""``library()`` returns the compiled step, or None if it cannot be compiled."""


def _plain(*tensors: Tensor) -> bool:
    """Return whether the tensors are contiguous float32 on the CPU."""
    return all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)


def suits(settings: TrainSettings, *tensors: Tensor) -> bool:
    """Return whether :func:`align` supports these tensors, and the settings enable compiled code."""
    wanted = settings.compiles and settings.optimizer != "sgd"
    return wanted and _plain(*tensors) and library() is not None


def align(
    own: Tensor,
    others: Tensor,
    weights: Tensor,
    power: float,
    moments: dict[str, Tensor] | None,
    settings: TrainSettings,
    rate: float,
) -> Tensor:
    """Return :func:`~fedgraph.training.alignment.peer_alignment.alignment_pull` summed over peers; update the others.

    own     : ``[parameters]``. weights : lambda c, ``[peers]``.
    others : ``[peers, parameters]``, updated in place by a step of Adam at ``rate`` with their part of the gradient.
    moments : of the others' Adam, updated in place; None: the others are fixed.

    The result is ``[parameters]``.
    """
    compiled = library()
    assert compiled is not None
    peers, columns = others.shape
    # C++ receives only addresses.
    if own.shape != (columns,) or weights.shape != (peers,):
        raise ValueError(f"{tuple(own.shape)} and weights {tuple(weights.shape)} do not fit {tuple(others.shape)}")
    own, weights = own.contiguous(), weights.contiguous()
    if not _plain(own, weights, others, *({} if moments is None else moments).values()):
        raise ValueError("parameters, weights and moments must be contiguous float32 on the CPU")
    added = torch.empty(columns, dtype=torch.float32)
    structure = _Alignment(
        peers=peers,
        columns=columns,
        threads=min(torch.get_num_threads(), 1 + peers * columns // _PER_THREAD),
        adam=AdamSettings.of(settings, rate),
        power=power,
        own=own.data_ptr(),
        weights=weights.data_ptr(),
        others=others.data_ptr(),
        added=added.data_ptr(),
    )
    if moments is not None:
        shapes = {"first-moment": others.shape, "second-moment": others.shape, "step": (peers,)}
        if any(moments[name].shape != shape for name, shape in shapes.items()):
            raise ValueError(f"the moments do not fit {tuple(others.shape)}")
        structure.mean, structure.square = moments["first-moment"].data_ptr(), moments["second-moment"].data_ptr()
        structure.steps = moments["step"].data_ptr()
    compiled.align(ctypes.byref(structure))
    return added
