"""The table ``[graph]`` of an experiment: the given client graph."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from fedgraph.support.settings import Settings

_OF_SOURCES: dict[str, tuple[str, ...]] = {
    "path": ("file", "run"),
    "sigma": ("file",),
    "cut": ("file",),
    "main-labels": ("labels",),
    "neighbours": ("data", "labels", "file", "run"),
    "permute-seed": ("data", "labels", "file", "run"),
}
"""Keys that fit only some sources."""


class GraphTable(Settings):
    """``[graph]``: the given client graph.

    Attributes
    ----------
    source : ``none``, ``complete``, ``data`` (the graph published with the data set), ``labels`` (clients that share
             a main class; made from private label counts, an oracle), ``file``, or ``run`` (the graph that another run
             has learned, or else was given).
    path   : with ``file``: an edge list (from,to alone, or with a weight, or with a distance or cost, to which a
             Gaussian kernel is applied; ``from`` listens to ``to``), a matrix, .npz, .json, .graphml, .gml or DCRNN's
             .pkl; looked for beside the experiment, in the current folder, and in the data folder. With ``run``: the
             folder of that run, which is finished, looked for beside the experiment and from the current folder.
             Methods that learn a graph are sfl-star, pfedgraph, f3, f3-forecast and fedngm; clients are the same by
             name, and weights in the unit of that method.
    main_labels : with ``labels``: how many of a client's largest classes count.
    directed   : refuse (false) or keep (true) a file's asymmetry; an edge list with each pair once is directed
             unless this is false. By default the file decides.
    sigma      : with ``file``, a list of distances: a distance d becomes the weight exp(-(d / sigma)^2). In the unit of
             the list; by default the standard deviation of its distances.
    cut        : with ``file``, a list of distances: pairs whose weight is below this get no edge; 0.1 by default. With
             0 every pair of the list has one.
    neighbours : keep only the edges of each client to so many others, those of the largest weights (of equal ones the
             first by name), and self loops: a learned graph may link everybody with everybody. Of the weights as they
             are before symmetrise and binarise.
    symmetrise : take the larger of the two weights of every pair.
    binarise   : every weight becomes 1.
    permute_seed : permutes the clients over the vertices of the graph with this seed, as a control for claims about the
             graph: it has as many edges of the same weights, between the wrong clients.
    missing    : clients that the graph lacks are an ``error`` or get no edges (``isolate``).
    extra      : clients that only the graph has are an ``error`` or left out (``drop``).
    coordinates : CSV file with name, latitude and longitude of clients, where reports draw them; looked for as ``path``
             is. METR-LA and PEMS-BAY have one of their own (graph_sensor_locations.csv, beside the readings).
    """

    source: Literal["none", "complete", "data", "labels", "file", "run"] = "none"
    path: str | None = None
    main_labels: PositiveInt = 1
    directed: bool | None = None
    sigma: PositiveFloat | None = None
    cut: float | None = Field(default=None, ge=0, le=1)
    neighbours: PositiveInt | None = None
    symmetrise: bool = False
    binarise: bool = False
    permute_seed: int | None = Field(default=None, ge=0)
    missing: Literal["error", "isolate"] = "error"
    extra: Literal["error", "drop"] = "error"
    coordinates: str | None = None

    @classmethod
    def fits(cls, key: str, source: str) -> bool:
        """Return whether a key, as an experiment writes it, means anything with a ``source``."""
        return source in _OF_SOURCES.get(key, (source,))

    @model_validator(mode="after")
    def _keys_fit_the_source(self) -> GraphTable:
        if (self.source in ("file", "run")) != (self.path is not None):
            if self.path is None:
                raise ValueError(f'source = "{self.source}" needs a path')
            raise ValueError('only source = "file" and source = "run" take a path')
        for key, value in (("sigma", self.sigma), ("cut", self.cut)):
            if value is not None and self.source not in _OF_SOURCES[key]:
                raise ValueError(f'{key} is about a list of distances, source = "file", and source is "{self.source}"')
        for key, value in (("permute-seed", self.permute_seed), ("neighbours", self.neighbours)):
            if value is not None and self.source not in _OF_SOURCES[key]:
                raise ValueError(f'{key} means nothing with source = "{self.source}"')
        return self
