"""Training and evaluation of many clients' models, as rows of one matrix ``[clients, parameters]``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from fedgraph.data import CohortData, Split, SplitName
from fedgraph.models import StackedModel, finite_rows
from fedgraph.support import devices
from fedgraph.support.errors import DataError, ExperimentError, RunError, quoted
from fedgraph.training.blocks import Blocks
from fedgraph.training.local_training import GradientTerm, LocalTraining, autocast
from fedgraph.training.optimisers import check_state, fresh_state
from fedgraph.training.own_function import OwnFunction
from fedgraph.training.settings import TrainSettings
from fedgraph.training.tallies import tally
from fedgraph.training.working_set import portion

__all__ = ["Cohort", "GradientTerm", "TrainResult", "TrainSettings"]

log = logging.getLogger("fedgraph")

Result = TypeVar("Result")

EVALUATION_BATCH = 256


@dataclass(frozen=True)
class TrainResult:
    """Result of a round of training, on the CPU.

    Attributes
    ----------
    parameters : Tensor
        float32 ``[clients, parameters]``.
    loss : Tensor
        Mean training loss over all weighted targets of the round, ``[clients]``; NaN without training.
    steps : Tensor
        Number of minibatches, int64 ``[clients]``; 1 for a client trained by ``[train] function``.
    num_examples : Tensor
        Training examples of each client, int64 ``[clients]``.
    optimizer_state : dict of str to Tensor
        Moments to pass to the next round, ``[clients, ...]``; empty unless ``keep-optimizer`` is set.
    """

    parameters: Tensor
    loss: Tensor
    steps: Tensor
    num_examples: Tensor
    optimizer_state: dict[str, Tensor]


@dataclass(frozen=True)
class TrainedMean:
    """The mean of trained models, on the CPU; see :class:`TrainResult`.

    Attributes
    ----------
    mean : Tensor
        float32 ``[parameters]``; undefined if no finite model has a weight.
    finite : Tensor
        Models in the mean, bool ``[clients]``: those without NaN and infinite values.
    loss : Tensor
        As there.
    """

    mean: Tensor
    finite: Tensor
    loss: Tensor


class Cohort:
    """The clients of one node: model architecture, data and training settings.

    Clients are independent: a client's result does not depend on the other clients, their order or the block size, up
    to float tolerance, and is bitwise identical for any number of workers. A model that draws random numbers in its
    forward pass, as dropout does, has separate ones for each client: on a CPU it is computed for one client after the
    other, with a generator for each (:class:`fedgraph.models.own_draws.OwnDraws`); on a GPU for many clients together,
    with numbers that are hashes of client, round and step (:class:`fedgraph.models.hashed_draws.HashedDraws`). Where
    neither is possible, as for a recurrent layer with dropout inside, one worker computes client after client, unless
    ``block-size`` is set. Torch's global generators are not changed. Raises ExperimentError when the settings require
    CUDA and it is not available.

    Parameters
    ----------
    model : StackedModel
        Architecture of all clients.
    data : CohortData
        Data of the clients, in the order of the rows of all matrices.
    settings : TrainSettings
        Training settings and device.
    seed : int
        Seed of the experiment; the order of a client's examples depends on it, the client's name and the round.
    """

    def __init__(self, model: StackedModel, data: CohortData, settings: TrainSettings, seed: int) -> None:
        model = model if data.graphs is None else model.with_graphs(data.graphs)
        self.device = settings.torch_device()
        # Native code is for a CPU.
        self.model = model.compiled() if settings.compiles and self.device.type == "cpu" else model
        self.data = data
        self.settings = settings
        self.seed = seed
        self._function = None if settings.function is None else OwnFunction(settings)
        if self._function is not None and data.augment is not None:
            raise ExperimentError("[data] augments training examples, but [train] function would not: leave one out")
        if self._function is not None and data.graphs is not None:
            raise ExperimentError(
                "[train] function receives single examples, but a model of graphs takes whole graphs: leave it out"
            )
        self._training = LocalTraining(self.model, data.task, settings, seed, data.augment)
        self._blocks = Blocks(data, self._training, self.device)
        self._warned = False

    def train(
        self,
        parameters: Tensor,
        round: int,
        gradient_term: GradientTerm | None = None,
        optimizer_state: dict[str, Tensor] | None = None,
    ) -> TrainResult:
        """Train every client from its row of ``parameters``, which is not modified.

        Returns the trained models, losses and numbers of steps. Raises RunError when ``parameters`` or the state do not
        fit.

        Parameters
        ----------
        parameters : Tensor
            ``[clients, parameters]``.
        round : int
            Round from 1, which determines the order of the examples and the learning rate.
        gradient_term : GradientTerm, optional
            Added to every gradient.
        optimizer_state : dict of str to Tensor, optional
            As returned by the last round; None for initial moments.
        """
        clients, trainable = len(self.data.names), self.model.layout.num_trainable
        self._check(parameters)
        kept: dict[str, Tensor] = {}
        if self.settings.keep_optimizer:
            kept = fresh_state(self.settings, clients, trainable)
            if optimizer_state is not None:
                check_state(optimizer_state, kept)
                kept = {name: value.to("cpu", copy=True) for name, value in optimizer_state.items()}
        start, result = parameters.detach(), devices.results(clients, self.model.layout.num_parameters, self.device)
        loss = torch.full((clients,), torch.nan)
        steps = torch.zeros(clients, dtype=torch.int64)

        def train(chosen: slice) -> None:
            block = self._blocks.block(chosen)
            # In place for adjacent rows. Of `data`, since autograd counts changes of a tensor and all its views, which
            # other threads make too.
            shared = isinstance(block.rows, slice) and self.device.type == "cpu"
            matrix = result.data[block.rows].copy_(start[block.rows]) if shared else self._from(start, block.rows)
            moments = {name: value[block.rows].to(self.device, copy=True) for name, value in kept.items()}
            used = moments or fresh_state(self.settings, len(matrix), trainable, self.device)
            mean_loss, count = self._training.run(block, matrix, used, round, gradient_term)
            if not shared and isinstance(block.rows, slice):
                result[block.rows].copy_(matrix, non_blocking=True)  # what is read next waits for it
            elif not shared:
                result[block.rows] = matrix.cpu()
            loss[block.rows], steps[block.rows] = mean_loss.to("cpu", torch.float32), count
            for name, value in moments.items():
                kept[name][block.rows] = value.cpu()

        if self._function is not None:
            self._function.check_terms(gradient_term)
            result.copy_(start)
            for row in (self._blocks.num_examples > 0).nonzero().flatten().tolist():
                result[row], loss[row] = self._function.train(
                    self.model,
                    result[row],
                    self.data.splits["train"].select(slice(row, row + 1)),
                    client=self.data.names[row],
                    position=row,
                    round=round,
                    seed=self.seed,
                    term=gradient_term,
                    device=self.device,
                )
                steps[row] = 1
        elif self.settings.local_steps or self.settings.local_epochs:
            self._check_batches()
            native = self._training.descends(gradient_term)
            self._blocks.each(train, self.settings.batch_size, training=True, native=native)
        else:
            result.copy_(start)
        return TrainResult(result, loss, steps, self._blocks.num_examples.clone(), kept)

    def train_mean(
        self, parameters: Tensor, weights: Tensor, round: int, gradient_term: GradientTerm | None = None
    ) -> TrainedMean:
        """Train as :meth:`train`, and return only the weighted mean of the models.

        Only a part of the models is in memory at a time. The last bits of the sum depend on the size of parts, which
        depends only on the model.

        Parameters
        ----------
        parameters, round, gradient_term
            As of :meth:`train`.
        weights : Tensor
            float32 ``[clients]``.
        """
        self._check(parameters)
        if self._function is not None or not (self.settings.local_steps or self.settings.local_epochs):
            result = self.train(parameters, round, gradient_term)
            return TrainedMean(*mean_of(result.parameters, weights), result.loss)
        clients, start = len(self.data.names), parameters.detach()
        shares = weights / weights.sum()
        loss, finite = torch.full((clients,), torch.nan), torch.zeros(clients, dtype=torch.bool)

        def summed(chosen: slice) -> Tensor:
            block = self._blocks.block(chosen)
            matrix = self._from(start, block.rows)
            moments = fresh_state(self.settings, len(matrix), self.model.layout.num_trainable, self.device)
            share = shares[block.rows].to(self.device)  # before training, as it waits for the GPU
            mean_loss, _ = self._training.run(block, matrix, moments, round, gradient_term)
            total, fine = weighted_sum(matrix, share)
            loss[block.rows], finite[block.rows] = mean_loss.to("cpu", torch.float32), fine.cpu()
            return total.cpu()

        self._check_batches()
        native = self._training.descends(gradient_term)
        most = portion(self.model.layout.num_parameters, self.device)
        sums = self._blocks.each(summed, self.settings.batch_size, training=True, native=native, most=most)
        mean = torch.stack(sums).sum(0) if len(sums) > 1 else sums[0]
        return TrainedMean(mean if bool(finite.all()) else mean / shares[finite].sum(), finite, loss)

    def _from(self, start: Tensor, rows: slice | Tensor) -> Tensor:
        """Return a copy of the models of some clients on the device; a common model is transferred once."""
        if start.stride(0) == 0 and len(start) > 1:
            first = start[:1].to(self.device)
            return first.expand(len(start[rows]), -1).clone(memory_format=torch.contiguous_format)
        return start[rows].to(self.device, copy=isinstance(rows, slice))

    def evaluate(
        self,
        parameters: Tensor,
        split: SplitName,
        horizons: Sequence[int] = (),
        batch_size: int = EVALUATION_BATCH,
        missing_as: float | None = None,
        unseen_classes: bool = False,
        least_unseen: int = 1,
    ) -> dict[str, Tensor]:
        """Compute metrics of every client's model on its own examples.

        Classification: ``accuracy``, ``loss`` and ``f1``. Regression: ``mae`` and ``rmse``. Forecast: masked ``mae``,
        ``rmse`` and ``mape`` (percent), over all steps and at each step of ``horizons``, in the task's unit. Returns a
        dict of str to Tensor by metric, ``[clients]``, NaN without valid targets. Raises RunError when ``parameters``
        do not fit. Raises DataError when the data set has no such split. Raises ExperimentError when there is no such
        forecast step.

        Parameters
        ----------
        parameters : Tensor
            ``[clients, parameters]``.
        split : str
            Split of the data.
        horizons : sequence of int
            Forecast steps from 1.
        batch_size : int
            Number of examples of a client per batch.
        missing_as : float, optional
            Value of missing targets, in the task's unit, for the additional metrics ``mae-unmasked`` and
            ``rmse-unmasked``, also at each step.
        unseen_classes : bool
            Whether to add ``accuracy-unseen``, of examples of classes without training examples at the client.
        least_unseen : int
            Fewest such examples of which it is told; NaN for clients with fewer.
        """
        self._check(parameters)

        def measure(block: slice) -> dict[str, Tensor]:
            mean, std = self.data.mean[block].to(self.device), self.data.std[block].to(self.device)
            unseen = self._unseen(block) if unseen_classes else None
            sums = tally(self.data.task, mean, std, horizons, missing_as, unseen, least_unseen)
            for batch in self._outputs(parameters, split, block, batch_size):
                sums.add(*batch)
            return {name: values.cpu() for name, values in sums.result().items()}

        results = self._blocks.each(measure, batch_size)
        return {name: torch.cat([result[name] for result in results]) for name in results[0]}

    def split(self, name: SplitName) -> Split:
        """Return a split on the device, cached. Raises DataError for an unknown split."""
        return self._blocks.split(name)

    def _unseen(self, block: slice) -> Tensor | None:
        """Return the classes without training examples of each client, bool ``[clients, classes]``."""
        counts = self.data.label_counts
        return None if counts is None else (counts[block] == 0).to(self.device)

    def predict(self, parameters: Tensor, split: SplitName, batch_size: int = EVALUATION_BATCH) -> Tensor:
        """Return outputs ``[clients, examples, *output_shape]`` in the task's unit (logits for classification).

        Rows of clients with fewer examples are padded with NaN. Raises RunError when ``parameters`` do not fit, and
        DataError for an unknown split.
        """
        self._check(parameters)
        counts = self._blocks.split(split).num_examples
        shape = (len(counts), int(counts.max()), *self.data.task.output_shape)
        predictions = torch.full(shape, torch.nan)

        def fill_in(block: slice) -> None:
            start = 0
            for outputs, _, _, present in self._outputs(parameters, split, block, batch_size):
                stop = start + outputs.shape[1]
                std, mean = (_widened(value[block], outputs) for value in (self.data.std, self.data.mean))
                values = outputs.cpu() * std + mean
                predictions[block, start:stop] = values.masked_fill(~_widened(present.cpu(), outputs), torch.nan)
                start = stop

        self._blocks.each(fill_in, batch_size)
        return predictions

    def classify(
        self, parameters: Tensor, split: SplitName, batch_size: int = EVALUATION_BATCH
    ) -> tuple[Tensor, Tensor]:
        """Return the predicted and the true class of every example, int64 ``[clients, examples]`` each.

        Both are padded with -1 after a client's last example; the predicted class is also -1 for non-finite outputs.
        Raises DataError for a task without classes.
        """
        self._check(parameters)
        if self.data.task.kind != "classification":
            raise DataError(f"examples of a {self.data.task.kind} task have no classes to predict")

        counts = self._blocks.split(split).num_examples
        classes = torch.full((2, len(counts), int(counts.max())), -1)

        def fill_in(block: slice) -> None:
            start = 0
            for outputs, targets, _, present in self._outputs(parameters, split, block, batch_size):
                stop = start + outputs.shape[1]
                predicted = outputs.argmax(-1).masked_fill(~outputs.isfinite().all(-1), -1)
                both = torch.stack([predicted, targets])
                classes[:, block, start:stop] = both.masked_fill(~present, -1).cpu()
                start = stop

        self._blocks.each(fill_in, batch_size)
        predicted, targets = classes
        return predicted, targets

    @property
    def computed(self) -> str:
        """Description of the way models are trained on this node."""
        where = "a GPU" if self.device.type != "cpu" else "a CPU"
        if self._function is not None:
            return f"by {self.settings.function}"
        if self.device.type == "cpu" and self.model.native and self.model.library is not None:
            return "by native code, compiled on the node ([train] compile)"
        if self._training.sequential(self.device):
            return f"sequentially by client, on {where}"
        by = "torch.compile" if self.device.type == "cpu" else "CUDA graphs"
        compiled = f", by {by} where that works" if self.settings.compile is True else ""
        return f"stacked, on {where}{compiled}"

    @property
    def least_examples(self) -> int:
        """Minimum number of examples of a minibatch."""
        return self._training.least

    def _check_batches(self) -> None:
        """Refuse minibatches that are too small for the model, and warn once about dropped last ones."""
        size, least = self.settings.batch_size, self.least_examples
        if size < least:
            raise ExperimentError(
                f"[train] batch-size = {size}: the model has layers such as batch normalisation, which need at least "
                f"{least} examples"
            )
        rest = self._blocks.num_examples % size
        short = (rest > 0) & (rest < least)
        if self.settings.drop_last:
            short &= self._blocks.num_examples < size
        if self._warned or not bool(short.any()):
            return
        self._warned = True
        names = [name for name, present in zip(self.data.names, short.tolist(), strict=True) if present]
        log.warning(
            "a minibatch of one example has no batch statistics: it is dropped at the end of an epoch, for %s; another "
            "[train] batch-size may avoid it, and a client with one example in total does not train",
            quoted(names),
        )

    def _outputs(
        self, parameters: Tensor, split: SplitName, block: slice, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield outputs, targets, weights and presence of all examples of a block in order."""
        data = self._blocks.split(split).select(block)
        counts = data.num_examples
        state = self.model.layout.unflatten(parameters[block].detach().to(self.device, torch.float32))
        # At least one batch: clients without examples get NaN from its empty sums.
        longest = max(int(counts.max()), 1)
        batch_size = longest if self.model.mixes_examples(training=False) else batch_size
        for start in range(0, longest, batch_size):
            indices = torch.arange(start, min(start + batch_size, longest), device=self.device).expand(len(counts), -1)
            present = indices < counts.to(self.device)[:, None]
            inputs, targets, weights = data.batch(indices.masked_fill(~present, -1))
            with torch.no_grad(), autocast(self.settings, self.device):
                outputs, _ = self.model.forward(state, inputs, training=False)
            yield outputs.float(), targets, weights, present

    def _check(self, parameters: Tensor) -> None:
        wanted = (len(self.data.names), self.model.layout.num_parameters)
        if tuple(parameters.shape) != wanted:
            raise RunError(
                f"the parameters have shape {tuple(parameters.shape)}, but {wanted[0]} clients with {wanted[1]} "
                f"parameters each need {wanted}"
            )


def mean_of(models: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted mean of the finite models ``[clients, parameters]`` and a bool mask ``[clients]``.

    The mean is undefined if none of these has a weight.
    """
    shares = weights / weights.sum()
    total, finite = weighted_sum(models, shares)
    return total if bool(finite.all()) else total / shares[finite].sum(), finite


def weighted_sum(matrix: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the finite rows ``[clients, parameters]``, and which are finite.

    One pass if all are, as a finite sum has finite terms.
    """
    total = weights @ matrix
    if bool(finite_rows(total[None])):
        return total, torch.ones(len(matrix), dtype=torch.bool, device=matrix.device)
    finite = finite_rows(matrix)
    return weights @ torch.where(finite[:, None], matrix, 0.0), finite


def _widened(values: Tensor, like: Tensor) -> Tensor:
    """Append dimensions of size 1 to ``values``, so that they broadcast against the leading ones of ``like``."""
    return values.reshape(*values.shape, *[1] * (like.dim() - values.dim()))
