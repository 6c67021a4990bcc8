"""Measurements of speed that anyone can rerun: ``python -m simulations.benchmarks``."""
