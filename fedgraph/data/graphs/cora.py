"""Cora, a citation network in 7 subjects (McCallum et al. 2000; Sen et al. 2008), divided into communities.

Nodes are publications with bag-of-words features; a citation is an edge in both directions. Clients hold communities
found by Louvain's method (Blondel et al. 2008). Edges between clients are dropped; their numbers are the client graph.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedgraph.data.base import Shares
from fedgraph.data.graphs.data_set import GraphDataSet, GraphOptions
from fedgraph.data.partition import client_names
from fedgraph.graph import ClientGraph
from fedgraph.support.catalogue import CatalogueEntry, DataFile, require
from fedgraph.support.errors import DataError

_URL = "https://linqs-data.soe.ucsc.edu/public/lbc/cora.tgz"
_FILES = tuple(DataFile(Path("cora", name), _URL) for name in ("cora.content", "cora.cites"))

CORA: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "cora",
        "Cora",
        "the publishers name none",
        "2,708 publications in 7 subjects, 1,433 words, 5,429 citations",
        (_FILES,),
        notes="Plain text, as published by LINQS in cora.tgz: unpack it in the data folder.",
    ),
)

_CLASSES = (
    *("Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods", "Reinforcement_Learning"),
    *("Rule_Learning", "Theory"),
)


class CoraSettings(GraphOptions):
    """The ``[data]`` table with ``set = "cora"``.

    Attributes
    ----------
    clients        : number of clients that the communities are divided among.
    resolution     : of Louvain's method: more = more and smaller communities. It is raised until there is one for each
                     client.
    partition_seed : seed of Louvain's method.
    """

    set: Literal["cora"] = "cora"
    level: Literal["node"] = "node"
    classes: tuple[str, ...] = _CLASSES
    clients: int = Field(10, ge=1, le=500)
    resolution: float = Field(1.0, gt=0.0)
    partition_seed: int = Field(0, ge=0)
    shares: Shares = (0.2, 0.2, 0.6)


class Citations(NamedTuple):
    """A citation network: words ``[papers, words]``, subjects ``[papers]``, pairs of papers int64 ``[pairs, 2]``."""

    words: NDArray[np.float32]
    subjects: NDArray[np.int64]
    pairs: NDArray[np.int64]


class CoraSource(GraphDataSet[CoraSettings]):
    """Communities of Cora."""

    title = "Cora"

    def client_names(self) -> list[str]:
        """Return ``client-00`` and so on, the one with the most publications first."""
        return client_names(self.settings.clients)

    def graphs(self, client: str) -> Any:
        """See :class:`GraphDataSet`: words are divided by their number in a publication."""
        place = self.client_names().index(client)
        rows = np.flatnonzero(self._client == place)
        number = np.full(len(self._client), -1)
        number[rows] = np.arange(len(rows))
        pairs = number[self._network.pairs]
        edges = pairs[(pairs >= 0).all(1)].T
        words = self._network.words[rows]
        return {
            "x": words / np.maximum(words.sum(1, keepdims=True), 1),
            "edge_index": np.concatenate([edges, edges[::-1]], 1),
            "y": self._network.subjects[rows],
        }

    def given_graph(self) -> ClientGraph:
        """Return the client graph, weighted by the number of citations between two clients."""
        count = np.zeros((self.settings.clients, self.settings.clients))
        np.add.at(count, tuple(self._client[self._network.pairs].T), 1.0)
        count += count.T
        np.fill_diagonal(count, 0)
        return ClientGraph.from_adjacency(count, self.client_names())

    @cached_property
    def _network(self) -> Citations:
        return read_citations(*require(CORA[0], self.data_dir))

    @cached_property
    def _client(self) -> NDArray[np.int64]:
        """The client of each publication, int64 ``[papers]``."""
        network, settings = self._network, self.settings
        parts = communities(
            network.pairs, len(network.subjects), settings.clients, settings.resolution, settings.partition_seed
        )
        client = np.empty(len(network.subjects), dtype=np.int64)
        for place, part in enumerate(parts):
            client[part] = place
        return client


def read_citations(content: Path, cites: Path) -> Citations:
    """Read the two files: a line for each paper, with its name, words and subject; and pairs of names.

    Self-citations, citations of unknown papers and duplicates are left out; each pair occurs once.
    Raises DataError for a line of any other form.
    """
    lines = [line.split() for line in content.read_text().splitlines() if line.strip()]
    widths = {len(line) for line in lines}
    if len(widths) != 1 or min(widths) < 3:
        raise DataError(f"{content} is not as published: in each line a paper, as many words of 0 or 1, and a subject")
    known = {name: place for place, name in enumerate(_CLASSES)}
    unknown_names = sorted({line[-1] for line in lines} - set(known))
    if unknown_names:
        raise DataError(f"{content} has the subject '{unknown_names[0]}'; they are {', '.join(_CLASSES)}")
    place = {line[0]: row for row, line in enumerate(lines)}
    pairs = set()
    for line in cites.read_text().splitlines():
        names = line.split()
        if len(names) not in (0, 2):
            raise DataError(f"{cites} is not as published: two papers in each line, and not '{line[:40]}'")
        ends = sorted(place[name] for name in names if name in place)
        if len(ends) == 2 and ends[0] != ends[1]:
            pairs.add((ends[0], ends[1]))
    try:
        words = np.array([line[1:-1] for line in lines], dtype=np.float32)
    except ValueError as error:
        raise DataError(f"{content} is not as published: {error}") from None
    subjects = np.array([known[line[-1]] for line in lines])
    return Citations(words, subjects, np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2))


def communities(
    pairs: NDArray[np.int64], nodes: int, clients: int, resolution: float, seed: int
) -> list[NDArray[np.int64]]:
    """Divide the nodes of a graph among clients by Louvain communities, which are not split.

    The largest community goes to the client with the fewest nodes so far, then the next. The resolution is doubled
    until there are as many communities as clients. Returns nodes of each client, sorted; the client with the most
    first. Raises DataError for more clients than nodes.
    """
    import networkx as nx

    if clients > nodes:
        raise DataError(f"{clients} clients cannot have a node each, there are {nodes}: lower clients")
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(pairs.tolist())
    while True:
        found = nx.community.louvain_communities(graph, resolution=resolution, seed=seed)
        if len(found) >= clients:
            break
        resolution *= 2
    divided: list[list[int]] = [[] for _ in range(clients)]
    for part in sorted(map(sorted, found), key=lambda part: (-len(part), part)):
        min(divided, key=len).extend(part)
    return [np.array(sorted(part)) for part in sorted(divided, key=lambda part: (-len(part), sorted(part)))]
