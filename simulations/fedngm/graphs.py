"""How near recovered feature graphs come to the true ones, of Bayesian networks and of a Gaussian chain.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1, 2.5 and 2.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedgraph.data.encoding import Encoding, Scaling
from fedgraph.data.schema import Feature, Schema
from fedgraph.data.tables import BayesianNetwork, read_bif
from fedgraph.graph import FeatureGraph
from fedgraph.graphical.learning import MergeSettings, fit_ngr, merge
from fedgraph.graphical.network import NGRSettings
from fedgraph.graphical.recovery import RecoverySettings, UnitTable, recover
from fedgraph.reproduce import NumberTable, StudyContext, StudyPage
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings

RELEASED_F1 = 0.53
"""Of the graph that the authors' program finds in its own demonstration of a revealer."""

_CORRELATION = 0.8
_SCORES = ("edges", "true", "precision", "recall", "F1")
_HELD_OUT = 0.1

Method = Literal["graphical-lasso", "uglad"]


class GraphsOptions(Settings):
    """The options of the study.

    networks   : of the folder ``graph-truth``, by name.
    methods    : of recovery; each with its default settings.
    clients    : that each draw rows of their own,
    rows       : so many.
    chain      : features of the Gaussian chain,
    chain_rows : and its rows.
    """

    networks: tuple[str, ...] = ("sachs", "asia", "child", "alarm")
    methods: tuple[Method, ...] = ("graphical-lasso", "uglad")
    clients: PositiveInt = 3
    rows: PositiveInt = 2000
    chain: int = Field(default=10, ge=3)
    chain_rows: int = Field(default=5000, ge=20)


def graphs_page(context: StudyContext) -> StudyPage:
    """Recover graphs of every network by every method, and that of the chain."""
    options = context.parsed_options(GraphsOptions)
    lines: dict[str, list[tuple[object, ...]]] = {"moral graph": [], "skeleton": []}
    for name in options.networks:
        network = truth(context.data_dir, name)
        for method in options.methods:
            context.console.print(f"{name}, {method}")
            for how, graphs in _recovered(network, method, options, context.seeds).items():
                for what, graph in (("moral graph", network.moral_graph), ("skeleton", network.skeleton)):
                    lines[what].append((name, method, how, *_scores(graphs, graph)))
    context.console.print("chain, NGR")
    headings = ("network", "method", "graph", *_SCORES)
    moral, skeleton = (
        NumberTable(what.replace(" ", "-"), f"Recovered graphs against the {what}", headings, tuple(found))
        for what, found in lines.items()
    )
    chain = tuple(_chain_line(options, seed) for seed in context.seeds)
    revealed = NumberTable("chain", "A Gaussian chain", ("seed", *_SCORES, "released F1"), chain)
    return StudyPage(_text(options, skeleton, revealed), moral, (skeleton, revealed))


def _recovered(
    network: BayesianNetwork, method: Method, options: GraphsOptions, seeds: Sequence[int]
) -> dict[str, list[FeatureGraph]]:
    """The clients' ``own`` graphs and what they become together, for every seed."""
    found: dict[str, list[FeatureGraph]] = {"own": [], "union": [], "votes": []}
    for seed in seeds:
        tables = [_table(network, f"client-{place}", options.rows, seed) for place in range(options.clients)]
        recovered = recover(RecoverySettings(method=method), tables, seed)
        graphs = {table.client: each.graph for table, each in zip(tables, recovered, strict=True)}
        found["own"] += graphs.values()
        for how in ("union", "votes"):
            settings = MergeSettings(edges=how, min_clients=1)
            found[how].append(merge(settings, graphs, dict.fromkeys(graphs, options.rows)))
    return found


def _scores(graphs: Sequence[FeatureGraph], truth: FeatureGraph) -> tuple[float, ...]:
    """Means over the graphs, under the headings ``_SCORES``."""
    scores = [graph.score(truth) for graph in graphs]
    return (
        float(np.mean([len(graph.edges) for graph in graphs])),
        len(truth.edges),
        *(float(np.mean([getattr(one, key) for one in scores])) for key in ("precision", "recall", "f1")),
    )


def _table(network: BayesianNetwork, client: str, rows: int, seed: int) -> UnitTable:
    drawn = network.sample(rows, generator(seed, "graphs", client))
    units = Encoding(network.schema, Scaling()).encode(drawn.double().numpy())
    return UnitTable(client, network.schema.names, units, network.schema.unit_feature)


def _chain_line(options: GraphsOptions, seed: int) -> tuple[object, ...]:
    """The graph that a revealer of default settings finds."""
    names = tuple(f"x{place}" for place in range(options.chain))
    chain = FeatureGraph(names, tuple(pairwise(names)))
    rows = _chain(options.chain, options.chain_rows, seed)
    count = round(_HELD_OUT * len(rows))
    schema = Schema(tuple(Feature(name, "real") for name in names))
    found = fit_ngr(schema, [rows[count:]], [rows[:count]], ["chain"], NGRSettings(), seed)
    return seed, *_scores([FeatureGraph.from_adjacency(names, found.adjacency[0])], chain), RELEASED_F1


def _chain(features: int, rows: int, seed: int) -> Tensor:
    """A Gaussian chain, mean 0.5 and deviation 0.1, ``[rows, features]``."""
    noise = torch.randn(rows, features, generator=generator(seed, "graphs", "chain"))
    columns = [noise[:, 0]]
    for place in range(1, features):
        columns.append(_CORRELATION * columns[-1] + (1 - _CORRELATION**2) ** 0.5 * noise[:, place])
    return 0.5 + 0.1 * torch.stack(columns, 1)


def truth(data_dir: Path, name: str) -> BayesianNetwork:
    """A network of the folder ``graph-truth``."""
    folder = data_dir / "graph-truth"
    known = sorted(path.name.removesuffix(".bif.gz") for path in folder.glob("*.bif.gz"))
    if name not in known:
        raise ExperimentError(
            f"options.networks: there is no '{name}' in {folder}; there are {', '.join(known) or 'none'}"
        )
    return read_bif(folder / f"{name}.bif.gz")


def _text(options: GraphsOptions, skeleton: NumberTable, chain: NumberTable) -> str:
    return (
        f"Each of {options.clients} clients draws {options.rows:,} rows of its own from the network, and recovers a "
        "graph from them alone. `own`: means of these; `union`: the edges that any of them has, as in the paper; "
        "`votes`: those that half of them have. The table above is against the moral graph: who is linked to whom "
        "whatever all others are, of which a Gaussian likelihood sees what is strong enough in so many rows.\n\n"
        f"## {skeleton.title}\n\n"
        f"Parents and children alone, without the links between parents.\n\n{skeleton.markdown()}\n\n"
        f"## {chain.title}\n\n"
        f"{options.chain} features, of which neighbours have a correlation of {_CORRELATION}, and "
        f"{options.chain_rows:,} rows. A neural graph revealer of default settings finds the edges by itself.\n\n"
        f"{chain.markdown()}"
    )
