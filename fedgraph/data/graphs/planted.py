"""Synthetic graphs of a stochastic block model, one per client, in related regions.

A block is the nodes of one class at one client (Holland et al. 1983): the probability of an edge depends on the blocks
of its ends. A node has ``degree`` edges on average, the share ``homophily`` of them to its own class. Node features are
``signal m(region, class)`` with unit noise, where ``m = sqrt(1 - d) common(class) + sqrt(d) own(region, class)`` for
``d = difference``, so regions share part of what is learned. Edges between clients are dropped; their numbers, larger
within a region, are the client graph.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedgraph.data.base import Shares
from fedgraph.data.graphs.data_set import GraphDataSet, GraphOptions
from fedgraph.data.partition import client_names
from fedgraph.graph import ClientGraph
from fedgraph.support.catalogue import CatalogueEntry
from fedgraph.support.randomness import derive_seed

PLANTED: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "stochastic-blocks",
        "Stochastic blocks",
        "synthetic, free to use",
        "a graph at each of any number of clients, 24 of 50 to 100 nodes unless set",
        notes="No files: the seed decides everything.",
    ),
)


class PlantedSettings(GraphOptions):
    """The ``[data]`` table with ``set = "stochastic-blocks"``: synthetic graphs, determined by ``seed``.

    Attributes
    ----------
    clients, regions : their numbers; client k is in region ``k mod regions``.
    nodes            : fewest and most nodes of a client.
    classes, features : their numbers.
    degree           : edges of a node, on average.
    homophily        : share of these that lead to its own class.
    signal           : length of the mean of a class, where noise has the deviation 1 in each feature.
    difference       : share of the mean that is specific to the region: 0 = all regions are alike.
    imbalance        : concentration of the Dirichlet draw of each client's class frequencies; small = few classes.
    joined           : edges that join two clients of a region on average; joined_far: of different regions.
    """

    set: Literal["stochastic-blocks"] = "stochastic-blocks"
    clients: int = Field(24, ge=2, le=10_000)
    regions: PositiveInt = 4
    nodes: tuple[PositiveInt, PositiveInt] = (50, 100)
    classes: int = Field(4, ge=2)
    features: PositiveInt = 16
    degree: PositiveFloat = 5.0
    homophily: float = Field(0.7, ge=0.0, le=1.0)
    signal: PositiveFloat = 2.0
    difference: float = Field(0.5, ge=0.0, le=1.0)
    imbalance: PositiveFloat = 2.0
    joined: float = Field(6.0, ge=0.0)
    joined_far: float = Field(1.0, ge=0.0)
    seed: int = Field(0, ge=0)
    shares: Shares = (0.2, 0.2, 0.6)

    @model_validator(mode="after")
    def _nodes_in_order(self) -> PlantedSettings:
        if self.level != "node":
            raise ValueError('stochastic-blocks has classes of nodes: level = "node"')
        if self.nodes[0] > self.nodes[1]:
            raise ValueError(f"nodes is the fewest and the most of a client, not {list(self.nodes)}")
        return self


class PlantedSource(GraphDataSet[PlantedSettings]):
    """The data set of a :class:`PlantedSettings`."""

    def __init__(self, settings: PlantedSettings, data_dir: Path | None = None) -> None:
        """``data_dir`` is taken like every source's, but nothing is read from it."""
        super().__init__(settings, Path() if data_dir is None else data_dir)

    @property
    def title(self) -> str:
        """Describe what was generated, and with which seed."""
        return f"stochastic blocks (synthetic, seed {self.settings.seed})"

    def client_names(self) -> list[str]:
        """Return ``client-00`` and so on."""
        return client_names(self.settings.clients)

    def group(self, client: str) -> str:
        """Return the region of a client."""
        return f"region-{self._region(client)}"

    def graphs(self, client: str) -> Any:
        """See :class:`GraphDataSet`; the draws of a client do not depend on which others are drawn."""
        settings, draws = self.settings, self._draws(client)
        count = int(draws.integers(settings.nodes[0], settings.nodes[1] + 1))
        frequency = draws.dirichlet(np.full(settings.classes, settings.imbalance))
        y = draws.choice(settings.classes, size=count, p=frequency)
        means = self._means[self._region(client)]
        x = settings.signal * means[y] + draws.standard_normal((count, settings.features))
        alike = y[:, None] == y[None]
        np.fill_diagonal(alike, False)
        other = ~alike
        np.fill_diagonal(other, False)
        chance = np.zeros((count, count))
        for pairs, share in ((alike, settings.homophily), (other, 1 - settings.homophily)):
            chance[pairs] = settings.degree * share * count / max(1, int(pairs.sum()))
        upper = np.triu(draws.random((count, count)) < chance, 1)
        sources, targets = np.nonzero(upper | upper.T)
        return {"x": x.astype(np.float32), "edge_index": np.stack([sources, targets]), "y": y}

    def given_graph(self) -> ClientGraph:
        """Return the client graph, weighted by the number of edges between two clients."""
        names, settings = self.client_names(), self.settings
        edges = {}
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                mean = settings.joined if self._region(one) == self._region(other) else settings.joined_far
                count = int(self._draws("joined", one, other).poisson(mean))
                if count:
                    edges[one, other] = float(count)
        return ClientGraph.from_edges(edges, names)

    def _region(self, client: str) -> int:
        return self.client_names().index(client) % self.settings.regions

    @cached_property
    def _means(self) -> np.ndarray:
        """Direction of each class in each region, of length 1 on average, ``[regions, classes, features]``."""
        settings = self.settings
        shape = (settings.regions, settings.classes, settings.features)
        draws = self._draws("means")
        common, own = draws.standard_normal(shape[1:]), draws.standard_normal(shape)
        mixed = np.sqrt(1 - settings.difference) * common + np.sqrt(settings.difference) * own
        return np.asarray(mixed / np.sqrt(settings.features))

    def _draws(self, *names: str) -> np.random.Generator:
        return np.random.default_rng(derive_seed(self.settings.seed, "stochastic-blocks", *names))
