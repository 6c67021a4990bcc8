"""Any stock Flower strategy as a method: its own functions in fedgraph's loop, with its order, checks and records."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedProx, Strategy
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.messages import (
    KEEP_KEY,
    Request,
    WorkReply,
    checked_arrays,
    from_record,
    to_record,
)
from fedgraph.methods import NODE_MINIMA, constructor_arguments
from fedgraph.models import usable_rows
from fedgraph.runs import RunPlan
from fedgraph.support.errors import ExperimentError, ReplyError
from fedgraph.support.files import State
from fedgraph.support.randomness import derive_seed
from fedgraph.support.settings import Settings, with_nulls
from fedgraph.support.untrusted import in_short, read_json
from strategies.engine.base import CohortStrategy
from strategies.engine.loop import Progress
from strategies.engine.nodes import Nodes
from strategies.engine.replies import Replies

Form = tuple[tuple[str, frozenset[str]], ...]

_MOST_METRICS = 1_000
_LONGEST_NAME = 200

STOCK_CLIENT = "clients.engine.stock:StockClient"


class StockStrategy(CohortStrategy):
    """Runs ``stock`` unchanged; a node answers for all its clients at once with their weighted mean.

    Raises
    ------
    ExperimentError
        For ``on-missing = "keep-last"``.
    """

    def __init__(self, stock: Strategy, federation: Federation, plan: RunPlan) -> None:
        check_absence_policy(plan.on_missing)
        super().__init__(Settings(), federation, plan)
        self.stock = stock
        self._arrays = ArrayRecord()
        self._usable: list[Message] = []

    def initialise(self, initial_arrays: ArrayRecord) -> None:
        """Start with one model for all clients."""
        super().initialise(initial_arrays)
        self._arrays = initial_arrays

    def replace_models(self, models: Tensor) -> None:
        """Continue with other models; all rows are the same here."""
        super().replace_models(models)
        self._arrays = to_record(self.plan.layout.row_state(models[0]))

    def global_arrays(self) -> ArrayRecord:
        """Return the global model exactly as the stock strategy returned it."""
        return self._arrays

    def global_model(self) -> Tensor:
        """Return the global model, ``[parameters]``."""
        return self.models[0]

    @property
    def measures(self) -> Literal["before", "after", "apart"]:
        """``apart``, as in Flower."""
        return "apart"

    def train_round(self, server_round: int, nodes: Nodes) -> Replies:
        """Send the requests of the stock strategy; the nodes it draws depend only on the seed and the round."""
        config = self._config() | {KEEP_KEY: self.plan.keep_from(server_round)}
        with seeded(derive_seed(self.plan.seed, "stock-train", server_round)):
            messages = list(self.stock.configure_train(server_round, self._arrays, ConfigRecord(config), nodes.grid))
        replies, self._usable = self._exchange(nodes, messages, trains=True)
        return replies

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """Aggregate the usable replies with the stock strategy, for all clients."""
        arrays, _ = self.stock.aggregate_train(
            server_round, self._defended(server_round, self._with_weight(self._usable))
        )
        if arrays is not None:
            self._arrays = arrays
            self.models = self.plan.layout.row(from_record(arrays)).expand_as(self.models)
        return self.models[replies.positions]

    def write_back(self, replies: Replies, models: Tensor) -> None:
        """Do nothing: ``aggregate`` has set the global model of all clients."""

    def measure(self, server_round: int, nodes: Nodes) -> Replies:
        """Send the evaluation requests of the stock strategy, and pass the replies on to it."""
        config = ConfigRecord(self._config())
        with seeded(derive_seed(self.plan.seed, "stock-evaluate", server_round)):
            messages = list(self.stock.configure_evaluate(server_round, self._arrays, config, nodes.grid))
        replies, usable = self._exchange(nodes, messages, trains=False)
        self.stock.aggregate_evaluate(server_round, self._with_weight(usable))
        return replies

    def summary(self) -> None:
        """Log the stock strategy's own summary."""
        self.stock.summary()

    def state(self) -> State:
        """Return the global model, and all arrays and numbers of the stock strategy."""
        own = {"global": from_record(self._arrays), "stock": stock_state(self.stock)}
        return {**own, "progress": self.progress.state(), "defence": self.defence.state()}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        self.initialise(to_record(state["global"]))
        load_stock_state(self.stock, state["stock"])
        self.progress = Progress.of_state(state["progress"])
        self.defence.load_state(state.get("defence", {}))

    def facts(self) -> dict[str, Any]:
        """Return a remark where the method is equal to another one with these settings."""
        without_term = isinstance(self.stock, FedProx) and self.stock.proximal_mu == 0
        return {"remark": "mu 0: the same as fedavg"} if without_term else {}

    def _config(self) -> dict[str, Any]:
        plan = self.plan
        return {**Request(plan.client, plan.experiment, plan.run).header(), "evaluate": list(plan.splits)}

    def _asked(self, messages: Iterable[Message]) -> dict[int, Tensor]:
        nodes = [message.metadata.dst_node_id for message in messages]
        return {node: self.federation.hosts[node] for node in nodes}

    def _with_weight(self, messages: Iterable[Message]) -> list[Message]:
        """Leave out nodes whose clients all have no training examples: they have no part in an average."""
        examples = self.federation.num_examples["train"]
        return [message for message in messages if examples[self.federation.hosts[message.metadata.src_node_id]].any()]

    def _defended(self, server_round: int, messages: list[Message]) -> list[Message]:
        """Apply ``[defence]`` to the models of nodes; Flower's strategies see a node where ours see a client."""
        if not messages or not self.defence.watches:
            return messages
        layout = self.plan.layout
        names = [self._clients_at(message.metadata.src_node_id) for message in messages]
        sent = [next(iter(message.content.array_records.items())) for message in messages]
        rows = torch.stack([layout.row(from_record(record)) for _, record in sent])
        tensors, kept = self.defence.judged(server_round, names, {"parameters": rows}, self.models[:1].expand_as(rows))
        bounded = tensors["parameters"]
        for message, (key, _), row, before in zip(messages, sent, bounded, rows, strict=True):
            if bounded is not rows and not torch.equal(row, before):
                message.content[key] = to_record(layout.row_state(row))
        return messages if kept is None else [messages[place] for place in kept.tolist()]

    def _clients_at(self, node: int) -> str:
        first, *others = [self.federation.names[position] for position in self.federation.hosts[node].tolist()]
        return f"{first} and {len(others)} others of its node" if others else first

    def _exchange(self, nodes: Nodes, messages: list[Message], trains: bool) -> tuple[Replies, list[Message]]:
        """Run an exchange; return the usable replies, and the messages that a stock strategy can average.

        Stock strategies end the run unless all replies have records and metrics of the same names: nodes that report
        others than most nodes do are left out.
        """
        received = nodes.send(messages)
        asked = self._asked(messages)
        replies, usable = nodes.taken_in(received, asked, partial(self._read, trains=trains, names=None))
        forms = Counter(map(_form, (message.content for message in usable)))
        if len(forms) > 1:
            ((names, _),) = forms.most_common(1)
            replies, usable = nodes.taken_in(received, asked, partial(self._read, trains=trains, names=names))
        return replies, usable

    def _read(
        self, content: RecordDict, clients: list[str], trains: bool, names: Form | None
    ) -> tuple[WorkReply, Mapping[str, str]]:
        """Return what a node reports of its single clients, after checking that its answer can be averaged."""
        metrics, failed = _per_client(content, clients)
        self._check(content, clients, trains)
        if names is not None and _form(content) != names:
            raise ReplyError("its records or metrics have other names than those of most nodes")
        return WorkReply(tuple(clients), {}, metrics), failed

    def _check(self, content: RecordDict, clients: list[str], trains: bool) -> None:
        """Raise ReplyError unless a stock strategy can average this reply safely."""
        if len(content.metric_records) != 1 or len(content.array_records) != trains:
            raise ReplyError(f"the reply has not one record of metrics{' and one of arrays' if trains else ' alone'}")
        (metrics,) = content.metric_records.values()
        for name, value in metrics.items():
            # A metric may be undefined, such as the loss of no training at all.
            if isinstance(value, list) or math.isinf(value):
                raise ReplyError(f"metric '{name}' is no number, or infinite")
        weight = metrics.get("num-examples", 0)
        positions = [self.federation.positions[name] for name in clients]
        hosted = int(self.federation.num_examples["train"][positions].sum())
        # Clients that are not meant to train have no examples; their node has no weight.
        if not isinstance(weight, (int, float)) or not min(1, hosted) <= weight <= hosted:
            raise ReplyError(f"its weight 'num-examples' is {weight}, its clients have {hosted} training examples")
        if not trains:
            return
        (record,) = content.array_records.values()
        layout = self.plan.layout
        tensors = checked_arrays(record, dict(zip(layout.names, layout.shapes, strict=True)))
        for name, tensor in tensors.items():
            if not bool(usable_rows(tensor[None]).all()):
                raise ReplyError(f"array '{name}' holds NaN or infinite values, or values too large to compute with")


def _per_client(content: RecordDict, clients: list[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read metrics ``[clients]`` and the clients that failed inside a node, from the record beside the stock reply."""
    config: Any = content.config_records.get("config", {})
    try:
        named = config["clients"]
        values = read_json(config["per-client"], "what the clients measured")
        told = read_json(config["failed"], "what failed")
        failed = {str(name): in_short(str(reason)) for name, reason in told.items()}
        metrics = {name: torch.tensor(row, dtype=torch.float64) for name, row in values.items()}
        # One infinite loss would make the mean over all clients infinite.
        metrics = {name: row.where(row.isfinite(), torch.nan) for name, row in metrics.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ReplyError(f"the reply does not say what its clients measured ({in_short(str(error), 300)})") from None
    if (
        not all(0 < len(name) <= _LONGEST_NAME and name.isprintable() for name in metrics)
        or len(metrics) > _MOST_METRICS
    ):
        raise ReplyError(f"the reply has more than {_MOST_METRICS:,} metrics, or names that cannot be shown")
    if named != clients or any(row.shape != (len(clients),) for row in metrics.values()):
        raise ReplyError("the reply speaks for other clients than were asked")
    return metrics, {name: reason for name, reason in failed.items() if name in clients}


def _form(content: RecordDict) -> Form:
    """Return the names of the records that stock strategies average, and of the metrics."""
    return tuple(
        (name, frozenset(record) if isinstance(record, MetricRecord) else frozenset())
        for name, record in sorted(content.items())
        if isinstance(record, (ArrayRecord, MetricRecord))
    )


def check_absence_policy(on_missing: str) -> None:
    """Raise ExperimentError for ``keep-last``, the one policy that a stock strategy cannot follow."""
    if on_missing == "keep-last":
        raise ExperimentError(
            '[experiment] on-missing = "keep-last" is not for stock Flower strategies, which average what arrives: '
            'use "fail" or "skip"'
        )


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python's global generator, from which stock strategies draw nodes, and restore it afterwards."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


def build_stock(stock_class: type[Strategy], table: Mapping[str, Any], where: str, nodes: int) -> Strategy:
    """Construct a stock strategy from its table; keys are its keyword arguments with dashes.

    The minimum numbers of nodes default to Flower's values, but never to more nodes than there are, for which a stock
    strategy would wait forever.

    Raises
    ------
    ExperimentError
        For an unknown key, with the known ones, or values the strategy refuses.
    """
    known = constructor_arguments(stock_class)
    table = with_nulls(table)
    arguments = {key.replace("-", "_"): value for key, value in table.items()}
    unknown = sorted(set(table) - set(known))
    if unknown:
        raise ExperimentError(f"{where} has no key '{unknown[0]}'; known keys: {', '.join(sorted(known))}")
    for name in NODE_MINIMA:
        default = known.get(name.replace("_", "-"))
        if isinstance(default, int):
            arguments.setdefault(name, min(default, nodes))
    try:
        return stock_class(**arguments)
    except (TypeError, ValueError) as error:
        raise ExperimentError(f"{where}: {stock_class.__name__} refuses these settings: {error}") from None


def stock_state(stock: Strategy) -> State:
    """Return the arrays (alone, in lists or in dicts) and numbers among a stock strategy's attributes."""
    state: State = {}
    for name, value in vars(stock).items():
        if isinstance(value, np.ndarray):
            state[name] = torch.from_numpy(value)
        elif isinstance(value, (list, dict)) and value:
            items = {str(key): item for key, item in (value.items() if isinstance(value, dict) else enumerate(value))}
            if all(isinstance(item, np.ndarray) for item in items.values()):
                tensors = {key: torch.from_numpy(np.asarray(item)) for key, item in items.items()}
                state[name] = {type(value).__name__: tensors}
        elif isinstance(value, (bool, int, float)):
            state[name] = value
    return state


def load_stock_state(stock: Strategy, state: State) -> None:
    """Restore what :func:`stock_state` returned."""
    for name, value in state.items():
        if isinstance(value, Tensor):
            setattr(stock, name, value.numpy())
        elif isinstance(value, dict) and "list" in value:
            items = value["list"]
            setattr(stock, name, [items[str(index)].numpy() for index in range(len(items))])
        elif isinstance(value, dict):
            setattr(stock, name, {key: item.numpy() for key, item in value["dict"].items()})
        else:
            setattr(stock, name, value)
