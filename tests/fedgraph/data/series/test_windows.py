from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedgraph.data.base import SPLITS, CohortData
from fedgraph.data.series.cohort import build_cohort
from fedgraph.data.series.naive import times_ahead
from fedgraph.data.series.series_files import SeriesTable, regular_times
from fedgraph.data.series.windows import WindowSettings
from fedgraph.models.base import Batch
from fedgraph.support.errors import DataError


def table(clients: int = 3, steps: int = 60, features: int = 1, seed: int = 0, lost: float = 0.1) -> SeriesTable:
    random = np.random.default_rng(seed)
    values = (10.0 + 5.0 * random.standard_normal((clients, steps, features))).astype(np.float32)
    values[random.random(values.shape) < lost] = np.nan
    return SeriesTable(
        tuple(f"c{number}" for number in range(clients)),
        values,
        None,
        tuple(f"f{number}" for number in range(features)),
    )


def config(**keys: Any) -> WindowSettings:
    return WindowSettings(**({"input_steps": 4, "output_steps": 2} | keys))


def everything(cohort: CohortData, split: Any) -> Batch:
    count = int(cohort.splits[split].num_examples[0])
    return cohort.splits[split].batch(torch.arange(count).expand(len(cohort.names), -1))


def expected(
    readings: NDArray[np.float32], first: int, stop: int, train_stop: int, inputs: int, outputs: int, stride: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One client and one feature, window by window."""
    train = readings[:train_stop][~np.isnan(readings[:train_stop])].astype(np.float64)
    scaled = (readings - train.mean()) / (train.std() or 1.0)
    x, y, w = [], [], []
    for start in range(first, stop - inputs - outputs + 1, stride):
        x.append(np.nan_to_num(scaled[start : start + inputs]))
        y.append(np.nan_to_num(scaled[start + inputs : start + inputs + outputs]))
        w.append(~np.isnan(readings[start + inputs : start + inputs + outputs]))
    return np.array(x), np.array(y), np.array(w)


@settings(max_examples=25, derandomize=True)
@given(
    steps=st.integers(30, 80), inputs=st.integers(1, 6), outputs=st.integers(1, 5), stride=st.integers(1, 4),
    seed=st.integers(0, 5),
)  # fmt: skip
def test_windows_are_those_of_a_plain_loop(steps: int, inputs: int, outputs: int, stride: int, seed: int) -> None:
    data = table(steps=steps, seed=seed)
    keys = config(input_steps=inputs, output_steps=outputs, stride=stride, shares=(0.6, 0.3, 0.1))
    cohort = build_cohort(data, keys, ["c2", "c0"])
    stops = [steps * 60 // 100, steps * 90 // 100, steps]
    for split, first, stop in zip(SPLITS, [0, *stops], stops, strict=False):
        batch = everything(cohort, split)
        for row, client in enumerate((2, 0)):
            x, y, w = expected(data.values[client, :, 0], first, stop, stops[0], inputs, outputs, stride)
            assert int(cohort.splits[split].num_examples[row]) == len(x)
            if len(x):
                np.testing.assert_allclose(batch.inputs[row, :, :, 0], x, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(batch.targets[row], y, rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(batch.weights[row], w)


def test_shapes_kinds_and_task() -> None:
    cohort = build_cohort(table(features=2), config(target_feature=1, step_minutes=5, unit="mph"), ["c0", "c1"])
    batch = cohort.splits["train"].batch(torch.tensor([[0, 3, 5], [1, 2, -1]]))
    assert [tuple(tensor.shape) for tensor in batch] == [(2, 3, 4, 2), (2, 3, 2), (2, 3, 2)]
    assert {tensor.dtype for tensor in (*batch, cohort.mean, cohort.std)} == {torch.float32}
    assert cohort.task.input_shape == (4, 2)
    assert cohort.task.output_shape == (2,)
    assert (cohort.task.kind, cohort.task.step_minutes, cohort.task.unit) == ("forecast", 5.0, "mph")
    assert cohort.task.features == ("f0", "f1")
    assert cohort.names == ("c0", "c1")


def test_mean_and_std_undo_the_scaling_of_the_target() -> None:
    data = table(features=2, lost=0.2)
    cohort = build_cohort(data, config(target_feature=1, features=(1, 0)), list(data.names))
    batch = everything(cohort, "test")
    readings = batch.targets * cohort.std[:, None, None] + cohort.mean[:, None, None]
    first = 54
    for window in range(batch.targets.shape[1]):
        true = data.values[:, first + window + 4 : first + window + 6, 1]
        seen = ~np.isnan(true)
        np.testing.assert_allclose(readings[:, window].numpy()[seen], true[seen], rtol=1e-4)
    assert cohort.task.features == ("f1", "f0")


def test_only_training_readings_decide_the_scale() -> None:
    data = table(lost=0.0)
    changed = data.values.copy()
    changed[:, 42:] += 1000.0
    cohort = build_cohort(data, config(), list(data.names))
    later = build_cohort(SeriesTable(data.names, changed), config(), list(data.names))
    assert torch.equal(cohort.mean, later.mean)
    assert torch.equal(cohort.std, later.std)


def test_the_marker_of_missing_readings_counts_like_nan() -> None:
    data = table(lost=0.3)
    marked = SeriesTable(data.names, np.nan_to_num(data.values, nan=-7.0))
    for split in SPLITS:
        with_nan = everything(build_cohort(data, config(), list(data.names)), split)
        with_marker = everything(build_cohort(marked, config(missing=-7.0), list(data.names)), split)
        assert all(torch.equal(*pair) for pair in zip(with_nan, with_marker, strict=True))


def test_without_scaling_missing_readings_become_the_training_mean() -> None:
    data = table(lost=0.0)
    data.values[0, 3, 0] = np.nan
    cohort = build_cohort(data, config(scaling="none"), ["c0"])
    inputs = cohort.splits["train"].batch(torch.tensor([[0]])).inputs[0, 0, :, 0].numpy()
    np.testing.assert_array_equal(inputs[:3], data.values[0, :3, 0])
    np.testing.assert_allclose(inputs[3], np.nanmean(data.values[0, :42, 0]), rtol=1e-6)
    assert cohort.mean.tolist() == [0.0]
    assert cohort.std.tolist() == [1.0]


def test_a_constant_series_has_scale_one() -> None:
    data = SeriesTable(("c",), np.full((1, 60, 1), 61.7, np.float32))
    cohort = build_cohort(data, config(), ["c"])
    assert cohort.std.tolist() == [1.0]
    assert everything(cohort, "train").inputs.abs().max() < 1e-4


def test_padding_has_no_weight_and_outside_indices_are_refused() -> None:
    cohort = build_cohort(table(lost=0.0), config(), ["c0", "c1"])
    split = cohort.splits["validation"]
    batch = split.batch(torch.tensor([[0, -1], [-1, 1]]))
    assert batch.weights.sum(2).tolist() == [[2.0, 0.0], [0.0, 2.0]]
    assert all(torch.isfinite(tensor).all() for tensor in batch)
    count = int(split.num_examples[0])
    for wrong in (count, -2):
        with pytest.raises(IndexError, match=f"outside -1..{count - 1}"):
            split.batch(torch.tensor([[0], [wrong]]))


def test_an_empty_split_still_answers_padding() -> None:
    cohort = build_cohort(table(), config(shares=(0.9, 0.1, 0.0)), ["c0"])
    assert cohort.splits["test"].num_examples.tolist() == [0]
    assert cohort.splits["test"].batch(torch.full((1, 3), -1)).weights.sum() == 0


def test_a_block_is_a_view_that_gathers_the_same() -> None:
    split = build_cohort(table(), config(), ["c0", "c1", "c2"]).splits["train"]
    indices = torch.randint(0, 30, (3, 5), generator=torch.Generator().manual_seed(0))
    whole, part = split.batch(indices), split.select(slice(1, 3)).batch(indices[1:])
    assert all(torch.equal(a[1:], b) for a, b in zip(whole, part, strict=True))
    assert split.select(slice(1, 3)).num_examples.shape == (2,)
    assert split.select(slice(1, 3)).series.data_ptr() == split.series[1].data_ptr()  # type: ignore[attr-defined]


def test_batches_do_not_alias_the_series() -> None:
    split = build_cohort(table(), config(), ["c0"]).splits["train"]
    before = split.series.clone()  # type: ignore[attr-defined]
    for tensor in split.batch(torch.tensor([[0, 1]])):
        tensor.zero_()
    assert torch.equal(split.series, before)  # type: ignore[attr-defined]


def test_time_of_day_from_start_and_from_timestamps() -> None:
    data = table(lost=0.0)
    keys = config(covariates=("time-of-day",), step_minutes=30, start="2024-05-01T23:00")
    inputs = everything(build_cohort(data, keys, ["c0", "c1"]), "train").inputs
    np.testing.assert_allclose(inputs[1, 0, :, -1], [23 / 24, 23.5 / 24, 0.0, 0.5 / 24], rtol=1e-6)
    stamped = SeriesTable(data.names, data.values, regular_times("2024-05-01T06:00", 60, 60))
    cohort = build_cohort(stamped, config(covariates=("time-of-day",)), ["c0"])
    np.testing.assert_allclose(everything(cohort, "train").inputs[0, 0, :, -1], np.arange(6, 10) / 24, rtol=1e-6)
    assert cohort.task.step_minutes == 60.0
    assert cohort.task.features == ("value", "time-of-day")
    assert cohort.task.input_shape == (4, 2)


def test_first_steps_cut_the_time_axis() -> None:
    data = table()
    cut = SeriesTable(data.names, data.values[:, :40])
    few = build_cohort(data, config(first_steps=40), ["c0"])
    assert torch.equal(everything(few, "test").inputs, everything(build_cohort(cut, config(), ["c0"]), "test").inputs)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"first_steps": 8}, "5 time steps, .*4 input and 3 output"),
        ({"target_feature": 1}, "no feature 1; .*f0"),
        ({"features": (0, 2)}, "no feature 2"),
        ({"covariates": ("weekly-profile",)}, "`covariates` need `start` and `step-minutes`"),
    ],
)
def test_messages(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build_cohort(table(), config(output_steps=3, **keys), ["c0"])


def test_the_target_must_be_used() -> None:
    with pytest.raises(DataError, match=r"`target-feature` .*`features` \[1\]"):
        build_cohort(table(features=2), config(features=(1,), target_feature=0), ["c0"])


def test_contradicting_step_lengths() -> None:
    stamped = SeriesTable(("c",), np.ones((1, 60, 1), np.float32), regular_times("2024-01-01", 5, 60))
    with pytest.raises(DataError, match="`step-minutes` is 15, .* 5 minutes"):
        build_cohort(stamped, config(step_minutes=15), ["c"])


def test_clients_without_readings_or_unknown_are_named() -> None:
    data = table()
    data.values[1, :42] = np.nan
    with pytest.raises(DataError, match=r"c1 .*without = \['c1'\]"):
        build_cohort(data, config(), list(data.names))
    build_cohort(data, config(), ["c0", "c2"])
    with pytest.raises(DataError, match="zz; .*c0, c1, c2"):
        build_cohort(data, config(), ["c0", "zz"])
    with pytest.raises(DataError, match="a client is named twice: c1"):
        build_cohort(data, config(), ["c0", "c1", "c1"])


@pytest.mark.parametrize("covariates", [(), ("weekly-profile",)])
def test_later_windows_have_the_scale_and_the_profile_of_the_first_steps(covariates: tuple[Any, ...]) -> None:
    known, later = 40, 7
    longer = table(steps=known + later)
    keys = config(covariates=covariates, start=datetime(2024, 5, 6), step_minutes=60, stride=3)
    before = build_cohort(replace(longer, values=longer.values[:, :known]), keys, longer.names)
    after = build_cohort(longer, keys, longer.names, known_steps=known)
    assert torch.equal(after.mean, before.mean)
    assert torch.equal(after.std, before.std)
    for split in ("train", "validation"):
        for found, wanted in zip(everything(after, split), everything(before, split), strict=True):
            assert torch.equal(found, wanted)
    batch = everything(after, "test")
    # One for each later step, and one that forecasts the two steps behind the last.
    assert batch.inputs.shape[1] == later + 1
    scaled = (longer.values[..., 0] - before.mean[:, None].numpy()) / before.std[:, None].numpy()
    for window in range(later + 1):
        first = known - 4 + window
        np.testing.assert_allclose(batch.inputs[..., window, :, 0], np.nan_to_num(scaled[:, first : first + 4]), 1e-5)
        ahead = scaled[:, first + 4 : first + 6]
        read = ~np.isnan(np.pad(ahead, ((0, 0), (0, 2 - ahead.shape[1])), constant_values=np.nan))
        np.testing.assert_array_equal(batch.weights[:, window], read)
    if covariates:
        # Readings after the training part change no profile.
        changed = replace(longer, values=longer.values.copy())
        changed.values[:, known:] += 100
        other = everything(build_cohort(changed, keys, longer.names, known_steps=known), "test")
        assert torch.equal(other.inputs[..., 1:], batch.inputs[..., 1:])
    cut = after.splits["test"].latest(3)  # type: ignore[attr-defined]
    assert torch.equal(cut.batch(torch.arange(3).expand(3, -1)).inputs, batch.inputs[:, -3:])
    with pytest.raises(DataError, match="47 time steps"):
        build_cohort(longer, keys, longer.names, known_steps=48)


def test_times_of_forecast_steps_are_dates_or_numbers() -> None:
    data = table(steps=40)
    assert times_ahead(build_cohort(data, config(), ["c0"], known_steps=40).splits["test"]) == [["40", "41"]]
    dated = config(start=datetime(2024, 2, 29), step_minutes=60)
    windows = build_cohort(data, dated, ["c0"], known_steps=40).splits["test"]
    assert times_ahead(windows) == [["2024-03-01T16:00:00", "2024-03-01T17:00:00"]]


@pytest.mark.parametrize("covariates", [(), ("weekly-profile",)])
def test_training_steps_are_the_last_of_the_training_part(covariates: tuple[Any, ...]) -> None:
    data = table(steps=60)
    keys = {"covariates": covariates, "start": datetime(2024, 5, 6), "step_minutes": 60, "shares": (0.5, 0.3, 0.2)}
    found = build_cohort(data, config(train_steps=10, **keys), data.names)
    late = replace(data, values=data.values[:, 20:])
    wanted = build_cohort(
        late, config(**keys | {"shares": (0.25, 0.45, 0.3), "start": datetime(2024, 5, 6, 20)}), data.names
    )
    assert torch.equal(found.mean, wanted.mean)
    assert torch.equal(found.std, wanted.std)
    for split in SPLITS:
        for one, other in zip(everything(found, split), everything(wanted, split), strict=True):
            assert torch.equal(one, other)
    with pytest.raises(DataError, match="5 time steps.*`train-steps`"):
        build_cohort(data, config(train_steps=5, **keys), data.names)
    every = build_cohort(data, config(train_steps=1000, **keys), data.names)
    assert torch.equal(every.mean, build_cohort(data, config(**keys), data.names).mean)
