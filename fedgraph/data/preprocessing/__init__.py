"""How raw data become the inputs of a client's model, and how its outputs become predictions.

A data set says so with what it loads (:attr:`fedgraph.data.CohortData.preprocessing`). A node keeps it with the run,
and predictions, modules and exported files use it: files and scales are read in one way.
"""

from fedgraph.data.preprocessing.module import Answering, AnsweringOfGraphs
from fedgraph.data.preprocessing.predicted import Predicted
from fedgraph.data.preprocessing.preprocessing import Form, NewData, Preprocessing, label_answers, latest, stacked
from fedgraph.data.preprocessing.scale import InputScale

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
