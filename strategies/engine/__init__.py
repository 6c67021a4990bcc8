"""Base classes of all strategies: the loop of rounds, strategies of several phases, and stacking of replies.

Methods of rounds subclass the strategy of :mod:`strategies.engine.base`, methods that go through phases that of
:mod:`strategies.engine.phases`; :mod:`strategies.engine.chosen` finds the method that an experiment names.
"""
