"""Scales shared by clients, computed before the first round from the answers to the opening query."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor

from fedgraph.data.series import (
    INFERRED,
    cold_rows,
    cold_scale,
    inferred_scales,
    neighbourhoods,
    pooled,
    reference_rows,
    shares_scales,
    usable,
)
from fedgraph.defence import bounded_counts
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.files import write_atomically

log = logging.getLogger("fedgraph")

Scales = dict[str, tuple[float, float]]


def with_shared_scales(experiment: Experiment, federation: Federation, folder: Path) -> Experiment:
    """Return the nodes' experiment, with pooled or inferred scales in ``[data] scales`` if set.

    The scales are written to ``scales.json`` in ``folder``. Clients with a scale in the experiment keep it. Raises
    ExperimentError when a required client graph is missing, and DataError without a client to pool or infer from.
    """
    if not shares_scales(experiment.data):
        return experiment
    found = _inferred(experiment, federation) if cold_scale(experiment.data) != "own" else _pooled(federation)
    given: Scales = getattr(experiment.data, "scales", None) or {}
    found = {name: scale for name, scale in found.items() if name not in given}
    if not found:
        return experiment
    write_atomically(folder / "scales.json", (json.dumps(found, indent=2) + "\n").encode())
    return replace(experiment, data=experiment.data.model_copy(update={"scales": {**found, **given}}))


def _pooled(federation: Federation) -> Scales:
    """Return mean and standard deviation of all clients' pooled training readings, for every client."""
    means, deviations, readings = _moments(federation)[:, 2:].T
    readings = bounded_counts(readings, federation.most_examples)
    mean, std = usable(*map(np.asarray, pooled(means.numpy(), deviations.numpy(), readings.numpy())))
    scale = (float(mean), float(std))
    log.info("readings of all %d clients scaled by mean %g and deviation %g", len(federation.names), *scale)
    return dict.fromkeys(federation.names, scale)


def _inferred(experiment: Experiment, federation: Federation) -> Scales:
    """Return mean and standard deviation of the cold clients, by name."""
    requested = cold_scale(experiment.data)
    moments, graph = _moments(federation), federation.graph
    if requested == "graph" and graph is None:
        raise ExperimentError(
            '[data] cold-scale = "graph" needs a client graph: give the experiment [graph] source = "data", "complete" '
            'or "file", or use cold-scale = "everybody"'
        )
    names = [federation.names[row] for row in cold_rows(moments).nonzero().flatten().tolist()]
    if not names:
        return {}
    if not bool(reference_rows(moments).any()):
        raise DataError(
            f'[data] cold-scale = "{requested}": every client that takes part is cold, or lacks readings in the last '
            f"`cold-steps` steps of the training part, so the scale of {', '.join(names[:5])} cannot be inferred; use "
            "fewer cold clients or more cold steps"
        )
    weights = neighbourhoods(graph, moments) if requested == "graph" and graph is not None else None
    scales = inferred_scales(moments, weights).tolist()
    log.info("scale of %d cold clients inferred %s", len(names), INFERRED[requested])
    return {name: (mean, std) for name, (mean, std) in zip(names, scales, strict=True)}


def _moments(federation: Federation) -> Tensor:
    if federation.moments is None:
        raise DataError("a node did not send the mean and deviation of its clients, which are required to infer scales")
    return federation.moments
