"""The features that an answer depends on: unknown ones linked to the targets, and the known ones around them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedgraph.graphical.network.network import Network


class Relevant(NamedTuple):
    """Features that an answer depends on, bool ``[..., features]`` each.

    unknown : features over whose values the answer averages.
    known   : their known neighbours, given which all others make no difference.
    """

    unknown: Tensor
    known: Tensor


def relevant_to(network: Network, wanted: Tensor, unknown: Tensor) -> Relevant:
    """Find the features on which an answer depends, by a walk from the targets through unknown features.

    The paper's network may look beyond its graph: there every feature is relevant.

    Parameters
    ----------
    network : Network
        Network of the models.
    wanted : Tensor
        Targets of each row, bool ``[..., features]``.
    unknown : Tensor
        Unknown features of each row, bool ``[..., features]``.

    Returns
    -------
    Relevant
        Unknown features that are reached, and their known neighbours, bool ``[..., features]``.
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
