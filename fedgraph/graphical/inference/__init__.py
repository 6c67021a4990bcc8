"""Queries to a graphical model: rows of its joint distribution, and conditional distributions given what is known."""

from fedgraph.graphical.inference.conditional import FEW, conditional
from fedgraph.graphical.inference.elimination import posterior
from fedgraph.graphical.inference.joint_rows import SamplingSettings
from fedgraph.graphical.inference.kept_rows import KeptRows
from fedgraph.graphical.inference.prediction import infer
from fedgraph.graphical.inference.relevance import relevant_to
from fedgraph.graphical.inference.sampling import draw

__all__ = ["FEW", "KeptRows", "SamplingSettings", "conditional", "draw", "infer", "posterior", "relevant_to"]
