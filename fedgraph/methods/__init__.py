"""What both sides of a method agree on, settings and messages of its own; and the methods there are.

Each method's contract is a module of its own, such as :mod:`fedgraph.methods.fedngm`.

    >>> from fedgraph.methods import resolve
    >>> resolve("sfl", None, None).needs
    'a client graph ([graph])'
"""

from fedgraph.methods.registry import (
    BUILT_IN,
    COHORT_CLIENT,
    F3_CLIENT,
    F3_SECRET_CLIENT,
    FEDNGM_CLIENT,
    STOCK_CLIENT,
    VERTICAL_CLIENT,
    Method,
    resolve,
)

__all__ = [
    "BUILT_IN",
    "COHORT_CLIENT",
    "F3_CLIENT",
    "F3_SECRET_CLIENT",
    "FEDNGM_CLIENT",
    "STOCK_CLIENT",
    "VERTICAL_CLIENT",
    "Method",
    "resolve",
]
