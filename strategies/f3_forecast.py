"""F3 for forecasts: one exchange of embeddings, then a forecaster for each client over a learned graph.

After Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
algorithm 1. https://proceedings.mlr.press/v216/ma23b.html There owners hold different features of the same samples and
share one label; here they hold different series over the same time, and each forecasts its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.data import SPLITS, SplitName
from fedgraph.data.series import shares_scales, step_seconds
from fedgraph.federation import Federation, OrderedGrid
from fedgraph.fusion.forecasting import (
    FittedForecasts,
    ForecastFit,
    ForecastFusion,
    OwnerGraph,
    OwnerWindows,
    fit_forecasts,
    forecasts,
)
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.messages import to_record
from fedgraph.methods.f3_forecast import FITTED_ON, F3ForecastSettings, suffix_of
from fedgraph.models import Layout, ModelChoice, TaskSpec, build, flattened
from fedgraph.runs import RunFolder, load_models
from fedgraph.strategies.engine.forecasts import ForecastStrategy
from fedgraph.strategies.engine.phases import Outcome
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import ExperimentError

log = logging.getLogger("fedgraph")

_OVER: dict[OwnerGraph, str] = {
    "learned": "from the embeddings of all over a learned graph",
    "given": "from the embeddings of all over the given graph",
    "complete": "from the embeddings of all over the complete graph",
    "permuted": "from the embeddings of all over the given graph with clients in other places",
    "none": "without the embeddings of others",
}
"""What a network forecasts from, by its graph, for people."""

_TYPES = {"starts": "int64", "known": "uint8", "targets": "float32"}


class F3Forecast(ForecastStrategy[F3ForecastSettings]):
    """Collects embeddings of all windows once, learns from them, and sends each client its forecasts.

    The network stays in the run folder, and encoders with their clients, for windows that come later:
    ``f3-forecast-inference``.
    """

    name = "f3-forecast"
    title = "F3 for forecasts: frozen encoders, one exchange of embeddings, a learned graph, a head per client"
    paper = "https://proceedings.mlr.press/v216/ma23b.html"
    default_client = "fedgraph.clients.f3_forecast:F3ForecastClient"

    @classmethod
    def uses_graph(cls, settings: F3ForecastSettings) -> bool:
        """See :class:`MethodStrategy`: a learned graph starts from nothing that is given."""
        return settings.needs_given

    def check(self) -> None:
        """See :class:`ForecastStrategy`."""
        if self.settings.needs_given and not self.plan.graph_given:
            raise ExperimentError("[f3-forecast] a given or permuted graph needs a client graph: set source of [graph]")
        if self.settings.targets == "private" and self.settings.encoders is not None:
            raise ExperimentError(
                '[f3-forecast] targets = "private" keeps readings from the server, which has the models of the run '
                "that encoders names, and can tell readings from embeddings by them: let clients train their own"
            )
        if shares_scales(self.plan.data):
            raise ExperimentError(
                '[data] scaling = "pooled" and cold-scale are for methods of rounds: f3-forecast scales each client by '
                "its own readings"
            )

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """See :class:`ForecastStrategy`.

        Raises
        ------
        FedgraphError
            If clients are missing, are no time series or do not answer, and if training diverges.
        """
        federation, nodes = self.identified(grid)
        graph = self.plan.graph_of(federation)
        if graph is not None and not self.settings.needs_given:
            self.plan.folder.notes.append(
                'the client graph of [graph] is not used; [f3-forecast] graph = "given" or controls = ["given"] use it'
            )
        sent = self._embeddings(nodes, federation)
        windows = {str(split): self._windows(sent, split, federation.task) for split in SPLITS}
        given = graph.subgraph(sent.names).dense().float() if graph is not None and self.settings.needs_given else None
        fits = {
            suffix: fit_forecasts(
                self.settings.over(graph), windows["train"], windows["validation"], given, self.plan.seed,
                partial(self._record_look, f"fusion{suffix}"),
            )
            for suffix, graph in self._graphs().items()
        }  # fmt: skip
        main = fits[""]
        FittedForecasts(main.network, self.settings, sent.names).write(self.plan.folder.fusion)
        self._write_learned(main.network, sent.names)
        measured = self._measured(nodes, federation, sent, fits, windows)
        lost = {**sent.absent, **measured.absent}
        names = measured.names
        rows = torch.tensor([sent.names.index(name) for name in names])
        metrics = {**measured.metrics, **{name: values[rows] for name, values in sent.metrics.items()}}
        state = main.network.state_dict()
        parameters = flattened(state)
        facts: dict[str, Any] = {
            f"fusion{suffix}": {"step": fit.step, "validation_loss": fit.validation_loss}
            for suffix, fit in fits.items()
        }
        by = "its own network from its embedding and that which the server foretells"
        if self.settings.targets == "shared":
            by = "the server's network"
        over = {suffix: _OVER[graph] for suffix, graph in self._graphs().items()}
        told = (
            f"{len(names)} clients, each forecast by {by}, {over.pop('')}; what ends with -local is by the client's "
            "own encoder alone" + "".join(f", with {suffix} {words}" for suffix, words in over.items())
        )
        facts["parameters_at_server"] = len(parameters)
        outcome = self.outcome_of(federation, names, told, metrics, parameters, 1, lost, facts)
        return outcome, to_record(state)

    def _graphs(self) -> dict[str, OwnerGraph]:
        """The graphs over which networks are fitted, by what the names of their errors end with."""
        controls = {suffix_of(graph): graph for graph in self.settings.controls if graph != self.settings.graph}
        return {"": self.settings.graph, **controls}

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _embeddings(self, grid: OrderedGrid, federation: Federation) -> Replies:
        """Every client's embeddings, targets of training and validation windows, and when windows start."""
        room = {split: federation.room(split, self.plan.tolerant) for split in SPLITS}
        choice = ModelChoice.of(self.plan.model)
        model = build(choice.tables[0], federation.task)
        encoders = self._encoders(model.layout, federation.names)
        size = model.embedding_size
        steps = federation.task.output_shape[0]
        shapes: dict[str, tuple[int, ...]] = {}
        for split in SPLITS:
            shapes |= {f"starts/{split}": (room[split],), f"embeddings/{split}": (room[split], size)}
            if split in self._told:
                shapes |= {f"{part}/{split}": (room[split], steps) for part in ("targets", "known")}
        types = {name: _TYPES.get(name.partition("/")[0], self.settings.precision) for name in shapes}
        shared = {"examples": torch.tensor([room[split] for split in SPLITS])}
        requests = {
            node: self.request(
                federation.clients_of(node), {name: rows[places] for name, rows in encoders.items()}, shared, train=True
            )
            for node, places in federation.hosts.items()
        }
        return self.exchanged(grid, federation, federation.hosts, requests, shapes, types)

    def _encoders(self, layout: Layout, names: Sequence[str]) -> dict[str, Tensor]:
        """The models of the run that ``encoders`` names, ``[clients, parameters]``; nothing where there is none."""
        run = self.settings.encoders
        if run is None:
            return {}
        folder = RunFolder.open(run)
        if not folder.models.is_file():
            raise ExperimentError(
                f"[f3-forecast] encoders = '{run}': that run left no models: take one of a method of rounds, such as "
                "local, fedavg or sfl"
            )
        # So that encoders are trained on the training part of this experiment.
        folder.check_same_data(self.plan.data, "[f3-forecast] encoders")
        models, common = load_models(folder.models)
        rows = []
        for name in names:
            state = models.get(name, common)
            if state is None:
                raise ExperimentError(f"[f3-forecast] encoders = '{run}': that run has no model of {name}")
            if Layout.of(state).shapes_by_name() != layout.shapes_by_name():
                raise ExperimentError(
                    f"[f3-forecast] encoders = '{run}': its model of {name} is not the [model] of this experiment with "
                    "this [data]: take both from there"
                )
            rows.append(layout.row(state))
        return {"encoders": torch.stack(rows)}

    def _measured(
        self,
        grid: OrderedGrid,
        federation: Federation,
        sent: Replies,
        fits: Mapping[str, ForecastFit],
        windows: Mapping[str, OwnerWindows],
    ) -> Replies:
        """Send each client the forecasts of its windows, by every network; what it measures of them.

        With private targets forecasts of its embeddings are sent, of all splits: from these the client learns to
        forecast its readings.
        """
        splits = SPLITS if self.settings.targets == "private" else self.plan.splits
        kind, dtype = self.settings.returned
        found = {
            (suffix, split): windows[split].of_owners(
                forecasts(fit.network, windows[split]), sent.tensors[f"starts/{split}"]
            )
            for suffix, fit in fits.items()
            for split in splits
        }
        asked, requests = {}, {}
        for node, clients, positions, rows in self.hosts_of(grid, federation, sent.names):
            asked[node] = positions
            counts = {
                split: min(
                    int(federation.num_examples[split][positions].max()), sent.tensors[f"starts/{split}"].shape[1]
                )
                for split in splits
            }
            own = {
                f"{kind}{suffix}/{split}": values[rows, : counts[split]].to(dtype)
                for (suffix, split), values in found.items()
            }
            requests[node] = self.request(clients, own, {}, train=False)

        return self.exchanged(grid, federation, asked, requests)

    @property
    def _told(self) -> tuple[SplitName, ...]:
        """The splits whose targets the server is told."""
        return FITTED_ON if self.settings.targets == "shared" else ()

    def _windows(self, sent: Replies, split: SplitName, task: TaskSpec) -> OwnerWindows:
        """The windows of one split of all clients side by side, with what the server learns to forecast as targets."""
        starts, embeddings = sent.tensors[f"starts/{split}"], sent.tensors[f"embeddings/{split}"]
        targets = sent.tensors.get(f"targets/{split}", torch.zeros(*starts.shape, 0))
        known = sent.tensors.get(f"known/{split}", torch.zeros(*starts.shape, 0))
        windows = OwnerWindows.of(starts, embeddings, targets, known > 0)
        if self.settings.targets == "shared":
            return windows
        return windows.ahead(task.output_shape[0] * step_seconds(task.step_minutes))

    # ---- what is written -------------------------------------------------------------------------------------------

    def _record_look(self, phase: str, step: int, training: float, validation: float) -> None:
        """A line in ``metrics.jsonl`` and in the log, and a step of the progress bar."""
        self.plan.folder.append(
            {"round": step, "phase": phase, "training_loss": training, "validation_loss": validation}
        )
        for listener in self.plan.listeners:
            listener.on_epoch(phase, step)
        log.info("%s, step %d: training loss %.4f, validation loss %.4f", phase, step, training, validation)

    def _write_learned(self, network: ForecastFusion, names: tuple[str, ...]) -> None:
        """The learned graph, the mean of the mixing matrices: row i says how much of whose embedding client i gets."""
        mixing = network.mixing()
        if mixing is not None and network.edges is not None:
            mean = mixing.detach().mean(0)
            write_graph(ClientGraph.from_dense(names, mean, directed=True), self.plan.folder.path / "learned-graph.npz")
