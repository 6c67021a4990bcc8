"""Any ``torch.nn`` module as a stacked model, through ``torch.func``: one ``vmap`` over the clients."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree

from fedgraph.models.base import TaskSpec
from fedgraph.models.called_layers import last_linear, with_input_of
from fedgraph.models.hashed_draws import HashedDraws, keys_of_draws
from fedgraph.models.own_draws import OwnDraws
from fedgraph.models.parameters import Layout
from fedgraph.models.stacked import ModelFromTwin, without_global_draws
from fedgraph.models.user_module import (
    Call,
    Slots,
    built,
    changed_in_training,
    check_counters,
    check_real,
    constructor_options,
    hint_of_types,
    least_examples,
    mixes_examples,
    module_class,
    say_converted,
    warn_of_probabilities,
)
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

logger = logging.getLogger(__name__)


class ModuleSettings(Settings):
    """``[model]`` with ``name = "package.module:Class"``.

    Attributes
    ----------
    options         : arguments of the constructor.
    embedding_layer : name of the layer whose input is the model's embedding, for methods that need one; by default the
                      linear layer that is called last.
    """

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    embedding_layer: str | None = None


class ModuleModel(ModelFromTwin):
    """A user's module class with inputs ``[batch, *input_shape]`` and outputs ``[batch, *output_shape]``.

    Trained parameters come first in the layout; frozen parameters and floating-point buffers (running statistics) are
    its buffers. Other buffers (counters) stay as the constructor made them, with the same random numbers in every
    process. All is float32. Lazy layers get the shapes that inputs of the task give them. A constructor with parameters
    called ``input_shape`` or ``output_shape`` gets those of the task. Raises ExperimentError when the class cannot be
    imported or built, has no parameters or complex ones, fails on two inputs of zeros, or does not fit the task, and
    for an ``embedding_layer`` that does not exist.
    """

    def __init__(self, settings: ModuleSettings, task: TaskSpec) -> None:
        super().__init__(task)
        self.name = settings.name
        self.kind = module_class(settings.name)
        self.options = constructor_options(self.kind, task, settings.options)
        self.vectorise = True
        self._mixes: dict[bool, bool] = {}
        self._sent: dict[tuple[str, torch.device], Tensor] = {}
        self._own = threading.local()
        self._lock = threading.Lock()
        self._types: list[str] = []
        try:
            self._prototype = self.twin()
        except Exception as error:
            raise ExperimentError(
                f"[model] {self.name} cannot be built from the options {self.options}: {error}"
                f"{hint_of_types(self._types)}"
            ) from error
        check_real(self.name, self._prototype)
        if not any(True for _ in self._prototype.parameters()):
            raise ExperimentError(
                f"[model] {self.name} has no parameters to train: its layers are to be attributes of the module, "
                "several of them in an nn.ModuleList or nn.Sequential, since PyTorch does not see those in a list"
            )
        self._check_output()
        say_converted(self.name, self._types)
        check_counters(self.name, self._prototype, self._copy, self._trial(self._drawn(3)))
        layer = settings.embedding_layer
        if layer is not None and not (layer and layer in dict(self._prototype.named_modules())):
            raise ExperimentError(
                f"[model] embedding-layer: {self.name} has no layer '{layer}'; it has "
                f"{', '.join(name for name, _ in self._prototype.named_modules() if name)}"
            )
        self._named_layer = layer

    def build_twin(self) -> nn.Module:
        """Build a new module of the user's class, in float32."""
        module, self._types = built(self.kind, self.options, self._trial(self._zeros(2)))
        return module

    def _call(self, inputs: Tensor) -> Call:
        """Return how a module is called for the examples of one client, ``[batch, *example_shape]``."""
        return Call((inputs,))

    def _trial(self, inputs: Tensor) -> Call:
        """Return the same for examples of :meth:`_zeros` or :meth:`_drawn`, with which a module is tried."""
        return self._call(inputs)

    def _zeros(self, count: int) -> Tensor:
        """Return examples to try a module with."""
        return torch.zeros(count, *self.task.example_shape)

    def _drawn(self, count: int) -> Tensor:
        """Return examples that differ, always the same."""
        return torch.randn(count, *self.task.example_shape, generator=torch.Generator().manual_seed(0))

    def twin(self) -> nn.Module:
        """Return a new module with fixed values: tensors outside the layout are the same in all processes."""
        return without_global_draws(self.build_twin, 0)

    @property
    def module(self) -> nn.Module:
        """The calling thread's own module: a call overwrites its parameters."""
        return self._slots.module

    @property
    def _slots(self) -> Slots:
        if not hasattr(self._own, "slots"):
            self._own.slots = Slots(self._copy())
        slots: Slots = self._own.slots
        return slots

    def _copy(self) -> nn.Module:
        return copy.deepcopy(self._prototype)

    @cached_property
    def sequential(self) -> bool:
        """Whether clients are computed sequentially on a CPU: where the module has convolutions, or draws."""
        return (self.draws and self.draws_apart) or any(map(_convolves, self._prototype.modules()))

    @cached_property
    def draws(self) -> bool:
        """Whether the forward pass in training draws random numbers (dropout), determined by trying.

        A module that fails on inputs of zeros is assumed to draw, which is slower but never wrong.
        """
        return self._draws_from_torch(nullcontext())

    @cached_property
    def draws_apart(self) -> bool:
        """Whether all that it draws can come from its own generator (:class:`OwnDraws`), determined by trying."""
        return not self._draws_from_torch(OwnDraws(torch.Generator()))

    @cached_property
    def draws_hashed(self) -> bool:
        """Whether all that it draws can be hashes (:class:`HashedDraws`), determined by trying."""
        return not self._draws_from_torch(HashedDraws(torch.tensor(0)))

    @cached_property
    def draws_padded(self) -> bool:
        """Whether padding changes no other example's output where draws are hashes, determined by trying."""
        three = self._drawn(3)
        calls = self._trial(three), self._trial(three[:2])
        return not mixes_examples(self._copy, *calls, training=True, drawing=lambda: HashedDraws(torch.tensor(0)))

    def _draws_from_torch(self, context: AbstractContextManager[object]) -> bool:
        """Find out by trying whether torch's own generator is drawn from in training; True for a module that fails."""
        module = self.twin().train()
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            before = torch.get_rng_state()
            try:
                with context:
                    self._trial(self._zeros(4)).of(module)
            except Exception:
                return True
            return not torch.equal(torch.get_rng_state(), before)

    @cached_property
    def _channels_last(self) -> bool:
        """Whether the module works on images whose channels are last in memory, determined by trying.

        PyTorch's convolutions are faster so on a CPU; a module that calls ``view`` on what they return fails.
        """
        if len(self.task.input_shape) != 3 or not any(
            isinstance(each, nn.Conv2d) for each in self._prototype.modules()
        ):
            return False
        images = torch.randn(4, *self.task.input_shape, generator=torch.Generator().manual_seed(0))
        found = []
        for arranged in (torch.clone, _with_channels_last):
            module = self._copy().train()
            tensors = {
                name: arranged(value.detach().requires_grad_(value.is_floating_point()))
                for name, value in module.named_parameters()
            }
            try:
                with torch.enable_grad(), OwnDraws(torch.Generator().manual_seed(0)):
                    outputs = functional_call(module, tensors, (arranged(images),))
                    outputs.sum().backward()
            except Exception:
                return False
            found.append(outputs.detach())
        return torch.allclose(found[0], found[1], rtol=1e-3, atol=1e-4, equal_nan=True)

    def mixes_examples(self, training: bool) -> bool:
        """Whether examples of a minibatch influence each other's outputs, determined by trying."""
        if training not in self._mixes:
            # Outputs that are drawn cannot be compared.
            drawn = training and self.draws
            three = self._drawn(3)
            self._mixes[training] = drawn or mixes_examples(
                self._copy, self._trial(three), self._trial(three[:2]), training
            )
        return self._mixes[training]

    @cached_property
    def least_examples(self) -> int:
        """Fewest examples of a minibatch, determined by trying."""
        two = self._drawn(2)
        return least_examples(self._copy, self._trial(two[:1]), self._trial(two))

    @cached_property
    def layout(self) -> Layout:
        """Names and shapes of one client's tensors; a parameter shared by two layers occurs once."""
        module = self._prototype
        kept = module.state_dict()
        buffers = {name: value for name, value in module.named_buffers() if name in kept and value.is_floating_point()}
        frozen = [name for name, value in module.named_parameters() if not value.requires_grad]
        unchanged = set(frozen) - changed_in_training(self._copy, self._trial(self._drawn(3)), frozen)
        return Layout.of(dict(module.named_parameters()) | buffers, [*frozen, *buffers], unchanged)

    def forward(
        self, state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Inputs ``[clients, batch, *input_shape]``; see :class:`fedgraph.models.base.StackedModel`."""
        return self._over_clients(self._outputs, state, inputs, training)

    def _outputs(self, module: nn.Module, tensors: dict[str, Tensor], given: Call) -> Tensor:
        """Return the outputs of a module with other tensors instead of its own."""
        if torch.compiler.is_compiling():
            outputs: Tensor = functional_call(module, tensors, given.args, dict(given.named))
            return given.chosen(outputs)
        return self._slots.call(tensors, given)

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        (embeddings, _), changed = self._over_clients(self._represent_by(self.embedding_layer), state, inputs, training)
        return embeddings, changed

    def represent(self, state: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        (embeddings, outputs), _ = self._over_clients(
            self._represent_by(self.embedding_layer), state, inputs, training=False
        )
        return embeddings, outputs

    @cached_property
    def embedding_layer(self) -> str:
        """Name of the layer whose input is the embedding.

        Raises ExperimentError when the settings name no layer and the module calls no ``nn.Linear``.
        """
        if self._named_layer is not None:
            return self._named_layer
        found = self._last_layer(self.twin().eval())
        if found is None:
            raise ExperimentError(
                f"[model] {self.name}: no layer of it is a torch.nn.Linear that is called, so there is no embedding "
                "before the last one; name the layer whose input is the embedding by [model] embedding-layer"
            )
        return found

    def _last_layer(self, module: nn.Module) -> str | None:
        """Return the name of the layer whose input is the embedding, found by trying."""
        return last_linear(module, self._zeros(2))

    @property
    def head_tensors(self) -> tuple[str, ...]:
        """Names of the tensors of the layer whose input is the embedding."""
        return tuple(name for name in self.layout.names if name.startswith(f"{self.embedding_layer}."))

    @cached_property
    def embedding_size(self) -> int:
        """Length of an embedding, determined by trying."""
        module = self.twin().eval()
        state = {name: value for name, value in module.state_dict().items() if name in self.layout.names}
        with torch.no_grad():
            call = self._represent_by(self.embedding_layer)
            embeddings, _ = call(module, state, self._trial(self._zeros(2)))
        return embeddings.shape[1]

    def _represent_by(self, layer: str) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return a variant of :meth:`_outputs` that returns embeddings ``[batch, embedding_size]`` and outputs."""

        def call(module: nn.Module, tensors: dict[str, Tensor], given: Call) -> tuple[Tensor, Tensor]:
            embeddings, outputs = with_input_of(
                module, layer, lambda: functional_call(module, tensors, given.args, dict(given.named))
            )
            if embeddings is None or embeddings.shape[:1] != outputs.shape[:1]:
                raise ExperimentError(
                    f"[model] {self.name}: the input of its layer '{layer}' has to be an embedding of every example, a "
                    f"tensor [batch, ...], but for outputs {list(outputs.shape)} it is "
                    f"{'nothing' if embeddings is None else list(embeddings.shape)}; name another layer by [model] "
                    "embedding-layer"
                )
            return given.chosen(embeddings).flatten(1), given.chosen(outputs)

        return call

    def _over_clients(
        self, call: Callable[..., Any], state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Any, Mapping[str, Tensor]]:
        """Return ``call(module, tensors, given)`` of every client, stacked, and the changed buffers."""
        # A compiled graph takes the parameters as inputs, so one module suffices for all threads.
        module = (self._prototype if torch.compiler.is_compiling() else self.module).train(training)
        one = partial(self._one, call, module)
        # What is compiled draws from torch's own generator.
        found = None if torch.compiler.is_compiling() or not training else keys_of_draws()
        keys = () if found is None else (found,)
        if (
            inputs.shape[0] == 1
            and (self.sequential or self.draws)
            and not (inputs.is_cuda or torch.compiler.is_compiling())
        ):
            arrange = _with_channels_last if self._channels_last else lambda value: value
            own = {name: arrange(value[0]) for name, value in state.items()}
            outputs, changed = one(own, arrange(inputs[0]), *(each[0] for each in keys))
            return _pytree.tree_map(lambda each: each[None], outputs), {k: v[None] for k, v in changed.items()}
        if self.vectorise:
            # A generator's state is not accessible in a graph that is being compiled.
            remembers = training and not keys and not torch.compiler.is_compiling() and self.draws
            before = _generator_of(inputs).get_state() if remembers else None
            try:
                return vmap(one, randomness="different")(dict(state), inputs, *keys)
            except (RuntimeError, NotImplementedError, TypeError) as error:
                reason = error
            if before is not None:
                # Draws of the failed attempt would shift the later ones, and only on the first attempt of a process.
                _generator_of(inputs).set_state(before)
        outputs = [
            one({name: value[client] for name, value in state.items()}, *(each[client] for each in (inputs, *keys)))
            for client in range(inputs.shape[0])
        ]
        # Only now is it known that the module itself works and that vmap failed.
        with self._lock:
            if self.vectorise:
                self.vectorise = False
                logger.warning("%s cannot be vectorised over clients; they run one by one (%s)", self.name, reason)
        changed = {name: torch.stack([buffers[name] for _, buffers in outputs]) for name in outputs[0][1]}
        return _pytree.tree_map(lambda *each: torch.stack(each), *(values for values, _ in outputs)), changed

    def _one(
        self,
        call: Callable[..., Any],
        module: nn.Module,
        state: dict[str, Tensor],
        inputs: Tensor,
        key: Tensor | None = None,
    ) -> tuple[Any, dict[str, Tensor]]:
        """Return the result for one client, whose draws are hashes of ``key`` if there is one, and its buffers."""
        # Copies, because layers with running statistics change their buffers in place.
        kept = self.layout.buffers
        tensors = {name: value.detach().clone() if name in kept else value for name, value in state.items()}
        tensors |= {name: tensors[name].to(kind) for name, kind in self._whole_numbers.items() if name in tensors}
        for name, value in module.named_buffers():
            if name not in tensors:
                tensors[name] = self._on(inputs.device, name, value).clone()
        with nullcontext() if key is None else HashedDraws(key):
            outputs = call(module, tensors, self._call(inputs))
        return outputs, {name: tensors[name] for name in kept}

    def _on(self, device: torch.device, name: str, value: Tensor) -> Tensor:
        """Return a buffer that never changes on a device; sent to a GPU once, which would wait for it in every step."""
        if value.device == device:
            return value
        if (name, device) not in self._sent:
            self._sent[name, device] = value.to(device)
        return self._sent[name, device]

    @cached_property
    def _whole_numbers(self) -> dict[str, torch.dtype]:
        """Types of frozen parameters that are whole numbers, such as quantised weights; a row has them as float32."""
        every = self._prototype.named_parameters()
        return {name: value.dtype for name, value in every if not value.is_floating_point()}

    def _check_output(self) -> None:
        module = self.module.eval()
        with torch.no_grad():
            try:
                outputs = self._trial(self._zeros(2)).of(module)
            except Exception as error:
                raise ExperimentError(
                    f"[model] {self.name} fails on {self._two_inputs}: {error}{hint_of_types(self._types)}"
                ) from error
        if not isinstance(outputs, Tensor):
            raise ExperimentError(
                f"[model] {self.name} returns a {type(outputs).__name__}: its forward must return one tensor "
                f"{[2, *self.task.output_shape]} for {self._two_inputs}"
            )
        if outputs.shape != (2, *self.task.output_shape):
            raise ExperimentError(
                f"[model] {self.name} puts out {list(outputs.shape)} for {self._two_inputs}; "
                f"the task needs {[2, *self.task.output_shape]}"
            )
        if self.task.kind == "classification":
            warn_of_probabilities(self.name, outputs)

    @property
    def _two_inputs(self) -> str:
        """Description of the inputs that a module is tried with, for messages."""
        return f"two inputs of shape {self.task.input_shape}"


def _convolves(layer: nn.Module) -> bool:
    return isinstance(layer, _ConvNd)


def _with_channels_last(value: Tensor) -> Tensor:
    return value.to(memory_format=torch.channels_last) if value.dim() == 4 else value


def _generator_of(tensor: Tensor) -> torch.Generator:
    """Return the generator that operations on the device of ``tensor`` draw from."""
    return torch.cuda.default_generators[tensor.get_device()] if tensor.is_cuda else torch.default_generator
