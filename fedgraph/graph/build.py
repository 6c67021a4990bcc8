"""Client graphs built from distances, coordinates, features or label counts.

Distances become weights by the thresholded Gaussian kernel of Shuman et al., The Emerging Field of Signal Processing
on Graphs (2013), eq. 1, as used for road sensors by Li et al., Diffusion Convolutional Recurrent Neural Network
(ICLR 2018), section 4.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedgraph.graph.constructors import Constructors
from fedgraph.graph.distances import (
    euclidean_rows,
    gaussian_edges,
    great_circle_rows,
    nearest_edges,
    others_rows,
    row_blocks,
)
from fedgraph.graph.edges import mirrored
from fedgraph.graph.inputs import client_names, latitude_longitude, real_tensor, rows_in_order, square_in_order
from fedgraph.support.errors import GraphError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger("fedgraph")

Array: TypeAlias = "Tensor | np.ndarray | Sequence[Sequence[float]] | pd.DataFrame"


class Builders(Constructors):
    """Class methods of :class:`fedgraph.graph.ClientGraph` for data of the clients."""

    @classmethod
    def from_distances(
        cls,
        distances: Array,
        names: Sequence[Any],
        sigma: float | None = None,
        cut: float = 0.1,
        directed: bool = False,
    ) -> Self:
        """Build a graph from a matrix of distances by a Gaussian kernel: ``A[i, j] = exp(-(d_ij / sigma)^2)``.

        Returns a ClientGraph over ``names``. Raises GraphError for a matrix of the wrong shape, negative distances, an
        invalid sigma or cut, and asymmetric distances unless ``directed``.

        Parameters
        ----------
        distances : ``[N, N]``. Infinity or NaN means no edge; a zero diagonal gives self loops of weight 1. The rows
            and columns of a data frame go by their labels, if it has any.
        names : the clients, named ``str(name)``.
        sigma : in the unit of the distances; by default the standard deviation of the finite ones, including the
            diagonal, as in DCRNN.
        cut : weights below it become 0.
        directed : whether distances may be asymmetric.
        """
        names = client_names(names)
        matrix = _square(distances, names)
        edge_index = matrix.isfinite().nonzero().T
        weights = gaussian_edges(names, edge_index, matrix[edge_index[0], edge_index[1]], sigma, cut)
        between = edge_index[0] != edge_index[1]
        if bool(between.any()) and not bool((weights[between] > 0).any()):
            log.warning(
                "none of %d distances gives an edge: all weights are below cut = %g; use a larger sigma or a smaller "
                "cut",
                int(between.sum()), cut,
            )  # fmt: skip
        return cls(names, edge_index, weights, directed)

    @classmethod
    def from_distance_list(
        cls,
        sources: Sequence[str],
        targets: Sequence[str],
        distances: Sequence[float] | Tensor | np.ndarray,
        names: Sequence[str] | None = None,
        sigma: float | None = None,
        cut: float = 0.1,
        directed: bool = False,
    ) -> Self:
        """Build a graph from a list of distances by the Gaussian kernel of :meth:`from_distances`.

        Returns a ClientGraph over ``names``. Raises GraphError for lists of different lengths, and as
        :meth:`from_distances` does.

        Parameters
        ----------
        sources, targets : sequence of str
            ``distances[e]`` is the distance from ``sources[e]`` to ``targets[e]``. An undirected list may contain a
            pair in one or in both directions; it counts twice for sigma, as in a matrix.
        distances : array-like
            ``[E]``.
        names : sequence of str, optional
            The clients, in order; entries about others are dropped *before* the default sigma is computed, as in DCRNN.
            By default all names in order of appearance.
        sigma, cut, directed
            As in :meth:`from_distances`.
        """
        values = real_tensor(distances, "distances", "[E]").to(torch.float64)
        if not len(sources) == len(targets) == len(values):
            raise GraphError(
                f"a distance list needs as many sources as targets and distances; got {len(sources)}, {len(targets)} "
                f"and {len(values)}"
            )
        names = list(dict.fromkeys([*sources, *targets])) if names is None else names
        position = {name: at for at, name in enumerate(names)}
        edge_index = torch.tensor(
            [[position.get(name, -1) for name in sources], [position.get(name, -1) for name in targets]],
            dtype=torch.int64,
        )
        among = (edge_index >= 0).all(0)
        edge_index, values = edge_index[:, among], values[among]
        if not directed:
            edge_index, values = mirrored(len(names), edge_index, values)
        finite = values.isfinite()
        edge_index = edge_index[:, finite]
        weights = gaussian_edges(names, edge_index, values[finite], sigma, cut)
        return cls(tuple(names), edge_index, weights, directed)

    @classmethod
    def from_coordinates(
        cls,
        coordinates: Array,
        names: Sequence[Any],
        kind: Literal["geographic", "plane"] = "geographic",
        method: Literal["gaussian", "knn"] = "gaussian",
        k: int | None = None,
        sigma: float | None = None,
        cut: float = 0.1,
        weights: Literal["binary", "gaussian"] = "binary",
    ) -> Self:
        """Build a graph from coordinates of clients.

        There are no self loops, and the default sigma is over pairs. The result is undirected, over ``names``. Raises
        GraphError for non-finite or invalid coordinates, and as the two methods.

        Parameters
        ----------
        coordinates : array-like
            ``[N, 2]``. Columns of a data frame named latitude and longitude (or lat and lon) go by name, and its rows
            by label, if they have any.
        names : sequence
            The clients, named ``str(name)``.
        kind : {"geographic", "plane"}
            Latitude and longitude in degrees (great-circle distances in metres), or points of a plane.
        method : {"gaussian", "knn"}
            The kernel of :meth:`from_distances`, or the graph of :meth:`nearest`.
        k, weights
            As in :meth:`nearest`; only for that method.
        sigma, cut
            As in :meth:`from_distances`; ``cut`` only for the method ``gaussian``.
        """
        names = client_names(names)
        found = latitude_longitude(coordinates) if kind == "geographic" else coordinates
        points = _matrix(rows_in_order(found, names), len(names), "coordinates", columns=2)
        if not bool(points.isfinite().all()):
            raise GraphError(f"the coordinates of '{names[int((~points.isfinite()).nonzero()[0, 0])]}' are not finite")
        if kind == "geographic":
            outside = (points[:, 0].abs() > 90) | (points[:, 1].abs() > 360)
            if bool(outside.any()):
                at = int(outside.nonzero()[0])
                raise GraphError(
                    f"{points[at].tolist()} of '{names[at]}' is not a latitude and longitude in degrees, in this "
                    "order; for points of a plane use kind='plane'"
                )
        elif kind != "plane":
            raise GraphError(f"kind must be 'geographic' or 'plane'; got {kind!r}")
        rows = great_circle_rows(points) if kind == "geographic" else euclidean_rows(points)
        if method == "knn":
            if k is None:
                raise GraphError("method 'knn' needs k, the number of nearest neighbours")
            return cls(names, *nearest_edges(names, rows, k, weights, sigma))
        if method != "gaussian":
            raise GraphError(f"method must be 'gaussian' or 'knn'; got {method!r}")
        matrix = torch.cat([block for _, block in others_rows(rows, len(names))])
        return cls.from_distances(matrix, names, sigma, cut)

    @classmethod
    def nearest(
        cls,
        features: Array,
        names: Sequence[Any],
        k: int,
        *,
        metric: Literal["euclidean", "precomputed"] = "euclidean",
        weights: Literal["binary", "gaussian"] = "binary",
        sigma: float | None = None,
    ) -> Self:
        """Build the symmetric k-nearest-neighbour graph: an edge if one client is among the ``k`` nearest of the other.

        Every client has at least k neighbours, unless distances are infinite; ties go to the first in order. The result
        is undirected. Raises GraphError for a ``k`` out of range, arrays of the wrong shape, negative distances and an
        invalid sigma.

        Parameters
        ----------
        features : ``[N, F]``. The rows of a data frame go by their labels, if it has any.
        names : the clients, named ``str(name)``.
        k : between 1 and the number of other clients.
        metric : of features; or ``precomputed``: ``features`` are distances ``[N, N]``, infinity or NaN for no
            neighbour, and an edge uses the shorter one of an asymmetric matrix.
        weights : 1, or ``exp(-(d / sigma)^2)``.
        sigma : by default the standard deviation of the finite distances between different clients.
        """
        names = client_names(names)
        if metric == "precomputed":
            matrix = _square(features, names)
            return cls(names, *nearest_edges(names, lambda block: matrix[block], k, weights, sigma))
        if metric != "euclidean":
            raise GraphError(f"metric must be 'euclidean' or 'precomputed'; got {metric!r}")
        points = _matrix(rows_in_order(features, names), len(names), "features")
        if not bool(points.isfinite().all()):
            raise GraphError(f"the features of '{names[int((~points.isfinite()).nonzero()[0, 0])]}' are not finite")
        return cls(names, *nearest_edges(names, euclidean_rows(points), k, weights, sigma))

    @classmethod
    def from_labels(
        cls,
        label_counts: Array,
        names: Sequence[Any],
        main: int = 1,
        weights: Literal["binary", "overlap"] = "binary",
    ) -> Self:
        """Build the graph with an edge between clients that share one of their ``main`` most frequent labels.

        This graph is an oracle: it uses the clients' private label counts, which must be stated in results. The result
        is undirected, without self loops. Raises GraphError for negative or non-finite counts, a wrong shape, and
        invalid values of ``main`` or ``weights``.

        Parameters
        ----------
        label_counts : ``[N, classes]``. Ties go to the smaller class index; labels without examples do not count. The
            rows of a data frame go by their labels, if it has any.
        names : the clients, named ``str(name)``.
        main : number of most frequent labels, 1 or more.
        weights : 1, or the cosine similarity of the two label distributions.
        """
        names = client_names(names)
        counts = _matrix(rows_in_order(label_counts, names), len(names), "label counts")
        if not bool((counts.isfinite() & (counts >= 0)).all()):
            raise GraphError("label counts must be finite and non-negative")
        if main < 1:
            raise GraphError(f"main, the number of most frequent labels, must be at least 1; got {main}")
        if weights not in ("binary", "overlap"):
            raise GraphError(f"weights must be 'binary' or 'overlap'; got {weights!r}")
        ranked = counts.argsort(dim=1, descending=True, stable=True)[:, :main]
        is_main = torch.zeros_like(counts).scatter_(1, ranked, 1.0) * (counts > 0)
        unit = torch.nn.functional.normalize(counts, dim=1)
        found, values = [], []
        for block in row_blocks(len(names)):
            linked = is_main[block] @ is_main.T > 0
            linked[:, block].fill_diagonal_(False)
            edge_index = linked.nonzero().T
            edge_index[0] += block.start
            found.append(edge_index)
            if weights == "overlap":
                values.append((unit[block] @ unit.T)[linked])
            else:
                values.append(torch.ones(edge_index.shape[1]))
        return cls(names, torch.cat(found, dim=1), torch.cat(values))


def _square(distances: Array, names: Sequence[str]) -> Tensor:
    """Return distances ``[N, N]`` in the order of ``names``."""
    return _matrix(square_in_order(distances, names)[0], len(names), "distances", columns=len(names))


def _matrix(values: Array, rows: int, what: str, columns: int | None = None) -> Tensor:
    expected = [rows, "any" if columns is None else columns]
    matrix = real_tensor(values, what, f"{expected}").detach().to("cpu", torch.float64)
    if matrix.ndim != 2 or matrix.shape[0] != rows or columns not in (None, matrix.shape[1]):
        raise GraphError(f"{what} for {rows} clients have shape {expected}; got {list(matrix.shape)}")
    return matrix
