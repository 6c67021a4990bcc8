"""The client class for stock Flower strategies: receives one global model, returns its clients' weighted mean.

A node that hosts several clients answers as one Flower client would, so that every strategy of
``flwr.serverapp.strategy`` works unchanged: one ArrayRecord, one MetricRecord with ``num-examples``. Results of single
clients are sent beside them in a ConfigRecord, which those strategies ignore.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from clients.engine.assignment import Assignment
from clients.engine.base import evaluate_splits, measured_after, train_cohort, trained_on
from clients.engine.node import Node
from fedgraph.data import SPLITS
from fedgraph.messages import EXPERIMENT_KEY, KEEP_KEY, ROUND_KEY, RUN_KEY, from_record, to_record, unpacking_request
from fedgraph.models import finite_rows
from fedgraph.support.errors import ReplyError
from fedgraph.training import Cohort, GradientTerm
from fedgraph.training.forecasting import write_forecasts


class StockClient:
    """Serves a node's clients for a message of a stock strategy.

    Raises
    ------
    ReplyError
        When the arrays received are not those of the model.
    """

    sends: ClassVar[tuple[str, ...]] = (
        "the mean of the parameters of its clients' models, weighted by their training examples; where it hosts one "
        "client, the parameters of its model",
    )
    keeps: ClassVar[tuple[str, ...]] = ("labels", "moments of the optimiser")

    def __init__(self, node: Node, content: RecordDict) -> None:
        with unpacking_request():
            config: Any = content.config_records["config"]
            experiment, self.run = str(config[EXPERIMENT_KEY]), str(config[RUN_KEY])
            self.round, self.keep_from = int(config.get(ROUND_KEY, 0)), int(config.get(KEEP_KEY, 0))
            self.splits = [split for split in SPLITS if split in list(config["evaluate"])]
            self.mu = float(config.get("proximal-mu", 0.0))
            (arrays,) = content.array_records.values()
        self.node = node
        self.assignment = Assignment.of(experiment)
        self.clients = tuple(sorted(node.hosted(self.assignment)))
        self.cohort = node.cohort(experiment, self.clients)
        layout = self.cohort.model.layout
        state = from_record(arrays)
        if set(state) != set(layout.names):
            raise ReplyError(f"the server sent the arrays {sorted(state)[:20]}, the model has {sorted(layout.names)}")
        for name, shape in zip(layout.names, layout.shapes, strict=True):
            if tuple(state[name].shape) != tuple(shape):
                raise ReplyError(f"the server sent '{name}' as {tuple(state[name].shape)}, in the model it is {shape}")
        self.model = layout.row(state)[None]
        self.weights = self.cohort.data.splits["train"].num_examples.float()

    @classmethod
    def handle(cls, message: Message, node: Node) -> RecordDict:
        """Answer a message; called by the ClientApp."""
        served = cls(node, message.content)
        return served.train() if message.metadata.message_type == "train" else served.evaluate()

    def train(self) -> RecordDict:
        """Train all clients from the global model; reply with their mean, weighted by training examples.

        Raises
        ------
        ReplyError
            When the training of all clients with examples diverged.
        """
        start = self.model.expand(len(self.clients), -1)
        result = train_cohort(
            self.node,
            self.cohort,
            self.run,
            self.round,
            self.keep_from,
            start,
            self.proximal_term(),
        )
        self.node.done.append(trained_on(self.cohort, self.round))
        usable = finite_rows(result.parameters)
        weights = torch.where(usable, self.weights, 0.0)
        if not usable.any() or (self.weights.any() and not weights.any()):
            raise ReplyError(f"training diverged at {', '.join(self.clients)}: NaN or infinite parameters")
        parameters = result.parameters if usable.all() else torch.where(usable[:, None], result.parameters, 0.0)
        # A node whose clients have no examples returns the model it received, with weight 0.
        mean = (weights / weights.sum()) @ parameters if weights.any() else self.model[0]
        layout = self.cohort.model.layout
        failed = {
            name: "training diverged: NaN or infinite parameters"
            for name, good in zip(self.clients, usable.tolist(), strict=True)
            if not good
        }
        return RecordDict(
            {
                "arrays": to_record(layout.row_state(mean)),
                "metrics": self._means({"loss": result.loss}, weights),
                "config": self._per_client({"loss": result.loss}, failed),
            }
        )

    def evaluate(self) -> RecordDict:
        """Evaluate the global model on every client."""
        models = self.model.expand(len(self.clients), -1)
        if self.assignment.forecasts is not None and "test" in self.splits and isinstance(self.cohort, Cohort):
            found, folder = self.cohort.predict(models, "test"), self.node.forecast_folder(self.run)
            write_forecasts(self.cohort, found, "test", folder, self.assignment.forecasts)
        metrics = evaluate_splits(self.assignment, self.cohort, models, self.splits)
        self.node.done.append(measured_after(self.splits, self.round))
        return RecordDict({"metrics": self._means(metrics, self.weights), "config": self._per_client(metrics, {})})

    def proximal_term(self) -> GradientTerm | None:
        """Return FedProx's mu (v - w), if the strategy put ``proximal-mu`` into the config (Li et al. 2020, eq. 2)."""
        mu = self.mu
        if mu == 0:
            return None
        w = self.model
        return lambda v, clients, batch_weight: mu * (v - w[:, : v.shape[1]].to(v))

    def _means(self, metrics: dict[str, Tensor], weights: Tensor) -> MetricRecord:
        record = MetricRecord({"num-examples": int(weights.sum())})
        for name, values in metrics.items():
            known = ~values.isnan()
            shares = torch.where(known, weights, 0.0).double()
            total = (shares * values.double().nan_to_num()).sum() / shares.sum()
            # Without any weight the number is ignored, but NaN would make the mean over nodes NaN all the same.
            record[name] = float(total) if weights.any() else 0.0
        return record

    def _per_client(self, metrics: dict[str, Tensor], failed: dict[str, str]) -> ConfigRecord:
        values = {name: tensor.tolist() for name, tensor in metrics.items()}
        return ConfigRecord(
            {"clients": list(self.clients), "per-client": json.dumps(values), "failed": json.dumps(failed)}
        )
