"""Sweeps: search for the settings of an experiment that are best on validation data.

Lists of values are tried in every combination, ranges are searched by Optuna::

    fedgraph sweep sfl/digits.toml --over sfl.alpha=0,0.3,1 --over train.learning-rate=0.01:0.3:log --trials 20
"""

from fedgraph.reproduce.sweeps.command import sweep

__all__ = ["sweep"]
