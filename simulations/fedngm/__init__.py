"""Experiments of federated neural graphical models (Chajewska, Shrivastava)."""
