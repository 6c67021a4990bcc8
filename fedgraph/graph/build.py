"""Client graphs built from distances, coordinates, features or label counts.

Distances become weights by the thresholded Gaussian kernel of Shuman et al., The Emerging Field of Signal Processing
on Graphs (2013), eq. 1, as used for road sensors by Li et al., Diffusion Convolutional Recurrent Neural Network
(ICLR 2018), section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedgraph.graph.distances import (
    DistanceRows,
    check_not_negative,
    default_sigma,
    euclidean_rows,
    gaussian_kernel,
    great_circle_rows,
    others_rows,
    row_blocks,
)
from fedgraph.graph.edges import mirrored
from fedgraph.graph.value import ClientGraph
from fedgraph.support.errors import GraphError

Array = Tensor | np.ndarray | Sequence[Sequence[float]]


def from_distances(
    names: Sequence[str], distances: Array, sigma: float | None = None, cut: float = 0.1, directed: bool = False
) -> ClientGraph:
    """Build a graph from a matrix of distances by a Gaussian kernel: ``A[i, j] = exp(-(d_ij / sigma)^2)``.

    Parameters
    ----------
    names : sequence of str
        The clients.
    distances : array-like
        ``[N, N]``. An infinite distance or NaN is no edge; a zero diagonal gives self loops of weight 1.
    sigma : float, optional
        In the unit of the distances; by default the standard deviation of the finite ones, including the diagonal, as
        in DCRNN.
    cut : float
        Weights below it become 0.
    directed : bool
        Whether distances may be asymmetric.

    Returns
    -------
    ClientGraph
        Over ``names``.

    Raises
    ------
    GraphError
        For a matrix of the wrong shape, negative distances, an unusable sigma or cut, and distances that are not
        symmetric unless ``directed``.
    """
    matrix = _matrix(distances, len(names), "distances", columns=len(names))
    edge_index = matrix.isfinite().nonzero().T
    return _gaussian(names, edge_index, matrix[edge_index[0], edge_index[1]], sigma, cut, directed)


def from_distance_list(
    sources: Sequence[str],
    targets: Sequence[str],
    distances: Sequence[float] | Tensor | np.ndarray,
    names: Sequence[str] | None = None,
    sigma: float | None = None,
    cut: float = 0.1,
    directed: bool = False,
) -> ClientGraph:
    """Build a graph from a list of distances by the Gaussian kernel of :func:`from_distances`.

    Parameters
    ----------
    sources, targets : sequence of str
        ``distances[e]`` is the distance from ``sources[e]`` to ``targets[e]``. An undirected list may contain a pair in
        one or in both directions; it counts twice for sigma, as in a matrix.
    distances : array-like
        ``[E]``.
    names : sequence of str, optional
        The clients, in order; entries about others are dropped *before* the default sigma is computed, as in DCRNN. By
        default all names in order of appearance.
    sigma, cut, directed
        As in :func:`from_distances`.

    Returns
    -------
    ClientGraph
        Over ``names``.

    Raises
    ------
    GraphError
        For lists of different lengths, and as :func:`from_distances` does.
    """
    values = torch.as_tensor(distances, dtype=torch.float64)
    if not len(sources) == len(targets) == len(values):
        raise GraphError(
            f"a distance list needs as many sources as targets and distances; got {len(sources)}, {len(targets)} and "
            f"{len(values)}"
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
    return _gaussian(names, edge_index[:, finite], values[finite], sigma, cut, directed)


def from_coordinates(
    names: Sequence[str],
    coordinates: Array,
    kind: Literal["geographic", "plane"] = "geographic",
    method: Literal["gaussian", "knn"] = "gaussian",
    k: int | None = None,
    sigma: float | None = None,
    cut: float = 0.1,
    weights: Literal["binary", "gaussian"] = "gaussian",
) -> ClientGraph:
    """Build a graph from the places of clients.

    A client has no distance to itself: there are no self loops, and the default sigma is over pairs.

    Parameters
    ----------
    names : sequence of str
        The clients.
    coordinates : array-like
        ``[N, 2]``.
    kind : {"geographic", "plane"}
        Latitude and longitude in degrees (great-circle distances in metres), or points of a plane.
    method : {"gaussian", "knn"}
        The kernel of :func:`from_distances`, or the graph of :func:`knn`.
    k, weights
        As in :func:`knn`; only for that method.
    sigma, cut
        As in :func:`from_distances`; ``cut`` only for the method ``gaussian``.

    Returns
    -------
    ClientGraph
        Undirected, over ``names``.

    Raises
    ------
    GraphError
        For coordinates that are not finite or no places on earth, and as the two functions do.
    """
    points = _matrix(coordinates, len(names), "coordinates", columns=2)
    if not bool(points.isfinite().all()):
        raise GraphError(f"the coordinates of '{names[int((~points.isfinite()).nonzero()[0, 0])]}' are not finite")
    if kind == "geographic":
        outside = (points[:, 0].abs() > 90) | (points[:, 1].abs() > 360)
        if bool(outside.any()):
            at = int(outside.nonzero()[0])
            raise GraphError(
                f"'{names[at]}' lies at {points[at].tolist()}, which is no latitude and longitude in degrees, in that "
                "order; for points of a plane give kind='plane'"
            )
    elif kind != "plane":
        raise GraphError(f"coordinates are of the kind 'geographic' or 'plane'; got {kind!r}")
    rows = great_circle_rows(points) if kind == "geographic" else euclidean_rows(points)
    if method == "knn":
        if k is None:
            raise GraphError("method 'knn' needs k, the number of nearest neighbours")
        return _nearest(names, rows, k, weights, sigma)
    if method != "gaussian":
        raise GraphError(f"a graph of coordinates is made by 'gaussian' or 'knn'; got {method!r}")
    matrix = torch.cat([block for _, block in others_rows(rows, len(names))])
    return from_distances(names, matrix, sigma, cut)


def knn(
    names: Sequence[str],
    k: int,
    *,
    features: Array | None = None,
    distances: Array | None = None,
    weights: Literal["binary", "gaussian"] = "binary",
    sigma: float | None = None,
) -> ClientGraph:
    """Build the graph that links clients if one is among the ``k`` nearest *others* of the other.

    Every client has at least k neighbours, unless distances are infinite. Of equally near clients the first in order
    are taken.

    Parameters
    ----------
    names : sequence of str
        The clients.
    k : int
        Between 1 and the number of other clients.
    features : array-like, optional
        ``[N, F]``, for Euclidean distances.
    distances : array-like, optional
        ``[N, N]`` instead of features; an infinite distance or NaN is no neighbour. If the matrix is asymmetric, an
        edge takes the shorter distance.
    weights : {"binary", "gaussian"}
        1, or ``exp(-(d / sigma)^2)``.
    sigma : float, optional
        By default the standard deviation of the finite distances between different clients.

    Returns
    -------
    ClientGraph
        Undirected.

    Raises
    ------
    GraphError
        For a ``k`` out of range, for arrays of the wrong shape, negative distances and an unusable sigma.
    """
    if (features is None) == (distances is None):
        raise GraphError("knn needs either features or distances")
    if features is not None:
        points = _matrix(features, len(names), "features")
        if not bool(points.isfinite().all()):
            raise GraphError(f"the features of '{names[int((~points.isfinite()).nonzero()[0, 0])]}' are not finite")
        return _nearest(names, euclidean_rows(points), k, weights, sigma)
    assert distances is not None
    matrix = _matrix(distances, len(names), "distances", columns=len(names))
    return _nearest(names, lambda block: matrix[block], k, weights, sigma)


def from_labels(
    names: Sequence[str],
    label_counts: Array,
    main: int = 1,
    weights: Literal["binary", "overlap"] = "binary",
) -> ClientGraph:
    """Build the graph that links clients if they share one of their ``main`` most frequent labels.

    This graph is an oracle: it uses the clients' private label counts, which a server does not know; a run that uses it
    must state so.

    Parameters
    ----------
    names : sequence of str
        The clients.
    label_counts : array-like
        ``[N, classes]``. Ties go to the smaller class index; labels without examples do not count.
    main : int
        Number of most frequent labels, 1 or more.
    weights : {"binary", "overlap"}
        1, or the cosine similarity of the two label distributions.

    Returns
    -------
    ClientGraph
        Undirected, without self loops.

    Raises
    ------
    GraphError
        For counts that are negative, not finite or of the wrong shape, and for other values of ``main`` or ``weights``.
    """
    counts = _matrix(label_counts, len(names), "label counts")
    if not bool((counts.isfinite() & (counts >= 0)).all()):
        raise GraphError("label counts must be finite and not negative")
    if main < 1:
        raise GraphError(f"main is the number of most frequent labels that count, 1 or more; got {main}")
    if weights not in ("binary", "overlap"):
        raise GraphError(f"weights are 'binary' or 'overlap'; got {weights!r}")
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
    return ClientGraph(tuple(names), torch.cat(found, dim=1), torch.cat(values))


def _gaussian(
    names: Sequence[str],
    edge_index: Tensor,
    distances: Tensor,
    sigma: float | None,
    cut: float,
    directed: bool,
) -> ClientGraph:
    if not 0 <= cut <= 1:
        raise GraphError(f"cut is a weight between 0 and 1 below which there is no edge; got {cut}")
    check_not_negative(names, edge_index, distances)
    if sigma is None and distances.numel():
        sigma = default_sigma(float(distances.mean()), float(distances.var(correction=0)))
    weights = gaussian_kernel(distances, sigma)
    weights[weights < cut] = 0
    return ClientGraph(tuple(names), edge_index, weights, directed)


def _nearest(names: Sequence[str], rows: DistanceRows, k: int, weights: str, sigma: float | None) -> ClientGraph:
    if weights not in ("binary", "gaussian"):
        raise GraphError(f"weights are 'binary' or 'gaussian'; got {weights!r}")
    if not 1 <= k < len(names):
        raise GraphError(f"k is between 1 and {len(names) - 1}, the number of other clients; got {k}")
    found, nearest = [], []
    count, total, total_squares = 0, 0.0, 0.0
    for start, block in others_rows(rows, len(names)):
        block[block.isnan()] = torch.inf
        farthest = block.kthvalue(k, dim=1, keepdim=True).values
        closer, tied = block < farthest, block == farthest
        chosen = closer | (tied & (tied.cumsum(1) <= k - closer.sum(1, keepdim=True)))
        finite = block.isfinite()
        chosen &= finite
        edge_index = chosen.nonzero().T
        edge_index[0] += start
        found.append(edge_index)
        nearest.append(block[chosen])
        if weights == "gaussian" and sigma is None:
            values = block[finite]
            count += len(values)
            total += float(values.sum())
            total_squares += float((values**2).sum())
    edge_index, lengths = torch.cat(found, dim=1), torch.cat(nearest)
    check_not_negative(names, edge_index, lengths)
    if weights == "binary":
        strengths = torch.ones_like(lengths)
    else:
        if sigma is None and count:
            mean = total / count
            sigma = default_sigma(mean, total_squares / count - mean**2)
        strengths = gaussian_kernel(lengths, sigma)
    return ClientGraph(tuple(names), edge_index, strengths, directed=True).symmetrised("maximum")


def _matrix(values: Array, rows: int, what: str, columns: int | None = None) -> Tensor:
    matrix = torch.as_tensor(np.asarray(values, dtype=np.float64))
    expected = [rows, "any" if columns is None else columns]
    if matrix.ndim != 2 or matrix.shape[0] != rows or columns not in (None, matrix.shape[1]):
        raise GraphError(f"{what} for {rows} clients have shape {expected}; got {list(matrix.shape)}")
    return matrix
