"""F3 for forecasts: one exchange of embeddings, then a forecaster for each client over a learned graph.

After Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
algorithm 1. https://proceedings.mlr.press/v216/ma23b.html There owners hold different features of samples with a common
label; here they hold different series over the same time, and each forecasts its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.f3_forecast_settings import FITTED_ON, F3ForecastSettings
from fedgraph.algorithms.forecasts import ForecastAlgorithm, StackedReplies, build_outcome, exchanged
from fedgraph.algorithms.phases import Identified, Outcome, Phase, PhaseRun
from fedgraph.data import SPLITS, SplitName
from fedgraph.data.series import shares_scales, step_seconds
from fedgraph.fusion.forecasting import (
    FittedForecasts,
    ForecastFit,
    ForecastFusion,
    OwnerGraph,
    OwnerWindows,
    fit_forecasts,
    forecasts,
    shared_windows,
)
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.models import Layout, ModelChoice, TaskSpec, build, flattened
from fedgraph.support.errors import ExperimentError

log = logging.getLogger("fedgraph")

_OVER: dict[OwnerGraph, str] = {
    "learned": "from the embeddings of all over a learned graph",
    "given": "from the embeddings of all over the given graph",
    "complete": "from the embeddings of all over the complete graph",
    "permuted": "from the embeddings of all over the given graph with permuted clients",
    "none": "without the embeddings of others",
}
"""Descriptions of a network's inputs, by its graph."""

_TYPES = {"starts": "int64", "known": "uint8", "targets": "float32"}


class F3Forecast(ForecastAlgorithm[F3ForecastSettings]):
    """Collects embeddings of all windows once, learns from them, and sends each client its forecasts.

    The network stays in the run folder, and encoders with their clients, for later windows (``f3-forecast-inference``).
    """

    name = "f3-forecast"
    title = "F3 for forecasts: frozen encoders, one exchange of embeddings, a learned graph, a head per client"
    paper = "https://proceedings.mlr.press/v216/ma23b.html"
    no_predictions = "models stay with their owners, who are asked for embeddings: fedgraph.predict(run, data) does it"
    default_client = "fedgraph.clients.f3_forecast:F3ForecastClient"

    @classmethod
    def uses_graph(cls, settings: F3ForecastSettings) -> bool:
        """See :class:`PhasedAlgorithm`: a learned graph does not use the given one."""
        return settings.needs_graph

    def check(self, run: PhaseRun) -> None:
        """See :class:`PhasedAlgorithm`."""
        if self.settings.needs_graph and not run.graph_given:
            raise ExperimentError("[f3-forecast] a given or permuted graph needs a client graph: set source of [graph]")
        if self.settings.targets == "private" and self.settings.encoders is not None:
            raise ExperimentError(
                '[f3-forecast] targets = "private" hides readings from the server, which could reconstruct them with '
                "the "
                "models of the run that encoders names: let clients train their own"
            )
        if shares_scales(run.data):
            raise ExperimentError(
                '[data] scaling = "pooled" and cold-scale are for methods of rounds: f3-forecast scales each client by '
                "its own readings"
            )

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Ask for embeddings, fit a network over each graph, send each client its forecasts.

        Raises ExperimentError or DataError when clients are not time series, or encoders of another run do not fit.
        Raises RunError when training diverges.
        """
        clients = yield from self.identified()
        graph = run.graph_of(clients)
        notes = []
        if graph is not None and not self.settings.needs_graph:
            notes.append(
                'the client graph of [graph] is not used; [f3-forecast] graph = "given" or controls = ["given"] use it'
            )
        sent = yield from self._embeddings(run, clients)
        windows = {str(split): self._windows(sent, split, clients.task) for split in SPLITS}
        isolated = self.settings.graph == "none" and not self.settings.controls
        shared = "" if isolated else f"; {shared_windows(windows['train'].present, sent.names)}"
        adjacency = (
            None if graph is None or not self.settings.needs_graph else graph.subgraph(sent.names).dense().float()
        )
        fits = {
            suffix: fit_forecasts(
                self.settings.over(graph), windows["train"], windows["validation"], adjacency, run.seed,
                partial(_report_step, run, f"fusion{suffix}"),
            )
            for suffix, graph in self.settings.graphs.items()
        }  # fmt: skip
        main = fits[""]
        measured = yield from self._evaluate(run, clients, sent, fits, windows)
        names = measured.names
        rows = torch.tensor([sent.names.index(name) for name in names])
        metrics = {**measured.metrics, **{name: values[rows] for name, values in sent.metrics.items()}}
        state = main.network.state_dict()
        parameters = flattened(state)
        facts: dict[str, Any] = {
            f"fusion{suffix}": {"step": fit.step, "validation_loss": fit.validation_loss}
            for suffix, fit in fits.items()
        }
        facts |= {"parameters_at_server": len(parameters), **({"notes": notes} if notes else {})}
        by = "its own network from its embedding and the one that the server predicts"
        if self.settings.targets == "shared":
            by = "the server's network"
        over = {suffix: _OVER[graph] for suffix, graph in self.settings.graphs.items()}
        measured_on = (
            f"{len(names)} clients, each forecast by {by}, {over.pop('')}; own model (-local): by the client's "
            "own encoder alone"
            + "".join(f"; {suffix[1:].replace('-', ' ')}: {words}" for suffix, words in over.items())
            + shared
        )
        fitted = FittedForecasts(main.network, self.settings, sent.names)
        files = {"fusion.safetensors": fitted.write, **_learned(main.network, sent.names)}
        return build_outcome(
            clients, measured, measured_on, metrics, parameters=parameters, facts=facts, arrays=state, files=files
        )

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _embeddings(self, run: PhaseRun, clients: Identified) -> Phase[StackedReplies]:
        """Every client's embeddings, targets of training and validation windows, and when windows start."""
        room = {split: clients.room(split, run.tolerant) for split in SPLITS}
        model = build(ModelChoice.of(run.model).tables[0], clients.task)
        encoders = self._encoders(run, model.layout, clients.names)
        size = model.embedding_size
        steps = clients.task.output_shape[0]
        shapes: dict[str, tuple[int, ...]] = {}
        for split in SPLITS:
            shapes |= {f"starts/{split}": (room[split],), f"embeddings/{split}": (room[split], size)}
            if split in self._sent_targets:
                shapes |= {f"{part}/{split}": (room[split], steps) for part in ("targets", "known")}
        types = {name: _TYPES.get(name.partition("/")[0], self.settings.precision) for name in shapes}
        shared = {"examples": torch.tensor([room[split] for split in SPLITS])}

        def own(names: tuple[str, ...]) -> dict[str, Tensor]:
            rows = [clients.positions[name] for name in names]
            return {name: values[rows] for name, values in encoders.items()}

        return (yield from exchanged(run, own, shared, shapes, types, train=True))

    def _encoders(self, run: PhaseRun, layout: Layout, names: Sequence[str]) -> dict[str, Tensor]:
        """The models of the run that ``encoders`` names, ``[clients, parameters]``; empty without ``encoders``."""
        encoders = self.settings.encoders
        if encoders is None:
            return {}
        other = run.other_run(encoders)
        left = other.models()
        if left is None:
            raise ExperimentError(
                f"[f3-forecast] encoders = '{encoders}': that run left no models: take one of a method of rounds, such "
                "as local, fedavg or sfl"
            )
        # Encoders must be trained on the training part of this experiment.
        other.check_same_data(run.data, "[f3-forecast] encoders")
        models, common = left
        rows = []
        for name in names:
            state = models.get(name, common)
            if state is None:
                raise ExperimentError(f"[f3-forecast] encoders = '{encoders}': that run has no model of {name}")
            if Layout.of(state).shapes_by_name() != layout.shapes_by_name():
                raise ExperimentError(
                    f"[f3-forecast] encoders = '{encoders}': its model of {name} does not fit [model] and [data] of "
                    "this experiment: copy both from there"
                )
            rows.append(layout.row(state))
        return {"encoders": torch.stack(rows)}

    def _evaluate(
        self,
        run: PhaseRun,
        clients: Identified,
        sent: StackedReplies,
        fits: Mapping[str, ForecastFit],
        windows: Mapping[str, OwnerWindows],
    ) -> Phase[StackedReplies]:
        """Send each client the forecasts of its windows by every network, and return the errors that it measures.

        With private targets forecasts of its embeddings are sent, of all splits: from these the client learns to
        forecast its readings.
        """
        splits = SPLITS if self.settings.targets == "private" else run.splits
        kind, dtype = self.settings.returned
        found = {
            (suffix, split): windows[split].of_owners(
                forecasts(fit.network, windows[split]), sent.tensors[f"starts/{split}"]
            )
            for suffix, fit in fits.items()
            for split in splits
        }

        def own(names: tuple[str, ...]) -> dict[str, Tensor]:
            positions = [clients.positions[name] for name in names]
            rows = [sent.names.index(name) for name in names]
            counts = {
                split: min(int(clients.num_examples[split][positions].max()), sent.tensors[f"starts/{split}"].shape[1])
                for split in splits
            }
            return {
                f"{kind}{suffix}/{split}": values[rows, : counts[split]].to(dtype)
                for (suffix, split), values in found.items()
            }

        return (yield from exchanged(run, own))

    @property
    def _sent_targets(self) -> tuple[SplitName, ...]:
        """The splits whose targets clients send to the server."""
        return FITTED_ON if self.settings.targets == "shared" else ()

    def _windows(self, sent: StackedReplies, split: SplitName, task: TaskSpec) -> OwnerWindows:
        """The windows of one split of all clients side by side, with what the server learns to forecast as targets."""
        starts, embeddings = sent.tensors[f"starts/{split}"], sent.tensors[f"embeddings/{split}"]
        targets = sent.tensors.get(f"targets/{split}", torch.zeros(*starts.shape, 0))
        known = sent.tensors.get(f"known/{split}", torch.zeros(*starts.shape, 0))
        windows = OwnerWindows.of(starts, embeddings, targets, known > 0)
        if self.settings.targets == "shared":
            return windows
        step = step_seconds(task.step_minutes)
        return windows.ahead(task.output_shape[0] * step, tolerance=(step - 1) // 4)


def _report_step(run: PhaseRun, phase: str, step: int, training: float, validation: float) -> None:
    """Report progress, and log it."""
    run.on_epoch(phase, step, {"training_loss": training, "validation_loss": validation})
    log.info("%s, step %d: training loss %.4f, validation loss %.4f", phase, step, training, validation)


def _learned(network: ForecastFusion, names: tuple[str, ...]) -> dict[str, Callable[[Path], object]]:
    """The learned graph, the mean of the mixing matrices: row i says how much of whose embedding client i gets."""
    mixing = network.mixing()
    if mixing is None or network.edges is None:
        return {}
    graph = ClientGraph.from_dense(names, mixing.detach().mean(0), directed=True)
    return {"learned-graph.npz": partial(write_graph, graph)}
