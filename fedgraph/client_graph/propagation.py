"""The normalised propagation matrix of a client graph and its powers applied to the clients' stacked values.

Symmetric normalisation as in Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks
(ICLR 2017), eq. 2: ``D^-1/2 (A + I) D^-1/2``; random walk: ``D^-1 (A + I)``, whose rows sum to one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedgraph.errors import GraphError

if TYPE_CHECKING:
    from fedgraph.client_graph.value import ClientGraph

Normalisation = Literal["symmetric", "random-walk", "none"]

DENSE_ABOVE = 0.10
DENSE_UP_TO_CLIENTS = 512
"""Up to this many clients, or above this share of non-zero entries, a dense product is the faster one."""

_BLOCK_ENTRIES = 2**19
"""Entries of a column block: 2 MiB of float32, so that all hops of a block stay in a core's cache."""


@dataclass(frozen=True, eq=False)
class PropagationMatrix:
    """A fixed matrix ``[N, N]`` by which the clients' values are mixed, multiplied as dense or sparse.

    edge_index, weights : the non-zero entries, int64 ``[2, E]`` sorted by row and float32 ``[E]``.
    num_clients         : N.
    """

    edge_index: Tensor
    weights: Tensor
    num_clients: int
    _cache: dict[tuple[torch.device, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def is_dense(self) -> bool:
        """Whether ``apply`` multiplies by a dense matrix; decided by size and density alone."""
        density = self.weights.numel() / self.num_clients**2
        return self.num_clients <= DENSE_UP_TO_CLIENTS or density > DENSE_ABOVE

    def dense(self) -> Tensor:
        """The matrix, float32 ``[N, N]``."""
        matrix = torch.zeros(self.num_clients, self.num_clients)
        matrix[self.edge_index[0], self.edge_index[1]] = self.weights
        return matrix

    def sparse(self) -> Tensor:
        """The matrix as a float32 sparse CSR tensor ``[N, N]``."""
        rows = torch.bincount(self.edge_index[0], minlength=self.num_clients)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), rows.cumsum(0)])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            # 32-bit indices: a hop is bound by memory traffic and takes about two thirds of the time.
            return torch.sparse_csr_tensor(
                starts.int(),
                self.edge_index[1].int(),
                self.weights,
                size=(self.num_clients, self.num_clients),
                check_invariants=True,
            )

    def apply(self, stacked: Tensor, hops: int = 1) -> Tensor:
        """``M^hops @ stacked`` for values ``[N, ...]``: float32 of the same shape, on the device of ``stacked``.

        Values must be finite: a dense product spreads one NaN to every client. Gradients flow to ``stacked``.

        Raises GraphError when the leading axis is not N or ``hops`` is negative.
        """
        if stacked.ndim == 0 or stacked.shape[0] != self.num_clients:
            raise GraphError(
                f"values of shape {list(stacked.shape)} cannot be propagated over a graph of {self.num_clients} "
                "clients: the leading axis is the client axis; reindex the graph to the clients at hand"
            )
        if hops < 0:
            raise GraphError(f"hops is the number of propagation steps, 0 or more; got {hops}")
        values = stacked.reshape(self.num_clients, -1).float()
        if hops == 0 or values.numel() == 0:
            return values.clone().reshape(stacked.shape)
        if self.is_dense:
            return (self._dense_power(hops, values.device) @ values).reshape(stacked.shape)
        matrix = self._sparse_on(values.device)
        result = torch.empty_like(values)
        width = max(64, _BLOCK_ENTRIES // self.num_clients)
        for start in range(0, values.shape[1], width):
            block = values[:, start : start + width].contiguous()
            for _ in range(hops):
                block = matrix @ block
            result[:, start : start + width] = block
        return result.reshape(stacked.shape)

    def _dense_power(self, hops: int, device: torch.device) -> Tensor:
        """``M^hops``, made once: N x N is small beside the values, so one product does for all hops."""
        if (device, hops) not in self._cache:
            power = torch.linalg.matrix_power(self.dense().double(), hops)
            self._cache[device, hops] = power.float().to(device)
        return self._cache[device, hops]

    def _sparse_on(self, device: torch.device) -> Tensor:
        if (device, 1) not in self._cache:
            self._cache[device, 1] = self.sparse().to(device)
        return self._cache[device, 1]


def normalise(graph: ClientGraph, normalisation: Normalisation, self_loops: bool) -> PropagationMatrix:
    """The propagation matrix of ``graph``; see ``ClientGraph.normalised``."""
    if normalisation not in ("symmetric", "random-walk", "none"):
        raise GraphError(f"normalisation is 'symmetric', 'random-walk' or 'none'; got {normalisation!r}")
    if self_loops:
        graph = graph.with_self_loops()
    if normalisation == "none":
        return PropagationMatrix(graph.edge_index, graph.weights, graph.num_clients)
    degree = _absolute_degree(graph)
    if bool((degree == 0).any()):
        graph = graph.with_self_loops(only=degree == 0)
        degree = _absolute_degree(graph)
    row, column = graph.edge_index
    # In float64, so that no float32 weight, however small or large, ends as a division by zero or an overflow.
    if normalisation == "symmetric":
        weights = graph.weights.double() / (degree[row].sqrt() * degree[column].sqrt())
    else:
        weights = graph.weights.double() / degree[row]
    return PropagationMatrix(graph.edge_index, weights.float(), graph.num_clients)


def _absolute_degree(graph: ClientGraph) -> Tensor:
    zeros = torch.zeros(graph.num_clients, dtype=torch.float64)
    return zeros.index_add(0, graph.edge_index[0], graph.weights.double().abs())
