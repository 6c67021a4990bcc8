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
from fedgraph.models import last_linear, with_input_of
from fedgraph.support.errors import ExperimentError

_LISTED = 12
"""Names of layers in a message."""


def penultimate(model: nn.Module, inputs: Any, layer: str | None = None, batch_size: int = 256) -> Tensor:
    """Return embeddings of samples: the inputs of a model's last linear layer, or of another layer.

    The model is evaluated without gradients, on its own device and in evaluation mode; its mode and buffers are
    restored. Returns float32 ``[samples, size]`` on the CPU; the layer's input for a sample is flattened. Raises
    ValueError when the model calls no linear layer, when the named layer is unknown or not called, and for invalid
    inputs or embeddings. Also for embeddings that contain the samples, as of a model with a single layer, since samples
    must not leave their owner.

    Parameters
    ----------
    model : nn.Module
        A trained model.
    inputs : Tensor, array, tuple or mapping
        Samples ``[samples, ...]``; for models with several inputs a tuple, or a mapping by argument.
    layer : str, optional
        Name, as in ``model.named_modules()``, of the layer whose input is the embedding; by default the ``nn.Linear``
        that is called last.
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
        name = _layer(model, layer, _part(model, (arguments, keywords), slice(0, 2)))
        with torch.no_grad():
            found = torch.cat(
                [
                    _seen(model, name, _part(model, (arguments, keywords), slice(start, start + batch_size)))
                    for start in range(0, count, batch_size)
                ]
            )
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
        Class of each sample, str or int; None for an owner without labels, and None, NaN or -1 for single samples
        without (of -1 a warning is logged, as it may be a class). At least one owner needs labels.
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
    value = value.detach()
    types = [each.dtype for each in model.parameters() if each.is_floating_point()]
    result: Tensor = value.to(types[0]) if types and value.is_floating_point() else value
    return result


def _part(model: nn.Module, inputs: _Inputs, rows: slice) -> _Inputs:
    """Return some samples on the device of the model."""
    device = next((each.device for each in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    arguments, keywords = inputs
    return (
        tuple(value[rows].to(device) for value in arguments),
        {name: value[rows].to(device) for name, value in keywords.items()},
    )


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation mode in a ``with`` block, and restore modes and buffers afterwards."""
    modes = {module: module.training for module in model.modules()}
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    try:
        model.eval()
    except NotImplementedError as error:
        raise ValueError(
            f"{type(model).__name__} cannot be set to evaluation mode, like programs of torch.export: pass the module "
            "that was exported"
        ) from error
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


def _layer(model: nn.Module, named: str | None, inputs: _Inputs) -> str:
    """Return the name of the layer whose input is the embedding."""
    names = [name for name, _ in model.named_modules() if name]
    if named is not None and named not in names:
        raise ValueError(f"the model has no layer '{named}'; it has {_listed(names)}")
    arguments, keywords = inputs
    found = named or last_linear(model, *arguments, **keywords)
    if found is None:
        raise ValueError(
            "the model calls no torch.nn.Linear: name the layer whose input is the embedding (layer=...), one of "
            f"{_listed(names)}"
            if names
            else "the model has no layers by name, so that none can have the embedding as its input"
        )
    return found


def _seen(model: nn.Module, layer: str, inputs: _Inputs) -> Tensor:
    """Return a layer's inputs for a batch, ``[batch, size]``."""
    arguments, keywords = inputs
    count = len((*arguments, *keywords.values())[0])
    value, _ = with_input_of(model, layer, lambda: model(*arguments, **keywords))
    if value is None or value.shape[:1] != (count,):
        received = "is not called with a tensor" if value is None else f"gets {list(value.shape)}"
        raise ValueError(f"layer '{layer}' {received} for {count} samples; expected a tensor [samples, ...]")
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
