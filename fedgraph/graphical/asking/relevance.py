"""Which features an answer depends on: what is unknown and linked to what is asked for, and what is known around it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedgraph.graphical.network.network import Network


class Relevant(NamedTuple):
    """Bool ``[..., features]`` each.

    unknown : features whose values have to be thought of.
    known   : their known neighbours, given which all others make no difference.
    """

    unknown: Tensor
    known: Tensor


def relevant_to(network: Network, wanted: Tensor, unknown: Tensor) -> Relevant:
    """For rows in which the features ``unknown`` are, of which ``wanted`` are asked for, bool ``[..., features]``.

    They are found by walking the graph from what is asked for through what is unknown. The paper's network may look
    beyond its graph: there everything counts.
    """
    graph = network.linked
    links = (graph | graph.T if network.masked else torch.ones_like(graph)).float()
    reached = wanted & unknown
    while True:
        near = reached.float() @ links > 0
        more = (near & unknown) | reached
        if torch.equal(more, reached):
            return Relevant(reached, near & ~unknown)
        reached = more
