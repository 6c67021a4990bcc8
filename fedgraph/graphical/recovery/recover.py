"""The feature graphs of clients, by the method of the settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graph import FeatureGraph, read_feature_graph
from fedgraph.graphical.recovery.correlation import (
    MIN_COUNT,
    Moments,
    collapsed,
    correlation,
    moments,
    normal_scores,
    partial_correlations,
    positive_definite,
    standardised,
    varying_units,
)
from fedgraph.graphical.recovery.ges import moral_graph_by_search
from fedgraph.graphical.recovery.lasso import best_penalty, lasso_precision
from fedgraph.graphical.recovery.settings import RecoverySettings
from fedgraph.graphical.recovery.uglad import consensus, uglad_precisions
from fedgraph.support.errors import ExperimentError, RunError, quoted
from fedgraph.support.randomness import generator

log = logging.getLogger("fedgraph")

_BOOTSTRAPS = 3
"""Number of bootstrap samples of uGLAD, whose graphs have to agree."""

_BINS = 3
"""Number of quantile bins of a number with more values, for greedy equivalence search."""


@dataclass(frozen=True, eq=False)
class UnitTable:
    """Table of one client, from which its graph is recovered.

    Attributes
    ----------
    client : str
        Name of the client.
    names : tuple of str
        Names of the features.
    units : Tensor
        float32 ``[rows, units]``, NaN for missing values.
    unit_feature : Tensor
        Position of the feature that each unit belongs to, int64 ``[units]``; several are the categories of one feature,
        or the numbers of an embedding.
    embeddings : tuple of str
        Names of the features that are embeddings.
    """

    client: str
    names: tuple[str, ...]
    units: Tensor
    unit_feature: Tensor
    embeddings: tuple[str, ...] = ()

    @classmethod
    def of(cls, client: str, schema: Schema, units: Tensor) -> UnitTable:
        """Return the table of a client's rows ``[rows, units]`` of a schema."""
        embeddings = tuple(feature.name for feature in schema.features if feature.kind == "embedding")
        return cls(client, schema.names, units, schema.unit_feature, embeddings)


@dataclass(frozen=True, eq=False)
class Recovered:
    """Graph of a client, and the partial correlations from which it was read, where there are any.

    Attributes
    ----------
    partial_correlations : float64 ``[units, units]``, NaN for units that were left out.
    strengths : float64 ``[features, features]``, the largest absolute partial correlation between two features.
    """

    graph: FeatureGraph
    partial_correlations: Tensor | None = None
    strengths: Tensor | None = None


def recover(
    settings: RecoverySettings,
    tables: Sequence[UnitTable],
    seed: int,
    device: torch.device | None = None,
    targets: Sequence[str] = (),
) -> list[Recovered]:
    """Recover the feature graph of each client, from its own table alone.

    Categories of one feature share one node. Features that hardly vary have no edges, and are logged in a warning.
    Returns a list of Recovered in the order of the tables. Raises GraphError when an expert's graph cannot be read or
    lacks a feature. Raises ExperimentError for greedy equivalence search on embeddings. Raises RunError when a solver
    fails.

    Parameters
    ----------
    settings : RecoverySettings
        Method and thresholds.
    tables : sequence of UnitTable
        One of each client.
    seed : int
        Seed of the experiment.
    device : torch.device, optional
        Device of uGLAD; clients with equally many units are trained together.
    targets : sequence of str
        Features that get at least ``target-neighbours`` neighbours, where graphs are read from correlations.
    """
    if settings.method == "expert":
        expert = read_feature_graph(str(settings.file), settings.moral)
        return [Recovered(expert.subgraph(table.names)) for table in tables]
    if settings.method == "ges":
        if wide := [f"'{name}' of client '{table.client}'" for table in tables for name in table.embeddings]:
            raise ExperimentError(
                f"method 'ges' takes numbers and categories, and {wide[0]} is an embedding: choose another "
                "method of recovery, or leave it out (drop)"
            )
        return [
            Recovered(moral_graph_by_search(table.names, table.units, table.unit_feature, _BINS)) for table in tables
        ]
    samples = [_Sample(settings, table) for table in tables]
    if settings.method == "uglad":
        precisions = _uglad(settings, samples, seed, device or torch.device("cpu"))
    else:
        precisions = [_lasso(settings, sample, seed) for sample in samples]
    return [
        sample.recovered(settings, precision, targets) for sample, precision in zip(samples, precisions, strict=True)
    ]


class _Sample:
    """A client's units as they are correlated.

    kept  : which units of the table are correlated, bool ``[units]``.
    units : standardised, float32 ``[rows, kept units]`` with NaN.
    """

    def __init__(self, settings: RecoverySettings, table: UnitTable) -> None:
        self.table = table
        isolated = torch.tensor([name in table.embeddings for name in table.names])[table.unit_feature]
        self.kept = varying_units(table.units, table.unit_feature, MIN_COUNT, isolated)
        units = table.units[:, self.kept]
        self.units = standardised(normal_scores(units) if settings.transform == "normal-scores" else units)
        self.sums = moments(self.units)
        self.unit_feature = table.unit_feature[self.kept]
        varying = set(self.unit_feature.tolist())
        idle = [name for at, name in enumerate(table.names) if at not in varying]
        if idle:
            vary, have = ("differs from its", "has") if len(idle) == 1 else ("differ from their", "have")
            log.warning(
                "client '%s': %s %s most common value in fewer than %d of %d rows, and %s no edges",
                table.client, quoted(idle), vary, MIN_COUNT, len(table.units), have,
            )  # fmt: skip

    def recovered(self, settings: RecoverySettings, precision: Tensor, targets: Sequence[str]) -> Recovered:
        """Return the graph of a precision matrix float64 ``[kept units, kept units]``."""
        table = self.table
        return linked(settings, table.names, self.kept, table.unit_feature, self.sums, precision, targets)


def linked(
    settings: RecoverySettings,
    names: Sequence[str],
    kept: Tensor,
    unit_feature: Tensor,
    sums: Moments,
    precision: Tensor,
    targets: Sequence[str] = (),
) -> Recovered:
    """Return the graph over ``names`` of a precision matrix float64 ``[kept units, kept units]``.

    kept         : which units the matrix contains, bool ``[units]``.
    unit_feature : of all units.
    sums         : of the kept ones.
    targets      : features that get at least ``target-neighbours`` neighbours: the strongest, and where the lasso has
                   left too few, those with the largest correlations.
    """
    partial, of = partial_correlations(precision), unit_feature[kept]
    sizes = partial.abs()
    beyond = (sizes > settings.threshold) & (sizes * sums.counts.sqrt() > settings.deviations)
    adjacency = collapsed(beyond.double(), of, len(names)) > 0
    strengths = collapsed(sizes, of, len(names))
    if settings.target_neighbours:
        # In standard errors, as correlations from few rows are uncertain.
        evidence = collapsed(correlation(sums).abs() * sums.counts.sqrt(), of, len(names))
        for place in (place for place, name in enumerate(names) if name in targets):
            order = (strengths[place] + 1e-6 * evidence[place]).argsort(descending=True, stable=True)
            order = torch.cat([order[adjacency[place][order]], order[~adjacency[place][order]]])
            chosen = [other for other in order[: settings.target_neighbours].tolist() if evidence[place, other] > 0]
            adjacency[place, chosen] = adjacency[chosen, place] = True
    every = torch.full((len(kept), len(kept)), torch.nan, dtype=torch.float64)
    every[kept.nonzero(), kept.nonzero()[:, 0]] = partial
    return Recovered(FeatureGraph.from_adjacency(names, adjacency), every, strengths)


def _lasso(settings: RecoverySettings, sample: _Sample, seed: int) -> Tensor:
    if sample.units.shape[1] < 2:
        return torch.eye(sample.units.shape[1], dtype=torch.float64)
    penalty = settings.penalty
    if penalty is None:
        order = torch.randperm(len(sample.units), generator=generator(seed, "recovery-folds", sample.table.client))
        penalty = best_penalty(sample.units[order].chunk(settings.folds))
    try:
        return lasso_precision(sample.sums, penalty)
    except FloatingPointError as error:
        raise RunError(
            f"client '{sample.table.client}': the graphical lasso fails for the penalty {penalty:g} ({error}); use a "
            "larger one"
        ) from None


def _uglad(settings: RecoverySettings, samples: Sequence[_Sample], seed: int, device: torch.device) -> list[Tensor]:
    widths = [sample.units.shape[1] for sample in samples]
    found: dict[int, Tensor] = {at: torch.eye(width, dtype=torch.float64) for at, width in enumerate(widths)}
    for width in sorted(set(widths) - {0, 1}):
        members = [at for at, each in enumerate(widths) if each == width]
        group = [samples[at] for at in members]
        tables = torch.stack([torch.stack(_bootstraps(sample, seed)) for sample in group])
        targets = torch.stack([positive_definite(correlation(sample.sums)) for sample in group])
        try:
            precisions = uglad_precisions(
                tables.to(device),
                targets.to(device),
                [generator(seed, "recovery-network", sample.table.client) for sample in group],
                settings,
            )
        except torch.linalg.LinAlgError as error:
            raise RunError(
                f"uGLAD diverged ({error}); use a smaller learning-rate than {settings.learning_rate:g}"
            ) from None
        found.update(zip(members, consensus(precisions).double().cpu(), strict=True))
    return [found[at] for at in range(len(samples))]


def _bootstraps(sample: _Sample, seed: int) -> list[Tensor]:
    """Return correlations of rows drawn with replacement."""
    draw, rows = generator(seed, "recovery-bootstraps", sample.table.client), len(sample.units)
    drawn = [sample.units[torch.randint(rows, (rows,), generator=draw)] for _ in range(_BOOTSTRAPS)]
    return [positive_definite(correlation(moments(each))) for each in drawn]
