"""SGD, Adam and AdamW for many clients as operations on one matrix ``[clients, parameters]``.

Each row is updated exactly as by ``torch.optim``. Clients are sorted by their number of steps, so active clients are
the first rows; the others and their moments do not change.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim.adam import adam

from fedgraph.support.errors import RunError
from fedgraph.training.settings import TrainSettings

EPSILON = 1e-8
_FUSED_FROM = 1 << 17
"""Minimum number of values for PyTorch's fused kernel."""


class Optimiser:
    """Optimiser with in-place updates.

    Parameters
    ----------
    settings : TrainSettings
        Algorithm and its coefficients.
    learning_rate : float
        Default learning rate of a step.
    state : dict of str to Tensor
        Moments of :func:`fresh_state`, each with a leading client axis; updated in place.
    """

    def __init__(self, settings: TrainSettings, learning_rate: float, state: dict[str, Tensor]) -> None:
        self.settings = settings
        self.learning_rate = learning_rate
        self.state = state

    def step(self, parameters: Tensor, gradient: Tensor, learning_rates: Tensor | None = None) -> None:
        """Update the first rows of ``parameters``.

        Parameters
        ----------
        parameters : Tensor
            ``[clients, parameters]``.
        gradient : Tensor
            ``[active, parameters]`` of the first ``active`` clients; it may be overwritten.
        learning_rates : Tensor, optional
            Per client for this step, ``[active]``.
        """
        active = len(gradient)
        rate = self.learning_rate if learning_rates is None else learning_rates.unsqueeze(1)
        update = self._sgd if self.settings.optimizer == "sgd" else self._adam
        update(parameters[:active], gradient, {name: value[:active] for name, value in self.state.items()}, rate)

    def _sgd(self, parameters: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor) -> None:
        momentum = self.settings.momentum
        if self.settings.weight_decay:
            gradient.add_(parameters, alpha=self.settings.weight_decay)
        if momentum:
            velocity = state["momentum"].mul_(momentum).add_(gradient)
            gradient = gradient.add_(velocity, alpha=momentum) if self.settings.nesterov else velocity
        if isinstance(rate, Tensor):
            parameters.addcmul_(gradient, rate, value=-1)
        else:
            parameters.sub_(gradient, alpha=rate)

    def _adam(self, parameters: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float | Tensor) -> None:
        first, second = self.settings.betas
        if self.settings.weight_decay:
            if self.settings.optimizer == "adamw":
                parameters.mul_(1 - rate * self.settings.weight_decay)
            else:
                gradient.add_(parameters, alpha=self.settings.weight_decay)
        # Comparing the steps of the rows would synchronise with a GPU.
        large = parameters.device.type == "cpu" and parameters.numel() >= _FUSED_FROM
        if large and isinstance(rate, float) and bool((state["step"] == state["step"][0]).all()):
            self._fused_adam(parameters, gradient, state, rate)
            return
        count = state["step"].add_(1).unsqueeze(1)
        mean = state["first-moment"].lerp_(gradient, 1 - first)
        square = state["second-moment"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        # Powers in float64: 1 - 0.999 ** count loses digits in float32.
        first_scale = (1 - first ** count.double()).float()
        second_scale = (1 - second ** count.double()).sqrt().float()
        denominator = (square.sqrt() / second_scale).add_(EPSILON)
        parameters.sub_(mean / denominator * (rate / first_scale))

    def _fused_adam(self, parameters: Tensor, gradient: Tensor, state: dict[str, Tensor], rate: float) -> None:
        """Update by the fused kernel, if all rows have the same number of steps."""
        first, second = self.settings.betas
        adam(
            [parameters],
            [gradient],
            [state["first-moment"]],
            [state["second-moment"]],
            [],
            [state["step"][0].clone()],
            fused=True,
            amsgrad=False,
            beta1=first,
            beta2=second,
            lr=rate,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )
        state["step"].add_(1)


def fresh_state(
    settings: TrainSettings, num_clients: int, num_parameters: int, device: torch.device | str = "cpu"
) -> dict[str, Tensor]:
    """Return the moments before the first step.

    Returns ``[clients, parameters]`` or ``[clients]`` by name; empty for SGD without momentum.
    """

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, device=device)

    if settings.optimizer == "sgd":
        return {"momentum": zeros(num_clients, num_parameters)} if settings.momentum else {}
    return {
        "first-moment": zeros(num_clients, num_parameters),
        "second-moment": zeros(num_clients, num_parameters),
        "step": zeros(num_clients),
    }


def check_state(state: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise RunError if names or shapes of ``state`` differ from ``expected``."""
    found = {name: tuple(value.shape) for name, value in state.items()}
    wanted = {name: tuple(value.shape) for name, value in expected.items()}
    if found != wanted:
        raise RunError(
            f"the stored optimiser state has {found}, but these clients, model and optimiser need {wanted}; was the "
            "run continued with other settings?"
        )


def clip_rows(gradient: Tensor, max_norm: float) -> Tensor:
    """Clip each client's gradient to the Euclidean norm ``max_norm``, in place.

    Returns ``gradient``, ``[clients, parameters]``.
    """
    norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1))
