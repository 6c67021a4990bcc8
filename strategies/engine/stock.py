"""Any stock Flower strategy as a method: its own functions in fedgraph's loop, with its order, checks and records.

To the strategy every client is a node: it draws clients, and gets a reply from each, whichever nodes host them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Result, Strategy
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.graph import weighted_mean
from fedgraph.messages import WorkReply, from_record, to_record
from fedgraph.methods.baselines import STOCK_TERMS
from fedgraph.models import usable_rows
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.base import CohortStrategy
from fedgraph.strategies.engine.client_grid import ClientGrid, noting_warnings, quick_collections, seeded
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies
from fedgraph.strategies.engine.stock_settings import load_stock_state, stock_state
from fedgraph.strategies.engine.strategy import EvaluateFn
from fedgraph.support.errors import ReplyError, RunError, quoted
from fedgraph.support.files import State
from fedgraph.support.randomness import derive_seed
from fedgraph.support.settings import Settings

log = logging.getLogger("fedgraph")

Some = TypeVar("Some")
Configure = Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]]

STOCK_CLIENT = "fedgraph.clients.engine.stock:StockClient"

_SERVER_OPTIMISERS = (FedAdagrad, FedAdam, FedAvgM, FedYogi)
_OF_MEANS = {strategy.aggregate_train for strategy in (FedAvg, *_SERVER_OPTIMISERS)}
"""What computes with the clients' weighted mean alone, so that a node may send the mean of its clients' models."""

_UNDERSTOOD = frozenset({*STOCK_TERMS.values(), "server-round"})


class StockStrategy(CohortStrategy):
    """Runs ``stock`` with every client as a node of its own.

    Nodes of a strategy that only averages (FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad, FedYogi) send the mean of
    their clients' models, weighted by training examples, unless replies of single clients are needed for ``on-missing =
    "keep-last"``, for ``[defence]``, or for a ``train_metrics_aggr_fn`` of its own.

    Running statistics are averaged over clients where ``stock`` has an optimiser at the server, which would make
    variances negative; of any other strategy, variances below 0 are set to 0.
    """

    def __init__(self, stock: Strategy, federation: Federation, plan: RunPlan) -> None:
        super().__init__(Settings(), federation, plan)
        self.stock = stock
        self._arrays = ArrayRecord()
        self._means: dict[int, Tensor] = {}
        self._aggregated: bool | None = None
        self._said: set[str] = set()
        self._notes: list[str] = []

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Start with one model for all clients."""
        super().initialise(initial_arrays)
        # In the order in which clients send theirs: some strategies compute with arrays by place.
        state = from_record(initial_arrays)
        self._arrays = to_record({name: state[name] for name in self.layout.names})

    def run(
        self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int, timeout: float, evaluate_fn: EvaluateFn | None
    ) -> Result:
        """Run the rounds; raise RunError where the strategy has aggregated in none of them."""
        result = super().run(grid, initial_arrays, num_rounds, timeout, evaluate_fn)
        if self._aggregated is False:
            raise RunError(
                f"{self._name} aggregated the replies of no round, so that the model is the initial one. Its messages "
                "in the log say why: mostly it needs replies of more clients than there are"
            )
        return result

    def replace_models(self, models: Tensor) -> None:
        """Continue with other models; all rows are the same here."""
        super().replace_models(models)
        self._arrays = to_record(self.layout.row_state(models[0]))

    def global_arrays(self) -> ArrayRecord | None:
        """Return the global model exactly as the strategy returned it, and with the frozen layers, if any."""
        return self._arrays if self.plan.frozen is None else super().global_arrays()

    def global_model(self) -> Tensor:
        """Return the global model, ``[parameters]``."""
        return self.models[0]

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """``apart``, as in Flower."""
        return "apart"

    @property
    def averages(self) -> bool:
        """Whether nodes send the mean of their clients' models, in place of all of them."""
        stock: Any = self.stock
        if type(stock).aggregate_train not in _OF_MEANS or stock.weighted_by_key != "num-examples":
            return False
        own_metrics = not getattr(stock.train_metrics_aggr_fn, "__module__", "").startswith("flwr.")
        defended = self.defence.table.clip or self.defence.table.krum
        return not (own_metrics or defended or self.plan.on_missing == "keep-last")

    def train_round(self, server_round: int, nodes: Nodes) -> Replies:
        """Train the clients that the strategy draws, which depend on the seed and the round alone."""
        self._means = {}
        contents, asked = self._configured(server_round, nodes, self.stock.configure_train, "train")
        stacked, shared = self._models_for(contents)
        return nodes.ask(
            server_round,
            {**stacked, **self._terms(contents)},
            shared,
            shapes={} if self.averages else self.reply_shapes(),
            only=asked,
            means=self._read_mean if self.averages else None,
        )

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Hand the strategy a reply of each client, or of each node that sent a mean; return its model for all."""
        messages = self._as_messages(server_round, replies)
        if messages:
            drawing = seeded(derive_seed(self.plan.seed, "stock-aggregate", server_round))
            with quick_collections(), drawing, noting_warnings(self._notes):
                arrays, _ = self.stock.aggregate_train(server_round, messages)
            self._take_over(server_round, arrays, messages)
        return self.models[:1].expand(len(replies.names), -1)

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """Do nothing: ``aggregate`` has set the global model of all clients."""

    def measure(self, server_round: int, nodes: Nodes) -> Replies:
        """Evaluate the clients that the strategy draws, and hand it what they measured."""
        contents, asked = self._configured(server_round, nodes, self.stock.configure_evaluate, "evaluate")
        stacked, shared = self._models_for(contents)
        replies = nodes.ask(server_round, stacked, shared, self.plan.splits, only=asked)
        measured = {name: values for name, values in replies.metrics.items() if "/" in name}
        self.stock.aggregate_evaluate(
            server_round,
            [
                _reply(position, MessageType.EVALUATE, _metrics(count, measured, place))
                for place, (position, count) in enumerate(_counted(replies))
                if count
            ],
        )
        drawn = set(asked.tolist())
        others = [name for position, name in enumerate(self.federation.names) if position not in drawn]
        return replace(replies, not_asked=dict.fromkeys(others, f"not drawn by {self._name} (fraction-evaluate)"))

    def summary(self) -> None:
        """Log the stock strategy's own summary."""
        self.stock.summary()

    def state(self) -> State:
        """Return the global model, and all arrays and numbers of the stock strategy."""
        own = {"global": from_record(self._arrays), "stock": stock_state(self.stock), "aggregated": self._aggregated}
        return {**super().state(), "models": self.models[:1], **own}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        self.initialise(to_record(state["global"]))
        super().load_state({**state, "models": self.models})
        load_stock_state(self.stock, state["stock"])
        self._aggregated = state["aggregated"]

    def facts(self) -> dict[str, Any]:
        """Return a remark where the method is equal to another one with these settings, and what Flower warned of."""
        without_term = isinstance(self.stock, FedProx) and self.stock.proximal_mu == 0
        remark = {"remark": "mu 0: the same as fedavg"} if without_term else {}
        return {**remark, **({"notes": self._notes} if self._notes else {})}

    # ---- what the strategy sends -----------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return type(self.stock).__name__

    def _configured(
        self, server_round: int, nodes: Nodes, configure: Configure, purpose: str
    ) -> tuple[dict[int, RecordDict], Tensor]:
        """Return what the strategy sends, by the position of the client, and the positions of all that are asked.

        These are the clients that it has drawn, and those whose node is gone, who are absent. Raises RunError, before
        the strategy waits for clients, where more of them are gone than the run allows.
        """
        grid = ClientGrid(nodes.grid, self.federation, nodes.timeout, f"{self._name}, in round {server_round}")
        gone = {self.federation.names[position]: "its node is not connected" for position in grid.gone()}
        nobody = torch.zeros(0, dtype=torch.int64)
        self.absence.enforce(server_round, Replies.of(self.federation, nobody, {}, {}, gone))
        with seeded(derive_seed(self.plan.seed, f"stock-{purpose}", server_round)):
            messages = list(configure(server_round, self._arrays, ConfigRecord(), grid))
        contents = {message.metadata.dst_node_id - 1: message.content for message in messages}
        return contents, torch.tensor(sorted({*contents, *grid.gone()}), dtype=torch.int64)

    def _models_for(self, contents: Mapping[int, RecordDict]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the models that are sent: one for all, or ``[clients, parameters]`` where the strategy has several."""
        # Most strategies send everybody one and the same content, which is then read once.
        records = {key: self._model_of(content) for key, content in _different(contents.values()).items()}
        rows = {key: self._row(record, "sends") for key, record in _different(records.values()).items()}
        if len(rows) <= 1:
            return {}, {"parameters": next(iter(rows.values()), self.models[0])}
        whole = self.models.clone()
        for position, content in contents.items():
            whole[position] = rows[id(records[id(content)])]
        return {"parameters": whole}, {}

    def _model_of(self, content: RecordDict) -> ArrayRecord:
        """Return the one array record of what the strategy sends. Raises RunError where it has another number."""
        records = content.array_records
        if len(records) != 1:
            raise RunError(
                f"{self._name} sends its clients {len(records)} array records ({', '.join(records) or 'none'}) in "
                "place of one with the model; what it needs beyond a model takes a strategy and a client class of your "
                "own: see `fedgraph new strategy`"
            )
        return next(iter(records.values()))

    def _terms(self, contents: Mapping[int, RecordDict]) -> dict[str, Tensor]:
        """Return numbers that change how clients train, ``[clients]`` by name; others are said to have no effect."""
        configs: dict[int, dict[str, Any]] = {
            key: {name: value for record in content.config_records.values() for name, value in record.items()}
            for key, content in _different(contents.values()).items()
        }
        ignored = {name for config in configs.values() for name in config} - _UNDERSTOOD - self._said
        if ignored:
            self._said |= ignored
            log.warning(
                "%s sends its clients %s, which changes nothing: they train as [train] says",
                self._name,
                quoted(sorted(ignored)),
            )
        found: dict[str, Tensor] = {}
        for term, name in STOCK_TERMS.items():
            told = {key: float(config.get(name, 0.0)) for key, config in configs.items()}
            if any(told.values()):
                found[term] = torch.zeros(len(self.federation.names))
                found[term][list(contents)] = torch.tensor([told[id(content)] for content in contents.values()])
        return found

    # ---- what it gets ----------------------------------------------------------------------------------------------

    def _read_mean(self, content: RecordDict, clients: list[str]) -> tuple[WorkReply, Mapping[str, str]]:
        """Keep the mean of a node's models, by the position of its first client."""
        reply = WorkReply.unpack(content, clients, {}, shared=self.reply_shapes())
        mean = reply.shared["parameters"]
        if not bool(usable_rows(mean[None]).all()):
            raise ReplyError("the mean of its models holds NaN or infinite values, or values too large to compute with")
        usable = [self.federation.positions[name] for name in clients if name not in reply.failed]
        if usable:
            self._means[usable[0]] = mean
        return reply, reply.failed

    def _as_messages(self, server_round: int, replies: Replies) -> list[Message]:
        """Return a reply of each client with training examples, in the order of names, or of each node."""
        counts, metrics = dict(_counted(replies)), {**replies.metrics}
        if "loss" in metrics:
            metrics["train_loss"] = metrics["loss"]
        if not self.averages:
            return [
                self._reply(position, row, _metrics(count, metrics, place))
                for place, ((position, count), row) in enumerate(zip(counts.items(), replies.parameters, strict=True))
                if count
            ]
        nodes = self._nodes_of_means(replies)
        self._watch(server_round, nodes)
        return [
            self._reply(positions[0], self._means[positions[0]], MetricRecord({"num-examples": examples}))
            for positions in nodes
            if (examples := sum(counts[position] for position in positions))
        ]

    def _nodes_of_means(self, replies: Replies) -> list[list[int]]:
        """Return the positions of the clients that each mean is of, in the order of names."""
        present = set(replies.positions.tolist())
        hosted = [[each for each in rows.tolist() if each in present] for rows in self.federation.hosts.values()]
        return sorted(positions for positions in hosted if positions)

    def _watch(self, server_round: int, nodes: Sequence[Sequence[int]]) -> None:
        """Let ``[defence] warn`` look at the means, as it looks at models elsewhere."""
        if not nodes or not self.defence.watches:
            return
        names = [self.federation.names[positions[0]] for positions in nodes]
        told = [
            f"{name} and {len(positions) - 1} others of its node" if len(positions) > 1 else name
            for name, positions in zip(names, nodes, strict=True)
        ]
        means = torch.stack([self._means[positions[0]] for positions in nodes])
        self.defence.judged(server_round, told, {"parameters": means}, self.models[:1].expand_as(means))

    def _reply(self, position: int, row: Tensor, metrics: MetricRecord) -> Message:
        return _reply(position, MessageType.TRAIN, metrics, to_record(self.layout.row_state(row)))

    def _take_over(self, server_round: int, arrays: ArrayRecord | None, messages: Sequence[Message]) -> None:
        """Continue with the arrays that the strategy returned; where it returned none, with what there was."""
        if arrays is None:
            self._aggregated = bool(self._aggregated)
            said = f"round {server_round}: {self._name} aggregated nothing of {len(messages)} replies"
            log.warning("%s", said)
            self._notes.append(said)
            return
        self._aggregated = True
        row = self._row(arrays, "returned")
        mended = self._statistics_mended(row, messages)
        self._arrays = arrays if mended is row else to_record(self.layout.row_state(mended))
        self.models = mended.expand_as(self.models)

    def _statistics_mended(self, row: Tensor, messages: Sequence[Message]) -> Tensor:
        """Return the model ``[parameters]`` with running statistics that normalisation can compute with."""
        layout = self.layout
        if not layout.buffers:
            return row
        if isinstance(self.stock, _SERVER_OPTIMISERS):
            sent = torch.stack([layout.row(from_record(_arrays_of(message))) for message in messages])
            told: list[Any] = [message.content.metric_records["metrics"]["num-examples"] for message in messages]
            return torch.cat(
                [row[: layout.num_trainable], weighted_mean(sent[:, layout.num_trainable :], torch.tensor(told))]
            )
        state = layout.row_state(row)
        variances = [name for name in layout.buffers if name.endswith("running_var") and bool((state[name] < 0).any())]
        return layout.row({**state, **{name: state[name].clamp(min=0) for name in variances}}) if variances else row

    def _row(self, arrays: ArrayRecord, verb: str) -> Tensor:
        """Return named arrays as a model ``[parameters]``. Raises RunError for those of another model."""
        state, shapes = from_record(arrays), self.layout.shapes_by_name()
        other = {name: tuple(state[name].shape) for name in state} != shapes
        if other:
            wrong = sorted(set(state) ^ set(shapes)) or [
                name for name, shape in shapes.items() if tuple(state[name].shape) != shape
            ]
            raise RunError(f"{self._name} {verb} arrays that are not those of the model: look at {quoted(wrong)}")
        return self.layout.row(state)


def _reply(position: int, kind: str, metrics: MetricRecord, arrays: ArrayRecord | None = None) -> Message:
    """Return the reply of a client as Flower's own clients send it."""
    content = RecordDict({"metrics": metrics})
    if arrays is not None:
        content["arrays"] = arrays
    return Message(content, reply_to=Message(RecordDict(), position + 1, kind))


def _metrics(count: int, metrics: Mapping[str, Tensor], place: int) -> MetricRecord:
    return MetricRecord({"num-examples": count, **{name: float(values[place]) for name, values in metrics.items()}})


def _counted(replies: Replies) -> list[tuple[int, int]]:
    """Return the position and the number of training examples of each client."""
    return list(zip(replies.positions.tolist(), replies.num_examples.tolist(), strict=True))


def _different(objects: Iterable[Some]) -> dict[int, Some]:
    """Return the different ones among objects, by their identity."""
    return {id(each): each for each in objects}


def _arrays_of(message: Message) -> ArrayRecord:
    return next(iter(message.content.array_records.values()))
