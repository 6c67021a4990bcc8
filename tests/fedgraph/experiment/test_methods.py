import pytest
from flwr.serverapp.strategy import Strategy

from fedgraph.algorithms import STOCK_CLIENT, Algorithm
from fedgraph.algorithms.phases import PhasedAlgorithm
from fedgraph.experiment import built_in, built_ins, resolve
from fedgraph.strategies import F3, SFL, FedNGM
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import a_client, load_object


@pytest.mark.parametrize("name", built_ins())
def test_both_sides_of_every_built_in_exist(name):
    found = resolve(name, None, None).strategy_class
    assert found is built_ins()[name]
    assert issubclass(found, (Algorithm, PhasedAlgorithm, Strategy))
    assert callable(load_object(getattr(found, "default_client", STOCK_CLIENT), "client", a_client).handle)
    assert found.title
    assert not isinstance(getattr(found, "needs", ""), property)


def test_those_that_there_are():
    assert set(built_ins()) == {
        *("sfl", "sfl-star", "sfl-cold-start", "sfl-per", "sfl-lg", "sfl-ft"),
        *(
            "f3",
            "f3-forecast",
            "f3-forecast-inference",
            "simple-forecast",
            "pfedgraph",
            "f3-inference",
            "f3-secret",
            "vfl",
            "ipa",
            "fedngm",
            "local",
            "centralised",
        ),
        *("fedavg", "fedavg-own-start", "fedavg-ft", "fedprox", "fedper", "lg-fedavg", "fedatt"),
        *("scaffold", "feddyn", "feddc", "cgsv", "ditto"),
    }


def test_a_strategy_by_dotted_path_is_named_after_its_class():
    method = resolve(None, "my_package.mine:Mine", None)
    assert (method.name, method.strategy, method.client) == ("Mine", "my_package.mine:Mine", "")


def test_a_client_by_dotted_path_replaces_that_of_the_method():
    method = resolve("local", None, "mine:Client")
    assert (method.name, method.strategy, method.client) == (
        "local",
        "fedgraph.algorithms.bounds:LocalOnly",
        "mine:Client",
    )


def test_a_method_and_a_strategy_are_one_too_many():
    message = "has method = 'sfl' and strategy = 'mine:Variation': give a method or a strategy, not both"
    with pytest.raises(ExperimentError, match=message):
        resolve("sfl", "mine:Variation", None)


def test_nothing_and_unknown():
    with pytest.raises(ExperimentError, match="fedavg, .*sfl.*strategy ="):
        resolve(None, None, None)
    with pytest.raises(ExperimentError, match="'fedavgg' .*built-in"):
        resolve("fedavgg", None, None)
    for nearly in ("sfl-sta", "sfl_star", "fedgraph.strategies.sfl", "engine", ""):
        with pytest.raises(ExperimentError, match="is not a built-in"):
            resolve(nearly, None, None)


@pytest.mark.parametrize(("strategy", "name"), [(F3, "f3"), (FedNGM, "fedngm"), (SFL, "sfl")])
def test_the_strategy_of_an_app_names_the_algorithm_that_experiments_run(strategy, name):
    path = f"{strategy.__module__}:{strategy.__name__}"
    assert resolve(None, path, None).strategy_class is strategy.algorithm_class is built_in(name)
