"""Construction of fusion networks from settings."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.fusion.alignment import Alignment, HardAlignment, NoAlignment, SoftAlignment
from fedgraph.fusion.baselines import ConcatenationFusion, TransformerFusion
from fedgraph.fusion.consensus import Consensus, DrawnConsensus, ExpectedConsensus, GivenConsensus, NeighbourConsensus
from fedgraph.fusion.ensemble import FusionEnsemble
from fedgraph.fusion.fusion_settings import FusionSettings
from fedgraph.fusion.graphs import BernoulliGraph, FeatureNeighbours, GumbelGraph, InverseCdfGraph
from fedgraph.fusion.layers import EmbeddingScaling
from fedgraph.fusion.network import FusionNetwork, GraphFusion
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.threads import available_cores

_TRANSFORMER = (2, 4, 16, 8, 0.5)
"""Row F of Table 2: layers, heads, width, width of the feed-forward layers, dropout."""

_SINKHORN = (10, 0.01)
"""Hard alignments: number of normalisation steps, temperature."""

_NEIGHBOUR_FEATURES = 8
"""Number of learned features by which nearest neighbours are found."""


def build_network(
    settings: FusionSettings, sizes: Tensor, classes: int, given_graph: Tensor | None = None, seed: int = 0
) -> FusionNetwork:
    """Build an untrained fusion network; alignment, graph and layers use separate random streams.

    Returns a FusionNetwork in training mode. Raises ExperimentError when the settings do not fit each other, the
    owners' sizes or the given graph.

    Parameters
    ----------
    settings : FusionSettings
        Settings of the network.
    sizes : Tensor
        Length of each owner's embedding, int64 ``[owners]``; inputs are as long as the longest.
    classes : int
        Number of classes.
    given_graph : Tensor, optional
        ``[owners, owners]``, rows weight the owners in columns; required by graph = 'given'.
    seed : int
        Seed of the initial weights.
    """
    if settings.fusion == "ensemble":
        return FusionEnsemble(
            [build_network(each, sizes, classes, given_graph, own) for each, own in settings.networks(seed)]
        )
    network = _network(settings, sizes, classes, given_graph, seed)
    if settings.scaling == "owner":
        network.scaling = EmbeddingScaling(sizes, int(sizes.max()))
    return network


def check_fusion(settings: FusionSettings, graph_given: bool) -> None:
    """Check for combinations of settings that cannot work, before any message is sent to owners.

    Raises ExperimentError when the settings do not fit each other or this machine, or need a given graph that is
    missing.
    """
    settings.torch_device()
    smallest = torch.ones(2, dtype=torch.int64)
    build_network(settings, smallest, classes=2, given_graph=torch.zeros(2, 2) if graph_given else None)


def _network(
    settings: FusionSettings, sizes: Tensor, classes: int, given_graph: Tensor | None, seed: int
) -> FusionNetwork:
    size, owners = int(sizes.max()), len(sizes)
    layers = generator(seed, "fusion layers")
    if settings.fusion == "concatenation":
        return ConcatenationFusion(owners, size, settings.concatenation_hidden, classes, layers)
    alignment, aligned = _alignment(settings, sizes, size, seed)
    if settings.fusion == "transformer":
        return TransformerFusion(alignment, aligned, classes, layers, *_TRANSFORMER)
    consensus = None if settings.fusion == "mean-pooling" else _consensus(settings, owners, aligned, given_graph, seed)
    zeros_count = settings.absent == "zeros"
    return GraphFusion(
        alignment, consensus, aligned, settings.hidden, classes, layers, zeros_count, settings.head
    )  # fmt: skip


def _alignment(settings: FusionSettings, sizes: Tensor, size: int, seed: int) -> tuple[Alignment, int]:
    """Return the alignment, and the length of aligned embeddings."""
    if settings.aligned_size is not None and settings.alignment != "soft":
        raise ExperimentError(
            f"aligned-size = {settings.aligned_size}, but alignment = '{settings.alignment}' keeps the size of "
            "embeddings: leave out aligned-size, or use alignment = 'soft'"
        )
    if settings.alignment_affine and settings.alignment != "soft":
        raise ExperimentError(
            f"alignment-affine requires free matrices P_i, but alignment = '{settings.alignment}': "
            "use alignment = 'soft', or leave out alignment-affine"
        )
    aligned = settings.aligned_size or size
    random, trained = generator(seed, "alignment"), settings.alignment_trained
    if settings.alignment == "soft":
        return SoftAlignment(sizes, size, aligned, random, trained, settings.alignment_affine), aligned
    if settings.alignment == "hard":
        return HardAlignment(
            sizes, size, aligned, random, settings.sinkhorn, *_SINKHORN, trained, settings.sinkhorn_entropy
        ), size  # fmt: skip
    return NoAlignment(len(sizes), size), size


def _consensus(
    settings: FusionSettings, owners: int, aligned: int, given_graph: Tensor | None, seed: int
) -> Consensus | None:
    if settings.graph == "none":
        return None
    if settings.graph == "given":
        return GivenConsensus(_checked(given_graph, owners))
    random = generator(seed, "consensus graph")
    if settings.graph == "neighbours":
        return NeighbourConsensus(FeatureNeighbours(owners, aligned, random, settings.neighbours, _NEIGHBOUR_FEATURES))
    workers = settings.workers or available_cores()
    graph: BernoulliGraph
    if settings.graph == "gumbel":
        graph = GumbelGraph(owners, random, settings.temperature, workers)
    else:
        graph = InverseCdfGraph(
            owners, random, settings.temperature, workers, settings.reference, settings.reference_options
        )
    if settings.draw_per == "never":
        return ExpectedConsensus(graph)
    return DrawnConsensus(graph, per_sample=settings.draw_per == "sample")


def _checked(given_graph: Tensor | None, owners: int) -> Tensor:
    if given_graph is None:
        raise ExperimentError(
            "graph = 'given' requires a client graph: set the table [graph] (in Python graph=ClientGraph...)"
        )
    if given_graph.shape != (owners, owners):
        raise ExperimentError(
            f"the given graph is {list(given_graph.shape)}; it must be [owners, owners], {owners} each"
        )
    if not bool((given_graph.isfinite() & (given_graph >= 0)).all()):
        raise ExperimentError("the given graph has weights that are negative or not finite")
    return given_graph
