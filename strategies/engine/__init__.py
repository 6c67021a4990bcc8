"""The engine that runs algorithms in experiments: nodes, absent clients, defence, checkpoints, measurements, the run
folder.

:mod:`fedgraph.strategies.engine.algorithm_run` and :mod:`fedgraph.strategies.engine.loop` run those of rounds,
:mod:`fedgraph.strategies.engine.phases` those of phases. The method that an experiment names is found by
:mod:`fedgraph.strategies.engine.chosen`. :mod:`fedgraph.strategies.engine.flower` is for people's own Flower apps.
"""
