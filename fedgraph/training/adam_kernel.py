"""A step of Adam as one call into C++, for float32 on a CPU: every number is read and written once."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from fedgraph.models.native import loader as native
from fedgraph.models.native.shared_source import ADAM
from fedgraph.training.settings import TrainSettings

EPSILON = 1e-8

_SOURCE = (
    ADAM
    + r"""
namespace {

struct Step {
    AdamSettings adam;
    Size rows, columns;
    const double* rates;    // of each row, or null where all have that of the settings
    float* steps;           // that each row's moments have seen, [rows]
    float* parameters;      // [rows, columns]
    const float* gradient;
    float* mean;            // first moments
    float* square;          // second moments
};

void row_of(const Step& s, Size row) {
    float* __restrict parameters = s.parameters + row * s.columns;
    const float* __restrict gradient = s.gradient + row * s.columns;
    float* __restrict mean = s.mean + row * s.columns;
    float* __restrict square = s.square + row * s.columns;
    const Adam adam(s.adam, s.rates ? s.rates[row] : s.adam.rate, s.steps[row] += 1.0f);
    for (Size k = 0; k < s.columns; ++k) adam.move(parameters[k], gradient[k], mean[k], square[k]);
}

}  // namespace

extern "C" void adam_step(const Step* step) {
    for (Size row = 0; row < step->rows; ++row) row_of(*step, row);
}
"""
)


class AdamSettings(ctypes.Structure):
    """``AdamSettings`` of :mod:`fedgraph.models.native.shared_source`, which explains the fields."""

    _fields_ = (
        ("decoupled", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("first", "second", "rate", "epsilon", "decay")),
    )

    @classmethod
    def of(cls, settings: TrainSettings, rate: float) -> AdamSettings:
        """Those of a step at this learning rate."""
        first, second = settings.betas
        return cls(settings.optimizer == "adamw", first, second, rate, EPSILON, settings.weight_decay)


class _Step(ctypes.Structure):
    """``Step`` of the C++ source."""

    _fields_ = (
        ("adam", AdamSettings),
        *((name, ctypes.c_int64) for name in ("rows", "columns")),
        *((name, ctypes.c_void_p) for name in ("rates", "steps", "parameters", "gradient", "mean", "square")),
    )


library = native.OnFirstUse("adam", _SOURCE, "Adam")
"""``library()``: the compiled step; None where it cannot be compiled."""


def plain(*tensors: Tensor) -> bool:
    """Whether they are what C++ reads: contiguous float32 on the CPU."""
    return all(t.dtype == torch.float32 and t.device.type == "cpu" and t.is_contiguous() for t in tensors)


def step(
    settings: TrainSettings, parameters: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor
) -> bool:
    """Move ``parameters`` ``[rows, columns]`` and the moments ``state`` in place.

    False, and nothing moved, where these settings do not ask for compiled code or it cannot take these tensors.

    gradient : of the same shape. rate : of all rows, or ``[rows]`` their own.
    """
    mean, square, steps = state["first-moment"], state["second-moment"], state["step"]
    compiled = library() if settings.compile and plain(parameters, gradient, mean, square, steps) else None
    if compiled is None:
        return False
    # C++ sees addresses only.
    if {gradient.shape, mean.shape, square.shape} != {parameters.shape} or steps.shape != parameters.shape[:1]:
        raise ValueError(f"the gradient {tuple(gradient.shape)} and moments do not fit {tuple(parameters.shape)}")
    rates = None if isinstance(rate, float) else rate.double().reshape(parameters.shape[:1]).contiguous()
    structure = _Step(
        adam=AdamSettings.of(settings, rate if isinstance(rate, float) else 0.0),
        rows=parameters.shape[0],
        columns=parameters.shape[1],
        rates=None if rates is None else rates.data_ptr(),
        steps=steps.data_ptr(),
        parameters=parameters.data_ptr(),
        gradient=gradient.data_ptr(),
        mean=mean.data_ptr(),
        square=square.data_ptr(),
    )
    compiled.adam_step(ctypes.byref(structure))
    return True
