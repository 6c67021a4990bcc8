"""The table ``[defence]`` of an experiment."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fedgraph.support.settings import Settings


class DefenceTable(Settings):
    """``[defence]``: what the server does about clients whose replies are well formed but far from those of the others.

    Attributes
    ----------
    warn    : warn of clients whose update is longer than this many times the median of all clients; 0 for no warning.
    clip    : scale down updates that are longer than this many times the running median of the clients' updates, over
              the last ten rounds, to this length. For f3: the embeddings of owners whose typical embedding is
              longer than this many times the median of the owners, and single ones that are longer than this many times
              the typical one of their owner. 0 for no clipping.
    krum    : share of the clients, below one half, taken to be attackers: that many, rounded up, whose updates are
              farthest from those of their nearest fellows are left out of each aggregation (multi-Krum; Blanchard et
              al., NeurIPS 2017).
    average : replaces the mean over a client's neighbourhood in the graph (sfl), or over all clients (methods with one
              global model), by the ``median`` or the ``trimmed-mean`` of each parameter (Yin et al., ICML 2018), with
              the same weights.
    trim    : share of the weight that a trimmed mean drops at each end.
    """

    warn: float = Field(default=10.0, ge=0)
    clip: float = Field(default=0.0, ge=0)
    krum: float = Field(default=0.0, ge=0, lt=0.5)
    average: Literal["mean", "median", "trimmed-mean"] = "mean"
    trim: float = Field(default=0.2, gt=0, lt=0.5)
