"""One network that sees the windows of all clients, on the one node that has them: what sharing everything reaches."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedgraph.algorithms.forecasts import ForecastAlgorithm, build_outcome, exchanged
from fedgraph.algorithms.phases import Outcome, Phase, PhaseRun
from fedgraph.clients.engine.base import CohortClient, evaluate_forecasts, examples_of
from fedgraph.data import SPLITS, SplitName
from fedgraph.data.series import as_windows
from fedgraph.fusion.forecasting import OwnerWindows, forecasts
from fedgraph.messages import WorkReply
from fedgraph.simulations.forecasting.joint_network import JointForecastSettings, fit_joint
from fedgraph.support.errors import ExperimentError
from fedgraph.training.forecasting import batches, in_unit, read_targets

log = logging.getLogger("fedgraph")


class JointForecast(ForecastAlgorithm[JointForecastSettings]):
    """Asks the one node that has all data to train a network and to measure it for each client."""

    title = "One network that sees the windows of all clients: Graph WaveNet, or a perceptron"
    needs = "time series, such as metr-la, and all clients on one node (--nodes 1)"
    paper = "https://arxiv.org/abs/1906.00121"
    expected_failures: ClassVar = {"number-of-nodes": "it pools the data of all clients, which one node must have"}
    no_predictions = (
        'its network is trained for a comparison and not kept; [evaluation] forecasts = "csv" writes what it forecasts '
        "of the test windows"
    )
    default_client = "fedgraph.simulations.forecasting.joint_forecast:JointForecastClient"

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """See :class:`PhasedAlgorithm`. Raises ExperimentError when more than one node hosts clients."""
        clients = yield from self.identified()
        if len(clients.hosts) > 1:
            raise ExperimentError(
                f"JointForecast needs the readings of all clients on one node; here {len(clients.hosts)} nodes host "
                "them: run it with --nodes 1"
            )
        graph = run.graph_of(clients)
        shared: dict[str, Tensor] = {} if graph is None else {"graph": graph.subgraph(clients.names).dense().float()}
        replies = yield from exchanged(run, shared=shared)
        measured_on = f"{len(replies.names)} clients, forecast by one network that sees all: {self.settings.network}"
        return build_outcome(clients, replies, measured_on, replies.metrics)


class JointForecastClient(CohortClient[JointForecastSettings]):
    """Sends errors and nothing else."""

    @classmethod
    def refuses_function(cls, method: Mapping[str, Any]) -> str:
        """See :class:`CohortClient`."""
        return "it trains a network of its own"

    sends: ClassVar[tuple[str, ...]] = ("errors of each client's forecasts",)
    keeps: ClassVar[tuple[str, ...]] = ("readings",)

    def reply(self) -> WorkReply:
        """Train, and measure the splits asked for."""
        cohort, splits = self.cohort, self.request.evaluate
        task, seed = cohort.data.task, self.assignment.seed
        given = self.request.shared.get("graph")
        windows = {split: self._windows(split) for split in SPLITS if split in ("train", "validation", *splits)}
        steps = task.input_shape[0]
        fit = fit_joint(self.settings, steps, windows["train"], windows["validation"], given, seed, _log_look)
        found = {
            split: windows[split].of_owners(
                forecasts(fit.network, windows[split]), as_windows(cohort.data.splits[split]).starts()
            )
            for split in splits
        }
        if self.leaves_forecasts:
            self.leave_forecasts(in_unit(cohort, found["test"]))
        trained = examples_of(cohort, ["train"])
        self.node.done.append(f"trained one network on {trained}, and measured {' and '.join(splits)}")
        return WorkReply(self.request.clients, {}, evaluate_forecasts(self.assignment, cohort, found))

    def _windows(self, split: SplitName) -> OwnerWindows:
        """The windows of all clients side by side, ``[clients, windows, steps * features]``, and their targets."""
        cohort = self.cohort
        inputs = torch.cat([batch.inputs.flatten(2).cpu() for batch, _ in batches(cohort, split)], 1)
        return OwnerWindows.of(as_windows(cohort.data.splits[split]).starts(), inputs, *read_targets(cohort, split))


def _log_look(step: int, training: float, validation: float) -> None:
    log.info("joint network, step %d: training loss %.4f, validation loss %.4f", step, training, validation)
