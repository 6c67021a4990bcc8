"""The normalised propagation matrix of a client graph and its powers applied to the clients' stacked values.

Symmetric normalisation as in Kipf and Welling, Semi-Supervised Classification with Graph Convolutional Networks
(ICLR 2017), eq. 2: ``D^-1/2 (A + I) D^-1/2``; random walk: ``D^-1 (A + I)``, whose rows sum to one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedgraph.graph.edges import by_row, with_self_loops
from fedgraph.support.errors import GraphError
from fedgraph.support.threads import column_blocks, over_blocks

Normalisation = Literal["symmetric", "random-walk", "none"]

SPARSE_ENTRY_COST = 10
"""Cost of multiplying by one non-zero entry of a sparse matrix, relative to an entry of a dense one."""

_ALWAYS_DENSE = 32
_POWER_UP_TO_CLIENTS = 2048
"""Largest number of clients for which dense powers are computed; beyond, they cost more than they save."""

_SPARSE_BLOCK_ENTRIES, _SPARSE_NARROWEST = 2**17, 64
"""A column block of the sparse product: half a MiB, so that all hops of a block stay in a core's cache, but not so
narrow that reading and writing it is slow."""

_DENSE_BLOCK_ENTRIES, _DENSE_NARROWEST = 2**19, 512
"""A column block of the dense product, which tiles by itself: it only has to leave something for every core."""


@dataclass(frozen=True, eq=False)
class PropagationMatrix:
    """A fixed matrix ``[N, N]`` that mixes the clients' values, multiplied as dense or sparse.

    Attributes
    ----------
    edge_index, weights : the non-zero entries, int64 ``[2, E]`` sorted by row and float32 ``[E]``.
    exact : the weights as float64 ``[E]``, for values in double precision; by default those of ``weights``.
    """

    edge_index: Tensor
    weights: Tensor
    num_clients: int
    exact: Tensor | None = field(default=None, repr=False)
    # Dense powers by device, type and hops; 0 hops stand for the sparse matrix.
    _cache: dict[tuple[torch.device, torch.dtype, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    def multiplies_densely(self, hops: int = 1) -> bool:
        """Return whether ``apply`` uses a dense matrix, which depends only on size, non-zero entries and hops.

        A dense product does all hops at once, a sparse one does them one by one.
        """
        entries = self.num_clients**2
        return self.num_clients <= _ALWAYS_DENSE or entries <= SPARSE_ENTRY_COST * max(hops, 1) * self.weights.numel()

    def dense(self) -> Tensor:
        """Return the matrix, float32 ``[N, N]``."""
        return self._dense(torch.float32)

    def _dense(self, dtype: torch.dtype) -> Tensor:
        matrix = torch.zeros(self.num_clients, self.num_clients, dtype=dtype)
        matrix[self.edge_index[0], self.edge_index[1]] = self._weights(dtype)
        return matrix

    def _weights(self, dtype: torch.dtype) -> Tensor:
        """Return the weights in single or double precision."""
        return self.exact if dtype == torch.float64 and self.exact is not None else self.weights.to(dtype)

    def sparse(self) -> Tensor:
        """Return the matrix as a float32 sparse CSR tensor ``[N, N]``."""
        return self._sparse(torch.float32)

    def _sparse(self, dtype: torch.dtype) -> Tensor:
        starts, columns = self._compressed_rows
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                starts, columns, self._weights(dtype), size=(self.num_clients, self.num_clients), check_invariants=True
            )

    def apply(self, stacked: Tensor, hops: int = 1) -> Tensor:
        """Compute ``M^hops @ stacked`` for values ``[N, ...]``.

        Values must be finite: a dense product spreads one NaN to every client. There are no gradients. On a CPU all
        cores share the work; the result is bitwise identical for any number of cores. Returns float32 of the same
        shape, or float64 as ``stacked`` is, on its device. Raises GraphError when the leading axis is not N or ``hops``
        is negative.
        """
        stacked = torch.as_tensor(stacked)
        if stacked.ndim == 0 or stacked.shape[0] != self.num_clients:
            raise GraphError(
                f"values of shape {list(stacked.shape)} cannot be propagated over a graph of {self.num_clients} "
                "clients: the leading axis is the client axis; reindex the graph to the clients at hand"
            )
        if not isinstance(hops, int | np.integer) or hops < 0:
            raise GraphError(f"hops is the number of propagation steps, 0 or more; got {hops}")
        hops, double = int(hops), stacked.dtype == torch.float64
        values = stacked.reshape(self.num_clients, -1).to(torch.float64 if double else torch.float32)
        if hops == 0 or values.numel() == 0:
            return values.clone().reshape(stacked.shape)
        return self._multiply(values.detach(), hops).reshape(stacked.shape)

    def _multiply(self, values: Tensor, hops: int) -> Tensor:
        """Compute ``M^hops @ values`` for a matrix ``[N, columns]``, without gradients."""
        if self.multiplies_densely(hops):
            at_once = hops if self.num_clients <= _POWER_UP_TO_CLIENTS else 1
            matrix, steps = self._dense_power(at_once, values.device, values.dtype), hops // at_once
        elif values.device.type != "cpu":
            matrix, steps = self._sparse_on(values.device, values.dtype), hops
        else:
            return self._sparse_product(values, hops)
        if values.device.type == "cpu":
            return self._dense_product(matrix, values, steps)
        return _steps(matrix, values, steps)

    def _dense_product(self, matrix: Tensor, values: Tensor, steps: int) -> Tensor:
        result = torch.empty_like(values, memory_format=torch.contiguous_format)

        def mix(columns: slice) -> None:
            torch.mm(matrix, _steps(matrix, values[:, columns], steps - 1), out=result[:, columns])

        blocks = column_blocks(self.num_clients, values.shape[1], _DENSE_BLOCK_ENTRIES, _DENSE_NARROWEST)
        over_blocks(mix, blocks, products=steps * matrix.numel() * values.shape[1])
        return result

    def _sparse_product(self, values: Tensor, hops: int) -> Tensor:
        starts, sources = self._compressed_rows
        result, weights = torch.empty_like(values, memory_format=torch.contiguous_format), self._weights(values.dtype)

        def mix(columns: slice) -> None:
            # Read once, all hops in the cache, written once. An embedding bag computes weighted sums of rows, and its
            # kernel is the fastest sparse product on a CPU.
            block = values[:, columns].contiguous()
            for _ in range(hops):
                block = embedding_bag(
                    sources, block, starts, mode="sum", per_sample_weights=weights, include_last_offset=True
                )
            result[:, columns] = block

        blocks = column_blocks(self.num_clients, values.shape[1], _SPARSE_BLOCK_ENTRIES, _SPARSE_NARROWEST)
        over_blocks(mix, blocks, products=SPARSE_ENTRY_COST * hops * self.weights.numel() * values.shape[1])
        return result

    @cached_property
    def _compressed_rows(self) -> tuple[Tensor, Tensor]:
        """Start of each row's entries, int32 ``[N + 1]``, and their columns, int32 ``[E]``.

        int64 would double the memory traffic.
        """
        counts = torch.bincount(self.edge_index[0], minlength=self.num_clients)
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
        return starts.int(), self.edge_index[1].int()

    def _dense_power(self, hops: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return ``M^hops``, cached: N x N is small beside the values, so one product does for all hops."""
        key = device, dtype, hops
        if key not in self._cache:
            matrix = self._dense(dtype)
            if hops > 1:
                matrix = torch.linalg.matrix_power(matrix.double(), hops).to(dtype)
            self._cache[key] = matrix.to(device)
        return self._cache[key]

    def _sparse_on(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        key = device, dtype, 0
        if key not in self._cache:
            self._cache[key] = self._sparse(dtype).to(device)
        return self._cache[key]


def _steps(matrix: Tensor, values: Tensor, steps: int) -> Tensor:
    for _ in range(steps):
        values = matrix @ values
    return values


def normalise(
    num_clients: int, edge_index: Tensor, weights: Tensor, normalisation: Normalisation, self_loops: bool
) -> PropagationMatrix:
    """Return the propagation matrix of canonical edges; see :meth:`fedgraph.graph.ClientGraph.normalised`."""
    if normalisation not in ("symmetric", "random-walk", "none"):
        raise GraphError(f"normalisation is 'symmetric', 'random-walk' or 'none'; got {normalisation!r}")
    if self_loops:
        edge_index, weights = with_self_loops(num_clients, edge_index, weights)
    degree = _absolute_degree(num_clients, edge_index, weights)
    if normalisation != "none" and bool((degree == 0).any()):
        edge_index, weights = with_self_loops(num_clients, edge_index, weights, only=degree == 0)
        degree = _absolute_degree(num_clients, edge_index, weights)
    edge_index, weights = by_row(num_clients, edge_index, weights)
    row, column = edge_index
    # In float64, so that no float32 weight, however small or large, leads to a division by zero or an overflow.
    exact = weights.double()
    if normalisation == "symmetric":
        exact = exact / (degree[row].sqrt() * degree[column].sqrt())
    elif normalisation == "random-walk":
        exact = exact / degree[row]
    return PropagationMatrix(edge_index, exact.float(), num_clients, exact)


def _absolute_degree(num_clients: int, edge_index: Tensor, weights: Tensor) -> Tensor:
    return torch.zeros(num_clients, dtype=torch.float64).index_add(0, edge_index[0], weights.double().abs())
