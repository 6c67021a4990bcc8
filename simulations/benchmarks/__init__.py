"""Measurements of speed that anyone can rerun: ``python -m fedgraph.simulations.benchmarks``."""
