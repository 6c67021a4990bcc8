"""Training of fusion networks as calls into C++, for float32 on a CPU: one call takes many minibatches.

A minibatch of a hundred samples of a few owners is little arithmetic in a hundred small tensor operations, each of
which takes longer to start than to compute. Here P_i and W0 (F3, eqs. 7 and 8) are one linear map for each owner,
``W0' P_i``, and what belongs to a minibatch stays in a core's cache. Results equal those of PyTorch's operations to
float tolerance, with graphs from the same distribution in another order of random numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedgraph.fusion.alignment import NoAlignment, SoftAlignment
from fedgraph.fusion.baselines import ConcatenationFusion
from fedgraph.fusion.consensus import DrawnConsensus, ExpectedConsensus
from fedgraph.fusion.graphs import BernoulliGraph, GumbelGraph, InverseCdfGraph
from fedgraph.fusion.graphs.bernoulli import SMALLEST
from fedgraph.fusion.layers import Linear
from fedgraph.fusion.network import FusionNetwork, GraphFusion
from fedgraph.fusion.settings import FusionSettings
from fedgraph.models.native import loader as native
from fedgraph.models.native.fusion_source import SOURCE

_FEWEST_SAMPLES = 300
"""Training samples from which on compiling, a few seconds once on a machine, is worth it."""
_MOST_OWNERS = 64
"""Owners up to which drawn graphs are computed in C++; those of more are large enough for matrix products."""
_NOISE_AT_ONCE = 1 << 20

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""Of Adam, as ``torch.optim.Adam`` has them."""

_NONE, _DRAWN, _EXPECTED = range(3)
_NORMAL, _LOGIT = range(2)


class _Pass(ctypes.Structure):
    """``Pass`` of the C++ source, where the fields are documented."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("owners", "size", "aligned", "hidden", "layers")),
        ("widths", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("graph", "level", "shared", "zeros_count")),
        *((name, ctypes.c_double) for name in ("mean", "deviation")),
        *((name, ctypes.c_float) for name in ("temperature", "smallest", "stretch")),
        *((name, ctypes.c_int64) for name in ("count", "batch")),
        *((name, ctypes.c_void_p) for name in ("rows", "embeddings", "there", "labels", "classes", "noise")),
        *((name, ctypes.c_void_p) for name in ("values", "means", "squares", "sizes", "decays")),
        *((name, ctypes.c_double) for name in ("first", "second", "rate", "epsilon", "taken")),
        ("loss", ctypes.c_void_p),
    )


library = native.OnFirstUse("fusion", SOURCE, "the training of fusion networks", "[f3] compile")
"""``library()``: the compiled training; None where it cannot be compiled."""


def suits(network: FusionNetwork, settings: FusionSettings, samples: int) -> bool:
    """Return whether C++ can train this network on so many samples, and the settings ask for compiled code."""
    known = type(network) is ConcatenationFusion or (
        type(network) is GraphFusion
        and type(network.alignment) in (SoftAlignment, NoAlignment)
        and (network.consensus is None or _level(network.consensus) is not None)
    )
    if not (known and settings.compile and samples >= _FEWEST_SAMPLES):
        return False
    plain = all(each.dtype == torch.float32 and each.device.type == "cpu" for each in network.parameters())
    return plain and library() is not None


def _level(consensus: nn.Module) -> tuple[int, int] | None:
    """Return how edges are made, and of what quantile of their probabilities; None for what C++ does not know."""
    if not isinstance(consensus, (DrawnConsensus, ExpectedConsensus)) or consensus.graph.owners > _MOST_OWNERS:
        return None
    graph = consensus.graph
    if isinstance(consensus, ExpectedConsensus):
        return _EXPECTED, _NORMAL
    if type(graph) is GumbelGraph:
        return _DRAWN, _LOGIT
    if type(graph) is InverseCdfGraph and graph.reference == "Normal":
        return _DRAWN, _NORMAL
    return None


class CompiledPasses:
    """Training of a network that :func:`suits` accepts, one pass over the samples after the other, in place.

    Parameters
    ----------
    network : FusionNetwork
        The network.
    settings : FusionSettings
        Size of minibatches, weight decay and owner dropout.
    rate : float
        Learning rate of Adam.
    weights : Tensor or None
        Weights of the classes, ``[classes]``.
    """

    def __init__(self, network: FusionNetwork, settings: FusionSettings, rate: float, weights: Tensor | None) -> None:
        self._network, self._settings, self._rate = network, settings, rate
        self._weights = None if weights is None else weights.float().contiguous()
        self._parameters = _parameters(network)
        self._moments = [
            [torch.zeros_like(each) if each is not None and each.requires_grad else None for each in self._parameters]
            for _ in range(2)
        ]
        shrunk = {id(each) for each in network.trained()[0]}
        decays = [settings.weight_decay if id(each) in shrunk else 0.0 for each in self._parameters]
        self._decays = torch.tensor(decays, dtype=torch.float64)
        self._sizes = torch.tensor([0 if each is None else each.numel() for each in self._parameters])
        self._taken = 0

    def __call__(self, training: Sequence[Tensor], random: torch.Generator) -> float:
        """Take a step for each minibatch of a pass over the training samples in a random order.

        Parameters
        ----------
        training : sequence of Tensor
            Scaled embeddings ``[samples, owners, size]``, presence and labels.
        random : torch.Generator
            Source of the order, of owners that are left out, and of graphs.

        Returns
        -------
        float
            The mean loss per sample.
        """
        embeddings, present, labels = training
        samples, owners, size = embeddings.shape
        dropout = self._settings.owner_dropout
        order = torch.randperm(samples, generator=random)
        there = present[order].float()
        if dropout:
            there *= torch.rand(there.shape, generator=random) >= dropout
        labels, embeddings = labels[order], embeddings.contiguous()
        made = self._structure(owners, size, embeddings)
        pairs = 0 if made.graph != _DRAWN else owners * (owners - 1) // 2
        at_once = made.batch * max(1, _NOISE_AT_ONCE // max(1, pairs * (1 if made.shared else made.batch)))
        total = 0.0
        compiled = library()
        assert compiled is not None
        for start in range(0, samples, at_once):
            part = slice(start, min(start + at_once, samples))
            count = part.stop - part.start
            steps = -(-count // made.batch)
            noise = self._noise((steps, pairs) if made.shared else (steps, pairs, made.batch), random)
            loss = torch.zeros(steps, dtype=torch.float64)
            made.count, made.taken = count, self._taken
            made.rows, made.there, made.labels = (each[part].data_ptr() for each in (order, there, labels))
            made.noise, made.loss = noise.data_ptr(), loss.data_ptr()
            compiled.train_fusion(ctypes.byref(made))
            self._taken += steps
            lengths = torch.full((steps,), made.batch)
            lengths[-1] = count - (steps - 1) * made.batch
            total += float((loss * lengths).sum())
        return total / samples

    def _noise(self, shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        empty = torch.empty(shape)
        if not empty.numel() or not isinstance(self._network, GraphFusion):
            return empty
        assert isinstance(self._network.consensus, DrawnConsensus)
        return self._network.consensus.graph.noise(empty, random)

    def _structure(self, owners: int, size: int, embeddings: Tensor) -> _Pass:
        """Return all of the arguments that are the same for all minibatches."""
        network, settings = self._network, self._settings
        graph, level, shared, zeros_count, hidden, aligned = _NONE, _NORMAL, False, False, 0, size
        drawn: BernoulliGraph | None = None
        if isinstance(network, GraphFusion):
            zeros_count = network.zeros_count
            aligned, hidden = network.weights[0].shape
            if network.consensus is not None:
                assert isinstance(network.consensus, (DrawnConsensus, ExpectedConsensus))
                drawn = network.consensus.graph
                graph, level = _level(network.consensus) or (_NONE, _NORMAL)
                shared = isinstance(network.consensus, DrawnConsensus) and not network.consensus.per_sample
        options = drawn.options if isinstance(drawn, InverseCdfGraph) else {}
        behind = self._parameters[_LAYERS:]
        widths = [each.shape for each in behind[::2] if each is not None]
        self._widths = torch.tensor([widths[0][0], *(width[1] for width in widths)])
        addresses = [(ctypes.c_void_p * len(self._parameters))(*map(_address, each)) for each in
                     (self._parameters, *self._moments)]  # fmt: skip
        self._addresses = addresses
        return _Pass(
            owners=owners,
            size=size,
            aligned=aligned,
            hidden=hidden,
            layers=len(widths),
            widths=self._widths.data_ptr(),
            graph=graph,
            level=level,
            shared=shared,
            zeros_count=zeros_count,
            mean=options.get("loc", 0.0),
            deviation=options.get("scale", 1.0),
            temperature=1.0 if drawn is None else drawn.temperature,
            smallest=SMALLEST,
            stretch=1 / (1 - settings.owner_dropout),
            batch=settings.batch_size,
            embeddings=embeddings.data_ptr(),
            classes=None if self._weights is None else self._weights.data_ptr(),
            values=ctypes.cast(addresses[0], ctypes.c_void_p),
            means=ctypes.cast(addresses[1], ctypes.c_void_p),
            squares=ctypes.cast(addresses[2], ctypes.c_void_p),
            sizes=self._sizes.data_ptr(),
            decays=self._decays.data_ptr(),
            first=_BETAS[0],
            second=_BETAS[1],
            rate=self._rate,
            epsilon=_EPSILON,
        )


_LAYERS = 5
"""Where the parameters of linear layers begin in the list of :func:`_parameters`."""


def _parameters(network: FusionNetwork) -> list[Tensor | None]:
    """Return parameters in the order of ``Place`` of the C++ source; None for those that the network does not have."""
    if isinstance(network, ConcatenationFusion):
        return [None] * _LAYERS + _of_layers(network.layers)
    assert isinstance(network, GraphFusion)
    matrix = network.alignment.matrix if isinstance(network.alignment, SoftAlignment) else None
    drawn = network.consensus
    theta = drawn.graph.theta if isinstance(drawn, (DrawnConsensus, ExpectedConsensus)) else None
    (first, second), (bias, last) = network.weights, network.biases
    return [matrix, network.alignment.offset, first, bias, theta, second, last, *_of_layers(network.head)]


def _of_layers(layers: nn.ModuleList) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for layer in layers:
        assert isinstance(layer, Linear)
        found += [layer.weight, layer.bias]
    return found


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    if not tensor.is_contiguous():
        raise ValueError("parameters must be contiguous")
    return tensor.data_ptr()
