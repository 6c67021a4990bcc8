"""The client class of vertical federated learning: owners' models are trained by gradients from the server.

Rows L and M of table 2 of Ma, Hoang, Chen (UAI 2023). The last linear layer of a model is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedgraph.algorithms.vfl import VerticalSettings
from fedgraph.algorithms.vfl_messages import StepReply, StepRequest
from fedgraph.clients.engine.node import Node
from fedgraph.clients.f3 import SENDS_EMBEDDINGS, OwnersClient
from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData
from fedgraph.fusion.owner_models import Embedded, LocalStage, StackedOwners
from fedgraph.messages import EmbedRequest
from fedgraph.support.errors import ExperimentError, IdentityError, ReplyError, counted
from fedgraph.support.randomness import derive_seed
from fedgraph.training import Optimiser, clip_rows, fresh_state


class VerticalClient(OwnersClient[VerticalSettings]):
    """Answers the request for embeddings as in F3, then every step with an update and new embeddings.

    Initial models are the owners' pre-trained ones (row L), or untrained (row M, ``pre-trained = false``). Models and
    moments of their optimisers after each step are kept in the node's state, back to the last step that a resumed run
    may continue from. They are computed on the device of ``[train]``; sent or stored tensors are on the CPU.
    """

    sends: ClassVar[tuple[str, ...]] = (*SENDS_EMBEDDINGS, "the embeddings again after each step of training")

    @classmethod
    def handle(cls, message: Message, node: Node) -> RecordDict:
        """Answer a message; called by the ClientApp."""
        if message.metadata.message_type != "train":
            return super().handle(message, node)
        request = StepRequest.unpack(message.content)
        embed = EmbedRequest(client=request.client, experiment=request.experiment, run=request.run)
        node.record(request.run, f"step {request.step}", request.owners, message.content, request.step)
        return cls(node, embed).step(request).pack()

    def stage(self, data: OwnerData) -> LocalStage:
        """Return the stage that provides the owners' models, pre-trained or not."""
        return replace(super().stage(data), pre_trained=self.settings.pre_trained)

    def embed(self, data: OwnerData) -> Embedded:
        """Return embeddings by the initial models, which are kept for the next steps.

        Raises ExperimentError for models that cannot be trained by gradients, such as those of scikit-learn.
        """
        groups = self._prepared().groups
        held = sum(len(group.rows) for group in groups)
        if held < len(data.owners):
            raise ExperimentError(
                f"vertical federated learning trains the owners' models, but only {held} of {len(data.owners)} owners "
                "of this node have trainable ones: models of scikit-learn and of the node config are not supported"
            )
        for number, group in enumerate(groups):
            moments = fresh_state(group.cohort.settings, len(group.rows), group.cohort.model.layout.num_trainable)
            self._keep(number, group, 0, 0, {"parameters": group.parameters, **moments})
        return super().embed(data)

    def step(self, request: StepRequest) -> StepReply:
        """Update the owners' models by the gradient of their embeddings, then return the requested embeddings.

        Models of owners that are not in the request are not updated. Raises IdentityError for owners that this node
        does not host, and ReplyError for a gradient that does not fit owners and samples.
        """
        data, groups, rows = self._prepared()
        # With minibatches of one sample, and a prediction after each epoch.
        most = self.settings.epochs * (int((data.split == SAMPLE_SPLITS.index("train")).sum()) + 1)
        if not 0 < request.step <= most:
            raise ReplyError(f"step {request.step} of the request is outside of 1 to {most}")
        shape = request.gradient.shape[:2]
        if request.gradient.dtype != torch.float32 or shape != (len(request.owners), len(request.update)):
            raise ReplyError("the gradient of the request needs a row for each owner and sample")
        unknown_names = sorted(set(request.owners) - set(self.owners))
        if unknown_names:
            raise IdentityError(f"this node does not host owner {', '.join(unknown_names)} of the request")
        named = torch.tensor([self.owners.index(owner) for owner in request.owners])
        sizes = torch.zeros(len(data.owners), dtype=torch.int64)
        for group in groups:
            sizes[group.rows] = group.cohort.model.embedding_size
        learnt, places = _known(rows, request.update)
        received = request.gradient[:, places]
        gradient = torch.zeros(len(data.owners), len(places), max(int(sizes.max()), received.shape[2]))
        gradient[named, :, : received.shape[2]] = received
        request = replace(request, gradient=gradient)
        requested, places = _known(rows, request.embed)
        embeddings = torch.zeros(len(data.owners), len(request.embed), int(sizes.max()))
        for number, group in enumerate(groups):
            kept = self._kept(number, group, request.step)
            if len(learnt):
                self._update(group, kept, learnt, request)
            own, _ = self._embed(group, kept["parameters"], requested, request.step, request.training)
            present = data.present[group.rows][:, requested, None]
            embeddings[group.rows[:, None], places, : own.shape[2]] = own.detach().cpu() * present
            self._keep(number, group, request.step, request.keep_from, kept)
        self.node.done.append(f"took step {request.step} on {counted(len(request.update), 'row')}")
        return StepReply(request.owners, embeddings[named, :, : int(sizes[named].max())])

    def _update(self, group: StackedOwners, kept: dict[str, Tensor], samples: Tensor, request: StepRequest) -> None:
        """Take a step of every owner's optimiser, in place in ``kept``."""
        layout, settings = group.cohort.model.layout, group.cohort.settings
        matrix = kept["parameters"]
        parameters = matrix.detach().clone().requires_grad_()
        embeddings, buffers = self._embed(group, parameters, samples, request.step - 1, training=True)
        received = request.gradient[group.rows, :, : embeddings.shape[2]].to(group.cohort.device)
        (gradient,) = torch.autograd.grad(embeddings, parameters, received)
        gradient = gradient[:, : layout.num_trainable].contiguous()
        if settings.clip_norm is not None:
            clip_rows(gradient, settings.clip_norm)
        trained = matrix[:, : layout.num_trainable].contiguous()
        moments = {name: value for name, value in kept.items() if name != "parameters"}
        Optimiser(settings, settings.learning_rate, moments).step(trained, gradient)
        matrix[:, : layout.num_trainable] = trained
        running = layout.unflatten(matrix)
        for name, value in buffers.items():
            running[name].copy_(value)

    def _embed(
        self, group: StackedOwners, parameters: Tensor, samples: Tensor, step: int, training: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return embeddings ``[owners, samples, size]`` of some samples, and changed buffers."""
        inputs = group.inputs[:, samples].to(group.cohort.device)
        seed = derive_seed(self.assignment.seed, "vertical", group.cohort.data.names[0], step)
        with _own_draws(seed, parameters.device):
            state = group.cohort.model.layout.unflatten(parameters)
            embeddings, buffers = group.cohort.model.embed(state, inputs, training)
        return embeddings, dict(buffers)

    def _kept(self, number: int, group: StackedOwners, step: int) -> dict[str, Tensor]:
        layout = group.cohort.model.layout
        moments = fresh_state(group.cohort.settings, 1, layout.num_trainable)
        empty = {"parameters": torch.full((layout.num_parameters,), torch.nan)}
        empty |= {name: value[0] for name, value in moments.items()}
        kept = self.node.state(self.request.run, f"vertical-{number}").load(group.cohort.data.names, step, empty)
        if bool(kept["parameters"].isnan().any()):
            raise ExperimentError(
                f"owner '{group.cohort.data.names[0]}' has lost its model: the state of this node is missing, or its "
                "training diverged"
            )
        return {name: value.to(group.cohort.device) for name, value in kept.items()}

    def _keep(self, number: int, group: StackedOwners, step: int, keep_from: int, kept: dict[str, Tensor]) -> None:
        stacked = {name: value.cpu() for name, value in kept.items()}
        self.node.state(self.request.run, f"vertical-{number}").save(group.cohort.data.names, step, stacked, keep_from)

    def _prepared(self) -> _Prepared:
        """Return the owners' data and models, cached per process."""

        def prepare() -> _Prepared:
            data = self.source.load_owners(self.owners)
            rows = {data.keys[row]: row for row in data.shared.nonzero().flatten().tolist()}
            return _Prepared(data, self.stage(data).stacked(), rows)

        return self.node.prepared((self.request.experiment, self.owners), prepare)


class _Prepared(NamedTuple):
    """Owners of a node: their data, models by architecture, and the row of each shared sample by key."""

    data: OwnerData
    groups: list[StackedOwners]
    rows: dict[str, int]


def _known(rows: Mapping[str, int], keys: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the rows of the samples that this node shares, and their positions among ``keys``."""
    places = [place for place, key in enumerate(keys) if key in rows]
    found = torch.tensor([rows[keys[place]] for place in places], dtype=torch.int64)
    return found, torch.tensor(places, dtype=torch.int64)


@contextmanager
def _own_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random numbers of a forward pass, and restore the generators afterwards."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.manual_seed(seed)
        yield
