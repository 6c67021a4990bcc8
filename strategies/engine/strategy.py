"""A Flower strategy for custom apps whose exchanges are phases instead of rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedgraph.algorithms.phases import PhasedAlgorithm
from fedgraph.federation import quick
from fedgraph.support.errors import RunError

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class PhasedStrategy(Strategy):
    """Flower strategy with its own loop: ``start`` runs all phases of an algorithm.

    Attributes
    ----------
    algorithm_class : the algorithm, which experiments run.
    """

    algorithm_class: ClassVar[type[PhasedAlgorithm[Any]]]

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 1,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: Callable[..., bool] | None = None,
    ) -> Result:
        """Run all phases.

        The signature is that of Flower's strategies. ``initial_arrays``, ``num_rounds``, ``evaluate_config``,
        ``evaluate_fn`` and ``should_stop`` are ignored. Returns a Result with the learned arrays and metrics. Raises
        RunError for too few nodes or no usable answer, and IdentityError, DataError, ExperimentError or ValueError when
        clients or their messages do not fit each other or the settings.

        Parameters
        ----------
        grid : grid that connects to the nodes.
        timeout : seconds that nodes have to connect, and to answer each request. Clients without a usable answer are
            left out, with an error in the log that names them.
        train_config : sent along, where clients answer by handlers of their own.
        """
        return self.run(quick(grid), timeout, train_config)

    @abstractmethod
    def run(self, grid: Grid, timeout: float, train_config: ConfigRecord | None) -> Result:
        """Do what :meth:`start` does, given those of its arguments that have an effect."""

    def summary(self) -> None:
        """Say nothing: ``start`` says what it does."""

    # ---- what Flower's own loop would call -------------------------------------------------------------------------

    def configure_train(self, *arguments: Any, **named: Any) -> Iterable[Message]:
        """Raise RunError: part of Flower's own loop, which is not used."""
        return self._own_loop()

    def aggregate_train(self, *arguments: Any, **named: Any) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise RunError: part of Flower's own loop, which is not used."""
        return self._own_loop()

    def configure_evaluate(self, *arguments: Any, **named: Any) -> Iterable[Message]:
        """Raise RunError: part of Flower's own loop, which is not used."""
        return self._own_loop()

    def aggregate_evaluate(self, *arguments: Any, **named: Any) -> MetricRecord | None:
        """Raise RunError: part of Flower's own loop, which is not used."""
        return self._own_loop()

    def _own_loop(self) -> NoReturn:
        raise RunError(f"{type(self).__name__} has its own loop: call start")
