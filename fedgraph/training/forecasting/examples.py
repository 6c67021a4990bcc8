"""Windows of a cohort of time series in order: their embeddings, their targets, and errors of given forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.models import Batch
from fedgraph.training.cohort import Cohort
from fedgraph.training.metrics import tally

_AT_ONCE = 1024


def embeddings_of(cohort: Cohort, parameters: Tensor, split: SplitName) -> Tensor:
    """Compute the inputs of every client's last linear layer.

    Parameters
    ----------
    cohort : Cohort
        The clients.
    parameters : Tensor
        Their models, ``[clients, parameters]``.
    split : str
        Whose examples are embedded.

    Returns
    -------
    Tensor
        Float32 ``[clients, examples, embedding_size]``, 0 behind a client's last example.
    """
    state = cohort.model.layout.unflatten(parameters.to(cohort.device))
    parts = [torch.zeros(len(parameters), 0, cohort.model.embedding_size)]
    with torch.no_grad():
        for batch, present in batches(cohort, split):
            found, _ = cohort.model.embed(state, batch.inputs, False)
            parts.append(found.float().cpu().masked_fill(~present[..., None], 0.0))
    return torch.cat(parts, 1)


def targets_of(cohort: Cohort, split: SplitName) -> tuple[Tensor, Tensor]:
    """What is forecast, scaled, float32 ``[clients, examples, steps]``, and which of it was read, bool."""
    steps = cohort.data.task.output_shape[0]
    targets, known = [torch.zeros(len(cohort.data.names), 0, steps)], []
    for batch, _ in batches(cohort, split):
        known.append(batch.weights.cpu() > 0)
        targets.append(batch.targets.cpu().masked_fill(~known[-1], 0.0))
    return torch.cat(targets, 1), torch.cat([targets[0].bool(), *known], 1)


def forecast_errors(
    cohort: Cohort, forecasts: Tensor, split: SplitName, horizons: Sequence[int] = ()
) -> dict[str, Tensor]:
    """Measure forecasts that others made.

    Parameters
    ----------
    cohort : Cohort
        The clients.
    forecasts : Tensor
        ``[clients, examples, steps]``, scaled as their targets are.
    split : str
        Whose examples are forecast.
    horizons : sequence of int
        Steps that are measured by themselves, counted from 1.

    Returns
    -------
    dict of str to Tensor
        ``[clients]`` by name, as :meth:`fedgraph.training.Cohort.evaluate` names and measures them.
    """
    data = cohort.data
    sums = tally(data.task, data.mean, data.std, horizons)
    start = 0
    for batch, _ in batches(cohort, split):
        stop = start + batch.targets.shape[1]
        sums.add(forecasts[:, start:stop], batch.targets.cpu(), batch.weights.cpu())
        start = stop
    return sums.result()


def batches(cohort: Cohort, split: SplitName) -> Iterator[tuple[Batch, Tensor]]:
    """The examples of all clients in order, and which of them exist, bool ``[clients, batch]``."""
    data = cohort.data.splits[split]
    counts = data.num_examples.cpu()
    data = data.to(cohort.device)
    for places in torch.arange(int(counts.max())).split(_AT_ONCE):
        present = places < counts[:, None]
        indices = places.expand(len(counts), -1).masked_fill(~present, -1)
        yield data.batch(indices.to(cohort.device)), present
