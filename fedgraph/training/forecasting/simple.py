"""Simple forecasters without a network, separate for each client: the baselines of any method."""

from __future__ import annotations

from itertools import islice
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.data.series import covariate_features, last_readings, profile_forecasts
from fedgraph.support.randomness import derive_seed
from fedgraph.support.threads import pinned_threads
from fedgraph.training.cohort import Cohort
from fedgraph.training.forecasting.examples import batches, read_targets

SimpleForecaster = Literal["last-reading", "weekly-profile", "ridge", "trees"]
SIMPLE: tuple[SimpleForecaster, ...] = get_args(SimpleForecaster)

_PENALTIES = tuple(10.0**power for power in range(-4, 3))
_TREES = 100


def simple_forecasts(kind: SimpleForecaster, cohort: Cohort, splits: tuple[SplitName, ...]) -> dict[SplitName, Tensor]:
    """Forecast the windows of splits.

    Returns float32 ``[clients, examples, steps]`` by split, scaled as targets. Raises DataError for ``weekly-profile``
    if the time of steps is unknown.

    Parameters
    ----------
    kind : str
        ``last-reading`` repeats the last reading of a window, and ``weekly-profile`` the client's mean reading at that
        time of the week in its training part. ``ridge`` is linear regression per step ahead, with the L2 penalty of
        smallest error on the client's validation windows. ``trees`` are up to 100 gradient-boosted trees per step ahead
        with absolute error; their number minimises the error on validation windows. Inputs of both are the readings of
        the window, and covariates at its last step.
    cohort : Cohort
        The clients.
    splits : tuple of str
        Whose windows are forecast.
    """
    if kind == "last-reading":
        steps = cohort.data.task.output_shape[0]
        return {split: last_readings(cohort.data.splits[split])[..., None].expand(-1, -1, steps) for split in splits}
    if kind == "weekly-profile":
        return {split: profile_forecasts(cohort.data, split) for split in splits}
    inputs = {split: _inputs(cohort, split) for split in {"train", "validation", *splits}}
    targets: dict[SplitName, tuple[Tensor, Tensor]] = {
        "train": read_targets(cohort, "train"), "validation": read_targets(cohort, "validation"),
    }  # fmt: skip
    fit = _ridge if kind == "ridge" else _trees
    with pinned_threads(1):
        return fit(cohort, inputs, targets, splits)


def _inputs(cohort: Cohort, split: SplitName) -> Tensor:
    """Readings of each window and covariates at its last step, ``[clients, examples, inputs]``."""
    known = torch.tensor(covariate_features(cohort.data.task))
    parts = [
        torch.cat([batch.inputs[..., ~known].flatten(2), batch.inputs[:, :, -1, known]], 2).cpu()
        for batch, _ in batches(cohort, split)
    ]
    return torch.cat(parts, 1)


def _ridge(
    cohort: Cohort,
    inputs: dict[SplitName, Tensor],
    targets: dict[SplitName, tuple[Tensor, Tensor]],
    splits: tuple[SplitName, ...],
) -> dict[SplitName, Tensor]:
    """Fit a linear model per client and step ahead."""
    with_bias = {split: torch.nn.functional.pad(x, (0, 1), value=1.0) for split, x in inputs.items()}
    x, (y, known) = with_bias["train"].double(), targets["train"]
    size = x.shape[2]
    # The bias has no penalty.
    penalised = torch.eye(size, dtype=torch.float64)
    penalised[-1, -1] = 1e-9
    solved = []
    for step in range(y.shape[2]):
        weighted = (x * known[:, :, step, None]).transpose(1, 2)
        gram, moment = weighted @ x, weighted @ y[:, :, step, None].double()
        count = known[:, :, step].sum(1).clamp(min=1)[:, None, None]
        fitted = [torch.linalg.solve(gram + penalty * count * penalised, moment) for penalty in _PENALTIES]
        solved.append(torch.cat(fitted, 2))
    weights = torch.stack(solved, 2).float()  # [clients, inputs, steps, penalties]
    chosen = _best_penalty(with_bias["validation"], weights, *targets["validation"])
    best = weights[torch.arange(len(weights)), ..., chosen]
    return {split: with_bias[split] @ best for split in splits}


def _best_penalty(x: Tensor, weights: Tensor, y: Tensor, known: Tensor) -> Tensor:
    """Return the penalty of the smallest absolute error of each client, ``[clients]``; the first without any target."""
    errors = [((x @ each - y).abs() * known).flatten(1).sum(1) for each in weights.unbind(3)]
    return torch.stack(errors).argmin(0)


def _trees(
    cohort: Cohort,
    inputs: dict[SplitName, Tensor],
    targets: dict[SplitName, tuple[Tensor, Tensor]],
    splits: tuple[SplitName, ...],
) -> dict[SplitName, Tensor]:
    """Fit boosted trees per client and step ahead; 0, the mean, without training targets."""
    from sklearn.ensemble import HistGradientBoostingRegressor  # takes half a second

    names, steps = cohort.data.names, cohort.data.task.output_shape[0]
    found = {split: torch.zeros(*inputs[split].shape[:2], steps) for split in splits}
    for row, name in enumerate(names):
        x = {split: values[row].numpy() for split, values in inputs.items()}
        for step in range(steps):
            (y, known), (y_validation, known_validation) = (
                (values[row, :, step].numpy(), present[row, :, step].numpy())
                for values, present in (targets["train"], targets["validation"])
            )
            if not known.any():
                continue
            seed = derive_seed(cohort.seed, "trees", name, step) % 2**32
            model = HistGradientBoostingRegressor(
                loss="absolute_error", max_iter=_TREES, early_stopping=False, random_state=seed
            )
            model.fit(x["train"][known], y[known])
            stages = list(model.staged_predict(x["validation"][known_validation])) if known_validation.any() else []
            errors = [np.abs(stage - y_validation[known_validation]).mean() for stage in stages]
            kept = int(np.argmin(errors)) if errors else _TREES - 1
            for split in splits:
                if not len(x[split]):
                    continue
                stage = next(islice(model.staged_predict(x[split]), kept, None))
                found[split][row, :, step] = torch.from_numpy(stage)
    return found
