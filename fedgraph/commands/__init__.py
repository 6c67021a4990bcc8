"""Commands of the command line.

One module for each command, and :mod:`fedgraph.commands.deployment` for those that start Flower's programs::

    fedgraph run sfl/digits.toml --compare fedavg
    fedgraph runs

Help and completion load every module with a command, so these import what is slow to load (the rest of the library, and
so PyTorch and Flower) within their functions.
"""

import sys

from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import check_nothing_hides_ours

# Before any command is imported, which imports them.
try:
    check_nothing_hides_ours()
except ExperimentError as error:
    sys.exit(f"Error: {error}")
