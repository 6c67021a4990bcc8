"""Loss terms of SFL and IPA for a custom training loop, as functions of a model and the received message.

    loss = criterion(model(x), y) + proximity(model, msg)
    loss = criterion(model(x), y) + alignment(model, msg)

They are zero for other strategies, so a ClientApp with them works with any strategy. For models of other libraries use
``loss_terms(msg)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray
from torch import Tensor, nn

from fedgraph.messages import from_record, to_record
from fedgraph.messages.apps import APP_RECORD, further_record, models_record
from fedgraph.support.errors import ReplyError, RunError
from fedgraph.training.alignment import alignment as alignment_of

_TINY = 1e-30
"""Added to squares, so that their roots have gradient 0 at the start of training; JAX's ``abs`` has gradient 1."""
_used: ContextVar[set[str] | None] = ContextVar("terms of a loss that were used", default=None)
_read: WeakKeyDictionary[Message, dict[str, list[dict[str, Tensor]]]] = WeakKeyDictionary()
"""Models of a message by the name of their record, cached for all minibatches."""


@contextmanager
def noting_terms() -> Iterator[set[str]]:
    """Record the names of the terms used within the block."""
    names: set[str] = set()
    token = _used.set(names)
    try:
        yield names
    finally:
        _used.reset(token)


def proximity(model: nn.Module, message: Message) -> Tensor:
    """Return SFL's term of the mean loss of a model in training (Chen et al. 2022, eq. 3).

    ``lambda_1 R(v, w) + lambda_2 R(v, u)``, with v the trained parameters of ``model``, w the received read-out and u
    the received personalised model; R is the Euclidean norm of the difference, or half its square. A differentiable
    scalar; 0 if both lambdas are 0, and for other strategies. Raises RunError when the model has no parameter of the
    message.

    Parameters
    ----------
    model : torch.nn.Module
        Whose ``named_parameters`` are in the array record of the message, by the same names.
    message : Message
        The message of ``@app.train()``.
    """
    config = _config_of(message)
    total: Tensor = torch.zeros(())
    for weight, centre in _centres(message, config):
        total = total + weight * _distance(model, centre, config.get("distance") == "squared")
    return total


def _centres(message: Message, config: Mapping[str, Any]) -> list[tuple[float, dict[str, Tensor]]]:
    """Return lambda_1 with the read-out and lambda_2 with the personalised model, without zero weights."""
    records = {"lambda-global": further_record("global"), "lambda-personal": str(config.get("arrays"))}
    found = [(config[key], _models(message, record)[0]) for key, record in records.items() if config.get(key)]
    if found:
        _note("proximity")
    return found


def _distance(model: nn.Module, centre: Mapping[str, Tensor], squared: bool) -> Tensor:
    pairs = _pairs(model, centre)
    difference = torch.cat([(own - other).flatten() for own, other in pairs])
    return difference.square().sum() / 2 if squared else torch.linalg.vector_norm(difference)


def alignment(model: nn.Module, message: Message, batch_size: int | None = None) -> Tensor:
    """Return IPA's term of the loss of a model in training, with fixed peers.

    ``lambda sum_j c_j sum |theta - theta_j|^p`` (Gorbett et al. 2023, algorithm 1). For peers that are updated too use
    :class:`Peers`. A differentiable scalar; 0 for other strategies.

    Parameters
    ----------
    model : torch.nn.Module
        Whose ``named_parameters`` are in the array record of the message, by the same names.
    message : Message
        The message of ``@app.train()``.
    batch_size : int, optional
        Number of examples of the minibatch if the loss is their mean: the paper's lambda is relative to their sum, and
        is divided by this number. By default the loss is a sum.
    """
    config = _config_of(message)
    if "lambda-alignment" not in config:
        return torch.zeros(())
    _note("alignment")
    return _aligned(model, _peers(message), _weights(message), config, batch_size)


def _strength(config: Mapping[str, Any], batch_size: int | None) -> float:
    """Return IPA's lambda relative to the mean loss of a minibatch if ``batch_size`` is given, else to its sum."""
    divided = config["lambda-scale"] == "batch-sum" and batch_size is not None
    return float(config["lambda-alignment"]) / (batch_size if divided and batch_size else 1)


def _peers(message: Message) -> list[dict[str, Tensor]]:
    """Return the models of the peers of this turn, or of all, with weight 0 for the client itself."""
    turn = further_record("others") in message.content
    return _models(message, further_record("others" if turn else "peers"))


def _weights(message: Message) -> Tensor:
    """Return c_j of these peers."""
    (weights,) = _models(message, further_record("weights"))
    return weights["weights"]


def _aligned(
    model: nn.Module, peers: list[dict[str, Tensor]], c: Tensor, config: Mapping[str, Any], batch_size: int | None
) -> Tensor:
    strength = _strength(config, batch_size)
    total = torch.zeros(())
    for name, own in _named(model, peers[0] if peers else {}):
        others = torch.stack([peer[name].to(own).flatten() for peer in peers])
        total = total + alignment_of(own.flatten(), others, c.to(own), float(config["power"]))
    return strength * total


class LossTerms(NamedTuple):
    """The terms of SFL or IPA in the loss, for models of any library with NumPy-like arrays.

    ``sum_j weight_j (sum |theta - centre_j|^power)^root`` over all parameters theta. As a tuple it is a pytree of JAX,
    and can be an argument of a function that ``jax.jit`` compiles.

    Attributes
    ----------
    centres : list of list of array
        Reference models, each as arrays in the order of the message's array record.
    weights : list of float
        Their weights.
    power, root : float
        Exponents of the distance.

    Examples
    --------
    ::

        terms = loss_terms(msg)
        loss = criterion(params, x, y) + terms.of(jax.tree_util.tree_leaves(params))
    """

    centres: list[list[NDArray[Any]]]
    weights: list[float]
    power: float
    root: float

    def of(self, parameters: Sequence[Any] | Mapping[str, Any]) -> Any:
        """Return the term of the loss of a model in training; 0 for other strategies.

        Raises ReplyError when number or shapes of the arrays differ from the message.

        Parameters
        ----------
        parameters : sequence of array, or mapping
            The trained arrays, or a mapping with these values, in the order and shapes of the message's array record.
        """
        if isinstance(parameters, Mapping):
            parameters = list(parameters.values())
        total: Any = 0.0
        for centre, weight in zip(self.centres, self.weights, strict=True):
            shapes, sent = [tuple(each.shape) for each in parameters], [each.shape for each in centre]
            if shapes != sent:
                raise ReplyError(f"the model has arrays of shapes {shapes}, but the message has {sent}")
            pairs = zip(parameters, centre, strict=True)
            distance = sum((((own - other) ** 2 + _TINY) ** (self.power / 2)).sum() for own, other in pairs)
            total = total + weight * distance**self.root
        return total


def loss_terms(message: Message, batch_size: int | None = None) -> LossTerms:
    """Return the terms of SFL or IPA in the loss, for a model of another library such as JAX.

    They are those of :func:`proximity` and :func:`alignment`, with fixed peers. For other strategies
    ``loss_terms(msg).of(parameters)`` is 0.

    Parameters
    ----------
    message : Message
        The message of ``@app.train()``.
    batch_size : int, optional
        As for :func:`alignment`.
    """
    config = _config_of(message)
    if "lambda-alignment" in config:
        _note("alignment")
        strength = _strength(config, batch_size)
        pulls = [(strength * float(c), peer) for c, peer in zip(_weights(message), _peers(message), strict=True)]
        power, root = float(config["power"]), 1.0
    else:
        squared = config.get("distance") == "squared"
        pulls = [(weight / 2 if squared else weight, centre) for weight, centre in _centres(message, config)]
        power, root = 2.0, 1.0 if squared else 0.5
    centres = [[_array(value) for value in centre.values()] for _, centre in pulls]
    return LossTerms(centres, [weight for weight, _ in pulls], power, root)


def _array(value: Tensor) -> NDArray[Any]:
    # NumPy has no bfloat16.
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


class Peers:
    """The peers of a turn of IPA, which are updated too: their parameters and optimiser, and the reply.

    Parameters
    ----------
    model : torch.nn.Module
        The client's own model, as received.
    message : Message
        The message of ``@app.train()``.
    optimizer : callable
        Creates an optimiser for parameters, for example ``lambda parameters: torch.optim.Adam(parameters, lr=1e-3)``.

    Examples
    --------
    ::

        peers = Peers(model, msg, lambda parameters: torch.optim.Adam(parameters, lr=1e-3))
        for x, y in loader:
            optimizer.zero_grad()
            peers.zero_grad()
            (criterion(model(x), y) + peers.alignment(len(x))).backward()
            optimizer.step()
            peers.step()
        return peers.reply({"num-examples": len(dataset)})
    """

    def __init__(
        self, model: nn.Module, message: Message, optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    ) -> None:
        self._model, self._message, self._config = model, message, _config_of(message)
        self._moves = bool(self._config.get("moves-others", False))
        sent = _peers(message) if "lambda-alignment" in self._config else []
        known = dict(_named(model, sent[0])) if sent else {}
        self.models = [{name: self._own(name, value, known) for name, value in peer.items()} for peer in sent]
        parameters = [value for each in self.models for value in each.values() if value.requires_grad]
        self._optimizer = optimizer(parameters) if parameters else None

    def _own(self, name: str, value: Tensor, known: Mapping[str, Tensor]) -> Tensor:
        """Return a copy of a peer's tensor, a parameter if it is trained."""
        if name not in known:
            return value.clone()
        return value.to(known[name], copy=True).requires_grad_(self._moves)

    def alignment(self, batch_size: int | None = None) -> Tensor:
        """Return the distances to the peers, differentiable in both; see :func:`alignment`."""
        if "lambda-alignment" not in self._config:
            return torch.zeros(())
        _note("alignment")
        return _aligned(self._model, self.models, _weights(self._message), self._config, batch_size)

    def zero_grad(self) -> None:
        """Reset the gradients of the peers' parameters."""
        if self._optimizer is not None:
            self._optimizer.zero_grad()

    def step(self) -> None:
        """Update the peers."""
        if self._optimizer is not None:
            self._optimizer.step()

    def reply(self, metrics: Mapping[str, float]) -> Message:
        """Return the reply: the model, the peers if updated, and metrics, which include ``num-examples``."""
        key = str(self._config.get("arrays", "arrays"))
        content = RecordDict({key: to_record(self._model.state_dict()), "metrics": MetricRecord(dict(metrics))})
        if self._moves and self.models:
            moved = [{name: value.detach() for name, value in each.items()} for each in self.models]
            content[further_record("others")] = models_record(moved)
        return Message(content, reply_to=self._message)


def _config_of(message: Message) -> Mapping[str, Any]:
    return message.content.config_records.get(APP_RECORD, ConfigRecord())


def _note(term: str) -> None:
    used = _used.get()
    if used is not None:
        used.add(term)


def _models(message: Message, record: str) -> list[dict[str, Tensor]]:
    """Return the models of an array record of a message, cached."""
    known = _read.setdefault(message, {})
    if record not in known:
        arrays = cast(ArrayRecord, message.content[record])
        read = from_record(arrays)
        if all("/" in name and name.partition("/")[0].isdigit() for name in read) and record.startswith(APP_RECORD):
            models: dict[str, dict[str, Tensor]] = {}
            for name, value in read.items():
                place, _, layer = name.partition("/")
                models.setdefault(place, {})[layer] = value
            known[record] = list(models.values())
        else:
            known[record] = [read]
    return known[record]


def _named(model: nn.Module, other: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Return names and trained parameters that a model has in common with another one."""
    found: list[tuple[str, Tensor]] = [
        (name, own) for name, own in model.named_parameters() if own.requires_grad and name in other
    ]
    if other and not found:
        raise RunError(
            f"the model of the message has no trained parameter of {type(model).__name__}; it has "
            f"{', '.join(list(other)[:5])}: pass the module whose state dict is exchanged"
        )
    wrong = [name for name, own in found if own.shape != other[name].shape]
    if wrong:
        raise ReplyError(f"layer '{wrong[0]}' has another shape than in the model of the message")
    return found


def _pairs(model: nn.Module, centre: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return [(own, centre[name].to(own)) for name, own in _named(model, centre)]
