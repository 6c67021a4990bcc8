"""Hold a strategy, client class or data set to the contract: what every run relies on, each promise a check.

The class runs on a small experiment, undisturbed and disturbed: with replies lost, malformed or in another order, on
other numbers of nodes, stopped and resumed. For the command ``fedgraph check``, and for tests of your own::

    import pytest
    from fedgraph.commands.checking import check_strategy, checks_of

    def test_my_strategy():
        check_strategy("my_module:MyStrategy")

    @pytest.mark.parametrize("check", checks_of("my_module:MyClient"), ids=str)
    def test_my_client(check):
        check()

A class that cannot keep a promise by design says so by name, with the reason:
``expected_failures = {"number-of-nodes": "all data is in one place"}``.
"""

from fedgraph.commands.checking.check import Check, Result, check_strategy, checks_of
from fedgraph.commands.checking.checks import CONTRACT
from fedgraph.commands.checking.data_sets import check_data_set, names_data_set

__all__ = ["CONTRACT", "Check", "Result", "check_data_set", "check_strategy", "checks_of", "names_data_set"]
