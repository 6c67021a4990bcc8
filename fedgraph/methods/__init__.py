"""What both sides of a method agree on, settings and messages of its own; and how methods are found.

Each method's contract is a module of its own, such as :mod:`fedgraph.methods.fedngm`. What a method is, needs and where
it was published stand on its strategy.

    >>> from fedgraph.methods import built_in
    >>> built_in("sfl").needs
    'a client graph ([graph])'
"""

from fedgraph.methods.registry import Method, built_in, built_ins, resolve

__all__ = ["Method", "built_in", "built_ins", "resolve"]
