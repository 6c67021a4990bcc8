"""The experiment: one TOML file, validated, overridable key by key, the same for every grid.

>>> from fedgraph.experiment import parse_experiment
>>> tables = {"experiment": {"method": "sfl"}, "data": {"set": "digits"}, "model": {"name": "mlp"}}
>>> parse_experiment(tables).train.batch_size
32
"""

from fedgraph.experiment.experiment import (
    Experiment,
    find_experiment,
    load_experiment,
    parse_experiment,
    plugin_folders,
)
from fedgraph.experiment.overrides import Overrides, apply_overrides, overrides_by_key, toml_value
from fedgraph.experiment.tables import EvaluationTable, ExperimentTable, FairnessTable, OutputTable
from fedgraph.experiment.yardsticks import yardsticks

__all__ = [
    "EvaluationTable",
    "Experiment",
    "ExperimentTable",
    "FairnessTable",
    "OutputTable",
    "Overrides",
    "apply_overrides",
    "find_experiment",
    "load_experiment",
    "overrides_by_key",
    "parse_experiment",
    "plugin_folders",
    "toml_value",
    "yardsticks",
]
