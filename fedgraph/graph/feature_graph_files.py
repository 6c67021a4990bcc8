"""Read a feature graph from a file, such as an expert's, and write one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from fedgraph.graph.feature_graph import FeatureGraph, Pair
from fedgraph.graph.tables import read_pairs
from fedgraph.support.atomic import write_atomically
from fedgraph.support.errors import GraphError

JSON_FORMAT = "fedgraph feature graph"
KNOWN_FORMATS = (
    ".json as written by write_feature_graph; .csv or .csv.gz with the header from,to (a feature without edges stands "
    "alone, with nothing in the other column); .txt as Tetrad writes it, with edges --> or ---"
)
_TETRAD_EDGE = re.compile(r"\d+\.\s+(\S+)\s+(-->|---)\s+(\S+)")


def read_feature_graph(path: str | os.PathLike[str], moral: bool = False) -> FeatureGraph:
    """Read a feature graph; the extension tells the format (``KNOWN_FORMATS``). Directions are left out.

    moral : read the edges as those of a Bayesian network, from parent to child, and link parents of one child too.

    Raises GraphError that begins with the path: an unreadable or unsupported file, edges that cannot be read, a graph
    without directions read as moral.
    """
    path = Path(path)
    try:
        names, pairs = _read(path, moral)
        if not moral:
            return FeatureGraph(names, tuple(pairs))
        parents: dict[str, list[str]] = {}
        for parent, child in pairs:
            parents.setdefault(child, []).append(parent)
        return FeatureGraph.moral(names, parents)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None
    except Exception as error:  # the parsers of damaged files raise almost anything
        reason = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise GraphError(f"{path}: cannot be read ({reason}); known formats: {KNOWN_FORMATS}") from None


def write_feature_graph(graph: FeatureGraph, path: str | os.PathLike[str]) -> None:
    """Write ``path``, which appears complete or not at all; folders are made as needed.

    Raises GraphError for another extension than .json.
    """
    if Path(path).suffix != ".json":
        raise GraphError(f"{path}: a feature graph is written as .json")
    write_atomically(Path(path), json.dumps({"format": JSON_FORMAT, **graph.as_json()}, indent=1).encode())


def _read(path: Path, directed: bool) -> tuple[tuple[str, ...], Iterable[Pair]]:
    """Names and edges."""
    lower = path.name.lower()
    if lower.endswith((".csv", ".csv.gz")):
        pairs = read_pairs(path)
        names = dict.fromkeys(name for pair in pairs for name in pair if name)
        return tuple(names), [pair for pair in pairs if all(pair)]
    if lower.endswith(".txt"):
        return _read_tetrad(path.read_text(encoding="utf-8-sig"), directed)
    if not lower.endswith(".json"):
        raise GraphError(f"a graph file of an unknown kind; known formats: {KNOWN_FORMATS}")
    table = json.loads(path.read_bytes())
    if not isinstance(table, dict) or table.pop("format", None) != JSON_FORMAT:
        raise GraphError(f"JSON of an unknown kind; known formats: {KNOWN_FORMATS}")
    if directed:
        raise GraphError("its edges have no directions, so that it cannot be read as a Bayesian network")
    graph = FeatureGraph.from_json(table)
    return graph.names, graph.edges


def _read_tetrad(text: str, directed: bool) -> tuple[tuple[str, ...], Iterable[Pair]]:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 3 or (lines[0], lines[2]) != ("Graph Nodes:", "Graph Edges:"):
        raise GraphError("the first lines are 'Graph Nodes:', the names with ; between them, and 'Graph Edges:'")
    pairs = []
    for line in lines[3:]:
        edge = _TETRAD_EDGE.fullmatch(line)
        if edge is None or (directed and edge[2] != "-->"):
            raise GraphError(f"the edge '{line}' is not like '1. a --> b'{'' if directed else ' or 1. a --- b'}")
        pairs.append((edge[1], edge[3]))
    return tuple(re.split(r"[;,]", lines[1])), pairs
