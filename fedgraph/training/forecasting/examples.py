"""Windows of a cohort of time series: embeddings, targets, and errors of given forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

from fedgraph.data import SPLITS, Split, SplitName
from fedgraph.data.series import readings_in_windows, times_ahead
from fedgraph.models import Batch, build
from fedgraph.support.files import file_name, replacing
from fedgraph.support.randomness import derive_seed
from fedgraph.training.cohort import Cohort
from fedgraph.training.tallies import tally

_AT_ONCE = 1024


def compute_embeddings(cohort: Cohort, parameters: Tensor, split: SplitName) -> Tensor:
    """Compute the inputs of every client's last linear layer.

    Returns float32 ``[clients, examples, embedding_size]``, padded with 0.

    Parameters
    ----------
    cohort : Cohort
        The clients.
    parameters : Tensor
        Their models, ``[clients, parameters]``.
    split : str
        Whose examples are embedded.
    """
    state = cohort.model.layout.unflatten(parameters.to(cohort.device))
    parts = [torch.zeros(len(parameters), 0, cohort.model.embedding_size)]
    with torch.no_grad():
        for batch, present in batches(cohort, split):
            found, _ = cohort.model.embed(state, batch.inputs, False)
            parts.append(found.float().cpu().masked_fill(~present[..., None], 0.0))
    return torch.cat(parts, 1)


def read_targets(cohort: Cohort, split: SplitName) -> tuple[Tensor, Tensor]:
    """Return the targets of all examples.

    Returns scaled targets, float32 ``[clients, examples, steps]``, 0 where missing, and which are observed, bool.
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
    """Compute the errors of given forecasts.

    Returns ``[clients]`` by metric, as :meth:`fedgraph.training.Cohort.evaluate`.

    Parameters
    ----------
    cohort : Cohort
        The clients.
    forecasts : Tensor
        ``[clients, examples, steps]``, scaled as their targets.
    split : str
        Whose examples are forecast.
    horizons : sequence of int
        Steps with separate errors, from 1.
    missing_as : float, optional
        As for :meth:`fedgraph.training.Cohort.evaluate`.
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


def in_unit(cohort: Cohort, scaled: Tensor) -> Tensor:
    """Convert scaled readings or forecasts ``[clients, examples, steps]`` to their unit."""
    mean, std = (values[:, None, None] for values in (cohort.data.mean, cohort.data.std))
    return scaled * std + mean


FileForm = Literal["csv", "parquet"]


def write_forecasts(cohort: Cohort, forecasts: Tensor, split: SplitName, folder: Path, form: FileForm = "csv") -> None:
    """Write forecasts, one file per client.

    The columns are the window from 0, the time of the forecast step, the forecast, the reading if observed, and the
    number of readings in the input window.

    Parameters
    ----------
    cohort : Cohort
        The clients.
    forecasts : Tensor
        ``[clients, examples, steps]``, in the unit of the clients' readings.
    split : str
        Whose examples are forecast.
    folder : Path
        Folder of the files, which are named after the clients.
    form : {"csv", "parquet"}
        Kind of the files.
    """
    targets, known = read_targets(cohort, split)
    windows, steps = cohort.data.splits[split], forecasts.shape[2]
    readings, seen = in_unit(cohort, targets), readings_in_windows(windows)
    for row, name in enumerate(cohort.data.names):
        count = int(windows.num_examples[row])
        present = known[row, :count].flatten().numpy()
        table = pa.table(
            {
                "window": np.repeat(np.arange(count), steps),
                "time": [time for window in times_ahead(windows, row) for time in window],
                "forecast": forecasts[row, :count].flatten().numpy(),
                "reading": pa.array(readings[row, :count].flatten().numpy(), mask=~present),
                "readings_in_window": np.repeat(seen[row, :count].numpy(), steps),
            }
        )
        with replacing(folder / f"{file_name(name)}.{form}", private=True) as file:
            if form == "parquet":
                pyarrow.parquet.write_table(table, file, write_page_checksum=True)
            else:
                pyarrow.csv.write_csv(table, file)


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


def embedding_cohort(cohort: Cohort, inputs: Mapping[SplitName, Tensor], hidden: int) -> Cohort:
    """Return the clients with perceptrons that forecast from other inputs.

    Parameters
    ----------
    cohort : Cohort
        The clients.
    inputs : mapping of str to Tensor
        Float32 ``[clients, examples, size]`` by split.
    hidden : int
        Width of the hidden layer.
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
    """Yield the examples of all clients in order, and which of them exist, bool ``[clients, batch]``."""
    data = cohort.split(split)
    counts = data.num_examples.cpu()
    for places in torch.arange(int(counts.max())).split(_AT_ONCE):
        present = places < counts[:, None]
        indices = places.expand(len(counts), -1).masked_fill(~present, -1)
        yield data.batch(indices.to(cohort.device)), present
