"""What people type.

One module for each command, and :mod:`fedgraph.commands.deployment` for those that start Flower's programs::

    fedgraph run sfl/digits.toml --compare fedavg
    fedgraph methods
"""
