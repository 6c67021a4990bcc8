"""The strategy behind every cohort method: its round loop, what it sends, and how it treats who does not answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.federation import Federation, OrderedGrid, Traffic
from fedgraph.graph import ClientGraph
from fedgraph.messages import WorkReply, WorkRequest, from_record, to_record
from fedgraph.models import Layout, PersonalLayers, PersonalLayersSettings
from fedgraph.runs import Evaluation, RunPlan, Training
from fedgraph.support.errors import ExperimentError, RunError
from fedgraph.support.files import State
from fedgraph.support.settings import Configured, S
from fedgraph.training import AFTER_TURN
from strategies.engine.absence import AbsencePolicy
from strategies.engine.replies import Replies, collect

__all__ = ["CohortStrategy", "Replies"]

log = logging.getLogger("fedgraph")


class CohortStrategy(Strategy, Configured[S]):
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

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    needs: ClassVar[str] = "nothing"
    paper: ClassVar[str] = ""
    default_client: ClassVar[str] = "clients.engine.base:CohortClient"
    """The client class that answers where the experiment names none."""

    needs_graph: ClassVar[bool] = False
    mixes_models: ClassVar[bool] = True
    """Whether models of different clients are averaged, or otherwise computed with one another: then all clients need
    the same architecture."""

    evaluates_with_training: ClassVar[bool] = True

    def __init__(self, settings: S, federation: Federation, plan: RunPlan) -> None:
        if self.needs_graph and federation.graph is None:
            raise ExperimentError(
                f'{type(self).__name__} needs a client graph: give the experiment [graph] source = "data", '
                '"labels", "complete" or "file"'
            )
        self.settings = settings
        self.federation = federation
        self.plan = plan
        self.layout = self.shared_layout()
        self.models = torch.zeros(len(federation.names), self.layout.num_parameters)
        self.absence = AbsencePolicy(federation, plan)
        self.finished_rounds = 0
        self._last_evaluated: int | None = None
        self._measured: dict[str, Tensor] = {}
        self._beside: dict[str, Tensor] = {}
        self._stop = False
        self._restored = False
        self._began = time.perf_counter()
        self._traffic, self._traffic_before = Traffic(), Traffic()
        self._asked: dict[int, Tensor] = {}
        self._training = True

    # ---- what a method overrides -------------------------------------------------------------------------------

    def aggregate(self, server_round: int, replies: Replies) -> Tensor:
        """The next model of every client in ``replies``, ``[present, parameters]``."""
        raise NotImplementedError

    def outgoing(self, server_round: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Tensors for the clients: stacked ones ``[clients, ...]``, of which each gets its row, and shared ones."""
        return {"parameters": self.models}, {}

    def shared_with(self, positions: Tensor, evaluates: bool) -> dict[str, Tensor]:
        """Further shared tensors for the node of the clients at ``positions``; ``evaluates``: it is to measure."""
        return {}

    def reply_shapes(self) -> dict[str, tuple[int, ...]]:
        """What a client must send back and in which shape, without the client axis."""
        return {"parameters": (self.layout.num_parameters,)}

    def shared_layout(self) -> Layout:
        """What the server gets to see of a model: all but the ``personal_layers`` of the settings.

        ``layout`` and ``models`` are of this part.
        """
        if not isinstance(self.settings, PersonalLayersSettings):
            return self.plan.layout
        return PersonalLayers.of(self.plan.layout, self.settings.personal_layers).shared

    @property
    def restorable(self) -> bool:
        """Whether ``adopt`` brings earlier models back in whole; not where clients keep a part of them."""
        return len(self.layout.names) == len(self.plan.layout.names)

    @property
    def moves_after_measuring(self) -> bool:
        """Whether a round goes on changing models that it has measured; at the end they are then measured once more."""
        return False

    def place(self, replies: Replies, models: Tensor) -> None:
        """Put what ``aggregate`` made of ``replies`` into ``models``; clients that are absent keep what they have."""
        everybody = len(replies.names) == len(self.federation.names)
        self.models = models if everybody else self.models.index_copy(0, replies.positions, models)

    def global_model(self) -> Tensor | None:
        """The read-out, ``[parameters]``: the mean of the clients' models.

        None for a method that has none, and where architectures differ.
        """
        return self.models.mean(dim=0) if self.plan.architectures is None else None

    def learned_graph(self) -> ClientGraph | None:
        """The client graph that the method learned, for the run folder; None for a method that learns none."""
        return None

    def facts(self) -> dict[str, Any]:
        """Further entries of ``summary.json``, once the run has come to its end."""
        return {}

    def state(self) -> State:
        """What a resumed run needs; a method with more to remember adds its own keys."""
        return {"models": self.models, "absence": self.absence.state()}

    def load_state(self, state: State) -> None:
        """Take back what ``state`` gave."""
        self.models = state["models"]
        self.absence.load_state(state["absence"])

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
            self._evaluate_at_server(0, initial_arrays, evaluate_fn, result)
        arrays = self.global_arrays() or initial_arrays
        # A run may have been killed after early stopping had ended it.
        self._stop = any(callback.stopped for callback in self.plan.callbacks)
        for server_round in range(self.finished_rounds + 1, num_rounds + 1):
            if self._stop:
                break
            self._began = time.perf_counter()
            self._traffic, self._traffic_before = ordered.traffic, replace(ordered.traffic)
            new_arrays, metrics = self.train_round(server_round, arrays, train_config, ordered, timeout)
            if self._stop and new_arrays is None:
                break
            arrays = new_arrays or arrays
            if metrics is not None:
                result.train_metrics_clientapp[server_round] = metrics
            if not self.evaluates_with_training and self.plan.evaluates(server_round):
                self._evaluate(server_round, arrays, evaluate_config, ordered, timeout, result)
            self._evaluate_at_server(server_round, arrays, evaluate_fn, result)
            self.finished_rounds = server_round
            for callback in self.plan.callbacks:
                callback.on_round_end(server_round, self.state)
        if self._last_evaluated != self.finished_rounds:
            self._evaluate(self.finished_rounds, arrays, evaluate_config, ordered, timeout, result)
        elif self.moves_after_measuring and self.finished_rounds:
            self._restored, self._beside = True, self._noted(AFTER_TURN)
            self._evaluate(self.finished_rounds, arrays, evaluate_config, ordered, timeout, result)
        for callback in self.plan.callbacks:
            models = callback.final_models()
            if models is not None and not torch.equal(models, self.models):
                self.adopt(models)
                self._restored = True
                self._beside = {**self._beside, **self._noted(callback.beside)} if callback.beside else {}
                arrays = self.global_arrays() or arrays
                self._evaluate(callback.final_round, arrays, evaluate_config, ordered, timeout, result)
        result.arrays = self.global_arrays() or arrays
        return result

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: OrderedGrid, timeout: float
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One round: all clients train, in one exchange; (None, None) when what was measured before ends the run."""
        messages = self.configure_train(server_round, arrays, config, grid)
        return self.aggregate_train(server_round, grid.send_and_receive(messages, timeout=timeout))

    def _evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: OrderedGrid,
        timeout: float,
        result: Result,
    ) -> None:
        if not self.plan.splits:
            return
        messages = self.configure_evaluate(server_round, arrays, config, grid)
        recorded = self.finished_rounds if self._restored else server_round
        metrics = self.aggregate_evaluate(recorded, grid.send_and_receive(messages, timeout=timeout))
        if metrics is not None:
            result.evaluate_metrics_clientapp[recorded] = metrics

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
        """Give every client the initial model of its architecture."""
        arrays, architectures = from_record(initial_arrays), self.plan.architectures
        if architectures is not None:
            self.models = architectures.repeated(arrays)
        else:
            self.models = self.layout.row(arrays).repeat(len(self.federation.names), 1)

    def adopt(self, models: Tensor) -> None:
        """Go on with other models ``[clients, parameters]``, such as the best of the run."""
        self.models = models

    def global_arrays(self) -> ArrayRecord | None:
        """The read-out as named arrays."""
        row = self.global_model()
        return None if row is None else to_record(self.layout.row_state(row))

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
        collected, _ = self.collect(replies)
        if self.plan.evaluates(server_round - 1):
            self._record_evaluation(server_round - 1, collected)
        if self._stop:
            return None, None
        taking_part = self.absence.taking_part(server_round, collected)
        models = self.aggregate(server_round, taking_part)
        self._refuse_overfull(taking_part.names, models)
        self.place(taking_part, models)
        loss = self._record_training(server_round, collected)
        return self.global_arrays(), MetricRecord({"loss": float(loss.nanmean())})

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Record what the clients measured; returns the means over clients."""
        collected, _ = self.collect(replies)
        return self._record_evaluation(server_round, collected)

    def summary(self) -> None:
        """Log what runs, as Flower's strategies do."""
        log.info(
            "%s: %d clients on %d nodes", type(self).__name__, len(self.federation.names), len(self.federation.hosts)
        )
        for key, value in self.settings.as_table().items():
            log.info("\t├── %s: %s", key, value)

    # ---- requests and replies ----------------------------------------------------------------------------------

    def configure_predict(self, grid: Grid) -> list[Message]:
        """One request per node: say which classes the models that stand now predict for the test examples."""
        return self._requests(self.finished_rounds, grid, MessageType.EVALUATE, (), predict=True)

    def _requests(
        self, server_round: int, grid: Grid, message_type: str, splits: tuple[SplitName, ...], predict: bool = False
    ) -> list[Message]:
        self._asked = dict(self.federation.hosts)
        self._training = message_type == MessageType.TRAIN
        stacked, shared = self.outgoing(server_round)
        shared_record = to_record(shared)
        messages = []
        for node in grid.get_node_ids():
            rows = _slice_or_rows(self.federation.hosts[node])
            further = self.shared_with(self.federation.hosts[node], bool(splits) or predict)
            own = {name: tensor[rows] for name, tensor in stacked.items()}
            clients = self.federation.clients_of(node)
            request = self.request(server_round, clients, own, {**shared, **further}, splits, predict)
            content = request.pack(None if further else shared_record)
            messages.append(Message(content, node, message_type, group_id=str(server_round)))
        return messages

    def request(
        self,
        server_round: int,
        clients: tuple[str, ...],
        stacked: Mapping[str, Tensor],
        shared: Mapping[str, Tensor],
        splits: tuple[SplitName, ...],
        predict: bool = False,
    ) -> WorkRequest:
        """What some clients of one node are asked to do in this exchange; ``splits`` are those to evaluate."""
        plan = self.plan
        return WorkRequest(
            client=plan.client,
            experiment=plan.experiment,
            run=plan.run,
            clients=clients,
            round=server_round,
            stacked=stacked,
            shared=shared,
            evaluate=splits,
            train=self._training,
            keep_from=plan.keep_from(server_round),
            predict=predict,
        )

    def read_reply(self, content: RecordDict, clients: list[str]) -> tuple[WorkReply, Mapping[str, str]]:
        """Unpack and check the reply of one node; see ``strategies.engine.replies.Reader``."""
        reply = WorkReply.unpack(content, clients, self.reply_shapes() if self._training else {})
        unusable = reply.unusable()
        if self.plan.architectures is not None and "parameters" in reply.stacked:
            unusable = {**self.plan.architectures.overfull(clients, reply.stacked["parameters"]), **unusable}
        return reply, unusable

    def collect(self, messages: Iterable[Message]) -> tuple[Replies, list[Message]]:
        """The usable replies of an exchange, and the messages they came in."""
        return collect(self.federation, self._asked, messages, self.read_reply)

    def _refuse_overfull(self, names: Sequence[str], models: Tensor) -> None:
        """A strategy that declares ``mixes_models = False`` and mixes all the same must not go unnoticed."""
        architectures = self.plan.architectures
        problems = {} if architectures is None else architectures.overfull(names, models)
        if problems:
            name, problem = next(iter(problems.items()))
            raise RunError(
                f"{type(self).__name__} made a model for client '{name}' that is not of its architecture ({problem}); "
                "a strategy that computes with the models of several clients at once must not declare "
                "mixes_models = False, nor inherit it"
            )

    def _record_training(self, server_round: int, replies: Replies) -> Tensor:
        loss = self._whole(replies, replies.metrics.get("loss"))
        seconds = time.perf_counter() - self._began
        training = Training(
            server_round,
            self.federation.names,
            loss,
            replies.absent,
            seconds,
            self._traffic.since(self._traffic_before),
            models=self.models,
        )
        for callback in self.plan.callbacks:
            callback.on_training(training)
        return loss

    def _whole(self, replies: Replies, values: Tensor | None) -> Tensor:
        """Numbers of those present as ``[clients]``, NaN for the others."""
        whole = torch.full((len(self.federation.names),), torch.nan, dtype=torch.float64)
        if values is not None:
            whole[replies.positions] = values
        return whole

    def _record_evaluation(self, server_round: int, replies: Replies) -> MetricRecord:
        """Tell the callbacks what was measured; what was measured before and is not now is NaN for everybody."""
        measured = {name: values for name, values in replies.metrics.items() if "/" in name}
        names = dict.fromkeys((*self._measured, *measured))
        whole = self._measured = {name: self._whole(replies, measured.get(name)) for name in names}
        self._last_evaluated = server_round
        evaluation = Evaluation(
            server_round, self.federation.names, {**whole, **self._beside}, self.models, replies.absent, self._restored
        )
        stops = [callback.on_evaluation(evaluation) for callback in self.plan.callbacks]
        self._stop = any(stops)
        return MetricRecord({name: float(values.nanmean()) for name, values in whole.items()})

    def _noted(self, suffix: str) -> dict[str, Tensor]:
        """What was measured last, under names that say of which models."""
        return {f"{name}{suffix}": values for name, values in self._measured.items()}


def _slice_or_rows(positions: Tensor) -> slice | Tensor:
    """Neighbouring rows as a slice, which copies nothing."""
    first, last = int(positions[0]), int(positions[-1])
    return slice(first, last + 1) if last - first + 1 == len(positions) else positions
