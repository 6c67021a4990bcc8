"""How methods are found, and what both sides agree on of those that are no algorithms.

Title, requirements and publication of a method are attributes of its strategy.

    >>> from fedgraph.methods import built_in
    >>> built_in("sfl").needs
    'a client graph ([graph])'
"""

from fedgraph.methods.registry import Method, built_in, built_ins, resolve
from fedgraph.methods.tables import NODE_MINIMA, constructor_arguments, resolved_table

__all__ = [
    "NODE_MINIMA",
    "Method",
    "built_in",
    "built_ins",
    "constructor_arguments",
    "resolve",
    "resolved_table",
]
