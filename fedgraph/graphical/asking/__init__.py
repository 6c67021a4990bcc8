"""Queries to a graphical model: rows of its joint distribution, and conditional distributions given what is known."""

from fedgraph.graphical.asking.conditional import FEW, conditional
from fedgraph.graphical.asking.elimination import posterior
from fedgraph.graphical.asking.inference import infer
from fedgraph.graphical.asking.joint_rows import SamplingSettings
from fedgraph.graphical.asking.kept_rows import KeptRows
from fedgraph.graphical.asking.relevance import relevant_to
from fedgraph.graphical.asking.sampling import draw

__all__ = ["FEW", "KeptRows", "SamplingSettings", "conditional", "draw", "infer", "posterior", "relevant_to"]
