"""What the cohort is measured against: a plain PyTorch loop over the clients, and bare arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedgraph.data import CohortData, SplitName
from fedgraph.models import StackedModel
from fedgraph.support.errors import ExperimentError
from fedgraph.support.threads import pinned_threads
from fedgraph.training import TrainSettings, shuffling_keys, training_batches

_LOSSES: dict[str, type[nn.Module]] = {
    "forecast": nn.L1Loss,
    "classification": nn.CrossEntropyLoss,
    "regression": nn.MSELoss,
}
_FLOOR_SIZE = 1024


class PlainLoop:
    """One client after the other, in one module whose parameters are overwritten, in one process.

    All windows of all clients are cut beforehand and are taken by index, the same minibatches as those of the cohort;
    plain gradient descent takes gradients and adds them, without an optimiser: so this is as fast as a plain loop gets.
    For data without missing targets: it takes the mean over a minibatch as it is.

    model, data, settings, seed : as of :class:`fedgraph.training.cohort.Cohort`.
    threads : intra-op threads; modules as small as most here run slower with more than one.
    """

    def __init__(
        self, model: StackedModel, data: CohortData, settings: TrainSettings, seed: int, threads: int = 1
    ) -> None:
        if settings.loss != "auto":
            raise ExperimentError("[train] loss: the plain loop has the loss that is usual for the task, 'auto'")
        if settings.warmup_epochs or settings.final_learning_rate is not None or data.augment is not None:
            raise ExperimentError(
                "[train] warmup-epochs, final-learning-rate, [data] augment: the plain loop has one rate for a round "
                "and takes examples as they are"
            )
        self.model, self.data, self.settings, self.seed, self.threads = model, data, settings, seed, threads
        self.device = settings.torch_device()
        self.module = model.twin().to(self.device)
        self.examples = [self._examples(client) for client in range(len(data.names))]
        state = self.module.state_dict()
        self._tensors = [state[name] for name in model.layout.names]

    def train(self, parameters: Tensor, round: int) -> Tensor:
        """Train every client from its row of ``parameters`` ``[clients, parameters]``; returns the trained rows."""
        parameters = parameters.to(self.device)
        trained = torch.empty_like(parameters)
        with pinned_threads(self.threads):
            for client in range(len(self.examples)):
                self._train(client, parameters[client], round)
                torch.cat([each.flatten() for each in self._tensors], out=trained[client])
        return trained.cpu()

    def average(self, model: Tensor, round: int) -> Tensor:
        """Train every client from ``model`` ``[parameters]``; returns the mean weighted by examples, as FedAvg does."""
        start = self.model.layout.row_state(model.to(self.device))
        total = [torch.zeros_like(each) for each in self._tensors]
        with pinned_threads(self.threads):
            for client, (inputs, _) in enumerate(self.examples):
                self._train(client, start, round)
                torch._foreach_add_(total, self._tensors, alpha=float(len(inputs)))
        examples = sum(len(inputs) for inputs, _ in self.examples)
        return (torch.cat([each.flatten() for each in total]) / examples).cpu()

    def _train(self, client: int, start: Tensor | dict[str, Tensor], round: int) -> None:
        """Leave the trained model of a client in the module."""
        layout, settings, (inputs, targets) = self.model.layout, self.settings, self.examples[client]
        if isinstance(start, Tensor):
            start = layout.row_state(start)
        torch._foreach_copy_(self._tensors, [start[name] for name in layout.names])
        self.module.train()
        parameters: list[Tensor] = [each for each in self.module.parameters() if each.requires_grad]
        loss_function, rate, clip = _LOSSES[self.data.task.kind](), settings.rate(round), settings.clip_norm
        plain = settings.optimizer == "sgd" and not settings.momentum and not settings.weight_decay
        optimizer = None if plain else self._optimizer(rate)
        key = shuffling_keys(self.seed, [self.data.names[client]])
        for row in training_batches(key, torch.tensor([len(inputs)]), settings, round)[:, 0]:
            indices = row[row >= 0].to(self.device)
            gradients = torch.autograd.grad(loss_function(self.module(inputs[indices]), targets[indices]), parameters)
            if clip is not None:
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
                nn.utils.clip_grad_norm_(parameters, clip)
            if optimizer is None:
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-rate)
                continue
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()

    def _examples(self, client: int) -> tuple[Tensor, Tensor]:
        inputs, targets = examples_of(self.data, client, "train")
        return inputs.to(self.device), targets.to(self.device)

    def _optimizer(self, rate: float) -> torch.optim.Optimizer:
        settings, parameters = self.settings, self.module.parameters()
        decay = settings.weight_decay
        if settings.optimizer == "sgd":
            return torch.optim.SGD(
                parameters, rate, momentum=settings.momentum, nesterov=settings.nesterov, weight_decay=decay
            )
        kind: Callable[..., torch.optim.Optimizer] = (
            torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
        )
        return kind(parameters, rate, betas=settings.betas, weight_decay=decay)


class PlainPeers:
    """IPA as one writes it first: modules, autograd through the distances to all peers, and an optimiser for each peer.

    Peers have their turns one after the other, and are measured after them. Minibatches come from a ``DataLoader`` of
    examples that are ready in memory, so that this does less than a program that reads images. For the settings of
    :class:`fedgraph.training.settings.TrainSettings` that such a program has: Adam at one rate, a batch size and
    epochs.

    model, data, settings : as of :class:`fedgraph.training.cohort.Cohort`. power : p.
    """

    def __init__(self, model: StackedModel, data: CohortData, settings: TrainSettings, power: float) -> None:
        self.settings, self.power = settings, power
        self.modules = [model.twin() for _ in data.names]
        parameters = [parameter for module in self.modules for parameter in module.parameters()]
        self.optimisers = [torch.optim.Adam(parameters, settings.learning_rate) for _ in self.modules]
        self.examples = [examples_of(data, client, "train") for client in range(len(data.names))]
        self.tested = [examples_of(data, client, "test") for client in range(len(data.names))]
        total = sum(len(targets) for _, targets in self.examples)
        self.weights = [len(targets) / total for _, targets in self.examples]

    def round(self) -> list[float]:
        """A turn of every peer; the accuracies after them."""
        with pinned_threads(self.settings.threads):
            return [self._turn(peer) for peer in range(len(self.modules))]

    def _turn(self, peer: int) -> float:
        own, optimiser = self.modules[peer], self.optimisers[peer]
        loss_function = nn.CrossEntropyLoss(reduction="sum")
        examples = TensorDataset(*self.examples[peer])
        own.train()
        for _ in range(self.settings.local_epochs or 0):
            for inputs, targets in DataLoader(examples, self.settings.batch_size, shuffle=True):
                optimiser.zero_grad()
                loss = loss_function(own(inputs), targets)
                for other, weight in zip(self.modules, self.weights, strict=True):
                    if other is not own:
                        for mine, theirs in zip(own.parameters(), other.parameters(), strict=True):
                            loss = loss + weight * torch.linalg.vector_norm(mine - theirs, self.power) ** self.power
                loss.backward()
                optimiser.step()
        own.eval()
        inputs, targets = self.tested[peer]
        with torch.no_grad():
            return float((own(inputs).argmax(1) == targets).float().mean())


def examples_of(data: CohortData, client: int, name: SplitName) -> tuple[Tensor, Tensor]:
    """Inputs and targets of all of a client's examples of a split.

    Raises ExperimentError where targets are missing.
    """
    split = data.splits[name].select(slice(client, client + 1))
    batch = split.batch(torch.arange(int(split.num_examples[0]))[None])
    if not bool((batch.weights == 1).all()):
        raise ExperimentError(f"client '{data.names[client]}' misses targets, which a plain loop does not mask")
    return batch.inputs[0], batch.targets[0]


def forward_operations(module: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Floating-point operations of the matrix products of one example's forward pass.

    A linear layer takes ``2 out (in + 1)``, each time that it is applied; a recurrent layer takes
    ``2 gates hidden (hidden + features + 1)`` per time step, with 3 gates for a GRU, 4 for an LSTM and 1 for a plain
    network. The 1 is the bias; element-wise work counts as nothing.

    Raises ExperimentError for a module with other layers that have parameters.
    """
    total = 0
    counted: list[nn.Module] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor | tuple[Tensor, object]) -> None:
        nonlocal total
        counted.append(layer)
        if isinstance(layer, nn.Linear) and isinstance(outputs, Tensor):
            total += 2 * (layer.in_features + 1) * outputs.numel()
        elif isinstance(layer, nn.RNNBase):
            for number in range(layer.num_layers):
                rows, features = getattr(layer, f"weight_ih_l{number}").shape
                total += inputs[0].shape[1] * 2 * rows * (layer.hidden_size + features + 1)

    own = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    handles = [layer.register_forward_hook(count) for layer in own]
    try:
        with torch.no_grad():
            module(torch.zeros(1, *input_shape))
    finally:
        for handle in handles:
            handle.remove()
    others = [layer for layer in own if not isinstance(layer, (nn.Linear, nn.RNNBase))]
    if others or set(own) != set(counted):
        names = ", ".join(sorted({type(layer).__name__ for layer in others})) or "layers that it does not use"
        raise ExperimentError(
            f"[model] name: the operations of {names} are not counted here; use gru, lstm, rnn or mlp"
        )
    return total


def training_operations(module: nn.Module, input_shape: tuple[int, ...], examples: int) -> int:
    """Floating-point operations of training on so many examples: 3 times those of the forward pass.

    Backward, every product of forward returns as two: one for the gradient of each factor. (That of the inputs, which
    training does not need, is counted too: 1 % of a GRU with 64 units and one feature.)
    """
    return 3 * examples * forward_operations(module, input_shape)


@dataclass(frozen=True)
class Floor:
    """The same number of operations as products of two square float32 matrices of 1024 rows, on one thread.

    Nothing that multiplies matrices gets below it by much; a model of small ones, with element-wise work between
    them, stays above it.
    """

    operations: int
    device: torch.device

    @property
    def products(self) -> int:
        """How many products make up the operations, rounded up."""
        return -(-self.operations // (2 * _FLOOR_SIZE**3))

    def run(self) -> None:
        """Do the arithmetic."""
        left, right = (torch.ones(_FLOOR_SIZE, _FLOOR_SIZE, device=self.device) for _ in range(2))
        out = torch.empty_like(left)
        with pinned_threads(1):
            for _ in range(self.products):
                torch.mm(left, right, out=out)


class Arithmetic:
    """The matrix products and convolutions of training on minibatches, and nothing else, at the sizes that they have.

    Forward, then for each layer the gradient of its weights and, but for the first, of its inputs; on one thread,
    operands and results ready in memory. Below it no program that computes these products one client after the other
    can be.

    module : of one client. input_shape : of an example. batches : examples of each minibatch of a round.
    """

    def __init__(
        self, module: nn.Module, input_shape: tuple[int, ...], batches: Sequence[int], device: str = "cpu"
    ) -> None:
        self.batches = Counter(batches)
        self._work = {size: _products(module, input_shape, size, torch.device(device)) for size in self.batches}

    def run(self) -> None:
        """Do the arithmetic of a round."""
        with pinned_threads(1), torch.no_grad():
            for size, times in self.batches.items():
                for _ in range(times):
                    for work in self._work[size]:
                        work()


def _products(
    module: nn.Module, input_shape: tuple[int, ...], size: int, device: torch.device
) -> list[Callable[[], object]]:
    """Return what computes the products of one minibatch of ``size`` examples."""
    found: list[Callable[[], object]] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Any) -> None:
        first = not found
        if isinstance(layer, nn.Linear):
            rows = inputs[0].numel() // layer.in_features
            found.append(_matrix_products(rows, layer.out_features, layer.in_features, first, device))
        elif isinstance(layer, nn.Conv2d):
            found.append(_convolutions(layer, inputs[0], outputs, first, device))
        elif isinstance(layer, nn.RNNBase):
            batch, steps, features = inputs[0].shape
            for number in range(layer.num_layers):
                gates = layer.get_parameter(f"weight_hh_l{number}").shape[0]
                width = features if number == 0 else layer.hidden_size
                inside = _matrix_products(batch, gates, layer.hidden_size, False, device)
                found.append(_matrix_products(batch * steps, gates, width, number == 0, device))
                found.extend([inside] * steps)

    layers = [layer for layer in module.modules() if isinstance(layer, (nn.Linear, nn.Conv2d, nn.RNNBase))]
    handles = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            module(torch.zeros(size, *input_shape))
    finally:
        for handle in handles:
            handle.remove()
    return found


def _matrix_products(rows: int, outputs: int, inputs: int, first: bool, device: torch.device) -> Callable[[], object]:
    values, weight, result = (
        torch.ones(shape, device=device) for shape in ((rows, inputs), (outputs, inputs), (rows, outputs))
    )
    into, gradient = torch.empty_like(weight), torch.empty_like(values)

    def work() -> None:
        torch.mm(values, weight.t(), out=result)
        torch.mm(result.t(), values, out=into)
        if not first:
            torch.mm(result, weight, out=gradient)

    return work


def _convolutions(
    layer: nn.Conv2d, inputs: Tensor, outputs: Tensor, first: bool, device: torch.device
) -> Callable[[], object]:
    values, weight, slopes = (
        torch.ones(like.shape, device=device).to(memory_format=torch.channels_last)
        for like in (inputs, layer.weight, outputs)
    )
    padding = list(layer.padding)
    shape = (list(layer.stride), padding, list(layer.dilation), False, [0, 0], layer.groups)

    def work() -> None:
        nn.functional.conv2d(values, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)
        torch.ops.aten.convolution_backward(slopes, values, weight, None, *shape, [not first, True, False])

    return work
