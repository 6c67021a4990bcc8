"""Base classes of all clients: the node and the clients it hosts, training of its cohort, and what leaves a node.

Clients of methods of rounds subclass that of :mod:`clients.engine.base`;
:mod:`clients.engine.node` is the node, and :mod:`clients.engine.assignment` what an experiment asks of it.
"""
