"""Base classes of all clients: the node and its clients, training of its cohort, and disclosure.

Clients of methods of rounds subclass that of :mod:`fedgraph.clients.engine.base`;
:mod:`fedgraph.clients.engine.node` is the node, and :mod:`fedgraph.clients.engine.assignment` its part of an
experiment.
"""
