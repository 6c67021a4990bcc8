"""The engine that runs algorithms in experiments: nodes, absent clients, defence, checkpoints, metrics, run folder.

:mod:`fedgraph.strategies.engine.algorithm_run` and :mod:`fedgraph.strategies.engine.loop` run those of rounds,
:mod:`fedgraph.strategies.engine.phases` those of phases. :mod:`fedgraph.strategies.engine.chosen` finds the method of
an experiment. :mod:`fedgraph.strategies.engine.flower` is for custom Flower apps.
"""
