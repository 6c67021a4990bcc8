"""Products with a batch of random graphs, and their derivatives, with one stored number per edge and sample.

F3 (Ma, Hoang, Chen; UAI 2023), eqs. 8 and 9: a graph is drawn for every sample and used once. Automatic
differentiation would store several numbers per edge and sample in main memory. Here samples are processed in parallel
in small blocks whose graphs fit in the processor's cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedgraph.support.randomness import derive_seed
from fedgraph.support.threads import side_by_side

_BLOCK_ENTRIES = 400_000
"""Number of graph entries per block on a CPU: 1.6 MB."""


class Workspace:
    """A pool of tensors for reuse: allocating new memory takes as long as drawing graphs."""

    def __init__(self) -> None:
        self._free: defaultdict[tuple[object, ...], list[Tensor]] = defaultdict(list)

    def take(self, like: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Return an uninitialised tensor of this shape. Thread-safe."""
        try:
            return self._free[shape, like.dtype, like.device].pop()
        except IndexError:
            return like.new_empty(shape)

    def give_back(self, tensors: Iterable[Tensor]) -> None:
        """Return unused tensors to the pool."""
        for each in tensors:
            self._free[tuple(each.shape), each.dtype, each.device].append(each)


@dataclass(frozen=True)
class Draw:
    """Specification of random graphs over n owners.

    Attributes
    ----------
    noise : fills a tensor with draws of s, given a generator.
    temperature : tau of eq. 9.
    upper : int64 ``[pairs]``, position of each pair in a flattened n x n matrix, above the diagonal.
    entries : int64 ``[n * n]``, the pair of each entry of the matrix.
    shared : whether all samples use one graph.
    workers : number of threads; results do not depend on it.
    workspace : memory of the graphs until the backward pass.
    """

    noise: Callable[[Tensor, torch.Generator], Tensor]
    temperature: float
    upper: Tensor
    entries: Tensor
    owners: int
    seed: int
    shared: bool
    workers: int
    workspace: Workspace

    def graphs(self, levels: Tensor, count: int, block: int) -> Tensor:
        """Draw symmetric matrices S with a zero diagonal, ``[count, n, n]``, from q(theta) ``[pairs]``."""
        random = torch.Generator(levels.device).manual_seed(derive_seed(self.seed, "graphs", block))
        if self.owners == 1:
            return levels.new_zeros(count, 1, 1)
        edges = self.noise(levels.new_empty(count, len(levels)), random)
        torch.sub(levels / self.temperature, edges, alpha=1 / self.temperature, out=edges).sigmoid_()
        graphs = self.workspace.take(levels, (count, self.owners, self.owners))
        torch.index_select(edges, 1, self.entries, out=graphs.view(count, -1))
        graphs.diagonal(dim1=1, dim2=2).zero_()
        return graphs

    def blocks(self, batch: int, device: torch.device) -> list[slice]:
        """Return the blocks of samples, which depend only on the numbers of samples and owners."""
        whole = self.shared or device.type != "cpu"
        size = max(1, batch if whole else _BLOCK_ENTRIES // self.owners**2)
        # An empty batch is one empty block.
        return [slice(start, min(start + size, batch)) for start in range(0, max(batch, 1), size)]


def propagate(levels: Tensor, features: Tensor, counted: Tensor, draw: Draw) -> Tensor:
    """Compute ``D^-1/2 A D^-1/2 X`` for random graphs ``A = S + I`` and ``D = diag(A counted)``.

    The product is returned transposed, ``[batch, columns, owners]``.

    Parameters
    ----------
    levels : q(theta), ``[pairs]``.
    features : X transposed, ``[batch, columns, owners]``.
    counted : ``[batch, owners]``; no gradient flows to it.
    """
    result: Tensor = _Propagate.apply(levels, features, counted, draw)
    return result


class _Propagate(torch.autograd.Function):
    """With ``d = D^-1/2 1`` per sample: ``V = X d``, ``T = V A``, result ``T d``, all for transposed X."""

    @staticmethod
    def forward(ctx: Any, levels: Tensor, features: Tensor, counted: Tensor, draw: Draw) -> Tensor:
        needed = any(ctx.needs_input_grad[:2])
        counted = counted.to(features.dtype)

        # Gradient mode is thread-local, so worker threads have to set it.
        @torch.no_grad()
        def block(number_and_rows: tuple[int, slice]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            number, rows = number_and_rows
            own, present = features[rows], counted[rows]
            graphs = draw.graphs(levels, 1 if draw.shared else len(own), number)
            scale = (_times(present[:, None], graphs)[:, 0] + present).clamp_(min=1).rsqrt_()[:, None]
            scaled = own * scale
            product = _times(scaled, graphs) + scaled
            if not needed:
                draw.workspace.give_back([graphs])
            return product * scale, graphs, scale, product

        parts = list(enumerate(draw.blocks(len(features), features.device)))
        results = side_by_side(block, parts, draw.workers, torch.get_num_threads())
        if needed:
            ctx.draw = draw
            ctx.graphs = [graphs for _, graphs, _, _ in results]
            scales, products = (torch.cat([result[place] for result in results]) for place in (2, 3))
            ctx.save_for_backward(features, counted, scales, products)
        return torch.cat([result[0] for result in results])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        features, counted, scales, products = ctx.saved_tensors
        draw, graphs_of_blocks = ctx.draw, ctx.graphs
        if graphs_of_blocks is None:
            raise RuntimeError("the graphs were freed by the first backward pass: compute the product again")
        learned = ctx.needs_input_grad[0]

        @torch.no_grad()
        def block(part: tuple[Tensor, slice]) -> tuple[Tensor, Tensor | None]:
            graphs, rows = part
            scale = scales[rows]
            inner = gradient[rows] * scale
            before = _times(inner, graphs) + inner
            # Gradient of d, as a factor of T and in V.
            of_scale = (gradient[rows] * products[rows] + before * features[rows]).sum(1, keepdim=True)
            if not learned:
                return before * scale, None
            # Degrees below 1, possible for owners that do not count, are clamped.
            free = (scale < 1) | (counted[rows, None] > 0)
            of_degree = torch.where(free, -0.5 * of_scale * scale**3, 0.0)
            left = torch.cat([inner, of_degree], 1)
            right = torch.cat([features[rows] * scale, counted[rows, None]], 1)
            if draw.shared:
                left, right = left.flatten(0, 1)[None], right.flatten(0, 1)[None]
            of_graphs = torch.bmm(left.mT, right)
            # The derivative of the sigmoid, S (1 - S).
            of_graphs.mul_(graphs).addcmul_(of_graphs, graphs, value=-1)
            return before * scale, of_graphs.sum(0)

        parts = list(zip(graphs_of_blocks, draw.blocks(len(features), features.device), strict=True))
        results = side_by_side(block, parts, draw.workers, torch.get_num_threads())
        ctx.graphs = None
        draw.workspace.give_back(graphs_of_blocks)
        of_features = torch.cat([result[0] for result in results])
        of_levels = None
        if learned:
            # Summed in the order of the blocks, for reproducibility.
            whole = torch.stack([part for _, part in results if part is not None]).sum(0)
            of_levels = (whole + whole.mT).flatten()[draw.upper] / draw.temperature
        return of_levels, of_features, None, None


def _times(rows: Tensor, graphs: Tensor) -> Tensor:
    """Multiply ``[batch, columns, n]`` by ``[batch, n, n]``, or by one graph ``[1, n, n]``."""
    if len(graphs) == len(rows):
        return torch.bmm(rows, graphs)
    return (rows.flatten(0, 1) @ graphs[0]).view_as(rows)
