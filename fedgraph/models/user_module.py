"""Modules of a user's own class: building them alike everywhere, in float32, and finding out their structure."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import check_options, derived, load_object

log = logging.getLogger(__name__)

_ALIKE = {"rtol": 1e-3, "atol": 1e-5}
"""How far outputs may differ by the order of summation alone."""


class Call(NamedTuple):
    """How a module is called for some examples, and which rows of its outputs are theirs; None for all of them."""

    args: tuple[Tensor, ...] = ()
    named: Mapping[str, Any] = {}
    rows: Tensor | None = None

    def of(self, module: Callable[..., Tensor]) -> Tensor:
        """Call a module, and return its outputs for the examples."""
        return self.chosen(module(*self.args, **self.named))

    def chosen(self, values: Tensor) -> Tensor:
        """Return the rows of the examples."""
        return values if self.rows is None else values[self.rows]


def module_class(name: str) -> type[nn.Module]:
    """Import the class ``package.module:Class``.

    Raises ExperimentError when it cannot be imported, or is not a module class.
    """
    kind: type[nn.Module] = load_object(name, "[model] name", derived(nn.Module, named="torch.nn.Module"))
    return kind


def constructor_options(kind: type[nn.Module], task: TaskSpec, options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor: the task's shapes, where it has such parameters, and ``options``.

    Of graphs also ``in_channels`` and ``out_channels``, as models of PyTorch Geometric call them. Raises
    ExperimentError for options that could be code.
    """
    check_options(options, "[model] options")
    shapes: dict[str, Any] = {"input_shape": task.input_shape, "output_shape": task.output_shape}
    if task.level:
        shapes |= {"in_channels": task.input_shape[0], "out_channels": task.output_shape[0]}
    known = inspect.signature(kind).parameters
    return {key: value for key, value in shapes.items() if key in known} | options


def built(kind: type[nn.Module], options: dict[str, Any], first: Call) -> tuple[nn.Module, list[str]]:
    """Build a module in float32, whose lazy layers have the shapes that a ``first`` minibatch gives them.

    Returns
    -------
    module : nn.Module
        In training mode.
    types : list of str
        Other floating-point types that its constructor chose, such as ``bfloat16``.
    """
    module = kind(**options)
    types = sorted({_short(each.dtype) for each in _tensors(module) if each.is_floating_point()} - {"float32"})
    module = module.float()
    if any(is_lazy(each) for each in _tensors(module)):
        # In evaluation mode, which leaves running statistics as they are.
        with torch.no_grad():
            first.of(module.eval())
        module.train()
    return module, types


def check_real(name: str, module: nn.Module) -> None:
    """Raise ExperimentError for complex parameters."""
    found = [key for key, value in module.named_parameters() if value.is_complex()]
    if found:
        raise ExperimentError(
            f"[model] {name}: {_listed(found)} {'is' if len(found) == 1 else 'are'} complex, and models are sent and "
            "averaged as real numbers: keep the real and the imaginary part in a real parameter [..., 2], and use "
            "torch.view_as_complex of it in forward"
        )


def check_counters(name: str, module: nn.Module, build: Callable[[], nn.Module], call: Call) -> None:
    """Warn, once for each class, of integer buffers that training would change: they keep their initial values.

    Raises ExperimentError for batch normalisation that depends on such a counter.
    """
    for place, layer in module.named_modules():
        if isinstance(layer, _NormBase) and layer.track_running_stats and layer.momentum is None:
            raise ExperimentError(
                f"[model] {name}: layer '{place}' averages over all batches so far (momentum=None), which it counts in "
                "an integer buffer, and these keep their initial values: give it a momentum, such as 0.1"
            )
    counters = [
        key for key, value in module.named_buffers()
        if not value.is_floating_point() and not key.endswith("num_batches_tracked")
    ]  # fmt: skip
    changed = sorted(changed_in_training(build, call, counters))
    if changed:
        log.warning(
            "[model] %s changes %s in training: buffers that are no floating-point numbers keep their initial values "
            "here; make them float32 if results depend on them",
            name, _listed(changed), extra={"once": f"counters {name}"},
        )  # fmt: skip


def warn_of_probabilities(name: str, outputs: Tensor) -> None:
    """Warn, once for each class, of a classifier whose outputs ``[examples, classes]`` are probabilities."""
    sums = outputs.sum(1)
    if outputs.shape[1] > 1 and bool((outputs >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-5):
        log.warning(
            "[model] %s puts out probabilities: its last softmax is one too many, as the loss and predictions take "
            "outputs before a softmax (logits). Remove it, or return their logarithm",
            name, extra={"once": f"probabilities {name}"},
        )  # fmt: skip


def say_converted(name: str, types: Iterable[str]) -> None:
    """Warn, once for each class, that fedgraph computes in float32."""
    found = _listed(list(types))
    if found:
        log.warning(
            "[model] %s has %s parameters: fedgraph makes every model float32, and trains, sends and keeps it so",
            name, found, extra={"once": f"float32 {name}"},
        )  # fmt: skip


def hint_of_types(types: Iterable[str]) -> str:
    """Return what to add to the error of a module whose constructor chose other types than float32."""
    found = _listed(list(types))
    if not found:
        return ""
    return (
        f" (its parameters were {found}: fedgraph makes every model float32, so its forward must not convert inputs to "
        f"{found}, but to the type of its parameters)"
    )


class Slots:
    """Where a module keeps its tensors: ``torch.func.functional_call`` that looks for them once, not in every call.

    Parameters
    ----------
    module : its layers and its tied parameters are kept.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        places: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for layer in module.modules():
            for keeper in (layer._parameters, layer._buffers):
                for key, value in keeper.items():
                    places.setdefault(id(value), []).append((keeper, key))
        named = chain(module.named_parameters(), module.named_buffers())
        self._places = {name: (value, places[id(value)]) for name, value in named}

    def call(self, tensors: Mapping[str, Tensor], given: Call) -> Tensor:
        """Return the module's outputs for examples, with other tensors, by name, instead of its own."""
        try:
            for name, value in tensors.items():
                for keeper, key in self._places[name][1]:
                    keeper[key] = value
            return given.of(self.module)
        finally:
            for name in tensors:
                own, places = self._places[name]
                for keeper, key in places:
                    keeper[key] = own


def mixes_examples(
    build: Callable[[], nn.Module],
    whole: Call,
    part: Call,
    training: bool,
    drawing: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> bool:
    """Find out by trying whether the output of an example depends on the others of its minibatch.

    ``part`` is the call for two of the examples of ``whole``, the first ones; each call has its own context, in which
    both draw the same. A module that fails is assumed to mix:
    its minibatches then have no padding, which is slower but never wrong.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            with drawing():
                outputs = whole.of(build().train(training))
            with drawing():
                some = part.of(build().train(training))
            return not torch.allclose(outputs[:2], some, **_ALIKE, equal_nan=True)
        except Exception:
            return True


def least_examples(build: Callable[[], nn.Module], one: Call, two: Call) -> int:
    """Find out by trying how many examples a minibatch must have: 2 where one has no statistics, else 1.

    Batch normalisation raises an error for one example without a spatial extent; other layers return NaN.
    """

    def works(call: Call) -> bool:
        try:
            return bool(call.of(build().train()).isfinite().all())
        except Exception:
            return False

    with torch.random.fork_rng(devices=[]), torch.no_grad():
        return 2 if not works(one) and works(two) else 1


def changed_in_training(build: Callable[[], nn.Module], call: Call, names: Iterable[str]) -> set[str]:
    """Find out by trying which of some parameters and buffers the forward pass in training changes, as in place.

    All of them, for a module that fails.
    """
    names = set(names)
    if not names:
        return set()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        module = build().train()
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        before = {name: tensors[name].clone() for name in names}
        try:
            call.of(module)
        except Exception:
            return names
        after = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name for name in names if not after[name].equal(before[name])}


def _tensors(module: nn.Module) -> Iterable[Tensor]:
    return chain(module.parameters(), module.buffers())


def _short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
