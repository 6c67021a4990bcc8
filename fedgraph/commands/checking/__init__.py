"""Hold a strategy, client class or data set to the contract: what every run relies on, each promise a check.

A strategy or client class runs on a small experiment, undisturbed and with one thing changed. For the command
``fedgraph check``, and for tests of your own::

    import pytest
    from fedgraph.commands.checking import check_strategy, checks_of

    def test_my_strategy():
        check_strategy("my_module:MyStrategy")

    @pytest.mark.parametrize("check", checks_of("my_module:MyData"), ids=str)
    def test_my_data(check):
        check()

A class that cannot keep a promise by design says so by name, with the reason:
``expected_failures = {"number-of-nodes": "all data is in one place"}``.
"""

from fedgraph.commands.checking.check import Check, Result, check_strategy, checks_of
from fedgraph.commands.checking.contract import CONTRACT

__all__ = ["CONTRACT", "Check", "Result", "check_strategy", "checks_of"]
