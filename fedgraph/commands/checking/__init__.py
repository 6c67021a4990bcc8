"""Checks of strategies, client classes and data sets against the contract, a check per promise.

A strategy or client class is run on a small experiment, undisturbed and with one thing changed. Used by the command
``fedgraph check``, and in your own tests::

    import pytest
    from fedgraph.commands.checking import check_strategy, checks_of

    def test_my_strategy():
        check_strategy("my_module:MyStrategy")

    @pytest.mark.parametrize("check", checks_of("my_module:MyData"), ids=str)
    def test_my_data(check):
        check()

A class that cannot keep a promise by design declares it, with the reason:
``expected_failures = {"number-of-nodes": "all data is in one place"}``.
"""

from fedgraph.commands.checking.check import Check, Result, check_strategy, checks_of
from fedgraph.commands.checking.contract import CONTRACT

__all__ = ["CONTRACT", "Check", "Result", "check_strategy", "checks_of"]
