"""Training of fusion networks in C++, for float32 on a CPU; one call processes many minibatches.

A minibatch of a hundred samples of a few owners is a hundred small tensor operations, dominated by their overhead.
Here P_i and W0 (F3, eqs. 7 and 8) are combined into one linear map per owner, ``W0' P_i``, and a minibatch stays in a
core's cache. Results equal those of PyTorch up to float tolerance, with graphs from the same distribution but a
different order of random numbers.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedgraph.fusion.alignment import NoAlignment, SoftAlignment
from fedgraph.fusion.baselines import ConcatenationFusion
from fedgraph.fusion.consensus import DrawnConsensus, ExpectedConsensus
from fedgraph.fusion.fusion_settings import FusionSettings
from fedgraph.fusion.graphs import GumbelGraph, InverseCdfGraph
from fedgraph.fusion.graphs.bernoulli import SMALLEST
from fedgraph.fusion.network import FusionNetwork, GraphFusion
from fedgraph.models.native import loader as native
from fedgraph.models.native.fusion_source import SOURCE

_FEWEST_SAMPLES = 300
"""Minimum number of training samples for which compilation, a few seconds once per machine, pays off."""
_MOST_OWNERS = 64
"""Maximum number of owners for random graphs in C++; beyond it, matrix products are fast."""
_NOISE_AT_ONCE = 1 << 20
"""Number of random numbers per block, 4 MB."""

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""Constants of Adam, as in ``torch.optim.Adam``."""

_NONE, _DRAWN, _EXPECTED = range(3)
_NORMAL, _LOGIT = range(2)


class _Pass(ctypes.Structure):
    """``Pass`` of the C++ source, which documents the fields."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("owners", "size", "aligned", "hidden", "layers")),
        ("widths", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("graph", "level", "shared", "zeros_count")),
        *((name, ctypes.c_double) for name in ("mean", "deviation")),
        *((name, ctypes.c_float) for name in ("temperature", "smallest", "stretch")),
        *((name, ctypes.c_int64) for name in ("count", "batch")),
        *((name, ctypes.c_void_p) for name in ("rows", "embeddings", "there", "labels", "noise")),
        *((name, ctypes.c_void_p) for name in ("values", "means", "squares", "sizes", "decays")),
        *((name, ctypes.c_double) for name in ("first", "second", "rate", "epsilon", "taken")),
        ("loss", ctypes.c_void_p),
    )


library = native.OnFirstUse("fusion", SOURCE, "the training of fusion networks", "[f3] compile")
"""``library()`` returns the compiled library, or None if it cannot be compiled."""


def suits(network: FusionNetwork, settings: FusionSettings, samples: int) -> bool:
    """Return whether the settings enable compiled code and it supports this network and number of samples."""
    known = type(network) is ConcatenationFusion or (
        type(network) is GraphFusion
        and type(network.alignment) in (SoftAlignment, NoAlignment)
        and _edges(network.consensus) is not None
    )
    plain = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in network.parameters())
    return known and plain and settings.compile and samples >= _FEWEST_SAMPLES and library() is not None


def _edges(consensus: nn.Module | None) -> dict[str, Any] | None:
    """Return the fields of ``Pass`` about the graph; None for graphs without C++ support."""
    if consensus is None:
        return {"graph": _NONE}
    if not isinstance(consensus, (DrawnConsensus, ExpectedConsensus)) or consensus.graph.owners > _MOST_OWNERS:
        return None
    graph = consensus.graph
    if isinstance(consensus, ExpectedConsensus):
        return {"graph": _EXPECTED}
    found = {"graph": _DRAWN, "shared": not consensus.per_sample, "temperature": graph.temperature}
    if type(graph) is GumbelGraph:
        return {**found, "level": _LOGIT}
    if type(graph) is InverseCdfGraph and graph.reference == "Normal":
        mean, deviation = graph.options.get("loc", 0.0), graph.options.get("scale", 1.0)
        return {**found, "level": _NORMAL, "mean": mean, "deviation": deviation}
    return None


class CompiledPasses:
    """In-place training of a network that :func:`suits` accepts, one pass over the samples per call.

    Parameters
    ----------
    settings : size of minibatches, weight decay and owner dropout.
    """

    def __init__(self, network: FusionNetwork, settings: FusionSettings, rate: float) -> None:
        self._taken = 0
        (self._owner_dropout,) = settings.dropout_shares
        self._graph = getattr(getattr(network, "consensus", None), "graph", None)
        parameters = _parameters(network)
        moments = [
            [torch.zeros_like(each) if each is not None and each.requires_grad else None for each in parameters]
            for _ in range(2)
        ]
        shrunk = {id(each) for each in network.trained()[0]}
        layers = [each.shape for each in parameters[_LAYERS::2] if each is not None]
        tensors = {
            "widths": torch.tensor([layers[0][0], *(shape[1] for shape in layers)]),
            "sizes": torch.tensor([0 if each is None else each.numel() for each in parameters]),
            "decays": torch.tensor(
                [settings.weight_decay if id(each) in shrunk else 0.0 for each in parameters], dtype=torch.float64
            ),
        }
        lists = dict(zip(("values", "means", "squares"), map(_addresses, (parameters, *moments)), strict=True))
        #: Keeps the memory alive to which C++ has pointers.
        self._kept = parameters, moments, tensors, lists
        self._pass = _Pass(
            layers=len(layers),
            temperature=1.0,
            smallest=SMALLEST,
            stretch=1 / (1 - self._owner_dropout),
            batch=settings.batch_size,
            first=_BETAS[0],
            second=_BETAS[1],
            rate=rate,
            epsilon=_EPSILON,
            **{name: each.data_ptr() for name, each in tensors.items()},
            **{name: ctypes.cast(each, ctypes.c_void_p) for name, each in lists.items()},
        )
        if isinstance(network, GraphFusion):
            self._pass.aligned, self._pass.hidden = network.weights[0].shape
            self._pass.zeros_count = network.zeros_count
            for name, value in (_edges(network.consensus) or {}).items():
                setattr(self._pass, name, value)

    def __call__(self, training: Sequence[Tensor], random: torch.Generator) -> float:
        """Train for one pass over the training samples in random order.

        Returns the mean loss per sample.

        Parameters
        ----------
        training : scaled embeddings ``[samples, owners, size]``, presence and labels.
        random : source of the order, the owner dropout and the graphs.
        """
        embeddings, present, labels = training
        samples, owners, size = embeddings.shape
        order = torch.randperm(samples, generator=random)
        there = present[order].float()
        if self._owner_dropout:
            there *= torch.rand(there.shape, generator=random) >= self._owner_dropout
        embeddings, labels = embeddings.contiguous(), labels[order]
        self._pass.owners, self._pass.size, self._pass.embeddings = owners, size, embeddings.data_ptr()
        shape = self._noise_shape(owners)
        total, at_once = 0.0, self._pass.batch * max(1, _NOISE_AT_ONCE // max(1, math.prod(shape)))
        for rows, here, own in zip(order.split(at_once), there.split(at_once), labels.split(at_once), strict=True):
            total += float(self._steps(rows, here, own, shape, random))
        return total / samples

    def _noise_shape(self, owners: int) -> tuple[int, ...]:
        """Return the shape of the noise of a minibatch."""
        if self._pass.graph != _DRAWN:
            return (0,)
        pairs = owners * (owners - 1) // 2
        return (pairs,) if self._pass.shared else (pairs, self._pass.batch)

    def _steps(
        self, rows: Tensor, there: Tensor, labels: Tensor, shape: tuple[int, ...], random: torch.Generator
    ) -> Tensor:
        """Train on some samples; return the sum of their losses."""
        lengths = torch.tensor([len(each) for each in rows.split(self._pass.batch)])
        noise = torch.empty(len(lengths), *shape)
        if noise.numel() and self._graph is not None:
            self._graph.noise(noise, random)
        loss = torch.zeros(len(lengths), dtype=torch.float64)
        arguments = {"rows": rows, "there": there, "labels": labels, "noise": noise, "loss": loss}
        for name, each in arguments.items():
            setattr(self._pass, name, each.data_ptr())
        self._pass.count, self._pass.taken = len(rows), self._taken
        compiled = library()
        assert compiled is not None
        if compiled.train_fusion(ctypes.byref(self._pass)):
            raise MemoryError("not enough memory to train the fusion network; reduce hidden or batch-size")
        self._taken += len(lengths)
        return (loss * lengths).sum()


_LAYERS = 5
"""Position of the first parameter of linear layers in :func:`_parameters`."""


def _parameters(network: FusionNetwork) -> list[Tensor | None]:
    """Return parameters in the order of ``Place`` of the C++ source; None for missing ones."""
    if isinstance(network, ConcatenationFusion):
        return [None] * _LAYERS + _layer_parameters(network.layers)
    assert isinstance(network, GraphFusion)
    matrix = network.alignment.matrix if isinstance(network.alignment, SoftAlignment) else None
    consensus = network.consensus
    theta = consensus.graph.theta if isinstance(consensus, (DrawnConsensus, ExpectedConsensus)) else None
    (first, second), (bias, last) = network.weights, network.biases
    return [matrix, network.alignment.offset, first, bias, theta, second, last, *_layer_parameters(network.head)]


def _layer_parameters(layers: nn.ModuleList) -> list[Tensor | None]:
    return [each for layer in layers for each in (layer.get_parameter("weight"), layer.get_parameter("bias"))]


def _addresses(tensors: Sequence[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    if any(each is not None and not each.is_contiguous() for each in tensors):
        raise ValueError("parameters must be contiguous")
    return (ctypes.c_void_p * len(tensors))(*(None if each is None else each.data_ptr() for each in tensors))
