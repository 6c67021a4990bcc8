import pytest

from fedgraph.algorithms.f3 import F3
from fedgraph.algorithms.vfl import Vertical
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.strategies.engine.chosen import ChosenMethod, mixes_models
from fedgraph.strategies.fedngm import FedNGM
from fedgraph.support.errors import ExperimentError


@pytest.fixture
def tables(digits_tables):
    digits_tables["model"]["variants"] = [{"clients": ["client-1"], "name": "mlp", "hidden": [3]}]
    return digits_tables


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ({"method": "sfl"}, "sfl"),
        ({"method": "fedavg"}, "fedavg"),
        ({"method": "local"}, "local"),
        ({"strategy": "flwr.serverapp.strategy:FedAdam"}, "FedAdam"),
    ],
)
def test_a_method_that_mixes_models_refuses_different_architectures(tables, head, name):
    experiment = parse_experiment({**tables, "experiment": head})
    with pytest.raises(ExperimentError) as raised:
        ChosenMethod(experiment)
    text = str(raised.value)
    assert text.startswith(f"[experiment] method '{name}' combines")
    assert "[[model.variants]]" in text
    assert text.endswith("different architectures: f3, f3-inference, f3-secret, fedngm, vfl")
    tables["model"]["variants"][0]["hidden"] = tables["model"]["hidden"]
    ChosenMethod(parse_experiment({**tables, "experiment": head}))


@pytest.mark.parametrize(
    ("name", "strategy", "client"),
    [("f3", F3, "fedgraph.clients.f3:F3Client"), ("vfl", Vertical, "fedgraph.clients.vfl:VerticalClient")],
)
def test_methods_over_owners(patches_tables, name, strategy, client):
    tables = {key: value for key, value in patches_tables.items() if key != "f3"}
    tables["model"]["variants"] = [{"clients": ["patch-0-0"], "name": "mlp", "hidden": [3]}]
    tables |= {"experiment": {"method": name}, name: {"hidden": 5, "tied-output": True, "local-patience": 3}}
    chosen = ChosenMethod(parse_experiment(tables))
    assert (chosen.strategy_class, chosen.client) == (strategy, client)
    assert (chosen.settings.hidden, chosen.settings.tied_output, chosen.settings.local_patience) == (5, True, 3)
    served = chosen.phases(None)
    assert isinstance(served.algorithm, strategy)
    assert served.algorithm.settings is chosen.settings
    assert not mixes_models(strategy)
    tables["experiment"]["client"] = "mine:Client"
    assert ChosenMethod(parse_experiment(tables)).client == "mine:Client"


@pytest.mark.parametrize(
    ("name", "key", "value", "message"),
    [
        ("f3", "alignmnt", "soft", r"\[f3\] has no key 'alignmnt'; known keys: .*alignment"),
        ("f3", "pre-trained", True, r"\[f3\] has no key 'pre-trained'"),
        ("f3", "fusion", "mean", r"\[f3\].*fusion"),
        ("f3", "noise", {"clip-norm": 1.0}, r"\[f3\].*noise.*set exactly one of noise-multiplier and epsilon"),
        ("f3", "noise", {"clip-norm": 1.0, "epsilon": 1.0, "sigma": 2.0}, "sigma"),
        ("vfl", "learning-rates", [0.1, 0.2], r"\[vfl\].*learning-rates"),
        ("vfl", "learning-rates", [0.0], r"\[vfl\].*learning-rates"),
        ("vfl", "fusion", "vote", r"\[vfl\].*fusion"),
        ("vfl", "noise", {"clip-norm": 1.0, "epsilon": 1.0}, r"\[vfl\] has no key 'noise'"),
    ],
)
def test_keys_of_methods_over_owners_are_checked(patches_tables, name, key, value, message):
    patches_tables.pop("f3")
    patches_tables |= {"experiment": {"method": name}, name: {key: value}}
    with pytest.raises(ExperimentError, match=f"(?s){message}"):
        ChosenMethod(parse_experiment(patches_tables))


@pytest.mark.parametrize("method", ["f3", "vfl"])
@pytest.mark.parametrize(
    ("table", "keys", "message"),
    [
        ("experiment", {"on-missing": "keep-last"}, 'on-missing = "keep-last" is not supported by method'),
        ("evaluation", {"targets": {"test/f1": 0.9}}, "targets need rounds, but method"),
        (
            "evaluation",
            {"monitor": "validation/f1", "patience": 3},
            "monitor and patience need rounds, but method",
        ),
        (
            "evaluation",
            {"compare-peers": True},
            "compare-peers compares models of one architecture, but the owners of method",
        ),
        ("fairness", {"stand-alone": "runs/x"}, "needs client models, but method"),
    ],
)
def test_settings_of_rounds_are_refused_over_owners(patches_tables, method, table, keys, message):
    tables = {key: value for key, value in patches_tables.items() if key != "f3"}
    tables["experiment"] = {"method": method, "rounds": 5}
    ChosenMethod(parse_experiment(tables))
    tables[table] = {**tables.get(table, {}), **keys}
    with pytest.raises(ExperimentError, match=f"{message} '{method}'"):
        ChosenMethod(parse_experiment(tables))


class Own(FedNGM):
    """A strategy derived from one for own apps."""


def test_what_is_derived_from_a_strategy_for_own_apps_is_not_run_in_its_place(table_tables):
    table_tables["experiment"] |= {"strategy": f"{__name__}:Own"}
    del table_tables["experiment"]["method"], table_tables["fedngm"]
    with pytest.raises(ExperimentError, match="^Own .*fedngm:FedNGM"):
        ChosenMethod(parse_experiment(table_tables))
