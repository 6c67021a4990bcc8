"""Hospitals with different columns: the truth that models are held against, and answers of models trained once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from fedgraph.data.tables.hospitals import hospitals_table, simulated
from fedgraph.simulations.fedngm.hospitals import QUESTIONS, _codes, _hidden, hospitals_page, true_answers


def test_the_truth_of_a_question_is_what_many_patients_show():
    """Men of 76 who smoke: counted, and by likelihood weighting with nothing else known."""
    people = simulated(400_000, 5)
    alike = (people["sex"] == 1) & (people["age"] == 76) & (people["smoker"] == 1) & (people["hospital"] == 1)
    table = hospitals_table(1, 7)
    known = {"age": 76, "sex": "male", "smoker": "yes"}
    asked = table.with_columns(
        {name: pa.array([known.get(name)], column.type) for name, column in table.columns.items()}
    )
    told = true_answers("cardiac", asked, "event")[0, 1]
    assert alike.sum() > 300
    assert told == pytest.approx(people["event"][alike].mean(), abs=0.04)
    number = true_answers("cardiac", asked, "rate")[0]
    assert number == pytest.approx(people["rate"][alike].mean(), abs=3)


def test_known_cells_are_told_and_the_target_never_is():
    table = hospitals_table(2000, 1)
    for question in QUESTIONS:
        known = _hidden(table, question, 0)
        assert np.isnan(_codes(known, question.target)).all()
        assert known.column("hospital").null_count == 0
    few = next(question for question in QUESTIONS if question.known)
    known = _hidden(table, few, 0)
    assert [name for name in known.names if known.column(name).null_count == 0] == ["hospital", *few.known]
    half = _hidden(table, next(question for question in QUESTIONS if question.hidden == 0.5), 0)
    assert 0.45 < np.isnan(_codes(half, "age")).mean() < 0.55


@pytest.mark.slow
def test_a_federated_model_is_nearer_to_the_truth_than_a_mean(data_dir):
    half = hospitals_page(data_dir, [0], tested=200).tables["half"].set_index("model")
    apart = half["RMSE from the truth"]
    assert apart["The true distribution"] == 0 < apart["FedNGM, personal model"] < apart["Mean of pooled rows"]
