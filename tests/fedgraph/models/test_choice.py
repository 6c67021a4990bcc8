import pytest

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.models.choice import ModelChoice
from fedgraph.support.errors import ExperimentError

NAMES = ("400619", "400620", "773869", "ward [3]")


def choice(*variants, **model):
    return ModelChoice.of({"name": "gru", **model, "variants": list(variants)})


def lstm(*clients, **keys):
    return {"clients": list(clients), "name": "lstm", **keys}


def test_without_variants_all_clients_have_the_one_model():
    plain = ModelChoice.of({"name": "gru", "hidden": 8})
    assert plain.tables == ({"name": "gru", "hidden": 8},)
    assert not plain.is_mixed
    assert plain.numbers(NAMES) == (0, 0, 0, 0)


def test_names_patterns_and_the_first_variant_that_matches():
    found = choice(lstm("4006*", hidden=16), lstm("400620", "7738??", hidden=8))
    assert found.is_mixed
    assert found.tables[1:] == ({"name": "lstm", "hidden": 16}, {"name": "lstm", "hidden": 8})
    assert found.numbers(NAMES) == (1, 1, 2, 0)


def test_a_client_that_is_called_like_a_pattern_and_case_matters():
    assert choice(lstm("ward [3]")).numbers(NAMES) == (0, 0, 0, 1)
    assert choice(lstm("Ward*")).numbers(NAMES) == (0, 0, 0, 0)


def test_the_same_model_written_twice_is_one_architecture():
    found = choice(lstm("4006*"), lstm("773869", hidden=64), {"clients": ["ward*"], "name": "gru"}, hidden=64)
    assert [table["name"] for table in found.tables] == ["gru", "lstm"]
    assert found.numbers(NAMES) == (1, 1, 1, 0)
    assert not choice({"clients": ["4006*"], "name": "gru", "hidden": 64}).is_mixed


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ({"name": "lstm"}, r"\[\[model.variants\]\] number 1 needs the key 'clients'"),
        ({"name": "lstm", "clients": []}, r"number 1 clients: .*at least 1 item"),
        ({"name": "lstm", "clients": "400619"}, r"number 1 clients: .*valid tuple"),
        (lstm("4*", hiden=3), "number 1 .*'hiden'; .*hidden"),
        ({"name": "lstn", "clients": ["4*"]}, "number 1 name: .*'lstn'; .*lstm"),
        ({"clients": ["4*"]}, r"number 1 name: there is no model None"),
        (lstm("4*", variants=[]), "number 1 .*'variants'"),
        ("lstm", r"\[model\] variants.*valid dictionary"),
    ],
)
def test_unusable_variants_are_explained(variant, message):
    with pytest.raises(ExperimentError, match=message):
        choice(variant)


def test_unknown_keys_of_the_model_itself_show_what_is_known():
    with pytest.raises(ExperimentError, match=r"\[model\] .*'varients'; .*variants"):
        ModelChoice.of({"name": "gru", "varients": []})


def test_names_without_a_client_are_refused_once_the_clients_are_known():
    choice(lstm("4006*", "773869")).check_variants(NAMES)
    with pytest.raises(ExperimentError, match=r"'9\*'; .*400619"):
        choice(lstm("773869"), lstm("4*", "9*", hidden=3)).check_variants(NAMES)
    with pytest.raises(ExperimentError, match="number 2: "):
        choice(lstm("4*"), lstm("400619", hidden=3)).check_variants(NAMES)


def test_an_experiment_with_variants_reads_back_equal(digits_tables):
    import tomllib

    digits_tables["model"]["variants"] = [{"clients": ["client-1", "client-[45]"], "name": "mlp", "hidden": [3]}]
    experiment = parse_experiment(digits_tables)
    again = parse_experiment(tomllib.loads(experiment.as_toml()))
    assert again.model == experiment.model == digits_tables["model"]
    assert again.client_part({}) == experiment.client_part({})
    digits_tables["model"]["variants"][0]["hiden"] = 1
    with pytest.raises(ExperimentError, match="number 1 has no key 'hiden'"):
        parse_experiment(digits_tables)
