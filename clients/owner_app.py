"""F3 in a custom ClientApp: embeddings by any PyTorch model, and the reply with them.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023), lines
2, 3 and 9 of algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from flwr.app import Message
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgraph.fusion.owner_models import check_not_raw
from fedgraph.messages import mark_empty
from fedgraph.messages.queries import OwnEmbeddings, WantedEmbeddings
from fedgraph.support.errors import ExperimentError

_LISTED = 12
"""Names of layers in a message."""


def penultimate(model: nn.Module, inputs: Any, layer: str | None = None, batch_size: int = 256) -> Tensor:
    """Return embeddings of samples: the inputs of a model's last linear layer, or of another layer.

    The model is evaluated without gradients, on its own device and in evaluation mode; its mode and buffers are
    restored. Returns float32 ``[samples, size]`` on the CPU; the layer's input for a sample is flattened. Raises
    ValueError when the model has no linear layer or ends in several, when the named layer is unknown, not called, or
    called several times, and for invalid inputs or embeddings. Also for embeddings that contain the samples, as of a
    model with a single layer, since samples must not leave their owner.

    Parameters
    ----------
    model : nn.Module
        A trained model.
    inputs : Tensor, array, tuple or mapping
        Samples ``[samples, ...]``; for models with several inputs a tuple, or a mapping by argument.
    layer : str, optional
        Name, as in ``model.named_modules()``, of the layer whose input is the embedding; by default the last
        ``nn.Linear`` of the computation.
    batch_size : int
        Number of samples per batch.

    Examples
    --------
    >>> import torch
    >>> from fedgraph.clients import penultimate
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    >>> penultimate(model, torch.randn(10, 4)).shape
    torch.Size([10, 16])
    """
    arguments, keywords, count = _samples(inputs, model)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; got {batch_size}")
    with _frozen(model):
        first = _part((arguments, keywords), slice(0, 2))
        name = _named(model, layer) if layer is not None else _last_linear(model, first)
        parts = []
        with torch.no_grad():
            for start in range(0, count, batch_size):
                rows = slice(start, min(start + batch_size, count))
                parts.append(_seen(model, name, _part((arguments, keywords), rows), rows.stop - rows.start))
    found = torch.cat(parts)
    if not bool(found.isfinite().all()):
        raise ValueError(f"the input of layer '{name}' is NaN or infinite for some samples: check weights and inputs")
    _check_not_raw([*arguments, *keywords.values()], found)
    return found


def embeddings(
    msg: Message,
    ids: Sequence[str] | Sequence[int] | NDArray[Any],
    values: Tensor | NDArray[Any],
    labels: Any = None,
    split: str | Sequence[str] | None = None,
) -> Message:
    """Build the reply of a ``@app.query()`` handler to a strategy F3.

    Only the samples that the message requests leave the node. Raises ValueError for invalid ids, embeddings, labels or
    splits.

    Parameters
    ----------
    msg : Message
        The message to answer.
    ids : sequence
        Ids of the samples, str or int, by which samples of different owners are joined.
    values : Tensor or array
        Embeddings ``[samples, size]``, such as those of :func:`penultimate`.
    labels : sequence, optional
        Class of each sample, str or int; None for an owner without labels, and for single samples without. At least one
        owner needs labels.
    split : str or sequence of str, optional
        ``train``, ``validation``, ``test`` or ``new`` for each sample, or one for all; the same at all owners. ``new``
        samples are predicted and need no label. By default samples with a label at any owner are divided by the server,
        and the others are new.

    Examples
    --------
    In a ClientApp::

        @app.query()
        def query(msg: Message, context: Context) -> Message:
            model, ids, X, y = ...
            return embeddings(msg, ids, penultimate(model, X), y)
    """
    reply = OwnEmbeddings.of(ids, values, labels, split).wanted(WantedEmbeddings.unpack(msg.content))
    return Message(mark_empty(reply.pack()), reply_to=msg)


# ---- inputs of a model ---------------------------------------------------------------------------------------------

_Inputs = tuple[tuple[Tensor, ...], dict[str, Tensor]]


def _samples(inputs: Any, model: nn.Module) -> tuple[tuple[Tensor, ...], dict[str, Tensor], int]:
    """Return the arguments of a model, and the number of samples."""
    if isinstance(inputs, Mapping):
        given = {str(name): _tensor(value, model) for name, value in inputs.items()}
        arguments: tuple[Tensor, ...] = ()
    else:
        several = inputs if isinstance(inputs, tuple) else (inputs,)
        given, arguments = {}, tuple(_tensor(value, model) for value in several)
    every = [*arguments, *given.values()]
    counts = sorted({len(value) if value.ndim else 0 for value in every})
    if len(counts) != 1 or counts[0] == 0:
        raise ValueError(
            f"inputs must have shape [samples, ...] with the same number of samples, at least one; got the shapes "
            f"{[list(value.shape) for value in every]}"
        )
    return arguments, given, counts[0]


def _tensor(value: Any, model: nn.Module) -> Tensor:
    """Return one input as a tensor; floats get the type of the model's parameters."""
    if not isinstance(value, Tensor):
        if not hasattr(value, "__array__") and not isinstance(value, list):
            raise ValueError(
                f"inputs must be tensors or arrays [samples, ...], a tuple of these, or a mapping by argument; got "
                f"{type(value).__name__} (for a DataLoader, join the batches: torch.cat([x for x, _ in loader]))"
            )
        try:
            value = torch.as_tensor(np.asarray(value))
        except TypeError as error:
            raise ValueError(f"inputs are numbers: {error}") from None
    types = [each.dtype for each in model.parameters() if each.is_floating_point()]
    result: Tensor = value.to(types[0]) if types and value.is_floating_point() else value
    return result


def _part(inputs: _Inputs, rows: slice) -> _Inputs:
    arguments, keywords = inputs
    return tuple(value[rows] for value in arguments), {name: value[rows] for name, value in keywords.items()}


def _run(model: nn.Module, inputs: _Inputs) -> None:
    """Call a model on its own device."""
    device = next((each.device for each in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    arguments, keywords = inputs
    model(*(value.to(device) for value in arguments), **{name: value.to(device) for name, value in keywords.items()})


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode in a ``with`` block, and restore modes and buffers afterwards."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for name, value in model.named_buffers():
                if name in buffers and value.shape == buffers[name].shape:
                    value.copy_(buffers[name])


# ---- layers --------------------------------------------------------------------------------------------------------


def _named(model: nn.Module, layer: str) -> str:
    names = [name for name, _ in model.named_modules() if name]
    if layer not in names:
        raise ValueError(f"the model has no layer '{layer}'; it has {_listed(names)}")
    return layer


def _last_linear(model: nn.Module, inputs: _Inputs) -> str:
    """Return the name of the last linear layer of the computation, by calling the model once."""
    calls: list[tuple[str, Tensor, Tensor]] = []
    names: dict[nn.Module, str] = {
        module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)
    }

    def seen(module: nn.Module, given: tuple[Any, ...], result: Tensor) -> Tensor:
        # A leaf for every output shows which later inputs depend on it, even if parameters are frozen.
        marked = result + torch.zeros((), device=result.device, dtype=result.dtype, requires_grad=True)
        calls.append((names[module], given[0], marked))
        return marked

    hooks = [module.register_forward_hook(seen) for module in names]
    try:
        with torch.enable_grad():
            _run(model, inputs)
        ends = [
            name
            for place, (name, _, result) in enumerate(calls)
            if not any(_depends(later, result) for _, later, _ in calls[place + 1 :])
        ]
    finally:
        for hook in hooks:
            hook.remove()
    if not ends:
        every = [name for name, _ in model.named_modules() if name]
        raise ValueError(
            "the model calls no torch.nn.Linear: name the layer whose input is the embedding (layer=...), one of "
            f"{_listed(every)}"
        )
    if len(set(ends)) > 1:
        raise ValueError(
            f"the computation ends in several linear layers, {_listed(sorted(set(ends)))}: name the one whose input is "
            "the embedding (layer=...)"
        )
    return ends[0]


def _depends(later: Tensor, earlier: Tensor) -> bool:
    """Whether a tensor depends on another one."""
    if not later.requires_grad:
        return False
    with torch.enable_grad():
        return torch.autograd.grad(later.sum(), earlier, retain_graph=True, allow_unused=True)[0] is not None


def _seen(model: nn.Module, layer: str, inputs: _Inputs, count: int) -> Tensor:
    """Return a layer's inputs for a batch, ``[batch, size]``."""
    found: list[Any] = []

    def take(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        found.append(next(iter((*given, *named.values())), None))

    hook = model.get_submodule(layer).register_forward_pre_hook(take, with_kwargs=True)
    try:
        _run(model, inputs)
    finally:
        hook.remove()
    if len(found) != 1:
        how = "not called" if not found else f"called {len(found)} times"
        raise ValueError(
            f"layer '{layer}' is {how} in a call of the model: name a layer that is called once (layer=...)"
        )
    value = found[0]
    if not isinstance(value, Tensor) or value.shape[:1] != (count,):
        received = list(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ValueError(f"layer '{layer}' gets {received} for {count} samples, not a tensor [samples, ...]")
    return value.detach().flatten(1).float().cpu()


def _check_not_raw(inputs: Sequence[Tensor], found: Tensor) -> None:
    """Raise ValueError where embeddings contain the samples."""
    for given in inputs:
        if given.ndim > 1 and len(given) > 1:
            try:
                check_not_raw(given.cpu(), found, [], "")
            except ExperimentError:
                raise ValueError(
                    "the embeddings contain the samples, which must not leave their owner: use a model with a hidden "
                    "layer before the last linear layer, or name a later layer (layer=...)"
                ) from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
