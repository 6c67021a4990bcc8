"""``fedgraph worth``: does a client graph pay on one's data, and does the method that uses it?"""

from fedgraph.reproduce.worth.runs import RATES, worth
from fedgraph.reproduce.worth.verdict import Effect, Worth

__all__ = ["RATES", "Effect", "Worth", "worth"]
