"""Windows of a cohort of time series in order: their embeddings, their targets, and errors of given forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedgraph.data import SPLITS, Split, SplitName
from fedgraph.data.series import times_ahead
from fedgraph.models import Batch, build
from fedgraph.support.files import as_csv, file_name, write_atomically
from fedgraph.support.randomness import derive_seed
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
    """Return the targets of all examples.

    Returns
    -------
    tuple of Tensor
        Scaled targets, float32 ``[clients, examples, steps]``, 0 where nothing was read, and where they were, bool.
    """
    steps = cohort.data.task.output_shape[0]
    targets, known = [torch.zeros(len(cohort.data.names), 0, steps)], []
    for batch, _ in batches(cohort, split):
        known.append(batch.weights.cpu() > 0)
        targets.append(batch.targets.cpu().masked_fill(~known[-1], 0.0))
    return torch.cat(targets, 1), torch.cat([targets[0].bool(), *known], 1)


def forecast_errors(
    cohort: Cohort,
    forecasts: Tensor,
    split: SplitName,
    horizons: Sequence[int] = (),
    missing_as: float | None = None,
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
    missing_as : float, optional
        Value that missing readings count as in further errors, as for :meth:`fedgraph.training.Cohort.evaluate`.

    Returns
    -------
    dict of str to Tensor
        ``[clients]`` by name, as :meth:`fedgraph.training.Cohort.evaluate` names and measures them.
    """
    data = cohort.data
    sums = tally(data.task, data.mean, data.std, horizons, missing_as)
    if not forecasts.shape[1]:
        # No client has a window: every error is NaN.
        nothing = forecasts.new_zeros(len(forecasts), 1, forecasts.shape[2])
        sums.add(nothing, nothing, nothing, nothing[..., 0] > 0)
        return sums.result()
    start = 0
    for batch, present in batches(cohort, split):
        stop = start + batch.targets.shape[1]
        sums.add(forecasts[:, start:stop], batch.targets.cpu(), batch.weights.cpu(), present)
        start = stop
    return sums.result()


def write_forecasts(cohort: Cohort, forecasts: Tensor, split: SplitName, folder: Path) -> None:
    """Write forecasts as CSV, a file for each client, in the unit of its readings.

    The columns are the window, counted from 0, the time of the step that is forecast, the forecast, and the reading
    where there is one.

    Parameters
    ----------
    cohort : Cohort
        The clients, all with as many examples.
    forecasts : Tensor
        ``[clients, examples, steps]``, scaled as targets are.
    split : str
        Whose examples are forecast.
    folder : Path
        Where files are written, named after the clients.
    """
    targets, known = targets_of(cohort, split)
    times = [time for window in times_ahead(cohort.data.splits[split]) for time in window]
    mean, std = (values[:, None, None] for values in (cohort.data.mean, cohort.data.std))
    steps = forecasts.shape[2]
    rows = zip(cohort.data.names, forecasts * std + mean, targets * std + mean, known, strict=True)
    for name, found, readings, there in rows:
        values = zip(
            times, found.flatten().tolist(), readings.flatten().tolist(), there.flatten().tolist(), strict=True
        )
        lines = [
            [place // steps, time, f"{forecast:.6g}", f"{reading:.6g}" if read else None]
            for place, (time, forecast, reading, read) in enumerate(values)
        ]
        text = as_csv([["window", "time", "forecast", "reading"], *lines])
        write_atomically(folder / f"{file_name(name)}.csv", text.encode())


@dataclass(frozen=True)
class _Embedded:
    """A split whose inputs are other tensors, ``[clients, examples, size]``; targets stay."""

    inputs: Tensor
    split: Split

    @property
    def num_examples(self) -> Tensor:
        return self.split.num_examples

    def batch(self, indices: Tensor) -> Batch:
        batch = self.split.batch(indices)
        clients = torch.arange(len(indices), device=indices.device)[:, None]
        return batch._replace(inputs=self.inputs[clients, indices.clamp(min=0)])

    def select(self, clients: slice | Tensor) -> _Embedded:
        return _Embedded(self.inputs[clients], self.split.select(clients))

    def to(self, device: torch.device) -> _Embedded:
        return _Embedded(self.inputs.to(device), self.split.to(device))


def cohort_of_embeddings(cohort: Cohort, inputs: Mapping[SplitName, Tensor], hidden: int) -> Cohort:
    """Return the same clients with perceptrons that forecast from other inputs.

    Parameters
    ----------
    cohort : Cohort
        The clients, and how they train.
    inputs : mapping of str to Tensor
        Float32 ``[clients, examples, size]`` by split.
    hidden : int
        Width of the one hidden layer.
    """
    size = next(iter(inputs.values())).shape[2]
    task = replace(cohort.data.task, input_shape=(size,), features=())
    splits: dict[SplitName, Split] = {
        split: _Embedded(inputs[split], cohort.data.splits[split]) for split in SPLITS if split in inputs
    }
    data = replace(cohort.data, task=task, splits=splits)
    model = build({"name": "mlp", "hidden": [hidden]}, task)
    return Cohort(model, data, cohort.settings, derive_seed(cohort.seed, "forecasters"))


def batches(cohort: Cohort, split: SplitName) -> Iterator[tuple[Batch, Tensor]]:
    """The examples of all clients in order, and which of them exist, bool ``[clients, batch]``."""
    data = cohort.data.splits[split]
    counts = data.num_examples.cpu()
    data = data.to(cohort.device)
    for places in torch.arange(int(counts.max())).split(_AT_ONCE):
        present = places < counts[:, None]
        indices = places.expand(len(counts), -1).masked_fill(~present, -1)
        yield data.batch(indices.to(cohort.device)), present
