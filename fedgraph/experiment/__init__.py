"""The experiment, a validated TOML file with overrides, independent of the grid; and its method.

>>> from fedgraph.experiment import parse_experiment
>>> tables = {"experiment": {"method": "sfl"}, "data": {"set": "digits"}, "model": {"name": "mlp"}}
>>> parse_experiment(tables).train.batch_size
32
"""

from fedgraph.experiment.contents import file_contents
from fedgraph.experiment.experiment import (
    Experiment,
    find_experiment,
    load_experiment,
    parse_experiment,
    plugin_folders,
)
from fedgraph.experiment.method_tables import NODE_MINIMA, constructor_arguments
from fedgraph.experiment.methods import Method, built_in, built_ins, resolve, run_by_experiments
from fedgraph.experiment.overrides import Overrides, apply_overrides, overrides_by_key, toml_value
from fedgraph.experiment.tables import AgreementTable, EvaluationTable, ExperimentTable, FairnessTable, OutputTable
from fedgraph.experiment.yardsticks import yardsticks

__all__ = [
    "NODE_MINIMA",
    "AgreementTable",
    "EvaluationTable",
    "Experiment",
    "ExperimentTable",
    "FairnessTable",
    "Method",
    "OutputTable",
    "Overrides",
    "apply_overrides",
    "built_in",
    "built_ins",
    "constructor_arguments",
    "file_contents",
    "find_experiment",
    "load_experiment",
    "overrides_by_key",
    "parse_experiment",
    "plugin_folders",
    "resolve",
    "run_by_experiments",
    "toml_value",
    "yardsticks",
]
