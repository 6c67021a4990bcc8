"""Scores of a graphical model: predictions of rows, and the distance of samples from them.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedgraph.data.columns import Floats
from fedgraph.data.schema import Schema
from fedgraph.graphical.inference.sampling import SamplingSettings, draw
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.scores.sample_quality import sample_quality
from fedgraph.graphical.scores.target_scores import as_predictions, score_targets
from fedgraph.support.randomness import generator

MOST_QUESTIONS = 1000
DRAWS_PER_QUESTION = 256
"""Number of draws of unknown features: scores are means over many queries and need few."""

_SAMPLING = SamplingSettings(kept=4096)


def score_model(
    model: GraphicalModel, values: Floats, targets: Sequence[str], marginalised: int = MOST_QUESTIONS
) -> dict[str, dict[str, float]]:
    """Score predictions of targets from all other features of rows ``[rows, features]``.

    Rows in which all others are known are predicted in one pass of the network. Returns scores by target and name, of
    :func:`fedgraph.graphical.scores.target_scores.score`.

    Parameters
    ----------
    model : GraphicalModel
        The model.
    values : array
        The rows, NaN for missing.
    targets : sequence of str
        The features to predict.
    marginalised : int, default 1000
        Number of rows with missing values that are predicted as :meth:`GraphicalModel.predict` does, marginalised over
        these. In others, and in all of ``path-norm`` networks, missing values are replaced by means, as in the
        authors' program.
    """
    network, encoding, parameters = model.network, model.encoding, model.parameters[None]
    units = encoding.encode(values)[None]
    if network.masked:
        predicted = network.predict(parameters, units)[0]
        found = dict(as_predictions(network, encoding, predicted, targets))
        for target in targets:
            others = np.delete(values, encoding.schema.value_slices[target], axis=1)
            gaps = np.flatnonzero(np.isnan(others).any(1))[:marginalised]
            if len(gaps):
                found[target][gaps] = _answered(model, values[gaps], target)
        return score_targets(encoding.schema, values, found)
    found = {}
    for target in targets:
        # A shared perceptron would see its own target.
        hidden = units.clone()
        hidden[..., encoding.schema.slices[target]] = torch.nan
        found |= as_predictions(network, encoding, network.predict(parameters, hidden)[0], [target])
    return score_targets(encoding.schema, values, found)


def hide_values(schema: Schema, values: Floats, targets: Sequence[str], share: float, seed: int) -> Floats:
    """Return the first rows, at most 1,000, with a random share of the values hidden, except those of targets.

    Rows ``[rows, features]``, NaN where a value is hidden.
    """
    rows = values[:MOST_QUESTIONS].copy()
    for name, place in schema.value_slices.items():
        if name not in targets:
            drawn = torch.rand(len(rows), generator=generator(seed, "hidden", name)).numpy()
            rows[drawn < share, place] = np.nan
    return rows


def score_queries(model: GraphicalModel, values: Floats, targets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Score predictions of each target from rows with unknown values.

    Embeddings among the targets are left out. Returns scores by target and name, of
    :func:`fedgraph.graphical.scores.target_scores.score`.
    """
    schema = model.encoding.schema
    requested = [name for name in targets if schema[name].kind != "embedding"]
    return score_targets(schema, values, {name: _answered(model, values, name) for name in requested})


def _answered(model: GraphicalModel, values: Floats, target: str) -> Floats:
    """Predict a target over all that is unknown: numbers, of ordered words their positions, or probabilities."""
    feature = model.encoding.schema[target]
    if not feature.is_scaled:
        return model.predict_proba(values, target, draws=DRAWS_PER_QUESTION, sampling=_SAMPLING)
    found = model.predict(values, target, draws=DRAWS_PER_QUESTION, sampling=_SAMPLING)
    if feature.categories:
        place = {category: float(at) for at, category in enumerate(feature.categories)}
        return np.array([place[str(each)] for each in found])
    return np.asarray(found, dtype=np.float64)


def score_samples(
    model: GraphicalModel, values: Floats, name: str, seed: int, settings: SamplingSettings | None = None
) -> dict[str, float]:
    """Compare held-out rows ``[rows, features]`` with as many samples of a model, drawn for the client ``name``.

    Returns scores of :class:`fedgraph.graphical.scores.sample_quality.SampleQuality` by name.
    """
    encoding = model.encoding
    samples = draw(model.network, model.parameters[None], len(values), [name], seed, settings=settings)[0]
    # Round integers in the samples.
    samples = encoding.encode(encoding.decode(samples))
    found = sample_quality(encoding.schema, samples, encoding.encode(values), seed)
    distances = list(found.marginal.values())
    return {
        "marginal-distance": float(np.mean(distances)),
        "marginal-distance-largest": max(distances),
        "correlation-difference": found.correlation[1],
        "correlation-difference-largest": found.correlation[0],
        "told-apart": found.auc,
    }
