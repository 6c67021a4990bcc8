"""What runs methods: the loop of rounds, the phases of algorithms that have no rounds, and stacking of replies.

:mod:`fedgraph.strategies.engine.algorithms` and :mod:`fedgraph.strategies.engine.phases` run algorithms; other methods
of rounds subclass the strategy of :mod:`fedgraph.strategies.engine.base`. The method that an experiment names is found
by :mod:`fedgraph.strategies.engine.chosen`.
"""
