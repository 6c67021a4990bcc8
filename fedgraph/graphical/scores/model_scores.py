"""How well a graphical model predicts features of given rows, and how close its samples come to them.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from fedgraph.data.columns import Floats
from fedgraph.data.schema import Schema
from fedgraph.graphical.asking.sampling import SamplingSettings, draw
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.scores.sample_quality import sample_quality
from fedgraph.graphical.scores.target_scores import as_predictions, score_targets
from fedgraph.support.randomness import generator

MOST_QUESTIONS = 1000
DRAWS_PER_QUESTION = 256
"""Of what is unknown. Scores are means over many questions, so fewer draws do than for a single answer."""


def score_model(model: GraphicalModel, values: Floats, targets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Scores by target (:func:`fedgraph.graphical.scores.target_scores.score`), each predicted from all other features
    of rows ``[rows, features]``, by one pass through the network."""
    network, encoding, parameters = model.network, model.encoding, model.parameters[None]
    units = encoding.encode(values)[None]
    if network.masked:
        predicted = network.predict(parameters, units)[0]
        return score_targets(encoding.schema, values, as_predictions(network, encoding, predicted, targets))
    found: dict[str, Floats] = {}
    for target in targets:
        # A perceptron that all features have in common would see its own target.
        hidden = units.clone()
        hidden[..., encoding.schema.slices[target]] = torch.nan
        found |= as_predictions(network, encoding, network.predict(parameters, hidden)[0], [target])
    return score_targets(encoding.schema, values, found)


def some_hidden(schema: Schema, values: Floats, targets: Sequence[str], share: float, seed: int) -> Floats:
    """The first rows ``[rows, features]``, 1,000 at most, in which this share of the values is hidden, targets not."""
    rows = values[:MOST_QUESTIONS].copy()
    for name, place in schema.value_slices.items():
        if name not in targets:
            drawn = torch.rand(len(rows), generator=generator(seed, "hidden", name)).numpy()
            rows[drawn < share, place] = np.nan
    return rows


def score_answers(model: GraphicalModel, values: Floats, targets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Scores by target, asked one by one of rows in which much may be unknown; embeddings are not asked for."""
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
    """Of as many samples of a model as there are rows ``[rows, features]``, drawn for the client ``name``; see
    :class:`fedgraph.graphical.scores.sample_quality.SampleQuality`."""
    encoding = model.encoding
    samples = draw(model.network, model.parameters[None], len(values), [name], seed, settings=settings)[0]
    # What is whole in a table is whole in its rows.
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
