"""How near recovered feature graphs come to the true ones, of Bayesian networks and of a Gaussian chain.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1, 2.5 and 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedgraph.data.schema import Feature, Schema
from fedgraph.data.tables import BayesianNetwork, read_bif
from fedgraph.graph import FeatureGraph
from fedgraph.graphical.learning import fit_ngr
from fedgraph.graphical.network import NGRSettings
from fedgraph.reproduce import NumberTable, StudyContext, StudyPage
from fedgraph.simulations.fedngm.notears_admm import THRESHOLD
from fedgraph.simulations.fedngm.recoveries import ClientRows, Graphs, Method, recovered
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings

RELEASED_F1 = 0.53
"""Of the graph that the authors' program finds in its own demonstration of a revealer."""

_CORRELATION = 0.8
_SCORES = ("precision", "recall", "F1", "SHD")
_HELD_OUT = 0.1
_ALL = "mean"
_TITLES = {"moral": "moral graph", "skeleton": "skeleton"}


class GraphsOptions(Settings):
    """The options of the study.

    networks   : of the folder ``graph-truth``, by name.
    methods    : of recovery; each with its default settings.
    clients    : that each draw rows of their own,
    rows       : so many.
    features   : networks with more of them are drawn with the first seed alone.
    chain      : features of the Gaussian chain,
    chain_rows : and its rows.
    """

    networks: tuple[str, ...] = ("cancer", "earthquake", "survey", "asia", "sachs", "child", "alarm", "hailfinder")
    methods: tuple[Method, ...] = ("graphical-lasso", "uglad", "ges", "notears-admm")
    clients: PositiveInt = 3
    rows: PositiveInt = 2000
    features: PositiveInt = 30
    chain: int = Field(default=10, ge=3)
    chain_rows: int = Field(default=5000, ge=20)


def graphs_page(context: StudyContext) -> StudyPage:
    """Recover graphs of every network by every method, and that of the chain."""
    options = context.parsed_options(GraphsOptions)
    networks = {name: truth(context.data_dir, name) for name in options.networks}
    seeds = {
        name: context.seeds if len(network.variables) <= options.features else context.seeds[:1]
        for name, network in networks.items()
    }
    lines: dict[str, list[tuple[object, ...]]] = {of: [] for of in _TITLES}
    for method in options.methods:
        found = {}
        for name, network in networks.items():
            context.console.print(f"{method}, {name}")
            found[name] = [_measured(network, method, options, seed) for seed in seeds[name]]
        for how, of in found[options.networks[0]][0]:
            scores = {name: torch.stack([each[how, of] for each in over]) for name, over in found.items()}
            lines[of] += [(name, method, how, *line) for name, line in _summarised(scores, seeds).items()]
    headings = ("network", "method", "graph", *_SCORES, "F1, deviation", "seeds")
    moral, skeleton = (
        NumberTable(title.replace(" ", "-"), f"Recovered graphs against the {title}", headings, tuple(lines[of]))
        for of, title in _TITLES.items()
    )
    sizes = tuple(
        (name, len(each.variables), len(each.skeleton.edges), len(each.moral_graph.edges))
        for name, each in networks.items()
    )
    known = NumberTable("networks", "The networks", ("network", "features", "skeleton", "moral graph"), sizes)
    context.console.print("chain, NGR")
    chain = tuple(_chain_line(options, seed) for seed in context.seeds)
    revealed = NumberTable("chain", "A Gaussian chain", ("model", "seed", "edges", *_SCORES, "released F1"), chain)
    return StudyPage(_text(options, skeleton, known, revealed), moral, (skeleton, known, revealed))


def _measured(
    network: BayesianNetwork, method: Method, options: GraphsOptions, seed: int
) -> dict[tuple[str, str], Tensor]:
    """Scores of the draw of one seed, means over clients, by source of a graph and reference."""
    clients = [ClientRows.drawn(network, f"client-{place}", options.rows, seed) for place in range(options.clients)]
    true = Graphs(network.moral_graph, network.skeleton)
    return {
        (how, of): _scores([getattr(each, of) for each in graphs], getattr(true, of))
        for how, graphs in recovered(method, clients, seed).items()
        for of in _TITLES
    }


def _scores(graphs: Sequence[FeatureGraph], truth: FeatureGraph) -> Tensor:
    """Means over the graphs, under the headings ``_SCORES``."""
    scores = [graph.score(truth) for graph in graphs]
    rows = [[each.precision, each.recall, each.f1, each.shd] for each in scores]
    return torch.tensor(rows, dtype=torch.float64).mean(0)


def _summarised(
    scores: Mapping[str, Tensor], seeds: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[float | str | None, ...]]:
    """Means over seeds and the deviation of F1, of each network and of all, of scores ``[seeds, headings]``."""
    means = {name: each.mean(0) for name, each in scores.items()}
    deviations = {name: float(each[:, 2].std()) if len(each) > 1 else None for name, each in scores.items()}
    lines: dict[str, tuple[float | str | None, ...]] = {
        name: (*mean.tolist(), deviations[name], " ".join(map(str, seeds[name]))) for name, mean in means.items()
    }
    if len(means) > 1:
        every = " ".join(map(str, max(seeds.values())))
        lines[_ALL] = (*torch.stack(list(means.values())).mean(0).tolist(), None, every)
    return lines


def _chain_line(options: GraphsOptions, seed: int) -> tuple[object, ...]:
    """The graph that a revealer of default settings finds."""
    names = tuple(f"x{place}" for place in range(options.chain))
    chain = FeatureGraph(names, tuple(pairwise(names)))
    rows = _chain(options.chain, options.chain_rows, seed)
    count = round(_HELD_OUT * len(rows))
    schema = Schema(tuple(Feature(name, "real") for name in names))
    found = fit_ngr(schema, [rows[count:]], [rows[:count]], ["chain"], NGRSettings(), seed)
    graph = FeatureGraph.from_adjacency(names, found.adjacency[0])
    return "NGR", seed, len(graph.edges), *_scores([graph], chain).tolist(), RELEASED_F1


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


def _text(options: GraphsOptions, skeleton: NumberTable, known: NumberTable, chain: NumberTable) -> str:
    return (
        f"Each of {options.clients} clients draws {options.rows:,} rows of its own from the network. What graphs are "
        "made of: `own`, the rows of one client, means over clients; `union` and `votes`, the graphs of all clients, "
        "with the edges that any of them has, as in the paper, or those that half of them have; `sums` over the rows "
        'of all, which clients tell the server (`source = "summed-statistics"`); weights that clients have `agreed` on '
        "in many rounds; all rows `pooled` in one place, which is a ceiling. SHD, the structural Hamming distance: "
        "missing edges and wrong edges, without directions. `mean`: of the networks.\n\n"
        "`ges` is a rival, greedy equivalence search with the BIC (Chickering 2002): of the Bayesian network that it "
        "finds, the moral graph is held against the true moral graph and the skeleton against the true skeleton. So it "
        "is with `notears-admm` (Ng, Zhang 2022), linear models of standardised units with an edge where a weight is "
        f"beyond {THRESHOLD}; the features have no cycles, and a unit no weight from another of its feature. The other "
        "methods find one graph, which is held against both. Settings are defaults everywhere. Networks of more than "
        f"{options.features} features are drawn with the first seed alone.\n\n"
        "The table above is against the moral graph: who is linked to whom whatever all others are.\n\n"
        f"## {skeleton.title}\n\n"
        f"Parents and children alone, without the links between parents.\n\n{skeleton.markdown()}\n\n"
        f"## {known.title}\n\n"
        f"Their features, and the edges of both graphs.\n\n{known.markdown()}\n\n"
        f"## {chain.title}\n\n"
        f"{options.chain} features, of which neighbours have a correlation of {_CORRELATION}, and "
        f"{options.chain_rows:,} rows. A neural graph revealer of default settings finds the edges by itself.\n\n"
        f"{chain.markdown()}"
    )
