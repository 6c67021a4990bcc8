"""Base class of methods that are no algorithm: a Flower strategy with a loop of its own."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedgraph.support.errors import RunError
from fedgraph.support.settings import Configured, S

log = logging.getLogger("fedgraph")

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class MethodStrategy(Strategy, Configured[S]):
    """Flower strategy with its own loop, subscripted by its settings: ``class F3(PhasedStrategy[F3Settings])``.

    Attributes
    ----------
    name, title, needs, paper : str
        Of a built-in method, for ``fedgraph methods``: its short name, a title, what a run needs beyond data and model,
        and where it was published.
    default_client : str or type
        Client class that is used where the experiment names none, by dotted path or, in a notebook, as a class.
    mixes_models : bool
        Whether models of different clients are averaged, or otherwise computed with one another: then all clients need
        the same architecture.
    own_models : bool
        Whether the method's own table describes the models, so that an experiment has no table ``[model]``.
    defences : tuple of str
        Keys of ``[defence]`` that the method heeds; others are refused.
    may_change : tuple of str
        Keys of the method's own table that may change in a run that is resumed: nothing that it has computed or
        received until then depends on them.
    expected_failures : dict of str to str
        Checks of ``fedgraph check`` that the method fails by design, by name, and the reason.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    needs: ClassVar[str] = "nothing"
    paper: ClassVar[str] = ""
    default_client: ClassVar[str | type]
    mixes_models: ClassVar[bool] = True
    own_models: ClassVar[bool] = False
    defences: ClassVar[tuple[str, ...]] = ()
    may_change: ClassVar[tuple[str, ...]] = ()
    expected_failures: ClassVar[dict[str, str]] = {}

    @classmethod
    def uses_graph(cls, settings: S) -> bool:
        """Return whether results depend on the client graph of ``[graph]``: then they are compared to a permuted one's.

        True, unless a method says otherwise.
        """
        return True

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        should_stop: Callable[..., bool] | None = None,
    ) -> Result:
        """Run the method; signature and result as in Flower's ``Strategy.start``.

        ``train_config`` and ``evaluate_config`` are ignored, because the experiment configures both.

        Raises
        ------
        FedgraphError
            When the run cannot continue: what was wrong, where, and what to do. Also for ``should_stop``, because the
            experiment says when a run ends early.
        """
        if should_stop is not None:
            raise RunError("should_stop is not used: end a run early by [evaluation] monitor, patience or targets")
        return self.run(grid, initial_arrays or ArrayRecord(), num_rounds, timeout, evaluate_fn)

    @abstractmethod
    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Run the method from start to end; see :meth:`start`."""

    @classmethod
    def steps_of(cls, settings: S, rounds: int) -> int | None:
        """Return the total of a progress bar: rounds, or epochs; None where it is not known."""
        return rounds

    @property
    def class_name(self) -> str:
        """Name of the class that computes, for messages."""
        return type(self).__name__

    def summary(self) -> None:
        """Log name and settings, as Flower's strategies do."""
        log.info("%s", self.class_name)
        for key, value in self.settings.as_table().items():
            log.info("\t├── %s: %s", key, value)

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
        raise RunError(f"{type(self).__name__} has a loop of its own: call start")
