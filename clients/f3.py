"""The client class of F3: an owner's frozen model, and its embeddings of the owner's samples.

Ma, Hoang, Chen: Federated Learning of Models Pre-Trained on Different Features with Consensus Graphs (UAI 2023), lines
2, 3 and 9 of algorithm 1. Models and features stay here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import ClassVar, cast

import torch
from flwr.app import Message, RecordDict
from torch import Tensor
from typing_extensions import TypeVar

from fedgraph.algorithms.f3_settings import EmbeddingSettings
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.disclosure import described
from fedgraph.clients.engine.node import Node
from fedgraph.data import SPLITS, DataSource
from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData, Preparation, owner_source
from fedgraph.experiment import Experiment
from fedgraph.fusion.owner_models import Embedded, LocalModelSettings, LocalStage, ModelStore
from fedgraph.messages import EmbedReply, EmbedRequest
from fedgraph.models import ModelChoice
from fedgraph.privacy.noise import NoiseSettings, release
from fedgraph.support.errors import ReplyError, counted
from fedgraph.support.settings import Configured

SAMPLE_FACTS = (
    "the key of each sample, its split, and its label if this node has it",
    "which samples each owner has",
    "a fingerprint of each owner's own model",
)
"""Descriptions of data on samples that leave a node in addition to embeddings."""

_EMBEDDING = "an embedding of each sample: the input of the last linear layer of the owner's own model"
SENDS_EMBEDDINGS = (
    *SAMPLE_FACTS,
    _EMBEDDING,
    "the class probabilities of each sample by the owner's own model",
)
"""The same for unchanged embeddings."""


SomeOwners = TypeVar("SomeOwners", bound=LocalModelSettings, default=LocalModelSettings)


class OwnersClient(Configured[SomeOwners]):
    """Serves the owners of one node.

    Each owner trains a model on its own features, or uses an existing one (node config ``model`` or ``models``), which
    is then frozen. The reply has its embeddings, the input of the model's last linear layer, and its predictions.
    """

    keeps: ClassVar[tuple[str, ...]] = ("features", "each owner's own model")

    def __init__(self, node: Node, request: EmbedRequest) -> None:
        self.node = node
        self.request = request
        self.assignment = Assignment.of(request.experiment)
        self.settings = cast(SomeOwners, self.assignment.method_as(self.settings_type))
        self.source = owner_source(node.source(self.assignment), "f3")
        hosted, trained = sorted(node.hosted(self.assignment)), request.fingerprints
        # New data may have owners that the run did not have, and for which the fusion model has no place.
        self.owners = tuple(name for name in hosted if not trained or name in trained)

    @classmethod
    def check_source(cls, source: DataSource) -> None:
        """Raise DataError for data without owners; called in a rehearsal."""
        owner_source(source, "f3")

    @classmethod
    def handle(cls, message: Message, node: Node) -> RecordDict:
        """Answer a message; called by the ClientApp."""
        request = EmbedRequest.unpack(message.content)
        served, what = cls(node, request), "embeddings" if request.embeddings else "samples"
        node.record(request.run, what, served.owners, message.content)
        return served.reply().pack()

    def reply(self) -> EmbedReply:
        """Return the owners' parts of the requested samples."""
        if not self.owners:
            return EmbedReply.empty(self.node.partition())
        self._check_request()
        data = self.source.load_owners(self.owners, self._kept_preparations())
        self._check_rows(data)
        requested = torch.isin(data.split, torch.tensor([SAMPLE_SPLITS.index(name) for name in self.request.splits]))
        requested &= data.present.any(0) & data.shared
        embedded = self.embed(data) if self.request.embeddings else _nothing(data)
        if self.request.embeddings:
            embedded = self.released(embedded, data, data.present & requested)
        sent = "embeddings" if self.request.embeddings else "keys and labels"
        self.node.done.append(f"sent {sent} of {counted(int(requested.sum()), 'row')}")
        return EmbedReply(
            clients=self.owners,
            partition=self.node.partition(),
            data=described(self.source, self.node, data.tasks[0].classes),
            classes=data.tasks[0].classes,
            keys=tuple(key for key, wanted in zip(data.keys, requested.tolist(), strict=True) if wanted),
            split=data.split[requested],
            labels=data.labels[requested],
            present=data.present[:, requested],
            sizes=embedded.sizes,
            embeddings=embedded.embeddings[:, requested],
            predictions=embedded.predictions[:, requested],
            fingerprints=embedded.fingerprints,
        )

    def _check_request(self) -> None:
        """Raise ReplyError for splits that the method does not use, and for earlier models without an earlier run."""
        method = self.assignment.method
        others = set(self.request.splits) - ({method["samples"]} if "samples" in method else set(SPLITS))
        if others:
            raise ReplyError(f"the request asks for {', '.join(sorted(others))} samples, which the method does not use")
        if self.request.fingerprints and "run" not in method:
            raise ReplyError("the request asks for embeddings by models of an earlier run, and the method names none")

    def _check_rows(self, data: OwnerData) -> None:
        """Raise ExperimentError for fewer samples than the site's agreement requires; new ones are told one by one."""
        for row, owner in enumerate(data.owners):
            counts = torch.bincount(data.split[data.present[row]].long(), minlength=len(SAMPLE_SPLITS)).tolist()
            self.node.check_rows(owner, dict(zip(SAMPLE_SPLITS, counts, strict=True)))

    @property
    def _store(self) -> ModelStore:
        return ModelStore(self.node.model_dir)

    def _kept_preparations(self) -> dict[str, Preparation]:
        """Return the stored input preparations of the requested models, by owner."""
        wanted = {owner: self.request.fingerprints.get(owner) for owner in self.owners}
        kept = {owner: self._store.preparation(model) for owner, model in wanted.items() if model}
        return {owner: preparation for owner, preparation in kept.items() if preparation is not None}

    def embed(self, data: OwnerData) -> Embedded:
        """Return embeddings and predictions of all samples by the owners' frozen models."""
        return self.stage(data).embed()

    def stage(self, data: OwnerData) -> LocalStage:
        """Return the stage that provides the owners' models."""
        assignment = self.assignment
        return LocalStage(
            data=data,
            description=self.source.describe(data.tasks[0].classes),
            choice=ModelChoice.of(assignment.model),
            train=assignment.train,
            settings=assignment.method_as(LocalModelSettings),
            seed=assignment.seed,
            store=self._store,
            brought=self.node.existing_models(self.owners, self.source.client_names()),
            wanted=self.request.fingerprints,
        )

    def released(self, embedded: Embedded, data: OwnerData, leaving: Tensor) -> Embedded:
        """Return what the server receives of the samples in ``leaving``, ``[owners, samples]``; all by default."""
        return embedded


class F3Client(OwnersClient[EmbeddingSettings]):
    """Serves owners with optional out-of-fold embeddings and optional noise."""

    noise: ClassVar[str] = "noise"

    def stage(self, data: OwnerData) -> LocalStage:
        """See :class:`OwnersClient`."""
        return replace(super().stage(data), folds=self.settings.folds)

    @classmethod
    def sends_as(cls, experiment: Experiment, node: Node) -> list[str]:
        """Describe what leaves the node, see ``fedgraph.clients.engine.disclosure``."""
        if experiment.method_table.get("noise") is not None:
            return [*SAMPLE_FACTS, f"{_EMBEDDING}, clipped and with noise ([{experiment.method.name}.noise])"]
        return list(SENDS_EMBEDDINGS)

    def released(self, embedded: Embedded, data: OwnerData, leaving: Tensor) -> Embedded:
        """Return clipped, noisy embeddings of the samples in ``leaving`` ``[owners, samples]``, without predictions.

        Noise goes by the content of a sample, whatever its key. Raises ReplyError for samples without budget, see
        :class:`fedgraph.privacy.Ledger`.
        """
        noise = self.settings.noise
        if noise is None:
            return embedded
        embeddings, folds = torch.zeros_like(embedded.embeddings), self.settings.folds
        budget = noise.budget(self.node.limits.epsilon, self.node.limits.delta)
        # Of other models, for which the owner's own one stands if it is asked for.
        out_of_fold = (data.split == SAMPLE_SPLITS.index("train")) & (folds > 1 and not self.request.fingerprints)
        for row, (owner, size) in enumerate(zip(data.owners, embedded.sizes.tolist(), strict=True)):
            ledger = self.node.ledger(self.request.run, owner, "embeddings")
            purpose = [embedded.fingerprints[row], noise.clip_norm, noise.deviation()]
            for samples, models in ((~out_of_fold, []), (out_of_fold, [f"{folds} folds"])):
                places = (leaving[row] & samples).nonzero().flatten()
                clean = embedded.embeddings[row, places, :size]
                rows = self.source.identities(
                    owner, [data.keys[place] for place in places.tolist()], data.tasks[0].classes
                )
                embeddings[row, places, :size] = ledger.rows(
                    rows, [*purpose, *models], budget, partial(_released, clean, noise)
                )
        return replace(embedded, embeddings=embeddings, predictions=embedded.predictions[..., :0])


def _released(clean: Tensor, noise: NoiseSettings, places: Tensor) -> Tensor:
    return release(clean[places], noise)


def _nothing(data: OwnerData) -> Embedded:
    owners, samples = data.present.shape
    empty: Tensor = torch.zeros(owners, samples, 0)
    return Embedded(torch.zeros(owners, dtype=torch.int64), empty, empty, ("",) * owners)
