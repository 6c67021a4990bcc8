"""Federated learning for clients that are related to each other, on Flower.

From Python::

    import fedgraph

    run = fedgraph.run("sfl/digits.toml", set={"train.learning-rate": 0.05})
    run.clients["test/accuracy"]                # a pandas Series, by client
    run.models["client-03"], run.graph          # a state dict, and the client graph

    fedgraph.run_methods("sfl/digits.toml", ["sfl", "fedavg", "local"]).metrics
    fedgraph.worth("sfl/digits.toml").verdict                                   # does the client graph pay?
    fedgraph.report("runs/sfl-digits-20260101-120000")                          # a page, report.html
    fedgraph.predict("runs/f3-digits-20260101-120000").predictions
    fedgraph.simulate("my-flower-app", num_nodes=10, run_config={"lr": 0.1})    # any Flower app, in this process

Without a federation::

    fedgraph.FusionClassifier().fit({"mercy": embeddings, "ucla": others}, labels).graph_
    fedgraph.NeuralGraphicalModel().fit(data_frame).sample(100)
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedgraph.fusion import FusionClassifier
    from fedgraph.graph import ClientGraph
    from fedgraph.graphical import NeuralGraphicalModel
    from fedgraph.reproduce.worth import worth
    from fedgraph.runs import Comparison, Run, compare, load_run
    from fedgraph.runs.reports.page import report
    from fedgraph.starting.predicting import predict
    from fedgraph.starting.running import resume, run, run_methods
    from fedgraph.starting.simulate import Simulation, simulate

# The bundle of a Flower app has no links: there the folders of clients, strategies and simulations lie beside this one.
if not Path(__path__[0], "strategies").is_dir():
    __path__.append(str(Path(__path__[0]).parent))

__version__ = "0.2.0"

__all__ = [
    "ClientGraph",
    "Comparison",
    "FusionClassifier",
    "NeuralGraphicalModel",
    "Run",
    "Simulation",
    "compare",
    "load_run",
    "predict",
    "report",
    "resume",
    "run",
    "run_methods",
    "simulate",
    "worth",
]

_MODULES = {
    "ClientGraph": "graph",
    "FusionClassifier": "fusion",
    "NeuralGraphicalModel": "graphical",
    "Simulation": "starting.simulate",
    "predict": "starting.predicting",
    "report": "runs.reports.page",
    "resume": "starting.running",
    "run": "starting.running",
    "run_methods": "starting.running",
    "simulate": "starting.simulate",
    "worth": "reproduce.worth",
}
"""Where names are that are not in ``runs``."""


def __getattr__(name: str) -> Any:
    """Import lazily: torch and Flower take seconds."""
    if name not in __all__:
        raise AttributeError(f"module 'fedgraph' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(f"fedgraph.{_MODULES.get(name, 'runs')}"), name)


def __dir__() -> list[str]:
    # Without what this module imports for itself.
    return [*(name for name in globals() if name not in ("Any", "Path", "TYPE_CHECKING", "_MODULES")), *__all__]
