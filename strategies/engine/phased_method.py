"""A method of phases as experiments name it, and what an experiment may not say of one."""

from __future__ import annotations

from typing import Any, ClassVar

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedgraph.algorithms.phases import PhasedAlgorithm
from fedgraph.experiment import Experiment
from fedgraph.strategies.engine.strategy import EvaluateFn, MethodStrategy
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.settings import S

_SAID_BY_THE_ALGORITHM = (
    *("name", "title", "needs", "paper", "settings_type", "uses_graph", "steps_of", "own_models", "mixes_models"),
    *("defences", "may_change", "expected_failures"),
)


class PhasedMethod(MethodStrategy[S]):
    """A method of phases as experiments name it; one that people start in their own Flower apps overrides ``start``.

    Attributes
    ----------
    algorithm_class : type
        Its algorithm, which says the rest.
    """

    algorithm_class: ClassVar[type[PhasedAlgorithm[Any]]]

    def __init_subclass__(cls, **named: Any) -> None:
        """Take over what the algorithm says of itself."""
        super().__init_subclass__(**named)
        if "algorithm_class" in vars(cls):
            for attribute in _SAID_BY_THE_ALGORITHM:
                setattr(cls, attribute, getattr(cls.algorithm_class, attribute))

    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Raise RunError: only experiments run it."""
        raise RunError(f"{type(self).__name__} has no app of its own: run an experiment with this method")


def check_without_rounds(experiment: Experiment) -> None:
    """Raise ExperimentError for settings of an experiment that only apply to methods of rounds."""
    where = f"method '{experiment.method.name}'"
    if experiment.experiment.on_missing == "keep-last":
        raise ExperimentError(
            f'[experiment] on-missing = "keep-last" is not for {where}: a client answers each question once, so that '
            'nothing is there from before; use "fail" or "skip"'
        )
    if experiment.evaluation.targets:
        raise ExperimentError(f"[evaluation] targets are reached in rounds, of which {where} has none: leave them out")
    if experiment.evaluation.compare_peers:
        raise ExperimentError(
            f"[evaluation] compare-peers compares models of one architecture, and the owners of {where} bring their "
            "own: leave it out"
        )
    if experiment.evaluation.monitor is not None:
        raise ExperimentError(
            f"[evaluation] monitor and patience stop rounds, of which {where} has none: leave them out, or set "
            f"patience in [{experiment.method.name}] where that table has it"
        )
    if experiment.fairness is not None:
        raise ExperimentError(f"[fairness] follows the models of clients, of which {where} has none: leave it out")
