"""F3 for forecasts: one exchange of embeddings, then a forecaster for each client over a learned graph.

After Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023),
algorithm 1. https://proceedings.mlr.press/v216/ma23b.html There owners hold different features of the same samples and
share one label; here they hold different series over the same time, and each forecasts its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import cast

import torch
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.data import SPLITS, SplitName
from fedgraph.federation import Federation, OrderedGrid, identify
from fedgraph.fusion.forecasting import ForecastFusion, OwnerWindows, fit_forecasts, forecasts
from fedgraph.graph import ClientGraph, write_graph
from fedgraph.messages import WorkReply, WorkRequest, to_record
from fedgraph.methods.f3_forecast import FITTED_ON, F3ForecastSettings
from fedgraph.models import ModelChoice, build, flattened
from fedgraph.support.errors import ExperimentError
from strategies.engine.phases import Outcome, PhasedStrategy
from strategies.engine.replies import Reader, Replies, collect

log = logging.getLogger("fedgraph")

_TYPES = {"starts": "int64", "known": "uint8", "targets": "float32"}


class F3Forecast(PhasedStrategy[F3ForecastSettings]):
    """Collects embeddings of all windows once, learns from them, and sends each client its forecasts."""

    name = "f3-forecast"
    title = "F3 for forecasts: frozen encoders, one exchange of embeddings, a learned graph, a head per client"
    needs = "clients that are time series, such as metr-la"
    paper = "https://proceedings.mlr.press/v216/ma23b.html"
    default_client = "clients.f3_forecast:F3ForecastClient"
    mixes_models = True

    def check(self) -> None:
        """See :class:`PhasedStrategy`."""
        if self.settings.graph == "given" and not self.plan.graph_given:
            raise ExperimentError('[f3-forecast] graph = "given" needs a client graph: set source of [graph]')

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """See :class:`PhasedStrategy`.

        Raises
        ------
        FedgraphError
            If clients are missing, are no time series or do not answer, and if training diverges.
        """
        plan = self.plan
        federation = identify(
            grid, plan.client, plan.experiment, plan.roll_call, False,
            on_wait=lambda text: log.info("waiting for nodes: %s", text), traffic=self.traffic,
        )  # fmt: skip
        self.nodes = len(federation.hosts)
        if federation.task.kind != "forecast":
            raise ExperimentError(f"f3-forecast forecasts time series, and this data is for {federation.task.kind}")
        log.info("%d clients on %d nodes; data: %s", len(federation.names), self.nodes, federation.data)
        graph = plan.graph_of(federation)
        nodes = OrderedGrid(grid, federation, self.traffic)
        sent = self._embeddings(nodes, federation)
        windows = {str(split): _windows(sent, split) for split in SPLITS}
        given = None
        if self.settings.graph == "given" and graph is not None:
            given = graph.subgraph(sent.names).dense().float()
        found = fit_forecasts(
            self.settings, windows["train"], windows["validation"], given, plan.seed, self._record_look
        )
        self._write_learned(found.network, sent.names)
        measured = self._measured(nodes, federation, sent, found.network, windows)
        lost = {**sent.absent, **measured.absent}
        names = measured.names
        rows = torch.tensor([sent.names.index(name) for name in names])
        metrics = {**{name: values[rows] for name, values in sent.metrics.items()}, **measured.metrics}
        state = found.network.state_dict()
        parameters = flattened(state)
        facts = {
            "fusion": {"step": found.step, "validation_loss": found.validation_loss},
            "parameters_at_server": len(parameters),
        }
        told = (
            f"{len(names)} clients, each forecast by the server's network from the embeddings of all; what ends with "
            "-local is forecast by the client's own encoder alone"
        )
        return Outcome(names, federation.data, told, metrics, parameters, 1, lost, facts), to_record(state)

    # ---- exchanges -------------------------------------------------------------------------------------------------

    def _embeddings(self, grid: OrderedGrid, federation: Federation) -> Replies:
        """Every client's embeddings, targets of training and validation windows, and when windows start."""
        room = {split: int(federation.num_examples[split].max()) for split in SPLITS}
        model = ModelChoice.of(json.loads(self.plan.experiment)["model"])
        size = build(model.tables[0], federation.task).embedding_size
        steps = federation.task.output_shape[0]
        shapes: dict[str, tuple[int, ...]] = {}
        for split in SPLITS:
            shapes |= {f"starts/{split}": (room[split],), f"embeddings/{split}": (room[split], size)}
            if split in FITTED_ON:
                shapes |= {f"{part}/{split}": (room[split], steps) for part in ("targets", "known")}
        types = {name: _TYPES.get(name.partition("/")[0], self.settings.precision) for name in shapes}

        def read(content: RecordDict, clients: list[str]) -> tuple[WorkReply, Mapping[str, str]]:
            reply = WorkReply.unpack(content, clients, shapes, types)
            return reply, reply.unusable()

        shared = {"examples": torch.tensor([room[split] for split in SPLITS])}
        requests = {
            node: self._request(federation.clients_of(node), {}, shared, train=True) for node in grid.get_node_ids()
        }
        return self._exchanged(grid, federation, federation.hosts, requests, read)

    def _measured(
        self,
        grid: OrderedGrid,
        federation: Federation,
        sent: Replies,
        network: ForecastFusion,
        windows: Mapping[str, OwnerWindows],
    ) -> Replies:
        """Send each client the forecasts of its windows; what it measures of them."""
        found = {
            f"forecasts/{split}": windows[split].of_owners(
                forecasts(network, windows[split]), sent.tensors[f"starts/{split}"]
            )
            for split in self.plan.splits
        }
        row_of = {name: row for row, name in enumerate(sent.names)}
        asked, requests = {}, {}
        for node in grid.get_node_ids():
            clients = tuple(name for name in federation.clients_of(node) if name in row_of)
            if not clients:
                continue
            asked[node] = torch.tensor([federation.positions[name] for name in clients])
            rows = torch.tensor([row_of[name] for name in clients])
            counts = {split: int(federation.num_examples[split][asked[node]].max()) for split in self.plan.splits}
            own = {f"forecasts/{split}": found[f"forecasts/{split}"][rows, : counts[split]] for split in counts}
            requests[node] = self._request(clients, own, {}, train=False)

        def read(content: RecordDict, clients: list[str]) -> tuple[WorkReply, Mapping[str, str]]:
            return WorkReply.unpack(content, clients, {}), {}

        return self._exchanged(grid, federation, asked, requests, read)

    def _exchanged(
        self,
        grid: OrderedGrid,
        federation: Federation,
        asked: Mapping[int, Tensor],
        requests: Mapping[int, WorkRequest],
        read: Reader,
    ) -> Replies:
        """One exchange; the usable replies, of whom there must be enough."""
        messages = [
            Message(request.pack(), node, MessageType.TRAIN if request.train else MessageType.EVALUATE)
            for node, request in requests.items()
        ]
        replies, _ = collect(federation, asked, grid.send_and_receive(messages, timeout=self.plan.timeout), read)
        self.check_present(replies.absent, len(replies.names))
        return replies

    def _request(
        self, clients: Iterable[str], stacked: Mapping[str, Tensor], shared: Mapping[str, Tensor], train: bool
    ) -> WorkRequest:
        plan = self.plan
        return WorkRequest(
            client=plan.client,
            experiment=plan.experiment,
            run=plan.folder.name,
            clients=tuple(clients),
            round=1,
            stacked=stacked,
            shared=shared,
            evaluate=cast(tuple[SplitName, ...], tuple(plan.splits)),
            train=train,
        )

    # ---- what is written -------------------------------------------------------------------------------------------

    def _record_look(self, step: int, training: float, validation: float) -> None:
        """A line in ``metrics.jsonl`` and in the log, and a step of the progress bar."""
        self.plan.folder.append(
            {"round": step, "phase": "fusion", "training_loss": training, "validation_loss": validation}
        )
        for listener in self.plan.listeners:
            listener.on_epoch("fusion", step)
        log.info("fusion, step %d: training loss %.4f, validation loss %.4f", step, training, validation)

    def _write_learned(self, network: ForecastFusion, names: tuple[str, ...]) -> None:
        """The learned graph: the mean of the mixing matrices; an edge says how much its target's forecast mixes in."""
        if network.edges is not None:
            mean = network.edges.detach().softmax(2).mean(0)
            write_graph(ClientGraph.from_dense(names, mean, directed=True), self.plan.folder.path / "learned-graph.npz")


def _windows(sent: Replies, split: SplitName) -> OwnerWindows:
    """The windows of one split of all clients side by side; targets that the server does not get are empty."""
    starts, embeddings = sent.tensors[f"starts/{split}"], sent.tensors[f"embeddings/{split}"]
    targets = sent.tensors.get(f"targets/{split}", torch.zeros(*starts.shape, 0))
    known = sent.tensors.get(f"known/{split}", torch.zeros(*starts.shape, 0))
    return OwnerWindows.of(starts, embeddings, targets, known > 0)
