"""The strategy behind every cohort method: its round loop, what it sends, and how it treats who does not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedgraph.callbacks import Evaluation, Training
from fedgraph.client_graph import ClientGraph
from fedgraph.data.base import SplitName
from fedgraph.errors import ExperimentError, ReplyError, RunError
from fedgraph.exchange import OrderedGrid
from fedgraph.federation import Federation
from fedgraph.messages import WorkReply, WorkRequest, error_of, from_record, to_record
from fedgraph.plan import RunPlan
from fedgraph.settings import Settings
from fedgraph.state_file import State

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class Replies:
    """The usable replies of one round, checked, stacked and in the order of the clients' names.

    positions  : rows of the federation that the rows here belong to, int64 ``[present]``.
    names      : their names.
    tensors    : what the clients sent, each ``[present, ...]``.
    metrics    : numbers per client, each ``[present]``.
    graph      : the given client graph among those present; None when the run has none.
    num_examples : training examples, int64 ``[present]``.
    absent     : clients without a usable reply and why.
    """

    positions: Tensor
    names: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    metrics: Mapping[str, Tensor]
    graph: ClientGraph | None
    num_examples: Tensor
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameters(self) -> Tensor:
        """The trained models, ``[present, parameters]``."""
        return self.tensors["parameters"]


class CohortStrategy(Strategy):
    """Sends every client a model of its own and gets a trained one back; one exchange per round.

    The models that go out are evaluated where they arrive before they are trained, so a round costs one exchange; a
    last one measures the final models. A method overrides ``aggregate`` and, where clients need more than a model,
    ``outgoing`` and ``reply_shapes``.

    Parameters
    ----------
    settings : the method's table of the experiment, an instance of ``settings_type``.
    federation : who takes part.
    plan : the run.
    """

    settings_type: ClassVar[type[Settings]] = Settings
    """Keys of the method's table; none by default."""

    needs_graph: ClassVar[bool] = False
    evaluates_with_training: ClassVar[bool] = True

    def __init__(self, settings: Settings, federation: Federation, plan: RunPlan) -> None:
        if self.needs_graph and federation.graph is None:
            raise ExperimentError(
                f'{type(self).__name__} needs a client graph: give the experiment [graph] source = "data", '
                '"labels", "complete" or "file"'
            )
        self.settings: Any = settings
        self.federation = federation
        self.plan = plan
        clients = len(federation.names)
        self.models = torch.zeros(clients, plan.layout.num_parameters)
        self.last_replies: dict[str, Tensor] = {}
        self.has_replied = torch.zeros(clients, dtype=torch.bool)
        self.finished_rounds = 0
        self._stop = False
        self._began = time.perf_counter()
        self._asked: dict[int, Tensor] = {}

    # ---- what a method overrides -------------------------------------------------------------------------------

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """The next model of every client in ``replies``, ``[present, parameters]``."""
        raise NotImplementedError

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors for the clients: stacked ones ``[clients, ...]``, of which each gets its row, and shared ones."""
        return {"parameters": self.models}, {}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """What a client must send back and in which shape, without the client axis."""
        return {"parameters": (self.plan.layout.num_parameters,)}

    def global_model(self) -> Tensor | None:
        """The read-out, ``[parameters]``: the mean of the clients' models. None for a method that has none."""
        return self.models.mean(dim=0)

    def state(self) -> State:
        """What a resumed run needs; a method with more to remember adds its own keys."""
        return {"models": self.models, "last-replies": self.last_replies, "has-replied": self.has_replied}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        self.models = state["models"]
        self.last_replies = state["last-replies"]
        self.has_replied = state["has-replied"]

    # ---- the loop ----------------------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the method; signature and result as Flower's ``Strategy.start``.

        Raises
        ------
        RunError
            When clients are absent and the experiment does not allow it.
        """
        ordered = grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid, self.federation)
        train_config = train_config or ConfigRecord()
        evaluate_config = evaluate_config or ConfigRecord()
        result = Result(arrays=initial_arrays)
        if self.finished_rounds == 0:
            self.begin(initial_arrays)
        arrays = self.global_arrays() or initial_arrays
        for server_round in range(self.finished_rounds + 1, num_rounds + 1):
            self._began = time.perf_counter()
            messages = self.configure_train(server_round, arrays, train_config, ordered)
            new_arrays, metrics = self.aggregate_train(
                server_round, ordered.send_and_receive(messages, timeout=timeout)
            )
            if self._stop:
                break
            arrays = new_arrays or arrays
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            if not self.evaluates_with_training and (self.plan.evaluates(server_round) or server_round == num_rounds):
                self._evaluate(server_round, arrays, evaluate_config, ordered, timeout, result)
            self._evaluate_at_server(server_round, arrays, evaluate_fn, result)
            self.finished_rounds = server_round
            for callback in self.plan.callbacks:
                callback.on_round_end(server_round, self.state)
            if self._stop:
                break
        if self.evaluates_with_training and not self._stop:
            self._evaluate(self.finished_rounds, arrays, evaluate_config, ordered, timeout, result)
        for models in (callback.final_models() for callback in self.plan.callbacks):
            if models is not None and not torch.equal(models, self.models):
                self.adopt(models)
                arrays = self.global_arrays() or arrays
                self._evaluate(self.finished_rounds, arrays, evaluate_config, ordered, timeout, result)
        result.arrays = self.global_arrays() or arrays
        return result

    def _evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: OrderedGrid,
        timeout: float,
        result: Result,
    ) -> None:
        messages = self.configure_evaluate(server_round, arrays, config, grid)
        metrics = self.aggregate_evaluate(server_round, grid.send_and_receive(messages, timeout=timeout))
        if metrics is not None:
            result.evaluate_metrics_clientapp[server_round] = metrics

    def _evaluate_at_server(
        self,
        server_round: int,
        arrays: ArrayRecord,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None,
        result: Result,
    ) -> None:
        metrics = evaluate_fn(server_round, arrays) if evaluate_fn is not None else None
        if metrics is not None:
            result.evaluate_metrics_serverapp[server_round] = metrics

    def begin(self, initial_arrays: ArrayRecord) -> None:
        """Give every client the initial model."""
        state = from_record(initial_arrays)
        row = self.plan.layout.flatten({name: tensor[None] for name, tensor in state.items()})
        self.models = row.repeat(len(self.federation.names), 1)

    def adopt(self, models: Tensor) -> None:
        """Go on with other models ``[clients, parameters]``, such as the best of the run."""
        self.models = models

    def global_arrays(self) -> ArrayRecord | None:
        """The read-out as named arrays."""
        row = self.global_model()
        return None if row is None else to_record(self.plan.layout.row_state(row))

    # ---- Flower's five functions -------------------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One request per node: evaluate the models that stand now, then train them."""
        splits = self.plan.splits if self.plan.evaluates(server_round - 1) else ()
        return self._requests(server_round, grid, MessageType.TRAIN, splits)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One request per node: evaluate the models that stand now."""
        return self._requests(server_round, grid, MessageType.EVALUATE, self.plan.splits)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, apply the policy for absent clients, record what they measured, and aggregate."""
        collected = self._collect(replies, self.reply_shapes())
        self._record_evaluation(server_round - 1, collected)
        if self._stop:
            return None, None
        taking_part = self._policy(server_round, collected)
        self.models = self.models.clone()
        self.models[taking_part.positions] = self.aggregate(server_round, taking_part)
        loss = self._record_training(server_round, collected)
        return self.global_arrays(), MetricRecord({"loss": float(loss.nanmean())})

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Record what the clients measured; returns the means over clients."""
        return self._record_evaluation(server_round, self._collect(replies, {}))

    def summary(self) -> None:
        """Log what runs, as Flower's strategies do."""
        log.info(
            "%s: %d clients on %d nodes", type(self).__name__, len(self.federation.names), len(self.federation.hosts)
        )
        for key, value in self.settings.as_table().items():
            log.info("\t├── %s: %s", key, value)

    # ---- requests and replies ----------------------------------------------------------------------------------

    def _requests(
        self, server_round: int, grid: Grid, message_type: str, splits: tuple[SplitName, ...]
    ) -> list[Message]:
        stacked, shared = self.outgoing(server_round)
        self._asked = {}
        messages = []
        for node in grid.get_node_ids():
            positions = self.federation.hosts[node]
            request = WorkRequest(
                clients=self.federation.clients_of(node),
                round=server_round,
                client=self.plan.client,
                experiment=self.plan.experiment,
                run=self.plan.run,
                stacked={name: tensor[positions] for name, tensor in stacked.items()},
                shared=shared,
                evaluate=splits,
                train=message_type == MessageType.TRAIN,
                keep_from=self.plan.keep_from(server_round),
            )
            self._asked[node] = positions
            messages.append(Message(request.pack(), node, message_type, group_id=str(server_round)))
        return messages

    def _collect(self, messages: Iterable[Message], shapes: Mapping[str, tuple[int, ...]]) -> Replies:
        """Unpack what is usable; for everybody else, remember why there is nothing."""
        names = self.federation.names
        absent = dict.fromkeys(names, "its node is not connected")
        for positions in self._asked.values():
            absent.update((names[position], "no reply in time") for position in positions.tolist())
        parts: list[tuple[Tensor, WorkReply]] = []
        for message in messages:
            node = message.metadata.src_node_id
            asked = self._asked.get(node)
            if asked is None:
                log.warning("ignored a reply from node %d, which was not asked", node)
                continue
            clients = [names[position] for position in asked.tolist()]
            problem = error_of(message)
            if problem is None:
                try:
                    reply = WorkReply.unpack(message.content, clients, shapes)
                except ReplyError as error:
                    problem = str(error)
            if problem is not None:
                absent.update(dict.fromkeys(clients, problem))
                continue
            unusable = reply.unusable()
            absent.update(unusable)
            good = torch.tensor([name not in unusable for name in clients])
            for name in clients:
                if name not in unusable:
                    del absent[name]
            parts.append((asked[good], usable_rows(reply, good)))
        self._warn(absent)
        return self._stack(parts, absent)

    def _warn(self, absent: Mapping[str, str]) -> None:
        for reason, names in by_reason(absent).items():
            log.warning("no usable reply from %s: %s", ", ".join(names), reason)

    def _stack(self, parts: list[tuple[Tensor, WorkReply]], absent: Mapping[str, str]) -> Replies:
        positions = torch.cat([part for part, _ in parts]) if parts else torch.zeros(0, dtype=torch.int64)
        order = positions.argsort()
        return self._replies(
            positions[order],
            {name: tensor[order] for name, tensor in _cat([reply.stacked for _, reply in parts]).items()},
            {name: tensor[order] for name, tensor in _cat([reply.metrics for _, reply in parts]).items()},
            absent,
        )

    def _replies(
        self,
        positions: Tensor,
        tensors: Mapping[str, Tensor],
        metrics: Mapping[str, Tensor],
        absent: Mapping[str, str],
    ) -> Replies:
        names = tuple(self.federation.names[position] for position in positions.tolist())
        graph = self.federation.graph
        if graph is not None and 0 < len(names) < len(self.federation.names):
            graph = graph.subgraph(names)
        counts = self.federation.num_examples["train"][positions]
        return Replies(positions, names, tensors, metrics, graph, counts, absent)

    def _policy(self, server_round: int, replies: Replies) -> Replies:
        """Who takes part in the aggregation when some clients are absent."""
        if replies.absent:
            self._enforce(server_round, replies)
        if not self.last_replies:
            clients = len(self.federation.names)
            self.last_replies = {
                name: torch.zeros(clients, *tensor.shape[1:]) for name, tensor in replies.tensors.items()
            }
        for name, tensor in replies.tensors.items():
            self.last_replies[name] = self.last_replies[name].index_copy(0, replies.positions, tensor)
        self.has_replied = self.has_replied.index_fill(0, replies.positions, True)
        if not replies.absent or self.plan.on_missing != "keep-last":
            return replies
        positions = self.has_replied.nonzero().flatten()
        tensors = {name: tensor[positions] for name, tensor in self.last_replies.items()}
        return self._replies(positions, tensors, {}, replies.absent)

    def _enforce(self, server_round: int, replies: Replies) -> None:
        reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason(replies.absent).items())
        if self.plan.on_missing == "fail":
            raise RunError(
                f"round {server_round}: no usable reply from {len(replies.absent)} clients ({reasons}). "
                'To go on without them, set [experiment] on-missing = "skip" or "keep-last"'
            )
        if len(replies.names) < self.plan.min_clients:
            raise RunError(
                f"round {server_round}: only {len(replies.names)} of at least {self.plan.min_clients} clients "
                f"([experiment] min-clients) sent a usable reply ({reasons})"
            )

    def _record_training(self, server_round: int, replies: Replies) -> Tensor:
        loss = self._whole(replies, replies.metrics.get("loss"))
        seconds = time.perf_counter() - self._began
        training = Training(server_round, self.federation.names, loss, replies.absent, seconds)
        for callback in self.plan.callbacks:
            callback.on_training(training)
        return loss

    def _whole(self, replies: Replies, values: Tensor | None) -> Tensor:
        """Numbers of those present as ``[clients]``, NaN for the others."""
        whole = torch.full((len(self.federation.names),), torch.nan, dtype=torch.float64)
        if values is not None:
            whole[replies.positions] = values
        return whole

    def _record_evaluation(self, server_round: int, replies: Replies) -> MetricRecord | None:
        whole = {name: self._whole(replies, values) for name, values in replies.metrics.items() if "/" in name}
        if not whole:
            return None
        evaluation = Evaluation(server_round, self.federation.names, whole, self.models, replies.absent)
        stops = [callback.on_evaluation(evaluation) for callback in self.plan.callbacks]
        self._stop = any(stops)
        return MetricRecord({name: float(values.nanmean()) for name, values in whole.items()})


def by_reason(absent: Mapping[str, str]) -> dict[str, list[str]]:
    """Clients that share a reason, together."""
    groups: dict[str, list[str]] = {}
    for name, reason in absent.items():
        groups.setdefault(reason, []).append(name)
    return groups


def usable_rows(reply: WorkReply, good: Tensor) -> WorkReply:
    """The rows of a reply where ``good`` (bool ``[clients]``) holds."""
    if bool(good.all()):
        return reply
    return WorkReply(
        tuple(name for name, keep in zip(reply.clients, good.tolist(), strict=True) if keep),
        {name: tensor[good] for name, tensor in reply.stacked.items()},
        {name: tensor[good] for name, tensor in reply.metrics.items()},
    )


def _cat(parts: list[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the nodes' tensors; a metric that one node does not report is NaN for its clients."""
    names = list(dict.fromkeys(name for part in parts for name in part))
    lengths = [len(next(iter(part.values()))) for part in parts if part]
    return {
        name: torch.cat(
            [
                part.get(name, torch.full((length,), torch.nan, dtype=torch.float64))
                for part, length in zip(parts, lengths, strict=True)
            ]
        )
        for name in names
    }
