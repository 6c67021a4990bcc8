"""Exchanges of vertical federated learning: embeddings of a minibatch up, gradients down with the next request."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from flwr.app import Message, MessageType, RecordDict
from torch import Tensor

from fedgraph.data.owners import SAMPLE_SPLITS
from fedgraph.federation import JoinedSamples, OrderedGrid, by_reason, split_replies
from fedgraph.methods.vfl import StepReply, StepRequest
from fedgraph.strategies.engine.phases import PhasesPlan
from fedgraph.support.errors import RunError
from fedgraph.support.files import State

log = logging.getLogger("fedgraph")


class VerticalSteps:
    """Requests embeddings from owners' current models; gradients are sent with the next request.

    Parameters
    ----------
    grid : OrderedGrid
        Grid that connects to the nodes.
    plan : PhasesPlan
        What is the same for every strategy.
    joined : JoinedSamples
        The samples of each owner; all tensors here have its order of owners.

    Attributes
    ----------
    lost : dict of str to str
        Owners that the run has gone on without, and why: from then on nobody has their embeddings.
    bytes_per_owner : int
        Bytes of embeddings and gradients so far, per owner.
    training_bytes_per_owner : int
        The same without test samples, which are embedded in every epoch only to measure the best one at the end.
    """

    def __init__(self, grid: OrderedGrid, plan: PhasesPlan, joined: JoinedSamples) -> None:
        self._grid, self._plan, self._joined = grid, plan, joined
        self._step, self._keep_from = 0, 1
        self._update: tuple[str, ...] = ()
        self._size = int(joined.sizes.max())
        self._gradient = torch.zeros(0, len(joined.owners), self._size)
        self.bytes_per_owner = self.training_bytes_per_owner = 0
        self._here = torch.ones(len(joined.owners), dtype=torch.bool)
        self.lost: dict[str, str] = {}

    def present(self, rows: Tensor) -> Tensor:
        """Return which owners have samples and still take part, bool ``[samples, owners]``."""
        return self._joined.present[rows] & self._here

    def state(self) -> State:
        """Return what the next steps depend on, to be saved; owners keep what they need to continue from here."""
        self._keep_from = self._step + 1
        return {
            "step": self._step,
            "update": list(self._update),
            "gradient": self._gradient,
            "lost": self.lost,
            "bytes_per_owner": self.bytes_per_owner,
            "training_bytes_per_owner": self.training_bytes_per_owner,
        }

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned."""
        self._step, self._keep_from = state["step"], state["step"] + 1
        self._update, self._gradient = tuple(state["update"]), state["gradient"]
        self.bytes_per_owner = state["bytes_per_owner"]
        self.training_bytes_per_owner = state["training_bytes_per_owner"]
        self._leave(state.get("lost", {}))

    def send_back(self, rows: Tensor, gradient: Tensor) -> None:
        """Send the gradient ``[samples, owners, size]`` of ``rows``, embedded last, with the next request."""
        self._update = self._keys(rows)
        self._gradient = gradient * self.present(rows)[..., None]

    def embed(self, rows: Tensor, training: bool) -> Tensor:
        """Run one exchange: return embeddings ``[samples, owners, size]`` of some samples.

        Owners first update their models, if a gradient is sent. An owner without a usable answer is left out from then
        on, where the plan tolerates it: its embeddings are 0, and ``present`` is False.

        Raises
        ------
        RunError
            When an owner has no usable answer and the plan is not tolerant, or too few are left.
        """
        self._step += 1
        keys, messages = self._keys(rows), []
        hosts = {node: hosted for node, hosted in self._joined.hosts.items() if bool(self._here[hosted].all())}
        for node in self._grid.get_node_ids():
            if node not in hosts:
                continue
            hosted = hosts[node]
            request = StepRequest(
                client=self._plan.client,
                experiment=self._plan.experiment,
                run=self._plan.folder.name,
                owners=self._names(hosted),
                step=self._step,
                update=self._update,
                gradient=self._gradient[:, hosted].transpose(0, 1),
                embed=keys,
                training=training,
                keep_from=self._keep_from,
            )
            messages.append(Message(request.pack(), node, MessageType.TRAIN, group_id=str(self._step)))
        sizes = self._joined.sizes

        def read(node: int, content: RecordDict) -> Tensor:
            shape = (len(hosts[node]), len(rows), int(sizes[hosts[node]].max()))
            return StepReply.unpack(content, self._names(hosts[node]), shape).embeddings

        replies = self._grid.send_and_receive(messages, timeout=self._plan.timeout)
        found, problems = split_replies(replies, hosts, read)
        if problems:
            self._leave({name: why for node, why in problems.items() for name in self._names(hosts[node])})
            self._check_present()
        result = torch.zeros(len(rows), len(self._joined.owners), self._size)
        for node, embeddings in found.items():
            result[:, hosts[node], : embeddings.shape[2]] = embeddings.transpose(0, 1)
        tested = int((self._joined.split[rows] == SAMPLE_SPLITS.index("test")).sum())
        self.bytes_per_owner += 4 * self._size * (len(rows) + len(self._update))
        self.training_bytes_per_owner += 4 * self._size * (len(rows) - tested + len(self._update))
        self._update, self._gradient = (), self._gradient[:0]
        return result * self.present(rows)[..., None]

    def _leave(self, lost: Mapping[str, str]) -> None:
        self.lost |= lost
        self._here &= torch.tensor([name not in lost for name in self._joined.owners])

    def _check_present(self) -> None:
        """Raise RunError unless the run may go on without the owners that are lost."""
        left, reasons = int(self._here.sum()), "; ".join(by_reason(self.lost))
        if not self._plan.tolerant:
            raise RunError(
                f"step {self._step}: no usable embeddings from {reasons}. To go on without these owners, set "
                '[experiment] on-missing = "skip"'
            )
        if left < max(1, self._plan.min_clients):
            raise RunError(
                f"step {self._step}: only {left} of at least {self._plan.min_clients} owners ([experiment] "
                f"min-clients) are left ({reasons})"
            )
        log.warning("step %d: going on without %s", self._step, reasons)

    def _keys(self, rows: Tensor) -> tuple[str, ...]:
        return tuple(self._joined.keys[row] for row in rows.tolist())

    def _names(self, hosted: Tensor) -> tuple[str, ...]:
        return tuple(self._joined.owners[place] for place in hosted.tolist())
