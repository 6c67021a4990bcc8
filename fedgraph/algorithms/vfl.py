"""Vertical federated learning with gradients: the server's fusion model and the owners' models are trained together.

Rows L and M of table 2 of Ma, Hoang, Chen (UAI 2023), the baseline of F3: an exchange for every minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.algorithms.owners import (
    OwnersAlgorithm,
    build_outcome,
    bytes_per_owner,
    join_answers,
    notes_on_shared,
    num_learned_from,
    owner_metrics,
    report_epoch,
)
from fedgraph.algorithms.phases import Keep, Opening, Outcome, Phase, PhaseRun, Recall, Without
from fedgraph.algorithms.vfl_steps import VerticalSteps
from fedgraph.fusion import (
    FusionEpoch,
    FusionNetwork,
    FusionSettings,
    JoinedSamples,
    Prediction,
    Rate,
    SingleFusion,
    build_network,
    check_fusion,
    learn,
    log_loss,
    make_optimizer,
    predict,
    write_predictions,
)
from fedgraph.fusion.owner_models import LocalModelSettings
from fedgraph.messages import EmbedReply, EmbedRequest
from fedgraph.models import flattened
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.files import State
from fedgraph.support.randomness import generator
from fedgraph.support.threads import pinned_threads


class VerticalSettings(FusionSettings, LocalModelSettings):
    """``[vfl]``: the fusion model at the server as in ``[f3]``, one of them, with one learning rate and owner dropout,
    and the owners' own models.

    Embeddings change during training and are therefore not scaled; native code, which needs many minibatches at once,
    is not used.

    Attributes
    ----------
    pre_trained : whether the owners' models are trained alone first (row L), or start from random weights (row M).
    epochs, patience : of joint training; a run takes an exchange per minibatch and one more per epoch.
    """

    fusion: SingleFusion = "graph"
    scaling: Literal["none"] = "none"
    monitor: Literal["loss"] = "loss"
    compile: Literal[False] = False
    pre_trained: bool = True
    learning_rates: tuple[Rate, ...] = Field(default=(0.01,), min_length=1, max_length=1)
    owner_dropout: float = Field(default=0.0, ge=0, lt=1)
    epochs: int = Field(default=100, ge=1)
    patience: int = Field(default=20, ge=1)


@dataclass
class _Learnt:
    """Progress of joint training, without the current network.

    ``epochs`` are in order; ``lowest`` is the lowest validation loss, that of ``best_epoch``; ``best`` and ``network``
    are the prediction of all held-out samples, and the network's state, after that epoch.
    """

    epochs: list[FusionEpoch] = field(default_factory=list)
    lowest: float = math.inf
    best_epoch: int = 0
    best: Prediction = field(default_factory=lambda: Prediction(torch.zeros(0), torch.zeros(0)))
    network: dict[str, Tensor] = field(default_factory=dict)

    def take(self, epoch: FusionEpoch, prediction: Prediction, network: FusionNetwork) -> None:
        """Add another epoch."""
        self.epochs.append(epoch)
        if epoch.validation_loss < self.lowest:
            self.lowest, self.best_epoch, self.best = epoch.validation_loss, epoch.epoch, prediction
            self.network = {name: value.cpu().clone() for name, value in network.state_dict().items()}

    def state(self) -> State:
        """Return everything, to be saved."""
        best = vars(self.best)
        return {**vars(self), "epochs": [astuple(each) for each in self.epochs], "best": best}

    @classmethod
    def of_state(cls, state: State) -> _Learnt:
        """Restore what :meth:`state` returned."""
        epochs = [FusionEpoch(*each) for each in state["epochs"]]
        return cls(**{**state, "epochs": epochs, "best": Prediction(**state["best"])})


class Vertical(OwnersAlgorithm[VerticalSettings]):
    """Trains the fusion model on the owners' current embeddings, and sends their gradients back.

    A stopped run continues after its last whole epoch, from its checkpoint and the state of the nodes.
    """

    name = "vfl"
    may_change = ("epochs", "patience", "workers", "device")
    title = "Vertical federated learning: gradients of embeddings go back to the owners' models"
    no_predictions = (
        "the owners' models change with the fusion model and stay with their nodes, not kept for new samples: "
        'method = "f3" keeps frozen models, which predict new samples'
    )
    default_client = "fedgraph.clients.vfl:VerticalClient"

    @classmethod
    def steps_of(cls, settings: VerticalSettings, rounds: int) -> int:
        """Return the number of epochs; a run takes fewer when validation does not improve."""
        return settings.epochs

    def check(self, run: PhaseRun) -> None:
        """Raise ExperimentError for a fusion model that cannot be built."""
        check_fusion(self.settings, run.graph_given)

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Train fusion model and owners' models together, and predict the held-out samples.

        Raises DataError or RunError when there is nothing to learn from, or training diverges.
        """
        settings = self.settings
        kept = yield Recall()
        joined = yield from self._samples(run, kept)
        notes = notes_on_shared(joined)
        # Only the sizes of the first embeddings are used; a view would keep them in memory.
        joined = replace(joined, embeddings=joined.embeddings[..., :0].clone())
        graph = run.graph_of(joined)
        adjacency = None if graph is None else graph.dense().float()
        network = build_network(settings, joined.sizes, len(joined.classes), adjacency, run.seed)
        network = network.to(settings.torch_device())
        steps = VerticalSteps(joined)
        optimizer = make_optimizer(network, settings, settings.learning_rates[0])
        training = joined.of_split("train")
        held_out = torch.cat([joined.of_split(name) for name in ("validation", "test")])
        validation = torch.arange(len(joined.of_split("validation")))
        for name, rows in (("train", training), ("validation", validation)):
            if not len(rows):
                raise DataError(f"there are no {name} samples to learn from: check the shares of splits, and overlap")
        settings.warn_unaligned(joined.owners, joined.present, joined.of_split("train"))
        learnt = _Learnt()
        if kept:
            learnt = _Learnt.of_state(kept["learnt"])
            network.load_state_dict(kept["network"])
            _set_optimizer_back(optimizer, kept["optimizer"])
            steps.load_state(kept["steps"])
            yield Without(dict.fromkeys(steps.lost, "lost before the run was stopped"))
            for each in learnt.epochs:
                report_epoch(run, each)
        for epoch in range(len(learnt.epochs) + 1, settings.epochs + 1):
            if len(learnt.epochs) - learnt.best_epoch >= settings.patience:
                break
            total, prediction = yield from self._epoch(
                epoch, run.seed, network, optimizer, steps, joined, training, held_out
            )
            loss_there = log_loss(prediction.probabilities[validation], joined.labels[held_out][validation])
            if not (math.isfinite(total) and math.isfinite(loss_there)):
                raise RunError(
                    f"joint training diverged in epoch {epoch}: the training loss is {total / len(training)}, the "
                    f"validation loss {loss_there}; lower learning-rates, or learning-rate in [train]"
                )
            found = FusionEpoch(settings.learning_rates[0], epoch, total / len(training), loss_there)
            learnt.take(found, prediction, network)
            report_epoch(run, found)
            yield Keep(
                {
                    "samples": joined.state(),
                    "learnt": learnt.state(),
                    "network": network.state_dict(),
                    "optimizer": {str(number): value for number, value in optimizer.state_dict()["state"].items()},
                    "steps": steps.state(),
                }
            )
        return self._outcome(run, joined, joined.only(held_out), learnt, steps, notes)

    def _samples(self, run: PhaseRun, kept: State) -> Phase[JoinedSamples]:
        """Return the samples of all owners; those of a stopped run after its owners confirm them.

        A request for embeddings restarts the owners' models, so it is only made if no epoch is checkpointed.
        """
        before = JoinedSamples.of_state(kept["samples"]) if kept else None
        owners = None if before is None else before.owners
        request = EmbedRequest(embeddings=before is None)
        answers: Mapping[int, EmbedReply] = yield Opening(request, EmbedReply.unpack, EmbedRequest.message_type, owners)
        now, absent = yield from join_answers(run, answers, owners, request.embeddings)
        if before is None:
            return now
        gone = sorted((set(absent) & set(before.owners)) - set(kept["steps"]["lost"]))
        if gone:
            raise RunError(
                f"{', '.join(gone)} took part before this run was stopped and cannot now ({absent[gone[0]]}); "
                "resume it when all are there"
            )
        same = all(torch.equal(getattr(now, name), getattr(before, name)) for name in ("present", "split", "labels"))
        if not same or (now.keys, now.classes) != (before.keys, before.classes):
            raise DataError(
                "samples, labels or splits of the owners have changed since this run was stopped; restart it"
            )
        return before

    def _epoch(
        self,
        epoch: int,
        seed: int,
        network: FusionNetwork,
        optimizer: torch.optim.Optimizer,
        steps: VerticalSteps,
        joined: JoinedSamples,
        training: Tensor,
        held_out: Tensor,
    ) -> Phase[tuple[float, Prediction]]:
        """Run one pass over the training samples; return the sum of their losses, and the held-out prediction."""
        settings = self.settings
        device = settings.torch_device()
        random = generator(seed, "fusion epoch", epoch)
        order = training[torch.randperm(len(training), generator=random)]
        total = 0.0
        seen = []
        for rows in order.split(settings.batch_size):
            embeddings = (yield from steps.embed(rows, training=True)).to(device).requires_grad_()
            present, labels = steps.present(rows).to(device), joined.labels[rows].to(device)
            with pinned_threads(1):
                network.train()
                loss = learn(network, optimizer, embeddings, present, labels, random, settings.owner_dropout)
            assert embeddings.grad is not None
            steps.send_back(rows, embeddings.grad.cpu())
            seen.append(embeddings.detach())
            total += float(loss) * len(rows)
        # Evaluated with current embeddings, so only predictions are kept for the best epoch.
        embeddings = yield from steps.embed(held_out, training=False)
        network.settle(torch.cat(seen), steps.present(order).to(device))
        prediction = predict(network, embeddings, steps.present(held_out), settings.draws, seed, settings.average)
        return total, prediction

    def _outcome(
        self,
        run: PhaseRun,
        joined: JoinedSamples,
        whole: JoinedSamples,
        learnt: _Learnt,
        steps: VerticalSteps,
        notes: list[str],
    ) -> Outcome:
        # The owners' own predictions are of models that have changed since.
        whole, best = replace(whole, predictions=whole.predictions[..., :0]), learnt.best
        epochs = len(learnt.epochs)
        facts: dict[str, Any] = {
            "fusion": {"epoch": learnt.best_epoch, "epochs": epochs, "validation_loss": learnt.lowest},
            "bytes_per_owner": steps.bytes_per_owner + bytes_per_owner(joined, len(joined.keys)),
            "training_bytes_per_owner": steps.training_bytes_per_owner
            + bytes_per_owner(joined, num_learned_from(joined)),
            "notes": notes,
        }
        return build_outcome(
            joined,
            owner_metrics(whole, best, tuple(name for name in run.splits if name != "train")),
            parameters=flattened(learnt.network),
            rounds=epochs,
            facts=facts,
            arrays=learnt.network,
            files={"predictions.csv": lambda path: write_predictions(path, whole, best.probabilities, best.deviation)},
        )


def _set_optimizer_back(optimizer: torch.optim.Optimizer, moments: State) -> None:
    state = optimizer.state_dict()
    state["state"] = {int(number): value for number, value in moments.items()}
    optimizer.load_state_dict(state)
