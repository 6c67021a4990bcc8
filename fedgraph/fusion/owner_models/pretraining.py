"""Training of each owner's own model with early stopping (F3, sections 2 and 6).

Embeddings and predictions of owners' models of one architecture are computed together.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedgraph.data import CohortData
from fedgraph.fusion.owner_models.local_model import BATCH, Represented
from fedgraph.models import StackedModel, TaskSpec, finite_rows
from fedgraph.support.errors import RunError
from fedgraph.support.randomness import generator
from fedgraph.support.threads import available_cores, side_by_side
from fedgraph.training import Cohort, working_set


def represent(
    model: StackedModel, parameters: Tensor, inputs: Tensor, batch_size: int = BATCH, workers: int | None = None
) -> Represented:
    """Compute embeddings and predictions of classifiers ``parameters`` ``[clients, parameters]`` for their ``inputs``.

    ``inputs`` is ``[clients, samples, *input_shape]``; the results have the same two leading axes and are on the CPU.
    Computed on the device of ``parameters`` in batches of ``batch_size`` samples of as many clients as fit into memory.
    ``workers`` blocks of clients are computed in parallel; None uses all cores. Results of a client do not depend on
    the others.
    """
    device = parameters.device
    room = working_set(model, TaskSpec("classification", tuple(inputs.shape[2:]), ()))
    size = 1 if room.sequential and device.type == "cpu" else room.clients_per_block(batch_size, device)

    def compute(start: int) -> Represented:
        block = slice(start, start + size)
        state = model.layout.unflatten(parameters[block].detach().float())
        parts = []
        with torch.no_grad():
            for some in inputs[block].split(batch_size, dim=1):
                embeddings, outputs = model.represent(state, some.to(device))
                parts.append((embeddings.float().cpu(), torch.softmax(outputs.float(), dim=2).cpu()))
        return Represented(*(torch.cat(part, dim=1) for part in zip(*parts, strict=True)))

    at_once = (workers or available_cores()) if device.type == "cpu" else 1
    blocks = side_by_side(compute, range(0, len(parameters), size), at_once, threads=1)
    return Represented(*(torch.cat(part) for part in zip(*blocks, strict=True)))


@dataclass(frozen=True)
class Pretrained:
    """The models of the owners after training, each from its best epoch.

    parameters  : float32 ``[clients, parameters]``.
    epochs : int64 ``[clients]``, number of trained epochs.
    best_epochs : int64 ``[clients]``, from 1; 0 for a client without training.
    accuracy : ``[clients]`` on validation examples after the best epoch; NaN without any.
    """

    parameters: Tensor
    epochs: Tensor
    best_epochs: Tensor
    accuracy: Tensor


def initial_models(model: StackedModel, seed: int, names: Sequence[str], tied_head: bool = False) -> Tensor:
    """Draw an initial model for each of the clients ``names``, ``[clients, parameters]``, independently.

    ``tied_head`` gives all clients the same last linear layer, initialised as ``torch.nn`` from a key that depends only
    on its shape, so clients with other architectures but embeddings of the same size share it.
    """
    rows = torch.stack([model.initial(generator(seed, "initial model of an owner", name)) for name in names])
    if tied_head:
        tensors = model.layout.unflatten(rows)
        draw = generator(seed, "tied head", model.embedding_size)
        bound = 1 / math.sqrt(model.embedding_size)
        for name in sorted(model.head_tensors, reverse=True):  # the weight first
            tensors[name].copy_(torch.empty(tensors[name].shape[1:]).uniform_(-bound, bound, generator=draw))
    return rows


def pretrain(
    cohort: Cohort,
    initial: Tensor,
    max_epochs: int,
    patience: int,
    monitor: Literal["accuracy", "loss"] = "accuracy",
) -> Pretrained:
    """Train every classifier from its row of ``initial`` ``[clients, parameters]`` with early stopping.

    A client stops after ``patience`` consecutive epochs without improvement of its validation accuracy or loss,
    according to ``monitor``, or after ``max_epochs``, and gets the parameters of its first best epoch. Clients without
    validation examples use their training loss. The state of the optimiser is kept over epochs, and settings of
    ``[train]`` for rounds (decay of the learning rate) apply to epochs; its number of epochs or steps is ignored.
    Results of a client do not depend on the others. Raises RunError, which names the client, when parameters are not
    finite after its first epoch.
    """
    num_clients = len(initial)
    best, best_score = initial.detach().clone(), torch.full((num_clients,), -torch.inf)
    accuracy = torch.full((num_clients,), torch.nan)
    epochs, best_epochs = (torch.zeros(num_clients, dtype=torch.int64) for _ in range(2))
    settings = cohort.settings.model_copy(update={"keep_optimizer": True, "local_epochs": 1, "local_steps": None})
    training = Cohort(cohort.model, cohort.data, settings, cohort.seed)
    # Except for native code, each size of cohort would be compiled again.
    shrinks_often = settings.compile is not True or training.model.native
    rows, parameters = torch.arange(num_clients), best.clone()
    moments: dict[str, Tensor] | None = None
    going = torch.ones(num_clients, dtype=torch.bool)
    for epoch in range(1, max_epochs + 1):
        result = training.train(parameters, epoch, optimizer_state=moments)
        parameters, moments = result.parameters, result.optimizer_state
        validated = training.evaluate(parameters, "validation")
        reached = validated["accuracy"].float()
        quality = reached if monitor == "accuracy" else -validated["loss"].float()
        score = torch.where(reached.isnan(), -result.loss, quality)
        is_better = going[rows] & (score > best_score[rows]) & finite_rows(parameters)
        better = rows[is_better]
        best[better], best_score[better] = parameters[is_better], score[is_better]
        accuracy[better], best_epochs[better] = reached[is_better], epoch
        epochs[rows[going[rows]]] = epoch
        going &= (epoch - best_epochs < patience) & (best_epochs > 0)
        remaining = going[rows]
        if not bool(remaining.any()):
            break
        if not bool(remaining.all()) and (shrinks_often or 2 * int(remaining.sum()) <= len(rows)):
            rows, parameters = rows[remaining], parameters[remaining]
            moments = {name: value[remaining] for name, value in moments.items()}
            training = Cohort(training.model, some_clients(cohort.data, rows), settings, cohort.seed)
    _check_converged(cohort, best_epochs, max_epochs)
    return Pretrained(best, epochs, best_epochs, accuracy)


def some_clients(data: CohortData, rows: Tensor) -> CohortData:
    """Return the data of the clients ``rows``, int64 ``[fewer]``, of a cohort."""
    names = tuple(data.names[row] for row in rows.tolist())
    return replace(
        data,
        names=names,
        splits={name: split.select(rows) for name, split in data.splits.items()},
        mean=data.mean[rows],
        std=data.std[rows],
        label_counts=None if data.label_counts is None else data.label_counts[rows],
        groups=None if data.groups is None else tuple(data.groups[row] for row in rows.tolist()),
        untrained=tuple(name for name in data.untrained if name in names),
        moments=None if data.moments is None else data.moments[rows],
    )


def _check_converged(cohort: Cohort, best_epochs: Tensor, max_epochs: int) -> None:
    trained = cohort.data.splits["train"].num_examples.cpu() > 0
    diverged = [cohort.data.names[row] for row in ((best_epochs == 0) & trained).nonzero().flatten().tolist()]
    if max_epochs > 0 and diverged:
        raise RunError(
            f"the local model of client '{diverged[0]}' (and of {len(diverged) - 1} others) diverged in its first "
            "epoch: parameters or loss are not finite; reduce [train] learning-rate, or set clip-norm, and check that "
            "the inputs are finite"
        )
