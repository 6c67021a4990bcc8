"""Experiments as TOML files, one folder per paper, and benchmarks."""
