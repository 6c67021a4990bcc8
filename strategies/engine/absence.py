"""Handling of clients without a usable reply: the policy ``[experiment] on-missing``, and ``min-clients``."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.federation import Federation, by_reason
from fedgraph.runs import RunPlan
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import RunError
from fedgraph.support.files import State


class AbsencePolicy:
    """Selects the clients of an aggregation; under ``keep-last`` it stores the last usable replies."""

    def __init__(self, federation: Federation, plan: RunPlan) -> None:
        self._federation = federation
        self._plan = plan
        self._last: dict[str, Tensor] = {}
        self._last_metrics: dict[str, Tensor] = {}
        self._has_replied = torch.zeros(len(federation.names), dtype=torch.bool)

    def enforce(self, server_round: int, replies: Replies) -> None:
        """Raise RunError, with clients and reasons, when more are absent than the experiment allows."""
        if not replies.absent:
            return
        reasons = "; ".join(by_reason(replies.absent))
        if self._plan.on_missing == "fail":
            some = len(replies.absent) < len(self._federation.names)
            advice = '. To go on without them, set [experiment] on-missing = "skip" or "keep-last"' if some else ""
            raise RunError(
                f"round {server_round}: no usable reply from {len(replies.absent)} clients ({reasons}){advice}"
            )
        # Clients that a strategy has not drawn count as present.
        present = len(self._federation.names) - len(replies.absent)
        if present < self._plan.min_clients:
            raise RunError(
                f"round {server_round}: only {present} of at least {self._plan.min_clients} clients "
                f"([experiment] min-clients) sent a usable reply ({reasons})"
            )

    def taking_part(self, server_round: int, replies: Replies) -> Replies:
        """Return the replies to aggregate: those present, and under ``keep-last`` the last ones of absent clients.

        Absent clients that never replied are excluded. Raises RunError as :meth:`enforce`.
        """
        self.enforce(server_round, replies)
        if self._plan.on_missing != "keep-last":
            return replies
        for last, found in ((self._last, replies.tensors), (self._last_metrics, replies.metrics)):
            for name, tensor in found.items():
                if name not in last:
                    last[name] = tensor.new_zeros(len(self._federation.names), *tensor.shape[1:])
                last[name][replies.positions] = tensor
        self._has_replied[replies.positions] = True
        if not replies.absent:
            return replies
        requested = torch.zeros_like(self._has_replied)
        requested[replies.positions] = True
        requested[[self._federation.positions[name] for name in replies.absent]] = True
        positions = (requested & self._has_replied).nonzero().flatten()
        tensors, metrics = (
            {name: tensor[positions] for name, tensor in last.items()} for last in (self._last, self._last_metrics)
        )
        return Replies.of(self._federation, positions, tensors, metrics, replies.absent)

    def state(self) -> State:
        """Return the state for a resumed run."""
        return {"last": self._last, "metrics": self._last_metrics, "has-replied": self._has_replied}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        self._last, self._last_metrics = state["last"], state["metrics"]
        self._has_replied = state["has-replied"]
