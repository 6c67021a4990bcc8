"""Common parts of phased methods for time series: identification, and an exchange with tensors of windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.phases import Identified, Identify, Outcome, Phase, PhasedAlgorithm, PhaseRun, Query
from fedgraph.messages import WorkReply, WorkRequest
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import S


@dataclass(frozen=True)
class StackedReplies:
    """The replies of clients, stacked.

    Attributes
    ----------
    tensors : each ``[clients, ...]``.
    metrics : each float64 ``[clients]``, NaN for clients that do not measure it.
    """

    names: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    metrics: Mapping[str, Tensor]

    @classmethod
    def of(cls, answers: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]) -> StackedReplies:
        """Stack the answers of all clients."""
        rows = list(answers.values())
        tensors = {name: torch.stack([sent[name] for sent, _ in rows]) for name in rows[0][0]}
        nothing = torch.tensor(torch.nan, dtype=torch.float64)
        known = dict.fromkeys(name for _, metrics in rows for name in metrics)
        return cls(
            tuple(answers),
            tensors,
            {name: torch.stack([each.get(name, nothing) for _, each in rows]) for name in known},
        )


class ForecastAlgorithm(PhasedAlgorithm[S]):
    """Base class of algorithms of phases for time series."""

    needs = "clients that are time series, such as metr-la"
    # Tensors of one shape need models of one architecture.
    mixes_models = True

    def identified(self, expect: tuple[str, ...] | None = None) -> Phase[Identified]:
        """Return the clients; ``expect`` as in :class:`Identify`. Raises ExperimentError unless they forecast."""
        clients: Identified = yield Identify(expect)
        if clients.task.kind != "forecast":
            raise ExperimentError(f"{self.name} forecasts time series, and this data is for {clients.task.kind}")
        return clients


def exchanged(
    run: PhaseRun,
    stacked: Callable[[tuple[str, ...]], Mapping[str, Tensor]] = lambda names: {},
    shared: Mapping[str, Tensor] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    types: Mapping[str, str] | None = None,
    *,
    train: bool = False,
    name: str = "",
    unusable: Callable[[WorkReply], dict[str, str]] = WorkReply.unusable,
) -> Phase[StackedReplies]:
    """Run one exchange.

    Parameters
    ----------
    stacked : returns tensors ``[clients, ...]`` for the node of some clients, given their names.
    shared : tensors that all nodes get.
    shapes : shapes of the tensors that come back, by name, without the client axis; by default there are none.
    types : NumPy types of those that are not float32, by name.
    train : whether clients train; else they evaluate.
    name : name of the run that clients kept state of; by default this one.
    unusable : returns the clients of a reply to go on without, and why; by default those with values that are not
        finite.
    """

    def request(names: tuple[str, ...]) -> WorkRequest:
        return WorkRequest(names, 1, stacked(names), shared or {}, run.splits, train, run=name)

    read = partial(_answers, shapes=shapes or {}, types=types, unusable=unusable)
    return StackedReplies.of((yield Query(request, read, "train" if train else "evaluate")))


def _answers(
    names: tuple[str, ...],
    content: Any,
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, str] | None,
    unusable: Callable[[WorkReply], dict[str, str]],
) -> tuple[dict[str, tuple[Mapping[str, Tensor], Mapping[str, Tensor]]], dict[str, str]]:
    """Return tensors and metrics of each client of a node, and reasons for unusable ones."""
    reply = WorkReply.unpack(content, names, shapes, types)
    problems = unusable(reply)
    return {
        name: (
            {key: rows[place] for key, rows in reply.stacked.items()},
            {key: values[place] for key, values in reply.metrics.items()},
        )
        for place, name in enumerate(names)
        if name not in problems
    }, problems


def build_outcome(
    clients: Identified, replies: StackedReplies, measured_on: str, metrics: Mapping[str, Tensor], **further: Any
) -> Outcome:
    """Return the outcome for the clients that measured; ``further`` are fields of :class:`Outcome`."""
    groups = None
    if clients.groups is not None:
        groups = tuple(clients.groups[clients.positions[name]] for name in replies.names)
    return Outcome(replies.names, measured_on, metrics, task=clients.task, groups=groups, **further)
