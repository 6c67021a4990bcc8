"""Networks that predict every feature of a table from others, for many clients at once, and their training."""

from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.graphical.network.training import train

__all__ = ["NGMSettings", "NGRSettings", "Network", "train"]
