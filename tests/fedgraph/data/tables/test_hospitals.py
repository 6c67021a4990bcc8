"""Patients at hospitals that have different columns: made up, so that the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from fedgraph.data import open_source, parse_data
from fedgraph.data.tables.hospitals import NAMES, PATIENTS, CategoryColumn, NumberColumn, hospitals_table, simulated

COLUMNS = {
    "university": {"troponin"},
    "cardiac": {"troponin", "ejection"},
    "county": {"ejection"},
    "community": {"protein"},
    "rural": {"protein"},
}


@pytest.fixture(scope="module")
def patients():
    return simulated(200_000, 1)


def test_hospitals_lack_columns_of_others_and_an_event_is_rare():
    table = hospitals_table(4000, 3)
    hospital = np.array(table.column("hospital").to_pylist())
    shares = [(hospital == name).mean() for name in NAMES]
    assert min(shares) > 0.08
    for name in NAMES:
        own = {column for column in table.names if any(np.array(table.column(column).to_pylist())[hospital == name])}
        assert own == {"hospital", *COLUMNS[name], *(set(PATIENTS) - {"hospital", "troponin", "ejection", "protein"})}
    assert 0.04 < table.column("event").to_pylist().count("yes") / 4000 < 0.1
    assert hospitals_table(4000, 3).columns == table.columns != hospitals_table(4000, 4).columns


def test_categories_are_drawn_by_their_probabilities(patients):
    for name in ("smoker", "event", "pain"):
        column = PATIENTS[name]
        assert isinstance(column, CategoryColumn)
        for place in range(len(column.categories)):
            told = np.exp(column.log_density(patients, np.full(200_000, float(place))))
            assert (patients[name] == place).mean() == pytest.approx(told.mean(), abs=0.004)


@pytest.mark.parametrize("name", ["pressure", "cholesterol", "troponin"])
def test_numbers_are_drawn_by_their_densities(name):
    """The expectation of a ratio of densities is one, whatever the other density is of."""
    column = PATIENTS[name]
    assert isinstance(column, NumberColumn)
    row = {"hospital": 0.0, "age": 70.0, "sex": 0.0, "smoker": 1.0, "bmi": 30.0, "diabetes": 1.0, "event": 1.0}
    before = {each: np.full(400_000, value) for each, value in row.items()}
    drawn = column.drawn(before, np.random.default_rng(0).uniform(1e-12, 1, 400_000))
    others = before | {"age": np.full(400_000, 74.0)}
    ratio = np.exp(column.log_density(others, drawn) - column.log_density(before, drawn))
    assert ratio.mean() == pytest.approx(1, abs=0.01)
    assert ratio.std() > 0.02


def test_cholesterol_has_heavy_tails_and_influences_are_not_additive(patients):
    logs = np.log(patients["cholesterol"])
    assert ((logs - logs.mean()) ** 4).mean() / logs.var() ** 2 > 4
    rate = {
        (smoker, diabetes): patients["event"][
            (patients["smoker"] == smoker) & (patients["diabetes"] == diabetes)
        ].mean()
        for smoker in (0, 1)
        for diabetes in (0, 1)
    }
    assert rate[1, 1] / rate[0, 1] > 2 * rate[1, 0] / rate[0, 0]


def test_the_table_is_a_set_without_a_file(tmp_path):
    settings = parse_data({"set": "mixed-table", "path": "hospitals", "client-column": "hospital", "limit": 500})
    source = open_source(settings, tmp_path)
    assert set(source.client_names()) == set(NAMES)
    assert sum(source.load_table(name).table.num_rows for name in NAMES) == 500
