"""Federated learning for clients that are related to each other, on Flower."""

__version__ = "0.1.0"
