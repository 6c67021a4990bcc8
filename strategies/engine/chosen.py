"""The method of an experiment: found, checked with its table, and built for the federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flwr.serverapp.strategy import Strategy

from fedgraph.algorithms import Algorithm, Method
from fedgraph.algorithms.phases import PhasedAlgorithm, has_phases
from fedgraph.defence import DefenceTable
from fedgraph.experiment import Experiment, built_ins
from fedgraph.federation import Federation
from fedgraph.models import ModelChoice
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.phases import PhasesPlan, PhasesRun
from fedgraph.strategies.engine.stock import StockAlgorithm
from fedgraph.strategies.engine.stock_settings import build_stock
from fedgraph.support.errors import ExperimentError


class ChosenMethod:
    """Method of an experiment, checked as far as possible without nodes.

    Raises ExperimentError when the strategy cannot be found or is not a strategy, or its table does not fit.

    Attributes
    ----------
    client : dotted path of the client class.
    settings : the method's resolved table; empty for a stock strategy, whose keys are arguments of its constructor.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        method = experiment.method
        strategy_class: Any = method.strategy_class
        self.strategy_class: type[Any] = strategy_class
        if mixes_models(strategy_class) and ModelChoice.of(experiment.model).is_mixed:
            others = [name for name, known in built_ins().items() if not mixes_models(known)]
            raise ExperimentError(
                f"[experiment] method '{method.name}' combines models of several clients, which need the same "
                "architecture, but [[model.variants]] sets another one than [model] for some clients. "
                f"Methods for clients with different architectures: {', '.join(others)}"
            )
        _check_defence(experiment, strategy_class)
        self._where = f"[{method.name}]"
        self._table = experiment.method_table
        self.client, self.settings = method.client_class, experiment.method_settings
        if is_ours(strategy_class):
            if not self.client:
                raise ExperimentError(
                    f"[experiment] strategy '{method.strategy}' has no client class: set its default_client, or "
                    "[experiment] "
                    'client = "package.module:Class"'
                )
            if has_phases(strategy_class):
                _check_without_rounds(experiment)
        else:
            build_stock(self.strategy_class, self._table, self._where, clients=1)

    @property
    def may_change(self) -> tuple[str, ...]:
        """Keys of the method's table that may change in a resumed run."""
        return self.strategy_class.may_change if is_ours(self.strategy_class) else ()

    @property
    def uses_graph(self) -> bool:
        """Whether results depend on the client graph; not for stock strategies."""
        return is_ours(self.strategy_class) and bool(self.strategy_class.uses_graph(self.settings))

    def resolved(self) -> Experiment:
        """Return the experiment with the table of its method only, and all defaults."""
        # The keys of a stock strategy are the arguments of its constructor.
        own = self.settings.as_table() or self._table
        method_tables = {self._experiment.method.name: own} if own else {}
        return replace(self._experiment, method_tables=method_tables)

    def algorithm(self, federation: Federation, plan: RunPlan, nodes: Nodes) -> Algorithm[Any]:
        """Build the algorithm of a method of rounds for this federation."""
        if issubclass(self.strategy_class, Algorithm):
            return self.strategy_class(self.settings)
        assert issubclass(self.strategy_class, Strategy)
        # A stock strategy must not wait for clients that may be absent.
        clients = len(federation.names) if plan.on_missing == "fail" else 1
        stock = build_stock(self.strategy_class, self._table, self._where, clients)
        return StockAlgorithm(stock, federation, plan, nodes)

    def phases(self, plan: PhasesPlan) -> PhasesRun:
        """Build the strategy that runs the algorithm of a method of phases."""
        assert issubclass(self.strategy_class, PhasedAlgorithm)
        return PhasesRun(self.strategy_class(self.settings), plan)


def is_ours(found: Any) -> bool:
    """Return whether a class is an algorithm, with settings and a client class, unlike stock strategies of Flower."""
    return isinstance(found, type) and issubclass(found, Method)


def _check_without_rounds(experiment: Experiment) -> None:
    """Raise ExperimentError for settings of an experiment that only apply to methods of rounds."""
    where = f"method '{experiment.method.name}'"
    if experiment.experiment.on_missing == "keep-last":
        raise ExperimentError(
            f'[experiment] on-missing = "keep-last" is not supported by {where}, in which a client answers each '
            'request once; use "fail" or "skip"'
        )
    if experiment.evaluation.targets:
        raise ExperimentError(f"[evaluation] targets need rounds, but {where} has none: leave them out")
    if experiment.evaluation.compare_peers:
        raise ExperimentError(
            f"[evaluation] compare-peers compares models of one architecture, but the owners of {where} have different "
            "ones: leave it out"
        )
    if experiment.evaluation.monitor is not None:
        raise ExperimentError(
            f"[evaluation] monitor and patience need rounds, but {where} has none: leave them out, or set "
            f"patience in [{experiment.method.name}] where that table has it"
        )
    if experiment.fairness is not None:
        raise ExperimentError(f"[fairness] needs client models, but {where} has none: leave it out")


def _check_defence(experiment: Experiment, strategy_class: type[Any]) -> None:
    """Raise ExperimentError for a key of [defence] that the method would ignore."""
    heeded = getattr(strategy_class, "defences", Algorithm.defences)
    given, default = experiment.defence.as_table(), DefenceTable().as_table()
    for key in given:
        # Numbers of examples are bounded for all methods, though some do not use them.
        if given[key] != default.get(key) and key not in (*heeded, "most-examples"):
            stock = not is_ours(strategy_class)
            instead = "; Flower has strategies of its own, such as FedMedian and FedTrimmedAvg" if stock else ""
            raise ExperimentError(
                f"[defence] {key} is not supported by '{experiment.method.name}', which supports "
                f"{', '.join(heeded) or 'no key of this table'}{instead}"
            )


def mixes_models(strategy_class: Any) -> bool:
    """Return whether a strategy combines models of several clients, as all stock Flower strategies."""
    return bool(getattr(strategy_class, "mixes_models", True))
