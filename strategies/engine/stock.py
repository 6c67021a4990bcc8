"""Any stock Flower strategy as an algorithm in fedgraph's loop, with its order, checks and records.

For the strategy every client is a node: it draws clients and receives a reply from each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from torch import Tensor

from fedgraph.algorithms import Answers, Ask, Clients, Evaluation, GlobalModel, Models, Round, State, filled, matrix
from fedgraph.data import SplitName
from fedgraph.federation import Federation
from fedgraph.graph import weighted_mean
from fedgraph.messages import from_record, to_record
from fedgraph.messages.apps import STOCK_TERMS
from fedgraph.models import Layout
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.absence import AbsencePolicy
from fedgraph.strategies.engine.client_grid import ClientGrid, noting_warnings, quick_collections, seeded
from fedgraph.strategies.engine.nodes import Nodes
from fedgraph.strategies.engine.replies import Replies
from fedgraph.strategies.engine.stock_settings import load_stock_state, stock_state
from fedgraph.support.errors import RunError, quoted
from fedgraph.support.randomness import derive_seed
from fedgraph.support.settings import Settings

log = logging.getLogger("fedgraph")

Some = TypeVar("Some")
Configure = Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]]

_SERVER_OPTIMISERS = (FedAdagrad, FedAdam, FedAvgM, FedYogi)
_OF_MEANS = {strategy.aggregate_train for strategy in (FedAvg, *_SERVER_OPTIMISERS)}
"""Strategies that need only the weighted mean, for which a node may send the mean of its clients' models."""

_SENDING_WHAT_THEY_GET = {
    configure
    for strategy in (FedAvg, FedProx, *_SERVER_OPTIMISERS)
    for configure in (strategy.configure_train, strategy.configure_evaluate)
}
"""Strategies that send the global model unchanged to all clients."""

_CONSTRUCTS = "_construct_messages"
"""Flower's method that makes a message for each node."""

_UNDERSTOOD = frozenset({*STOCK_TERMS.values(), "server-round"})


class _Addressed(NamedTuple):
    """A message of a strategy as far as it is read here."""

    content: RecordDict
    dst_node_id: int

    @property
    def metadata(self) -> _Addressed:
        """Where the recipient is."""
        return self


class StockAlgorithm(GlobalModel):
    """Runs ``stock`` with every client as a node.

    Nodes of a strategy that only averages (FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad, FedYogi) send the mean of
    their clients' models, weighted by training examples, unless replies of single clients are required by ``on-missing
    = "keep-last"``, ``[defence]`` (also if ``most-examples`` bounds a client), or a custom ``train_metrics_aggr_fn``.

    Running statistics are averaged over clients if ``stock`` has a server optimiser, which could make variances
    negative; for other strategies, negative variances are set to 0.

    The state has the global model as returned by the strategy, named ``global`` arrays, and whether it has
    ``aggregated``; None before the first round.
    """

    def __init__(self, stock: Strategy, federation: Federation, plan: RunPlan, nodes: Nodes) -> None:
        super().__init__(Settings())
        self.stock = stock
        self._federation, self._plan, self._nodes = federation, plan, nodes
        self._said: set[str] = set()
        self._notes: list[str] = []

    @property
    def class_name(self) -> str:
        """Name of the strategy's class."""
        return type(self.stock).__name__

    def summary(self) -> None:
        """Log the strategy's own summary."""
        self.stock.summary()

    def init(self, clients: Clients, models: Models) -> State:
        """Return one model for all clients."""
        # In the order of clients' models: some strategies compute with arrays by position.
        return {"models": models, "global": clients.layout.row_state(matrix(models)[0]), "aggregated": None}

    def replaced(self, clients: Clients, state: State, models: Tensor) -> State:
        """Return a state with another model; all rows are equal."""
        return {**super().replaced(clients, state, models), "global": clients.layout.row_state(models[0])}

    def saved(self, state: State) -> State:
        """Return the state with all arrays and numbers of the strategy."""
        return {**super().saved(state), "stock": stock_state(self.stock)}

    def loaded(self, clients: Clients, state: State) -> State:
        """Return the state, and restore the strategy."""
        own = dict(state)
        load_stock_state(self.stock, own.pop("stock"))
        return super().loaded(clients, own)

    @property
    def evaluates(self) -> Literal["before", "after", "apart"]:
        """``apart``, as in Flower."""
        return "apart"

    @property
    def averages(self) -> bool:
        """Whether nodes send the mean of their clients' models instead of all of them."""
        stock: Any = self.stock
        if type(stock).aggregate_train not in _OF_MEANS or stock.weighted_by_key != "num-examples":
            return False
        own_metrics = not getattr(stock.train_metrics_aggr_fn, "__module__", "").startswith("flwr.")
        defended = self._plan.defence.clip or self._plan.defence.krum
        # A node weights its clients by the numbers of examples that it claims.
        defended = defended or self._federation.weights is not self._federation.num_examples["train"]
        return not (own_metrics or defended or self._plan.on_missing == "keep-last")

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Train the clients that the strategy draws, and pass it a reply per client, or per node that sent a mean.

        Its draws depend only on the seed and the round.
        """
        contents, requested = self._configured(state, number, self.stock.configure_train, "train")
        stacked, shared = self._models_for(clients, state, contents, type(self.stock).configure_train)
        answers = yield Ask({**stacked, **self._terms(contents)}, shared, to=requested, means=self.averages)
        if self.averages and type(self.stock).aggregate_train is FedAvg.aggregate_train:
            model = _mean_of_means(answers)
            if model is None:
                return state
            named = clients.layout.row_state(model)
            return {"models": filled(state["models"], model), "global": named, "aggregated": True}
        messages = self._as_messages(clients, answers)
        if not messages:
            return state
        drawing = seeded(derive_seed(self._plan.seed, "stock-aggregate", number))
        with quick_collections(), drawing, noting_warnings(self._notes):
            arrays, _ = self.stock.aggregate_train(number, messages)
        if arrays is not None:
            return self._with(clients, state, arrays, messages)
        text = f"round {number}: {self.class_name} aggregated nothing of {len(messages)} replies"
        log.warning("%s", text)
        self._notes.append(text)
        return {**state, "aggregated": bool(state["aggregated"])}

    def evaluation(self, clients: Clients, state: State, number: int, splits: tuple[SplitName, ...]) -> Evaluation:
        """Evaluate models on the clients that the strategy draws, and pass it their metrics."""
        contents, requested = self._configured(state, number, self.stock.configure_evaluate, "evaluate")
        stacked, shared = self._models_for(clients, state, contents, type(self.stock).configure_evaluate)
        answers = yield Ask(stacked, shared, to=requested, evaluates=splits)
        measured = {name: values for name, values in answers.metrics.items() if "/" in name}
        replies = [
            _reply(position, MessageType.EVALUATE, _metrics(count, measured, place))
            for place, (position, count) in enumerate(_counted(answers))
            if count
        ]
        self.stock.aggregate_evaluate(number, replies)

    def facts(self, clients: Clients, state: State) -> dict[str, Any]:
        """Return a remark if these settings make the method equal to another one, and Flower's warnings.

        Raises RunError if the strategy has not aggregated in any round.
        """
        if state["aggregated"] is False:
            raise RunError(
                f"{self.class_name} has not aggregated in any round, so the model is the initial one. See its messages "
                "in the log: usually it needs replies of more clients"
            )
        without_term = isinstance(self.stock, FedProx) and self.stock.proximal_mu == 0
        remark = {"remark": "mu 0: the same as fedavg"} if without_term else {}
        return {**remark, **({"notes": self._notes} if self._notes else {})}

    # ---- messages of the strategy ----------------------------------------------------------------------------------

    def _configured(
        self, state: State, number: int, configure: Configure, purpose: str
    ) -> tuple[dict[int, RecordDict], Tensor]:
        """Return the strategy's messages by the position of the client, and the positions of all requested clients.

        These are the drawn and the absent clients. Raises RunError, before the strategy waits for clients, when more
        of them are absent than allowed.
        """
        federation, nodes = self._federation, self._nodes
        grid = ClientGrid(nodes.grid, federation, nodes.timeout, f"{self.class_name}, in round {number}")
        gone = {federation.names[position]: "its node is not connected" for position in grid.gone}
        empty_reply = Replies.of(federation, torch.zeros(0, dtype=torch.int64), {}, {}, gone)
        AbsencePolicy(federation, self._plan).enforce(number, empty_reply)
        with seeded(derive_seed(self._plan.seed, f"stock-{purpose}", number)), self._addressing(purpose):
            messages = list(configure(number, to_record(state["global"]), ConfigRecord(), grid))
        contents = {message.metadata.dst_node_id - 1: message.content for message in messages}
        return contents, torch.tensor(sorted({*contents, *grid.gone}), dtype=torch.int64)

    @contextmanager
    def _addressing(self, purpose: str) -> Iterator[None]:
        """Within this context, messages that are read here and never sent are without most of their metadata.

        Flower's are the largest part of a round of many small clients.
        """
        stock: Any = self.stock
        kind = type(stock)
        own = getattr(kind, f"configure_{purpose}") not in _SENDING_WHAT_THEY_GET or _CONSTRUCTS in vars(stock)
        if own or getattr(kind, _CONSTRUCTS, None) is not getattr(FedAvg, _CONSTRUCTS, object()):
            yield
            return
        setattr(stock, _CONSTRUCTS, lambda content, nodes, message_type: [_Addressed(content, each) for each in nodes])
        try:
            yield
        finally:
            delattr(stock, _CONSTRUCTS)

    def _models_for(
        self, clients: Clients, state: State, contents: Mapping[int, RecordDict], configure: object
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the models to send: one for all, or ``[clients, parameters]`` if the strategy has several."""
        if configure in _SENDING_WHAT_THEY_GET:
            return {}, {"parameters": state["models"][0]}
        # Most strategies send the same content to all clients, which is read once.
        records = {key: self._model_of(content) for key, content in _different(contents.values()).items()}
        rows = {key: self._row(clients.layout, record, "sends") for key, record in _different(records.values()).items()}
        if len(rows) <= 1:
            return {}, {"parameters": next(iter(rows.values()), state["models"][0])}
        whole = state["models"].clone()
        for position, content in contents.items():
            whole[position] = rows[id(records[id(content)])]
        return {"parameters": whole}, {}

    def _model_of(self, content: RecordDict) -> ArrayRecord:
        """Return the single array record that the strategy sends. Raises RunError for another number."""
        records = content.array_records
        if len(records) != 1:
            raise RunError(
                f"{self.class_name} sends {len(records)} array records ({', '.join(records) or 'none'}) instead of one "
                "with the model; this requires a custom strategy and client class: see `fedgraph new strategy`"
            )
        return next(iter(records.values()))

    def _terms(self, contents: Mapping[int, RecordDict]) -> dict[str, Tensor]:
        """Return numbers that affect training, ``[clients]`` by name; warns that others have no effect."""
        configs: dict[int, dict[str, Any]] = {
            key: {name: value for record in content.config_records.values() for name, value in record.items()}
            for key, content in _different(contents.values()).items()
        }
        ignored = {name for config in configs.values() for name in config} - _UNDERSTOOD - self._said
        if ignored:
            self._said |= ignored
            log.warning(
                "%s sends its clients %s, which is ignored: they train by [train]",
                self.class_name,
                quoted(sorted(ignored)),
            )
        found: dict[str, Tensor] = {}
        for term, name in STOCK_TERMS.items():
            weights = {key: float(config.get(name, 0.0)) for key, config in configs.items()}
            if any(weights.values()):
                found[term] = torch.zeros(len(self._federation.names))
                found[term][list(contents)] = torch.tensor([weights[id(content)] for content in contents.values()])
        return found

    # ---- replies to the strategy -----------------------------------------------------------------------------------

    def _as_messages(self, clients: Clients, answers: Answers) -> list[Message]:
        """Return a reply per client with training examples, in the order of names, or per node."""
        counts, metrics = dict(_counted(answers)), {**answers.metrics}
        if "loss" in metrics:
            metrics["train_loss"] = metrics["loss"]

        def reply(position: int, row: Tensor, metrics: MetricRecord) -> Message:
            return _reply(position, MessageType.TRAIN, metrics, to_record(clients.layout.row_state(row)))

        if not self.averages:
            return [
                reply(position, row, _metrics(count, metrics, place))
                for place, ((position, count), row) in enumerate(zip(counts.items(), answers.parameters, strict=True))
                if count
            ]
        return [
            reply(positions[0], mean, MetricRecord({"num-examples": examples}))
            for positions, mean in answers.means.items()
            if (examples := sum(counts[position] for position in positions))
        ]

    def _with(self, clients: Clients, state: State, arrays: ArrayRecord, messages: Sequence[Message]) -> State:
        """Return the state with the arrays that the strategy returned."""
        row = self._row(clients.layout, arrays, "returned")
        mended = self._statistics_mended(clients.layout, row, messages)
        named = from_record(arrays) if mended is row else clients.layout.row_state(mended)
        return {"models": filled(state["models"], mended), "global": named, "aggregated": True}

    def _statistics_mended(self, layout: Layout, row: Tensor, messages: Sequence[Message]) -> Tensor:
        """Return the model ``[parameters]`` with valid running statistics."""
        if not layout.buffers:
            return row
        if isinstance(self.stock, _SERVER_OPTIMISERS):
            sent = torch.stack([layout.row(from_record(_arrays_of(message))) for message in messages])
            counts: list[Any] = [message.content.metric_records["metrics"]["num-examples"] for message in messages]
            return torch.cat(
                [row[: layout.num_trainable], weighted_mean(sent[:, layout.num_trainable :], torch.tensor(counts))]
            )
        state = layout.row_state(row)
        variances = [name for name in layout.buffers if name.endswith("running_var") and bool((state[name] < 0).any())]
        return layout.row({**state, **{name: state[name].clamp(min=0) for name in variances}}) if variances else row

    def _row(self, layout: Layout, arrays: ArrayRecord, verb: str) -> Tensor:
        """Return named arrays as a model ``[parameters]``. Raises RunError for those of another model."""
        state, shapes = from_record(arrays), layout.shapes_by_name()
        other = {name: tuple(state[name].shape) for name in state} != shapes
        if other:
            wrong = sorted(set(state) ^ set(shapes)) or [
                name for name, shape in shapes.items() if tuple(state[name].shape) != shape
            ]
            raise RunError(f"{self.class_name} {verb} arrays that do not match the model: check {quoted(wrong)}")
        return layout.row(state)


def _mean_of_means(answers: Answers) -> Tensor | None:
    """Return Flower's FedAvg of the means of nodes ``[parameters]``, bit for bit; None if no client trained.

    It rounds each weighted mean, and then their sum.
    """
    counts = dict(_counted(answers))
    examples = {positions: sum(counts[position] for position in positions) for positions in answers.means}
    total = sum(examples.values())
    weighted = [mean * (examples[of] / total) for of, mean in answers.means.items() if examples[of]]
    return reduce(Tensor.add_, weighted) if weighted else None


def _reply(position: int, kind: str, metrics: MetricRecord, arrays: ArrayRecord | None = None) -> Message:
    """Return the reply of a client in the format of Flower's clients."""
    content = RecordDict({"metrics": metrics})
    if arrays is not None:
        content["arrays"] = arrays
    return Message(content, reply_to=Message(RecordDict(), position + 1, kind))


def _metrics(count: int, metrics: Mapping[str, Tensor], place: int) -> MetricRecord:
    return MetricRecord({"num-examples": count, **{name: float(values[place]) for name, values in metrics.items()}})


def _counted(answers: Answers) -> list[tuple[int, int]]:
    """Return the position and the number of training examples of each client."""
    return list(zip(answers.positions.tolist(), answers.num_examples.tolist(), strict=True))


def _different(objects: Iterable[Some]) -> dict[int, Some]:
    """Return distinct objects by identity."""
    return {id(each): each for each in objects}


def _arrays_of(message: Message) -> ArrayRecord:
    return next(iter(message.content.array_records.values()))
