"""Scores of a graphical model: its predictions of given rows, and the distance of its samples from them.

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
"""Number of draws of unknown features: scores are means over many queries and need fewer than a single answer."""


def score_model(model: GraphicalModel, values: Floats, targets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Score predictions of targets from all other features of rows ``[rows, features]``, in one pass of the network.

    Returns
    -------
    dict of str to dict of str to float
        Scores by target and name, of :func:`fedgraph.graphical.scores.target_scores.score`.
    """
    network, encoding, parameters = model.network, model.encoding, model.parameters[None]
    units = encoding.encode(values)[None]
    if network.masked:
        predicted = network.predict(parameters, units)[0]
        return score_targets(encoding.schema, values, as_predictions(network, encoding, predicted, targets))
    found: dict[str, Floats] = {}
    for target in targets:
        # A perceptron that all features share would see its own target.
        hidden = units.clone()
        hidden[..., encoding.schema.slices[target]] = torch.nan
        found |= as_predictions(network, encoding, network.predict(parameters, hidden)[0], [target])
    return score_targets(encoding.schema, values, found)


def some_hidden(schema: Schema, values: Floats, targets: Sequence[str], share: float, seed: int) -> Floats:
    """Return the first rows, at most 1,000, with a share of the values hidden at random; those of targets never are.

    Returns
    -------
    array
        Rows ``[rows, features]``, NaN where a value is hidden.
    """
    rows = values[:MOST_QUESTIONS].copy()
    for name, place in schema.value_slices.items():
        if name not in targets:
            drawn = torch.rand(len(rows), generator=generator(seed, "hidden", name)).numpy()
            rows[drawn < share, place] = np.nan
    return rows


def score_answers(model: GraphicalModel, values: Floats, targets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Score predictions of each target, queried one by one, from rows in which much may be unknown.

    Embeddings among the targets are left out.

    Returns
    -------
    dict of str to dict of str to float
        Scores by target and name, of :func:`fedgraph.graphical.scores.target_scores.score`.
    """
    schema = model.encoding.schema
    asked = [name for name in targets if schema[name].kind != "embedding"]
    found: dict[str, Floats] = {}
    for name in asked:
        feature = schema[name]
        if not feature.is_scaled:
            found[name] = model.predict_proba(values, name, draws=DRAWS_PER_QUESTION)
        elif feature.categories:
            place = {category: float(at) for at, category in enumerate(feature.categories)}
            found[name] = np.array([place[str(each)] for each in model.predict(values, name, draws=DRAWS_PER_QUESTION)])
        else:
            found[name] = np.asarray(model.predict(values, name, draws=DRAWS_PER_QUESTION), dtype=np.float64)
    return score_targets(schema, values, found)


def score_samples(
    model: GraphicalModel, values: Floats, name: str, seed: int, settings: SamplingSettings | None = None
) -> dict[str, float]:
    """Compare held-out rows ``[rows, features]`` with as many samples of a model, drawn for the client ``name``.

    Returns
    -------
    dict of str to float
        Scores of :class:`fedgraph.graphical.scores.sample_quality.SampleQuality` by name.
    """
    encoding = model.encoding
    samples = draw(model.network, model.parameters[None], len(values), [name], seed, settings=settings)[0]
    # Whole numbers of the table become whole in the samples.
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
