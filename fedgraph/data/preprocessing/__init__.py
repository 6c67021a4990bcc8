"""Preprocessing: raw data to inputs of a client's model, and outputs to predictions.

A data set defines it (:attr:`fedgraph.data.CohortData.preprocessing`); nodes store it with the run, and predictions,
modules and exported files use it.
"""

from fedgraph.data.preprocessing.module import Answering, AnsweringOfGraphs
from fedgraph.data.preprocessing.predicted import Predicted
from fedgraph.data.preprocessing.preprocessing import (
    Form,
    InputScale,
    NewData,
    Preprocessing,
    label_answers,
    latest,
    stacked,
)

__all__ = [
    "Answering",
    "AnsweringOfGraphs",
    "Form",
    "InputScale",
    "NewData",
    "Predicted",
    "Preprocessing",
    "label_answers",
    "latest",
    "stacked",
]
