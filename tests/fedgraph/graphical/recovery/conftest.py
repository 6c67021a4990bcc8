from itertools import pairwise

import pytest
import torch

from fedgraph.graph.feature_graph import FeatureGraph
from fedgraph.graphical.recovery import UnitTable


@pytest.fixture
def chain():
    """A Gaussian chain of features and its graph: neighbours have a correlation of 0.7."""

    def draw(features, rows, seed=0, client="north"):
        noise = torch.randn(rows, features, generator=torch.Generator().manual_seed(seed))
        units = noise.clone()
        for at in range(1, features):
            units[:, at] = 0.7 * units[:, at - 1] + 0.51**0.5 * noise[:, at]
        names = tuple(f"x{at}" for at in range(features))
        truth = FeatureGraph(names, tuple(pairwise(names)))
        return UnitTable(client, names, units, torch.arange(features)), truth

    return draw
