"""What methods of phases for time series share: who takes part, and an exchange with the nodes."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.data import SplitName
from fedgraph.federation import Federation, OrderedGrid, identify
from fedgraph.messages import WorkReply, WorkRequest
from fedgraph.strategies.engine.phases import Outcome, PhasedStrategy
from fedgraph.strategies.engine.replies import Replies, collect
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import S

log = logging.getLogger("fedgraph")


class ForecastStrategy(PhasedStrategy[S]):
    """A method overrides ``execute``, as of :class:`PhasedStrategy`."""

    needs = "clients that are time series, such as metr-la"
    # Not their parameters, but tensors of one shape come from models of one architecture.
    mixes_models = True

    def identified(self, grid: Grid, known: tuple[str, ...] | None = None) -> tuple[Federation, OrderedGrid]:
        """Who takes part, and the grid that answers in the order of their names.

        Where the plan tolerates absent clients and none are expected by name, a node that answers for others than the
        ``known`` ones is left out.

        Raises
        ------
        FedgraphError
            If clients are missing, or are no time series.
        """
        plan = self.plan
        roll_call = plan.roll_call
        if plan.tolerant and roll_call.expect is None:
            roll_call = replace(roll_call, expect=known)
        federation = identify(
            grid, plan.client, plan.experiment, roll_call, False,
            on_wait=lambda text: log.info("waiting for nodes: %s", text), traffic=self.traffic, tolerate=plan.tolerant,
        )  # fmt: skip
        self.nodes = len(federation.hosts)
        if federation.task.kind != "forecast":
            raise ExperimentError(f"{self.name} forecasts time series, and this data is for {federation.task.kind}")
        log.info("%d clients on %d nodes; data: %s", len(federation.names), self.nodes, federation.data)
        return federation, OrderedGrid(grid, federation, self.traffic)

    def outcome_of(
        self,
        federation: Federation,
        names: tuple[str, ...],
        measured: str,
        metrics: Mapping[str, Tensor],
        parameters: Tensor,
        rounds: int,
        absent: Mapping[str, str],
        facts: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """The outcome for ``names``, the clients of ``federation`` that were measured; see :class:`Outcome`."""
        groups = None
        if federation.groups is not None:
            groups = tuple(federation.groups[federation.positions[name]] for name in names)
        return Outcome(
            names, federation.data, measured, metrics, parameters, rounds, absent, facts or {}, federation.task, groups
        )

    def exchanged(
        self,
        grid: OrderedGrid,
        federation: Federation,
        asked: Mapping[int, Tensor],
        requests: Mapping[int, WorkRequest],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        types: Mapping[str, str] | None = None,
    ) -> Replies:
        """One exchange.

        Parameters
        ----------
        grid, federation : OrderedGrid and Federation
            As ``identified`` returns them.
        asked : Mapping of int to Tensor
            Positions of the clients that each node is asked for.
        requests : Mapping of int to WorkRequest
            What each node is sent.
        shapes : mapping of str to tuple of int, optional
            Shapes of the tensors that come back, by name, without the client axis; none, if not given.
        types : mapping of str to str, optional
            NumPy types of those that are not float32, by name.

        Returns
        -------
        Replies
            Those that can be used.

        Raises
        ------
        RunError
            If clients are absent and must not be, or too few are left.
        """

        def read(content: RecordDict, names: list[str]) -> tuple[WorkReply, Mapping[str, str]]:
            reply = WorkReply.unpack(content, names, shapes or {}, types)
            return reply, reply.unusable()

        messages = [
            Message(request.pack(), node, MessageType.TRAIN if request.train else MessageType.EVALUATE)
            for node, request in requests.items()
        ]
        answers = grid.send_and_receive(messages, timeout=self.plan.timeout)
        # Why clients are absent is told once, by the check.
        replies = collect(federation, asked, answers, read, log_absent=False)
        self.check_present(replies.absent, len(replies.names))
        return replies

    def hosts_of(
        self, grid: OrderedGrid, federation: Federation, names: Sequence[str]
    ) -> Iterator[tuple[int, tuple[str, ...], Tensor, Tensor]]:
        """Nodes that host clients among ``names``: node, these clients, their positions, their rows in ``names``."""
        row_of = {name: row for row, name in enumerate(names)}
        for node in grid.get_node_ids():
            clients = tuple(name for name in federation.clients_of(node) if name in row_of)
            if clients:
                positions = torch.tensor([federation.positions[name] for name in clients])
                yield node, clients, positions, torch.tensor([row_of[name] for name in clients])

    def request(
        self, clients: Iterable[str], stacked: Mapping[str, Tensor], shared: Mapping[str, Tensor], train: bool
    ) -> WorkRequest:
        """A request to the node of ``clients``: tensors ``[clients, ...]``, and tensors that are the same for all."""
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
