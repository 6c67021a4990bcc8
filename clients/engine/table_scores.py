"""Metrics of predictions of a client's table by its graphical models and baselines."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import get_args

import numpy as np

from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.clients.engine.table_rows import TableRows
from fedgraph.data.columns import Floats
from fedgraph.data.schema import Schema
from fedgraph.graphical import GraphicalModel
from fedgraph.graphical.scores import (
    FEWEST_ROWS,
    TargetModel,
    Yardstick,
    fit_targets,
    hide_values,
    score_model,
    score_queries,
    score_samples,
    score_targets,
)
from fedgraph.support.files import json_digest


class TableScores:
    """Metrics of clients' models on their test rows and on public rows.

    Parameters
    ----------
    held : the rows of the node's clients.
    """

    def __init__(
        self, held: TableRows, clients: Sequence[str], common: Schema, settings: FedNGMSettings, seed: int
    ) -> None:
        self._held, self._clients, self._common = held, clients, common
        self._settings, self._seed = settings, seed
        self._public_scores: dict[Hashable, dict[str, float]] = {}
        self._yardsticks: dict[tuple[str, ...], dict[Yardstick, dict[str, TargetModel]]] = {}

    def of(self, name: str, models: Mapping[str, GraphicalModel]) -> dict[str, float]:
        """Score the models of one client; return metrics as ``<split>/<target>-<metric><suffix>``, none without rows.

        Parameters
        ----------
        models : by the suffix of their metrics; the global model has none.
        """
        tables = {"test": self._held.values(name, self._common)["test"]}
        if (public := self._held.public(self._common)) is not None:
            tables["public"] = public
        scores: dict[str, float] = {}
        for split, values in tables.items():
            if not len(values):
                continue
            for suffix, model in models.items():
                schema = model.encoding.schema
                own = values if schema == self._common else self._with_private(name, schema, split, values)
                scores |= self._score_model(split, suffix, model, own)
            scores |= self._score_yardsticks(name, split, "", values)
            if self._settings.hidden:
                scores |= self._score_queries(name, split, models, values)
            if self._settings.sample_quality and len(values) >= FEWEST_ROWS:
                quality = score_samples(models[""], values, name, self._seed, self._settings.sampling)
                scores |= _named(split, "", {"samples": quality})
        return scores

    def _score_model(self, split: str, suffix: str, model: GraphicalModel, values: Floats) -> dict[str, float]:
        """Score one model; on public rows the global one is scored once for all clients with equal ranges."""
        targets, most = self._targets(model.encoding.schema), self._settings.marginalised
        if split != "public" or suffix:
            return _named(split, suffix, score_model(model, values, targets, most))
        scaling = json_digest(model.encoding.scaling.as_json())
        if scaling not in self._public_scores:
            self._public_scores[scaling] = _named(split, suffix, score_model(model, values, targets, most))
        return self._public_scores[scaling]

    def _score_yardsticks(self, name: str, split: str, prefix: str, values: Floats) -> dict[str, float]:
        """Score the baselines of the settings; on public rows once for equal models."""
        if not self._settings.yardsticks:
            return {}
        whose = self._training_clients(name)
        if split != "public":
            return self._score_fitted(whose, split, prefix, values)
        if (whose, prefix) not in self._public_scores:
            self._public_scores[whose, prefix] = self._score_fitted(whose, split, prefix, values)
        return self._public_scores[whose, prefix]

    def _score_fitted(self, whose: tuple[str, ...], split: str, prefix: str, values: Floats) -> dict[str, float]:
        scores: dict[str, float] = {}
        for yardstick, models in self._fitted(whose).items():
            of_targets = score_targets(
                self._common, values, {each: model.predict(values) for each, model in models.items()}
            )
            scores |= _named(split, f"-{yardstick}", {f"{prefix}{target}": own for target, own in of_targets.items()})
        return scores

    def _score_queries(
        self, name: str, split: str, models: Mapping[str, GraphicalModel], values: Floats
    ) -> dict[str, float]:
        """Score models of the common features with a share of hidden values."""
        targets = self._targets(self._common)
        requested = hide_values(self._common, values, targets, self._settings.hidden, self._seed)
        scores = self._score_yardsticks(name, split, "hidden-", requested)
        for suffix, model in models.items():
            if model.encoding.schema == self._common:
                of_targets = score_queries(model, requested, targets)
                scores |= _named(split, suffix, {f"hidden-{target}": own for target, own in of_targets.items()})
        return scores

    def _training_clients(self, name: str) -> tuple[str, ...]:
        """Return the clients whose rows train the baselines of a client: all if models are pooled."""
        return tuple(self._clients) if self._settings.global_model == "pooled" else (name,)

    def _fitted(self, whose: tuple[str, ...]) -> dict[Yardstick, dict[str, TargetModel]]:
        """Return the baselines fitted to some clients' training rows, cached."""
        if whose not in self._yardsticks:
            targets = [each for each in self._targets(self._common) if self._common[each].kind != "embedding"]
            training = np.concatenate([self._held.values(each, self._common)["train"] for each in whose])
            self._yardsticks[whose] = {
                yardstick: fit_targets(yardstick, self._common, training, targets, self._seed)
                for yardstick in get_args(Yardstick)
            }
        return self._yardsticks[whose]

    def _targets(self, schema: Schema) -> list[str]:
        """Return the targets of the settings and the client's private features."""
        common = self._common.names
        private = [name for name in schema.names if name not in common]
        return [*(name for name in self._settings.targets or common if name in common), *private]

    def _with_private(self, name: str, schema: Schema, split: str, values: Floats) -> Floats:
        """Return rows of a schema with the client's private features, which are missing in public rows."""
        if split != "public":
            return self._held.values(name, schema)[split]
        more = np.full((len(values), schema.num_values), np.nan)
        more[:, : values.shape[1]] = values
        return more


def _named(split: str, suffix: str, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {
        f"{split}/{target}-{metric}{suffix}": value
        for target, own in scores.items()
        for metric, value in own.items()
        if metric != "rows"
    }
