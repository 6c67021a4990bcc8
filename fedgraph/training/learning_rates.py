"""The learning rate of each minibatch of a round: a linear rise, then a linear fall (Chen et al. 2022, their program).

Clients have different numbers of minibatches, so each has a rate of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.training.batches import num_steps, steps_per_epoch
from fedgraph.training.settings import TrainSettings


def learning_rates(settings: TrainSettings, num_examples: Tensor, round: int) -> Tensor | None:
    """Rates of a round, float32 ``[steps, clients]``; None where the rate of the round is that of every minibatch.

    The rate belongs to the end of its minibatch: the first one already moves the model, and the last one has
    ``final-learning-rate``. ``num_examples`` is int64 ``[clients]``; the result lies on its device.
    """
    peak, warmup, final = settings.learning_rate, settings.warmup_epochs, settings.final_learning_rate
    if not warmup and final is None:
        return None
    steps = num_steps(num_examples, settings)
    number = torch.arange(1, int(steps.max()) + 1, dtype=torch.float64, device=num_examples.device)[:, None]
    rising = warmup * steps_per_epoch(num_examples, settings).double()
    rate = peak * (number / rising).clamp(max=1) if warmup else torch.full_like(number, peak)
    if final is not None:
        fallen = ((number - rising) / (steps - rising).clamp(min=1e-9)).clamp(0, 1)
        rate = rate + fallen * (final - peak)
    return (rate * (settings.rate(round) / peak)).float().expand(-1, len(num_examples))
