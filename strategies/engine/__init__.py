"""Base classes of all strategies: the loop of rounds, strategies of several phases, and stacking of replies.

Methods of rounds subclass the strategy of :mod:`fedgraph.strategies.engine.base`, methods that go through phases that
of :mod:`fedgraph.strategies.engine.phases`; :mod:`fedgraph.strategies.engine.chosen` finds the method that an
experiment names.
"""
