"""Answers of models, as users ask for them."""

import logging

import numpy as np
import pytest
import torch

from fedgraph.data.encoding.rows import to_values
from fedgraph.graphical.inference.conditional import DRAWS, conditional
from fedgraph.graphical.inference.elimination import posterior
from fedgraph.graphical.inference.prediction import infer
from fedgraph.graphical.inference.sampling import SamplingSettings
from fedgraph.support.errors import DataError

ASIA = [
    ("lung", {"xray": "yes"}),
    ("either", {"xray": "yes", "dysp": "yes"}),
    ("tub", {"xray": "yes", "lung": "no"}),
    ("smoke", {"xray": "yes", "bronc": "no"}),
    ("lung", {"tub": "no", "smoke": "yes", "xray": "yes"}),
]


@pytest.mark.parametrize(("target", "given"), ASIA)
def test_a_trained_model_answers_across_a_near_deterministic_relation(trained, asia, samples, target, given):
    """Against exact inference in the network that its rows are from, and against its own samples."""
    found = trained.conditional(given, [target])[target]
    exact = posterior(asia, target, {name: int(value == "yes") for name, value in given.items()})
    assert found.probabilities[0, 1] == pytest.approx(float(exact[1]), abs=0.1)
    assert found.effective[0] > 100
    assert trained.predict_proba(given, target)[0, 1] == pytest.approx(found.probabilities[0, 1])
    own = samples[target][np.all([samples[name] == (value == "yes") for name, value in given.items()], 0)]
    assert found.probabilities[0, 1] == pytest.approx(own.mean(), abs=0.03 + 2 * own.std() / len(own) ** 0.5)


def test_the_value_at_what_is_expected_is_another(trained):
    """What is unlikely by itself is taken for impossible."""
    schema = trained.encoding.schema
    units = trained.encoding.encode(to_values({"xray": "yes"}, schema))[None]
    plugged_in = trained.network.probabilities(infer(trained.network, trained.parameters[None], units), "lung")
    assert plugged_in[0, 0, 1] < 0.05
    assert trained.predict_proba({"xray": "yes"}, "lung")[0, 1] > 0.4
    assert trained.predict({"xray": "yes", "smoke": "yes"}, "lung").tolist() == ["yes"]


@pytest.mark.parametrize(
    ("target", "given"),
    [
        ("lung", {}),
        ("lung", {"either": 1}),
        ("tub", {"either": 1}),
        ("tub", {"xray": 1}),
        ("tub", {"xray": 1, "lung": 0}),
        ("tub", {"xray": 0, "lung": 1}),
        ("xray", {"tub": 1}),
        ("either", {"lung": 0, "xray": 1}),
    ],
)
def test_a_model_with_true_conditionals_gives_true_answers(disease, exactly, target, given):
    words = {name: ("no", "yes")[value] for name, value in given.items()}
    assert disease.predict_proba(words, target)[0, 1] == pytest.approx(exactly(target, given), abs=0.04)


def test_samples_go_with_what_is_given(disease, exactly):
    samples = disease.sample(4000, given={"xray": "yes"})
    shares = {name: samples.column(name).to_pylist().count("yes") / 4000 for name in ("lung", "tub", "either", "xray")}
    for name in ("lung", "tub", "either"):
        assert shares[name] == pytest.approx(exactly(name, {"xray": 1}), abs=0.04)
    assert shares["xray"] == 1
    rows = [{"xray": "yes", "tub": "no"}, {"either": "no"}] * 300
    values = to_values(disease.sample(600, given=rows), disease.encoding.schema)
    assert values[::2, 0].mean() == pytest.approx(exactly("lung", {"xray": 1, "tub": 0}), abs=0.1)
    assert values[1::2, :2].sum() <= 3
    assert values[1::2, 3].mean() == pytest.approx(0.1, abs=0.06)


def test_an_answer_does_not_depend_on_other_rows(disease):
    asked = [{"xray": "yes"}, {"xray": "yes", "lung": "no"}, {}, {"tub": "yes", "xray": "no"}]
    together = disease.predict_proba(asked * 100, "either")
    for place, row in enumerate(asked):
        np.testing.assert_allclose(disease.predict_proba(row, "either")[0], together[place], atol=1e-5)
        np.testing.assert_array_equal(together[place], together[place + 4])
    assert not np.allclose(disease.predict_proba(asked, "either", seed=1), together[:4], atol=1e-6)


def test_with_all_neighbours_known_the_network_says_it_and_nothing_is_drawn(disease):
    network, parameters = disease.network, disease.parameters[None]
    rows = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, torch.nan], [0.0, 0.0, 0.0, 1.0]])[None]

    def never():
        raise AssertionError

    found = conditional(network, parameters, rows, ["lung"], ["a"], 0, kept=never)
    assert torch.allclose(found.mean[0, :, 0], network.forward(parameters, rows.nan_to_num(0.0))[0, :, 0])
    assert found.effective.isinf().all()
    assert found.expected.shape == (1, 3, 1, 1)


def test_a_gap_does_not_matter_where_the_target_is_independent_of_what_is_missing(disease):
    known = {"tub": "no", "either": "yes"}
    whole = disease.predict_proba([known | {"xray": "yes"}, known | {"xray": "no"}], "lung")
    with_gap = disease.predict_proba([known, known | {"xray": None}], "lung")
    np.testing.assert_allclose(with_gap, whole, rtol=1e-6)
    assert not np.allclose(disease.predict_proba({"tub": "no"}, "lung"), whole[:1], atol=0.05)


def test_rows_with_and_without_gaps_are_each_answered_as_alone(disease):
    rows = [{"tub": "no", "either": "yes"}, {"xray": "yes"}]
    both = disease.conditional(rows, ["lung"])["lung"]
    assert both.effective[0] == np.inf
    assert 50 < both.effective[1] <= DRAWS
    for place, row in enumerate(rows):
        np.testing.assert_allclose(disease.predict_proba(row, "lung")[0], both.probabilities[place], atol=1e-6)


def test_answers_that_rest_on_few_rows_are_warned_of_once(disease, caplog):
    settings = SamplingSettings(kept=100)
    with caplog.at_level(logging.WARNING, "fedgraph"):
        found = disease.conditional([{"tub": "yes"}] * 5 + [{"tub": "no"}], ["xray"], settings=settings)["xray"]
    assert (found.effective[:5] < 20).all()
    assert found.effective[5] > 50
    (record,) = caplog.records
    assert "what is known of 5 of 6 rows is rare in the model" in record.getMessage()
    caplog.clear()
    disease.conditional({"tub": "yes"}, ["xray"])
    assert not caplog.records


def test_rows_are_drawn_once_for_all_questions(disease, monkeypatch):
    disease.predict_proba({"xray": "yes"}, "lung")
    monkeypatch.setattr("fedgraph.graphical.model.KeptRows.drawn", None)
    disease.predict_proba({"xray": "no"}, "tub")
    disease.sample(10, given={"xray": "no"})


def test_gaps_are_thought_of_when_a_number_is_predicted(gaussian):
    """E[x2 | x0] of a Gaussian chain, also far out, and known neighbours of each other."""
    network, parameters, covariance = gaussian()
    rows = torch.full((1, 4, 5), torch.nan)
    rows[0, :3, 0] = torch.tensor([-3.0, 0.5, 2.5])
    rows[0, 3, [0, 1, 4]] = torch.tensor([1.0, 2.0, -1.0])
    found = conditional(network, parameters, rows, ["x2"], ["a"], 0)
    assert found.mean[0, :3, 0].tolist() == pytest.approx([-1.92, 0.32, 1.6], abs=0.12)
    assert found.deviation[0, :3, 0].tolist() == pytest.approx([(1 - 0.8**4) ** 0.5] * 3, abs=0.06)
    known = torch.tensor([0, 1, 4])
    weights = torch.linalg.solve(covariance[known][:, known], covariance[known][:, 2])
    assert float(found.mean[0, 3, 0]) == pytest.approx(float(rows[0, 3, known] @ weights), abs=0.08)


def test_what_is_impossible_or_unknown_in_a_network_is_refused(asia):
    with pytest.raises(DataError, match="is impossible"):
        posterior(asia, "xray", {"lung": 1, "either": 0})
    with pytest.raises(DataError, match="'bone' .*lung"):
        posterior(asia, "bone", {"lung": 1})


@pytest.mark.parametrize("given", [{}, {"xray": 1}, {"dysp": 1, "smoke": 0}, {"either": 1, "asia": 1, "xray": 0}])
def test_elimination_gives_what_sums_over_the_joint_distribution_give(asia, given):
    names = list(asia.variables)
    joint = torch.ones([2] * len(names), dtype=torch.float64)
    for name, variable in asia.variables.items():
        scope = (*variable.parents, name)
        order = sorted(range(len(scope)), key=lambda place: names.index(scope[place]))
        shape = [2 if each in scope else 1 for each in names]
        joint = joint * variable.probabilities.permute(order).reshape(shape)
    for target in set(names) - set(given):
        index = tuple(given.get(name, slice(None)) for name in names)
        left = [name for name in names if name not in given]
        sums = joint[index].sum([place for place, name in enumerate(left) if name != target])
        assert torch.allclose(posterior(asia, target, given), sums / sums.sum())
