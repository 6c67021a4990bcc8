import numpy as np
import pytest
import torch

from fedgraph.data.series.cohort import build_cohort
from fedgraph.data.series.covariates import WeeklyProfile, covariates, week_seconds
from fedgraph.data.series.series_files import SeriesTable, regular_times
from fedgraph.data.series.windows import WindowSettings

HOURS = 24 * 7
HOUR = 3600


def usual(readings, valid, seconds, times):
    """The profiles of any number of days at these times."""
    return WeeklyProfile.of(readings, valid, seconds, least_days=0.0).at(times)


def hourly(weeks=4, clients=2, lost=0.1, seed=0):
    """A table that begins on a Monday, with a level for each hour of the week, noise and gaps."""
    random = np.random.default_rng(seed)
    levels = random.standard_normal((clients, HOURS))
    values = np.tile(levels, weeks) + 0.1 * random.standard_normal((clients, weeks * HOURS))
    values[random.random(values.shape) < lost] = np.nan
    names = tuple(f"c{number}" for number in range(clients))
    times = regular_times("2024-05-06T00:00", 60, weeks * HOURS)
    return SeriesTable(names, values[:, :, None].astype(np.float32), times, ("value",)), levels


def by_hand(readings, time):
    """The profile of one client, read at every hour of its first steps, at an hour, of which it knows no reading."""
    known = [(at % HOURS, reading) for at, reading in enumerate(readings) if not np.isnan(reading) and at != time]
    hour = time % HOURS
    level = np.nanmean(readings)

    def kind(each):
        return each % 24, each // 24 >= 5

    for same in (lambda each: each % 24 == hour % 24, lambda each: kind(each) == kind(hour), lambda each: each == hour):
        some = [reading for each, reading in known if same(each)]
        level = (sum(some) + level) / (len(some) + 1)
    return level


@pytest.mark.parametrize("steps", [30, HOURS + 50, 3 * HOURS])
def test_the_profile_is_that_of_a_plain_loop(steps):
    table, _ = hourly()
    readings = table.values[:, :steps, 0]
    found = usual(readings, ~np.isnan(readings), HOUR * np.arange(steps), HOUR * np.arange(2 * HOURS))
    expected = [[by_hand(own, hour) for hour in range(2 * HOURS)] for own in readings]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_profile_of_a_single_day_does_not_tell_its_readings():
    readings = np.random.default_rng(0).standard_normal((1, 24)).astype(np.float32)
    seconds = HOUR * np.arange(24)
    found = usual(readings, np.ones((1, 24), bool), seconds, seconds)
    np.testing.assert_allclose(found, readings.mean(), rtol=1e-5)


@pytest.mark.parametrize(("days", "varies"), [(1, False), (3, True)])
def test_a_profile_that_does_not_vary_in_training_does_not_vary_after_it(days, varies):
    table, _ = hourly(weeks=4, lost=0.0)
    seconds = HOUR * np.arange(4 * HOURS)
    known = table.values[:, : 24 * days, 0]
    profile = WeeklyProfile.of(known, np.ones(known.shape, bool), seconds[: 24 * days])
    found, _ = covariates(("weekly-profile",), seconds, profile, 2, 3.0 * HOUR)
    assert (np.ptp(found, axis=1).max(0) > 1e-6).tolist() == [varies, varies]
    if not varies:
        np.testing.assert_allclose(found[:, 0, 0], table.values[:, :24, 0].mean(1), rtol=1e-5)


def test_with_many_weeks_it_is_the_level_of_every_hour():
    table, levels = hourly(weeks=40)
    readings = table.values[:, :, 0]
    seconds = HOUR * np.arange(readings.shape[1])
    found = usual(readings, ~np.isnan(readings), seconds, HOUR * np.arange(HOURS))
    assert np.abs(found - levels).max() < 0.2


def test_windows_see_the_time_and_the_profile_of_what_is_forecast():
    table, _ = hourly()
    settings = WindowSettings(
        input_steps=6, output_steps=3, covariates=("day-of-week", "weekly-profile", "time-of-day"), scaling="none"
    )
    cohort = build_cohort(table, settings, ["c1", "c0"])
    assert cohort.task.features == ("value", "day-of-week", "weekly-profile", "weekly-profile-ahead", "time-of-day")
    training = int(0.7 * 4 * HOURS)
    readings = table.values[::-1, :training, 0]
    split = cohort.splits["test"]
    last = int(split.num_examples[0]) - 1
    inputs = split.batch(torch.tensor([[last], [0]])).inputs.numpy()
    for client, end in ((0, 4 * HOURS - 3), (1, int(0.9 * 4 * HOURS + 1e-6) + 6)):
        steps = np.arange(end - 6, end)
        expected = [
            steps // 24 % 7 / 7,
            [by_hand(readings[client], step) for step in steps],
            [by_hand(readings[client], step + 3) for step in steps],
            steps % 24 / 24,
        ]
        np.testing.assert_allclose(inputs[client, 0, :, 1:].T, expected, rtol=1e-4, atol=1e-5)


def test_profiles_are_of_training_readings_alone():
    table, _ = hourly()
    settings = WindowSettings(input_steps=6, output_steps=3, covariates=("weekly-profile",))

    def profiles(values):
        data = build_cohort(SeriesTable(table.names, values, table.times, table.features), settings, list(table.names))
        return data.splits["train"].series[..., 1:]

    changed = table.values.copy()
    changed[:, int(0.7 * 4 * HOURS) :] += 5
    assert torch.equal(profiles(changed), profiles(table.values))
    changed[:, 0] += 5
    assert not torch.equal(profiles(changed), profiles(table.values))


def test_a_cold_client_has_a_profile_of_its_few_days():
    table, _ = hourly()
    keys = {"input_steps": 6, "output_steps": 3, "covariates": ("weekly-profile",), "scaling": "none"}
    settings = WindowSettings(**keys, cold_clients=("c0",), cold_steps=48)
    cohort = build_cohort(table, settings, ["c0", "c1"])
    training = int(0.7 * 4 * HOURS)
    few = np.full(training, np.nan)
    few[-48:] = table.values[0, training - 48 : training, 0]
    expected = [by_hand(few, hour) for hour in range(HOURS)]
    np.testing.assert_allclose(cohort.splits["train"].series[0, :HOURS, 1], expected, rtol=1e-4, atol=1e-5)


def test_seconds_are_counted_from_a_monday():
    table, _ = hourly()
    seconds = week_seconds(table, None, 60.0, 5)
    assert (seconds % (HOURS * HOUR)).tolist() == [HOUR * step for step in range(5)]
    values, names = covariates(["time-of-day"], seconds, None, 2, HOUR)
    assert names == ("time-of-day",)
    assert values.shape == (2, 5, 1)
