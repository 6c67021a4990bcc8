"""Vertical federated learning with gradients: the server's fusion model and the owners' models are trained together.

Rows L and M of table 2 of Ma, Hoang, Chen (UAI 2023), the baseline of F3: an exchange for every minibatch.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, field, replace

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.federation import JoinedSamples, OrderedGrid
from fedgraph.fusion import (
    FusionEpoch,
    FusionNetwork,
    Prediction,
    build_network,
    check_fusion,
    class_weights,
    learn,
    log_loss,
    optimizer_of,
    predict,
)
from fedgraph.messages import to_record
from fedgraph.methods.vfl import VerticalSettings
from fedgraph.models import flattened
from fedgraph.runs import write_predictions
from fedgraph.strategies.engine.f3 import bytes_per_owner, measured, num_learned_from
from fedgraph.strategies.engine.owners import OwnersStrategy, outcome_of
from fedgraph.strategies.engine.phases import Outcome
from fedgraph.strategies.engine.vertical_steps import VerticalSteps
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.support.files import State, load_state, save_state
from fedgraph.support.randomness import generator
from fedgraph.support.threads import pinned_threads


@dataclass
class _Learnt:
    """Progress of joint training, beside the current network.

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


class Vertical(OwnersStrategy[VerticalSettings]):
    """Trains the fusion model on the owners' current embeddings, and sends their gradients back.

    A run that was stopped continues after its last whole epoch, from its checkpoint and from what the nodes have kept.
    """

    name = "vfl"
    may_change = ("epochs", "patience", "workers", "device")
    title = "Vertical federated learning: gradients of embeddings go back to the owners' models"
    default_client = "fedgraph.clients.vfl:VerticalClient"

    @classmethod
    def steps_of(cls, settings: VerticalSettings, rounds: int) -> int:
        """Return the number of epochs; a run takes fewer when validation does not improve."""
        return settings.epochs

    def check(self) -> None:
        """Raise ExperimentError for a fusion model that cannot be built."""
        check_fusion(self.settings, self.plan.graph_given)

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Train fusion model and owners' models together, and predict the held-out samples.

        Raises
        ------
        FedgraphError
            As ``samples``; when an owner does not answer a step, or its model diverges.
        """
        saved = self._saved()
        joined = self.samples(grid) if saved is None else self._found_again(grid, saved)
        # Models change: only the sizes of the first embeddings are used, and a view would keep them in memory.
        joined = replace(joined, embeddings=joined.embeddings[..., :0].clone())
        graph = self.plan.graph_of(joined.federation())
        given = None if graph is None else graph.dense().float()
        settings = self.settings
        device = settings.torch_device()
        network = build_network(settings, joined.sizes, len(joined.classes), given, self.plan.seed).to(device)
        steps = VerticalSteps(OrderedGrid(grid, joined.federation(), self.traffic), self.plan, joined)
        optimizer = optimizer_of(network, settings, settings.learning_rates[0])
        training = joined.of_split("train")
        held_out = torch.cat([joined.of_split(name) for name in ("validation", "test")])
        validation = torch.arange(len(joined.of_split("validation")))
        for name, rows in (("train", training), ("validation", validation)):
            if not len(rows):
                raise DataError(f"there are no {name} samples to learn from: check the shares of splits, and overlap")
        settings.warn_of_unaligned(joined.owners, joined.present, joined.of_split("train"))
        weights = class_weights(settings, joined.labels[training], len(joined.classes))
        learnt = _Learnt()
        if saved is not None:
            learnt = _Learnt.of_state(saved["learnt"])
            self._set_back(network, saved["network"])
            _set_optimizer_back(optimizer, saved["optimizer"])
            steps.load_state(saved["steps"])
            for each in learnt.epochs:
                self.record_epoch(each)
        for epoch in range(len(learnt.epochs) + 1, settings.epochs + 1):
            if len(learnt.epochs) - learnt.best_epoch >= settings.patience:
                break
            total, prediction = self._epoch(epoch, network, optimizer, steps, joined, training, held_out, weights)
            loss_there = log_loss(prediction.probabilities[validation], joined.labels[held_out][validation], weights)
            if not (math.isfinite(total) and math.isfinite(loss_there)):
                raise RunError(
                    f"learning together diverged in epoch {epoch}: the training loss is {total / len(training)}, the "
                    f"validation loss {loss_there}; lower learning-rates, or learning-rate in [train]"
                )
            found = FusionEpoch(settings.learning_rates[0], epoch, total / len(training), loss_there)
            learnt.take(found, prediction, network)
            self.record_epoch(found)
            self._save(joined, network, optimizer, steps, learnt)
        whole, best = joined.only(held_out), learnt.best
        # The owners' own predictions are of models that have changed since.
        whole = replace(whole, predictions=whole.predictions[..., :0])
        write_predictions(self.plan.folder.path / "predictions.csv", whole, best.probabilities, best.deviation)
        epochs = len(learnt.epochs)
        facts = {
            "fusion": {"epoch": learnt.best_epoch, "epochs": epochs, "validation_loss": learnt.lowest},
            "bytes_per_owner": steps.bytes_per_owner + bytes_per_owner(joined, len(joined.keys)),
            "training_bytes_per_owner": steps.training_bytes_per_owner
            + bytes_per_owner(joined, num_learned_from(joined)),
        }
        metrics = measured(whole, best, tuple(name for name in self.plan.splits if name != "train"))
        joined = replace(joined, absent={**joined.absent, **steps.lost})
        return outcome_of(joined, metrics, flattened(learnt.network), epochs, facts), to_record(learnt.network)

    def _epoch(
        self,
        epoch: int,
        network: FusionNetwork,
        optimizer: torch.optim.Optimizer,
        steps: VerticalSteps,
        joined: JoinedSamples,
        training: Tensor,
        held_out: Tensor,
        weights: Tensor | None,
    ) -> tuple[float, Prediction]:
        """Run one pass over the training samples; return the sum of their losses, and the prediction of those held out.

        ``weights`` are weights of the classes.
        """
        settings, seed = self.settings, self.plan.seed
        device = settings.torch_device()
        random = generator(seed, "fusion epoch", epoch)
        order = training[torch.randperm(len(training), generator=random)]
        total = 0.0
        seen = []
        for rows in order.split(settings.batch_size):
            embeddings = steps.embed(rows, training=True).to(device).requires_grad_()
            present, labels = steps.present(rows).to(device), joined.labels[rows].to(device)
            with pinned_threads(1):
                network.train()
                loss = learn(network, optimizer, embeddings, present, labels, random, weights, settings.owner_dropout)
            assert embeddings.grad is not None
            steps.send_back(rows, embeddings.grad.cpu())
            seen.append(embeddings.detach())
            total += float(loss) * len(rows)
        # Evaluated with current embeddings, so that only these need be kept for the best epoch.
        embeddings = steps.embed(held_out, training=False)
        network.settle(torch.cat(seen), steps.present(order).to(device))
        prediction = predict(network, embeddings, steps.present(held_out), settings.draws, seed, settings.average)
        return total, prediction

    def _save(
        self,
        joined: JoinedSamples,
        network: FusionNetwork,
        optimizer: torch.optim.Optimizer,
        steps: VerticalSteps,
        learnt: _Learnt,
    ) -> None:
        moments = {str(number): value for number, value in optimizer.state_dict()["state"].items()}
        learning = {
            "learnt": learnt.state(),
            "network": network.state_dict(),
            "optimizer": moments,
            "steps": steps.state(),
        }
        save_state(self.plan.folder.checkpoint, {"samples": joined.state(), "learning": learning, **self.counters()})

    def _saved(self) -> State | None:
        """Return the state of a run that was stopped after at least one epoch; a run without any starts again."""
        kept = self.plan.folder.checkpoint
        saved = load_state(kept) if kept.exists() else {}
        if "learning" not in saved:
            kept.unlink(missing_ok=True)
            return None
        return {**saved, **saved["learning"]}

    def _set_back(self, network: FusionNetwork, state: State) -> None:
        try:
            network.load_state_dict(state)
        except RuntimeError:
            raise ExperimentError(
                "the experiment describes another fusion model than when this run was stopped; set it back, or start "
                "the run anew"
            ) from None

    def _found_again(self, grid: Grid, saved: State) -> JoinedSamples:
        """Return the samples of a run that was stopped, with the current nodes of their owners.

        Takes one exchange, without embeddings.
        """
        before = JoinedSamples.of_state(saved["samples"])
        self.count_on(saved)
        now = self.samples(grid, embeddings=False, owners=before.owners)
        gone = sorted(set(now.absent) - set(before.absent) - set(saved["steps"].get("lost", {})))
        if gone:
            raise RunError(
                f"{', '.join(gone)} took part before this run was stopped and cannot now ({now.absent[gone[0]]}); "
                "resume it when all are there"
            )
        same = all(torch.equal(getattr(now, name), getattr(before, name)) for name in ("present", "split", "labels"))
        if not same or (now.keys, now.classes) != (before.keys, before.classes):
            raise DataError("owners hold other samples, labels or splits than when this run was stopped; start it anew")
        return replace(before, hosts=now.hosts)


def _set_optimizer_back(optimizer: torch.optim.Optimizer, moments: State) -> None:
    state = optimizer.state_dict()
    state["state"] = {int(number): value for number, value in moments.items()}
    optimizer.load_state_dict(state)
