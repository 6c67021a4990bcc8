"""Before the first round: the scales of cold clients, inferred from what all clients told in the opening query."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

from fedgraph.atomic import write_atomically
from fedgraph.data.cold_start import INFERRED, asked_scale
from fedgraph.errors import DataError, ExperimentError
from fedgraph.experiment import Experiment
from fedgraph.federation import Federation
from fedgraph.scale_transfer import cold_rows, inferred_scales, neighbourhoods, reference_rows

log = logging.getLogger("fedgraph")

Scales = dict[str, tuple[float, float]]


def with_cold_scales(experiment: Experiment, federation: Federation, folder: Path) -> Experiment:
    """The experiment as nodes get it: with inferred scales in ``[data] scales``, where it asks for some.

    They are written to ``scales.json`` in ``folder``. Clients whose scale the experiment gives itself keep that.

    Raises
    ------
    ExperimentError
        When a client graph is asked for and the run has none.
    DataError
        When there is nobody to infer from.
    """
    given: Scales = getattr(experiment.data, "scales", None) or {}
    inferred = {name: scale for name, scale in _inferred(experiment, federation).items() if name not in given}
    if not inferred:
        return experiment
    log.info("scale of %d cold clients inferred %s", len(inferred), INFERRED[asked_scale(experiment.data)])
    write_atomically(folder / "scales.json", (json.dumps(inferred, indent=2) + "\n").encode())
    return replace(experiment, data=experiment.data.model_copy(update={"scales": {**inferred, **given}}))


def _inferred(experiment: Experiment, federation: Federation) -> Scales:
    """Mean and standard deviation by name of the cold clients; empty where none are asked for."""
    asked = asked_scale(experiment.data)
    moments, graph = federation.moments, federation.graph
    if asked == "graph" and graph is None:
        raise ExperimentError(
            '[data] cold-scale = "graph" needs a client graph: give the experiment [graph] source = "data", "complete" '
            'or "file", or take cold-scale = "everybody"'
        )
    if asked == "own" or moments is None:
        return {}
    names = [federation.names[row] for row in cold_rows(moments).nonzero().flatten().tolist()]
    if not names:
        return {}
    if not bool(reference_rows(moments).any()):
        raise DataError(
            f'[data] cold-scale = "{asked}": every client that takes part is cold, or lacks readings in the last '
            f"`cold-steps` steps of the training part, so the scale of {', '.join(names[:5])} cannot be inferred; use "
            "fewer cold clients or more cold steps"
        )
    weights = neighbourhoods(graph, moments) if asked == "graph" and graph is not None else None
    scales = inferred_scales(moments, weights).tolist()
    return {name: (mean, std) for name, (mean, std) in zip(names, scales, strict=True)}
