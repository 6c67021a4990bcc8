import pytest
from flwr.serverapp.strategy import Strategy

from fedgraph.methods.registry import BUILT_IN, COHORT_CLIENT, resolve
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object


@pytest.mark.parametrize("name", BUILT_IN)
def test_both_sides_of_every_built_in_exist(name):
    method = resolve(name, None, None)
    assert method == BUILT_IN[name]
    assert issubclass(load_object(method.strategy, "strategy"), Strategy)
    assert callable(load_object(method.client, "client").handle)
    assert method.title
    assert method.needs


def test_a_strategy_by_dotted_path_is_named_after_its_class():
    method = resolve(None, "my_package.mine:Mine", None)
    assert (method.name, method.strategy, method.client) == ("Mine", "my_package.mine:Mine", "")


def test_a_client_by_dotted_path_replaces_that_of_the_method():
    method = resolve("local", None, "mine:Client")
    assert (method.name, method.strategy, method.client) == ("local", BUILT_IN["local"].strategy, "mine:Client")
    assert BUILT_IN["local"].client == COHORT_CLIENT


def test_a_strategy_by_dotted_path_keeps_the_client_of_the_method_it_varies():
    assert resolve("sfl", "mine:Variation", None).client == BUILT_IN["sfl"].client


def test_nothing_and_unknown():
    with pytest.raises(ExperimentError, match=r"needs a method \(.*fedavg, .*local, .*sfl.*\) or a strategy ="):
        resolve(None, None, None)
    with pytest.raises(ExperimentError, match="method 'fedavgg' is not a built-in; known: .*fedavg, "):
        resolve("fedavgg", None, None)
