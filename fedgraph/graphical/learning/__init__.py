"""Learning: NGM and NGR of clients, their dependencies, merged graphs, one global model, and stitching."""

from fedgraph.graphical.learning.averaging import average
from fedgraph.graphical.learning.dependence import dependencies, derivatives, write_dependencies
from fedgraph.graphical.learning.distillation import SERVER, DistillationSettings, distil
from fedgraph.graphical.learning.merge import MergeSettings, merge
from fedgraph.graphical.learning.ngm import EVERYBODY, NGMFit, fit_ngm, fitted, r_squared
from fedgraph.graphical.learning.ngr import fit_ngr
from fedgraph.graphical.learning.stitching import ClientRows, GlobalModel, stitch_ngm, stitch_ngr

__all__ = [
    "EVERYBODY",
    "SERVER",
    "ClientRows",
    "DistillationSettings",
    "GlobalModel",
    "MergeSettings",
    "NGMFit",
    "average",
    "dependencies",
    "derivatives",
    "distil",
    "fit_ngm",
    "fit_ngr",
    "fitted",
    "merge",
    "r_squared",
    "stitch_ngm",
    "stitch_ngr",
    "write_dependencies",
]
