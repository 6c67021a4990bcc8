"""Greedy equivalence search (GES): the Bayesian network of categories with the best BIC.

Chickering: Optimal structure identification with greedy search, JMLR 2002. Two phases search over Markov equivalence
classes: edges are inserted while the BIC rises, then deleted. Numbers are binned first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, permutations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.graph import FeatureGraph

Nodes = frozenset[int]
Edges = NDArray[np.bool_]
_LEAST_GAIN = 1e-6


def equivalence_search(table: NDArray[np.int64]) -> Edges:
    """Search for the network with the best BIC.

    Returns one network of the class that is found: whether there is an edge from the first variable to the second, bool
    ``[variables, variables]``.

    Parameters
    ----------
    table : array
        Categories as whole numbers from 0, ``[rows, variables]``.
    """
    score = _Score(table)
    network = np.zeros((table.shape[1], table.shape[1]), dtype=bool)
    for moves in (_insertions, _deletions):
        while (moved := _best(moves(_Pattern.of(network), score))) is not None:
            network = moved.extension()
    return network


def parents_of(names: Sequence[str], network: Edges) -> dict[str, list[str]]:
    """Return the parents of each variable of a network, by name."""
    return {name: [names[each] for each in np.flatnonzero(network[:, at]).tolist()] for at, name in enumerate(names)}


def moral_graph_by_search(names: tuple[str, ...], units: Tensor, unit_feature: Tensor, bins: int) -> FeatureGraph:
    """Return the moral graph of the network with the best BIC, with features as categories; see ``as_categories``."""
    network = equivalence_search(as_categories(units, unit_feature, len(names), bins).numpy())
    return FeatureGraph.moral(names, parents_of(names, network))


def as_categories(units: Tensor, unit_feature: Tensor, num_features: int, bins: int) -> Tensor:
    """Convert features to positions of categories, int64 ``[rows, features]``.

    Several units are one category each; a single one is cut at its quantiles into ``bins`` where it has more values.
    Missing values are replaced by the commonest category.
    """
    columns = []
    for feature in range(num_features):
        own = units[:, unit_feature == feature]
        missing = own.isnan().any(1)
        column = _numbers_as_categories(own[:, 0], bins) if own.shape[1] == 1 else own.nan_to_num().argmax(1)
        present = column[~missing]
        columns.append(torch.where(missing, present.mode().values if len(present) else 0, column))
    return torch.stack(columns, 1)


def _numbers_as_categories(values: Tensor, bins: int) -> Tensor:
    present = values[~values.isnan()].double()
    borders = present.unique()
    if len(borders) > bins:
        borders = present.quantile(torch.arange(1, bins, dtype=torch.float64) / bins)
    return torch.bucketize(values.double().nan_to_num(), borders)


class _Score:
    """The BIC of a variable given its parents, each worked out once."""

    def __init__(self, table: NDArray[np.int64]) -> None:
        columns = [np.unique(column, return_inverse=True)[1] for column in table.T]
        self._columns, self._sizes = columns, [int(column.max()) + 1 for column in columns]
        self._rows = len(table)
        self._known: dict[tuple[int, Nodes], float] = {}

    def __call__(self, child: int, parents: Nodes) -> float:
        key = (child, parents)
        if key not in self._known:
            self._known[key] = self._bic(child, sorted(parents))
        return self._known[key]

    def _bic(self, child: int, parents: list[int]) -> float:
        of_parents, groups = np.zeros(self._rows, dtype=np.int64), 1
        for parent in parents:
            # Renumbered, so that there are at most as many groups as rows.
            groups, of_parents = _numbered(of_parents * self._sizes[parent] + self._columns[parent])
        size = self._sizes[child]
        counts = np.bincount(of_parents * size + self._columns[child], minlength=groups * size).reshape(groups, size)
        shares = counts / counts.sum(1, keepdims=True)
        likelihood = float((counts * np.log(shares, out=np.zeros_like(shares), where=counts > 0)).sum())
        parameters = (size - 1) * float(np.prod([self._sizes[parent] for parent in parents], dtype=float))
        return likelihood - 0.5 * np.log(self._rows) * parameters


def _numbered(codes: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    values, places = np.unique(codes, return_inverse=True)
    return len(values), places


@dataclass(frozen=True)
class _Pattern:
    """A class of networks (completed PDAG), or the outcome of a move from one.

    directed   : edges that all of them have in this direction, bool ``[variables, variables]``.
    undirected : those that have either, symmetric.
    """

    directed: Edges
    undirected: Edges

    @classmethod
    def of(cls, network: Edges) -> _Pattern:
        """The class of a network: the colliders, and what follows from them (Meek 1995, rules 1 to 3)."""
        linked = network | network.T
        directed = np.zeros_like(network)
        for child in range(len(network)):
            for first, second in combinations(np.flatnonzero(network[:, child]), 2):
                if not linked[first, second]:
                    directed[[first, second], child] = True
        while True:
            undirected = linked & ~directed & ~directed.T
            whole = directed.astype(int)
            found = undirected & ((whole.T @ ~linked > 0) | (whole @ whole > 0))
            for first, second in zip(*np.nonzero(undirected & ~found), strict=True):
                between = np.flatnonzero(undirected[first] & directed[:, second])
                found[first, second] = any(not linked[pair] for pair in combinations(between, 2))
            if not found.any():
                return cls(directed, undirected)
            directed = directed | found

    @property
    def linked(self) -> Edges:
        """Edges of any kind, symmetric."""
        return self.directed | self.directed.T | self.undirected

    def turned(self, edges: Iterable[tuple[int, int]]) -> _Pattern:
        """The same with these edges directed, of which some may be new."""
        directed, undirected = self.directed.copy(), self.undirected.copy()
        for first, second in edges:
            directed[first, second] = True
            undirected[first, second] = undirected[second, first] = False
        return _Pattern(directed, undirected)

    def extension(self) -> Edges:
        """Return a network of the class, by repeatedly removing a sink (Dor, Tarsi 1992)."""
        network, left, undirected, linked = (
            self.directed.copy(),
            self.directed.copy(),
            self.undirected.copy(),
            self.linked,
        )
        remaining = list(range(len(network)))
        while remaining:
            last = next(node for node in remaining if not left[node].any() and _can_end(undirected, linked, node))
            network[undirected[last], last] = True
            for matrix in (left, undirected, linked):
                matrix[last] = matrix[:, last] = False
            remaining.remove(last)
        return network

    def is_blocked(self, start: int, end: int, by: Nodes) -> bool:
        """Whether each path of undirected edges, and directed ones in their direction, has one of the nodes ``by``."""
        onward = self.directed | self.undirected
        seen, waiting = {start, *by}, [start]
        while waiting:
            for node in np.flatnonzero(onward[waiting.pop()]).tolist():
                if node == end:
                    return False
                if node not in seen:
                    seen.add(node)
                    waiting.append(node)
        return True


def _can_end(undirected: Edges, linked: Edges, node: int) -> bool:
    """Whether each undirected neighbour is linked to all others that ``node`` is linked to."""
    around = linked[node]
    return all((around & ~linked[each]).sum() == 1 for each in np.flatnonzero(undirected[node]))


@dataclass(frozen=True)
class _Move:
    """From a class to another: what the BIC gains, and the outcome, where it is possible."""

    gain: float
    outcome: Callable[[], _Pattern]
    is_possible: Callable[[], bool] = lambda: True


def _best(moves: Iterator[_Move]) -> _Pattern | None:
    """The outcome of the possible move with the largest gain, the first of several; None where none gains."""
    gaining = sorted((move for move in moves if move.gain > _LEAST_GAIN), key=lambda move: -move.gain)
    return next((move.outcome() for move in gaining if move.is_possible()), None)


def _insertions(pattern: _Pattern, score: _Score) -> Iterator[_Move]:
    """Insert an edge between two nodes that have none; some undirected edges of the second turn towards it."""
    parents, neighbours, linked = _sets(pattern.directed.T), _sets(pattern.undirected), _sets(pattern.linked)
    for first, second in permutations(range(len(linked)), 2):
        if second in linked[first]:
            continue
        common = neighbours[second] & linked[first]
        for turned in _cliques(common, sorted(neighbours[second] - linked[first]), linked):
            given = common | turned | parents[second]
            yield _Move(
                score(second, given | {first}) - score(second, given),
                partial(pattern.turned, [(each, second) for each in (first, *turned)]),
                partial(pattern.is_blocked, second, first, common | turned),
            )


def _deletions(pattern: _Pattern, score: _Score) -> Iterator[_Move]:
    """Delete an edge; edges of common neighbours that are not ``kept`` turn away from its ends."""
    parents, neighbours, linked = _sets(pattern.directed.T), _sets(pattern.undirected), _sets(pattern.linked)
    for first, second in np.argwhere(pattern.directed | pattern.undirected).tolist():
        common = neighbours[second] & linked[first]
        for kept in _cliques(frozenset(), sorted(common), linked):
            given = (kept | parents[second]) - {first}
            yield _Move(
                score(second, given) - score(second, given | {first}),
                partial(_without, pattern, first, second, common - kept),
            )


def _without(pattern: _Pattern, first: int, second: int, away: Nodes) -> _Pattern:
    turned = pattern.turned((end, node) for node in away for end in (first, second) if pattern.undirected[end, node])
    for matrix in (turned.directed, turned.undirected):
        matrix[first, second] = matrix[second, first] = False
    return turned


def _cliques(base: Nodes, candidates: list[int], linked: list[Nodes]) -> Iterator[Nodes]:
    """All sets of candidates that are, with the ``base``, linked to each other."""
    if any(second not in linked[first] for first, second in combinations(base, 2)):
        return
    yield frozenset()
    for place, node in enumerate(candidates):
        if base <= linked[node]:
            for more in _cliques(base | {node}, candidates[place + 1 :], linked):
                yield more | {node}


def _sets(matrix: Edges) -> list[Nodes]:
    return [frozenset(np.flatnonzero(row).tolist()) for row in matrix]
