"""What all client classes stand on: the node and whom it hosts, training of its cohort, and what leaves a node.

:mod:`clients.engine.base` is what the client of a method of rounds overrides, :mod:`clients.engine.node` the node.
"""
