"""Local training by a custom function, sequentially by client, instead of stacked training."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedgraph.data import Split
from fedgraph.models import Layout, StackedModel
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import a_function, load_object
from fedgraph.support.randomness import derive_seed
from fedgraph.training.local_training import GradientTerm
from fedgraph.training.settings import TrainSettings

log = logging.getLogger("fedgraph")

_WHERE = "[train] function"
_OF_THE_ENGINE = frozenset({"function", "workers", "threads", "block-size", "device"})
_PART_OF = {"learning-rate-decay": "learning_rate", "learning-rate-factor": "learning_rate"}
_OF_THE_ROUND = ("round", "client", "seed", "device", "penalty")


class ClientExamples(Dataset[tuple[Tensor, Tensor]]):
    """Training examples of one client: pairs of an input and a target.

    Targets are class indices, numbers, or forecasts ``[steps]`` on the scale of the data set, NaN for missing readings.
    A ``DataLoader`` gathers a minibatch at once.
    """

    def __init__(self, split: Split) -> None:
        self._split = split

    def __len__(self) -> int:
        return int(self._split.num_examples[0])

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        for index in indices:
            if not 0 <= index < len(self):
                raise IndexError(f"example {index} of {len(self)}")
        inputs, targets, weights = (part[0] for part in self._split.batch(torch.tensor([list(indices)])))
        if targets.is_floating_point():
            targets = targets.masked_fill(weights == 0, math.nan)
        return list(zip(inputs, targets, strict=True))


class Penalty:
    """A method's term of the loss of a client: ``loss = criterion(...) + penalty(model)``.

    Only its gradient is meaningful, not its value, which should not be reported.
    """

    def __init__(self, term: GradientTerm | None, row: int, layout: Layout, batch_size: int) -> None:
        self._term, self._row, self._batch_size = term, row, batch_size
        self._names = tuple(name for name in layout.names if name not in layout.buffers)
        self.used = term is None

    def __call__(self, model: nn.Module, examples: int | None = None) -> Tensor:
        """Return the scalar term of the mean loss of a minibatch of ``examples`` examples, by default batch-size.

        Raises ExperimentError for a model other than the function's.
        """
        parameters = dict(model.named_parameters())
        if lacking := [name for name in self._names if name not in parameters]:
            raise ExperimentError(
                f"{_WHERE}: penalty needs the model that the function received, but this has no '{lacking[0]}'"
            )
        v = torch.cat([parameters[name].reshape(-1) for name in self._names])
        if self._term is None:
            return v.new_zeros(())
        with torch.no_grad():
            weight = torch.tensor([float(self._batch_size if examples is None else examples)], device=v.device)
            gradient = self._term(v[None], torch.tensor([self._row]), weight)[0]
        value = v @ gradient
        value.register_hook(self._note)
        return value

    def _note(self, gradient: Tensor) -> None:
        self.used = True


class OwnFunction:
    """A function ``train(model, examples, **named)`` that trains one client's model in a round.

    It receives a PyTorch module with the client's model, in training mode, and :class:`ClientExamples`. Its parameters
    may name keys of ``[train]`` (``learning_rate`` is that of the round), ``round``, ``client``, ``seed``, ``device``
    and ``penalty`` (:class:`Penalty`); ``**named`` receives all. The module is trained in place, or one with the same
    layers is returned; a returned number is the mean loss. Raises ExperimentError for an unknown function or parameter,
    and for keys that the function does not use.

    Parameters
    ----------
    settings : with the dotted path ``function``.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self.settings, self.path, self._warned = settings, settings.function or "", False
        found: Callable[..., Any] = load_object(self.path, _WHERE, a_function)
        self._function = found
        parameters = list(inspect.signature(found).parameters.values())
        named = [each for each in parameters[2:] if each.kind is not inspect.Parameter.VAR_KEYWORD]
        self._takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
        self._names = {each.name for each in named}
        given = settings.as_table(nulls=True)
        keys = [key for key in given if key not in _OF_THE_ENGINE]
        offered = [*map(_name, keys), *_OF_THE_ROUND]
        unknown = [each.name for each in named if each.name not in offered and each.default is each.empty]
        second = "" if len(parameters) < 2 else parameters[1].name
        if len(parameters) < 2 or second in offered or unknown:
            wrong = "takes no examples, its second argument"
            if unknown and second not in offered:
                wrong = f"needs '{unknown[0]}', which is unknown"
            raise ExperimentError(
                f"{_WHERE} = '{self.path}' {wrong}: it is called as train(model, examples), with those of "
                f"{', '.join(offered)} that its parameters name"
            )
        # The usual rate is that of the optimiser.
        usual = TrainSettings(optimizer=settings.optimizer).as_table(nulls=True)
        default = {**usual, "optimizer": TrainSettings().optimizer}
        ignored = [
            key
            for key in keys
            if given[key] not in (None, default[key]) and not self._takes(_PART_OF.get(key, _name(key)))
        ]
        if ignored:
            raise ExperimentError(
                f"[train] {ignored[0]} would have no effect: the function '{self.path}' has no parameter "
                f"'{_PART_OF.get(ignored[0], _name(ignored[0]))}'; give it one, or leave the key out"
            )

    def _takes(self, name: str) -> bool:
        return self._takes_all or name in self._names

    def check_terms(self, term: GradientTerm | None) -> None:
        """Raise ExperimentError for a method with a loss term if the function has no parameter ``penalty``."""
        if term is not None and not self._takes("penalty"):
            raise ExperimentError(
                f"{_WHERE} = '{self.path}': the method adds a term to the loss of its clients; give the function a "
                "parameter `penalty`, and add penalty(model) to the loss before backward()"
            )

    def train(
        self,
        model: StackedModel,
        row: Tensor,
        split: Split,
        *,
        client: str,
        position: int,
        round: int,
        seed: int,
        term: GradientTerm | None,
        device: torch.device,
    ) -> tuple[Tensor, float]:
        """Train one client.

        Raises ExperimentError when the function returns anything but a module or a number, or does not use the method's
        term.

        Parameters
        ----------
        model : StackedModel
            The architecture.
        row : Tensor
            The client's model, ``[parameters]``.
        split : Split
            Its training examples.
        client, position
            Its name, and its position in the cohort.
        round, seed
            Round and seed of the run, which seed PyTorch together with the client's name.
        term : GradientTerm or None
            The method's term of the gradient.
        device : torch.device
            Device of the module.

        Returns
        -------
        row : Tensor
            The trained model, ``[parameters]``.
        loss : float
            The returned loss; NaN without one.
        """
        layout, settings = model.layout, self.settings
        # Tensors outside the layout are those of the constructor: counters, and a weight shared by two layers.
        module = model.twin()
        module.load_state_dict(layout.row_state(row), strict=False)
        module.to(device).train()
        penalty = Penalty(term, position, layout, settings.batch_size)
        own_seed = derive_seed(seed, "own training", client, round)
        offered = {
            **{name: getattr(settings, name) for name in type(settings).model_fields},
            **{"learning_rate": settings.rate(round), "round": round, "client": client, "seed": own_seed},
            **{"device": device, "penalty": penalty},
        }
        named = {name: value for name, value in offered.items() if name in self._names}
        if self._takes_all:
            named = {name: value for name, value in offered.items() if name.replace("_", "-") not in _OF_THE_ENGINE}
            named["device"] = device
        on_gpu = [torch.cuda.current_device()] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=on_gpu), torch.enable_grad():
            torch.manual_seed(own_seed)
            returned = self._function(module, ClientExamples(split), **named)
        loss = math.nan
        if isinstance(returned, nn.Module):
            module = returned
        elif _is_number(returned):
            loss = float(returned)
        elif returned is not None:
            raise ExperimentError(
                f"{_WHERE} = '{self.path}' returned {type(returned).__name__}: it returns nothing, the mean loss, or "
                "the trained module"
            )
        if not penalty.used:
            raise ExperimentError(
                f"{_WHERE} = '{self.path}' did not use `penalty`, which the method requires: add penalty(model) to the "
                "loss before backward()"
            )
        state = module.state_dict()
        if lacking := [name for name in layout.names if name not in state]:
            raise ExperimentError(f"{_WHERE} = '{self.path}' returned a module without the tensor '{lacking[0]}'")
        trained = layout.row({name: state[name].detach().cpu() for name in layout.names})
        if not self._warned and torch.equal(trained, row.float()):
            self._warned = True
            log.warning(
                "[train] function has not changed the model of '%s': train the given module in place, or return the "
                "trained one", client,
            )  # fmt: skip
        return trained, loss


def _name(key: str) -> str:
    return key.replace("-", "_")


def _is_number(value: Any) -> bool:
    one = isinstance(value, Tensor) and value.numel() == 1
    return one or (isinstance(value, Real) and not isinstance(value, bool))
