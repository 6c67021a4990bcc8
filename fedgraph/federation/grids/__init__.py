"""Grids: nodes in this process, and Flower's own programs on this machine.

>>> from fedgraph.federation.grids import LocalGrid
>>> grid = LocalGrid(lambda message, context: message, [{"partition-id": 0, "num-partitions": 1}])
>>> len(grid.get_node_ids())
1
"""

from fedgraph.federation.grids.in_process import LocalGrid, is_simulated
from fedgraph.federation.grids.local_flower import (
    connection,
    connection_file,
    die_with_parent,
    end_group,
    free_port,
    kill_all,
    run_app_on_flower,
    run_on_flower,
    start,
    superlink_answers,
    wait_for_superlink,
    write_app,
)
from fedgraph.federation.grids.programs import flower_environment, program
from fedgraph.federation.grids.simulation import Failure, SimulationGrid

__all__ = [
    "Failure",
    "LocalGrid",
    "SimulationGrid",
    "connection",
    "connection_file",
    "die_with_parent",
    "end_group",
    "flower_environment",
    "free_port",
    "is_simulated",
    "kill_all",
    "program",
    "run_app_on_flower",
    "run_on_flower",
    "start",
    "superlink_answers",
    "wait_for_superlink",
    "write_app",
]
