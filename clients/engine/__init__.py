"""Base classes of all clients: the node and the clients it hosts, training of its cohort, and what leaves a node.

Clients of methods of rounds subclass that of :mod:`fedgraph.clients.engine.base`;
:mod:`fedgraph.clients.engine.node` is the node, and :mod:`fedgraph.clients.engine.assignment` what an experiment asks
of it.
"""
