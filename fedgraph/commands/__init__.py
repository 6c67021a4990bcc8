"""Commands of the command line.

One module for each command, and :mod:`fedgraph.commands.deployment` for those that start Flower's programs::

    fedgraph run sfl/digits.toml --compare fedavg
    fedgraph runs

Help and completion load every module with a command, so these import what is slow to load (the rest of the library, and
so PyTorch and Flower) within their functions.
"""
