"""``fedgraph worth``: whether a client graph, and the method that uses it, improve on simpler methods."""

from fedgraph.reproduce.worth.runs import RATES, worth
from fedgraph.reproduce.worth.verdict import Effect, Worth

__all__ = ["RATES", "Effect", "Worth", "worth"]
