"""Trackers log parameters, metrics and results to TensorBoard, MLflow, Weights & Biases, or your own class.

An experiment names them: ``[output] track = ["tensorboard", "my_module:MyTracker"]``. Your own class has the four
methods of :class:`Tracker`, and is created with the run folder and the experiment::

    class Printed:
        def __init__(self, folder, experiment): ...
        def log_params(self, params): print(params["train.learning-rate"])
        def log_metrics(self, values, step): print(step, flat(values))
        def save(self, path): ...
        def finalize(self, status): print(status)
"""

from fedgraph.runs.tracking.tracker import Tracker, Values, flat, tracked

__all__ = ["Tracker", "Values", "flat", "tracked"]
