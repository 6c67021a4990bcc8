"""Any ``torch.nn`` module as a stacked model, through ``torch.func``: one ``vmap`` over the clients."""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
import threading
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedgraph.data.base import TaskSpec
from fedgraph.errors import ExperimentError
from fedgraph.models.stacked import ModelFromTwin
from fedgraph.parameters import Layout
from fedgraph.settings import Settings

logger = logging.getLogger(__name__)


class ModuleSettings(Settings):
    """``[model]`` with ``name = "package.module:Class"``; ``options`` are the arguments of its constructor."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)


class ModuleModel(ModelFromTwin):
    """A module class of the user's own, inputs ``[batch, *input_shape]`` and outputs ``[batch, *output_shape]``.

    Trained parameters come first in the layout; frozen parameters and floating-point buffers (running statistics)
    are its buffers. Other buffers (counters) stay as the constructor made them. A constructor that has parameters
    called ``input_shape`` or ``output_shape`` gets those of the task.
    """

    def __init__(self, settings: ModuleSettings, task: TaskSpec) -> None:
        super().__init__(task)
        self.name = settings.name
        self.kind = _load(settings.name)
        shapes = {"input_shape": task.input_shape, "output_shape": task.output_shape}
        known = inspect.signature(self.kind).parameters
        self.options = {key: value for key, value in shapes.items() if key in known} | settings.options
        self.vectorise = True
        self._own = threading.local()
        self._lock = threading.Lock()
        try:
            self._prototype = self.twin()
        except Exception as error:
            raise ExperimentError(
                f"[model] {self.name} cannot be built from the options {self.options}: {error}"
            ) from error
        self._check_output()

    def build_twin(self) -> nn.Module:
        """A fresh module of the user's class, in float32."""
        return self.kind(**self.options).float()

    @property
    def module(self) -> nn.Module:
        """A module of the calling thread's own: calling one puts the parameters of the moment into it."""
        if not hasattr(self._own, "module"):
            self._own.module = copy.deepcopy(self._prototype)
        module: nn.Module = self._own.module
        return module

    @cached_property
    def draws(self) -> bool:
        """Whether the forward pass in training draws random numbers (dropout), found out by trying.

        A module that cannot be tried on inputs of zeros is taken to draw, which is slower but never wrong.
        """
        module = self.twin().train()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.get_rng_state()
            try:
                module(torch.zeros(4, *self.task.input_shape))
            except Exception:
                return True
            return not torch.equal(torch.get_rng_state(), before)

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of one client's tensors; a parameter shared by two layers occurs once."""
        module = self._prototype
        kept = module.state_dict()
        buffers = {name: value for name, value in module.named_buffers() if name in kept and value.is_floating_point()}
        frozen = {name: value for name, value in module.named_parameters() if not value.requires_grad}
        return Layout.of(dict(module.named_parameters()) | buffers, buffers=[*frozen, *buffers])

    def forward(
        self, state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Inputs ``[clients, batch, *input_shape]``; see :class:`fedgraph.models.base.StackedModel`."""
        # A graph that is being compiled takes the parameters as inputs, so one module does for all threads.
        module = (self._prototype if torch.compiler.is_compiling() else self.module).train(training)
        one = partial(self._forward_one, module)
        if self.vectorise:
            # A generator's state is out of reach in a graph that is being compiled.
            remembers = training and not torch.compiler.is_compiling() and self.draws
            before = _generator_of(inputs).get_state() if remembers else None
            try:
                return vmap(one, randomness="different")(dict(state), inputs)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                reason = error
            if before is not None:
                # Draws in vain would shift those that count, and only the first time that a process tries.
                _generator_of(inputs).set_state(before)
        outputs = [
            one({name: value[client] for name, value in state.items()}, inputs[client])
            for client in range(inputs.shape[0])
        ]
        # Only now is it known that the module itself works and vmap is to blame.
        with self._lock:
            if self.vectorise:
                self.vectorise = False
                logger.warning("%s cannot be vectorised over clients; they run one by one (%s)", self.name, reason)
        changed = {name: torch.stack([buffers[name] for _, buffers in outputs]) for name in outputs[0][1]}
        return torch.stack([values for values, _ in outputs]), changed

    def _forward_one(
        self, module: nn.Module, state: dict[str, Tensor], inputs: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        # Copies, because layers with running statistics change their buffers in place.
        kept = self.layout.buffers
        tensors = {name: value.detach().clone() if name in kept else value for name, value in state.items()}
        for name, value in module.named_buffers():
            if name not in tensors:
                tensors[name] = value.to(inputs.device, copy=True)
        outputs = functional_call(module, tensors, (inputs,))
        return outputs, {name: tensors[name] for name in kept}

    def _check_output(self) -> None:
        module = self.module.eval()
        with torch.no_grad():
            try:
                shape = tuple(module(torch.zeros(2, *self.task.input_shape)).shape)
            except Exception as error:
                raise ExperimentError(
                    f"[model] {self.name} fails on two inputs of shape {self.task.input_shape}: {error}"
                ) from error
        if shape != (2, *self.task.output_shape):
            raise ExperimentError(
                f"[model] {self.name} puts out {list(shape)} for two inputs of shape {self.task.input_shape}; "
                f"the task needs {[2, *self.task.output_shape]}"
            )


def _generator_of(tensor: Tensor) -> torch.Generator:
    """The generator that operations on the device of ``tensor`` draw from."""
    return torch.cuda.default_generators[tensor.get_device()] if tensor.is_cuda else torch.default_generator


def _load(name: str) -> type[nn.Module]:
    module_name, _, class_name = name.partition(":")
    try:
        kind = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise ExperimentError(f"[model] name: '{name}' cannot be imported: {error}") from error
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ExperimentError(f"[model] name: '{name}' is not a class derived from torch.nn.Module")
    return kind
