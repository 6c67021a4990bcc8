"""The command line: a module per command, and :mod:`fedgraph.commands.deployment` for those that start Flower::

    fedgraph run sfl/digits.toml --compare fedavg
    fedgraph runs

Help and completion load every module with a command: slow imports (PyTorch, Flower, other rooms) are made in functions.
"""
