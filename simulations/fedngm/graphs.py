"""How near recovered feature graphs come to the true ones, of Bayesian networks and of a Gaussian chain.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1, 2.5 and 2.6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, get_args

import pandas as pd
import torch
import typer
from rich.progress import track
from torch import Tensor

from fedgraph.data.schema import Feature, Schema
from fedgraph.data.tables import BayesianNetwork, read_bif
from fedgraph.graph import FeatureGraph
from fedgraph.graphical.learning import fit_ngr
from fedgraph.graphical.network import NGRSettings
from fedgraph.simulations.fedngm.notears_admm import THRESHOLD
from fedgraph.simulations.fedngm.recoveries import ClientRows, Graphs, Method, recovered
from fedgraph.simulations.scripts import DATA, DataDir, Out, Page, ResultsFile, Seeds, run
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator

RELEASED_F1 = 0.53
"""Of the graph that the authors' program finds in its own demonstration of a revealer."""

NETWORKS = ("cancer", "earthquake", "survey", "asia", "sachs", "child", "alarm", "hailfinder")

_CORRELATION = 0.8
_SCORES = ("precision", "recall", "F1", "SHD")
_HELD_OUT = 0.1
_ALL = "mean"
_TITLES = {"moral": "moral graph", "skeleton": "skeleton"}


class Sizes(NamedTuple):
    """How much is drawn.

    clients    : that each draw rows of their own,
    rows       : so many.
    features   : networks with more of them are drawn with the first seed alone.
    chain      : features of the Gaussian chain,
    chain_rows : and its rows.
    """

    clients: int = 3
    rows: int = 2000
    features: int = 30
    chain: int = 10
    chain_rows: int = 5000


USUAL = Sizes()


def graphs(data_dir: Path, seeds: Sequence[int], names: Sequence[str] = NETWORKS, sizes: Sizes = USUAL) -> Page:
    """Recover graphs of every network by every method with its default settings, and that of the chain.

    Parameters
    ----------
    data_dir : Path
        The data folder.
    seeds : sequence of int
        Seeds of what is drawn.
    names : sequence of str
        Networks of the folder ``graph-truth``.
    sizes : Sizes
        How much is drawn.

    Raises
    ------
    ExperimentError
        When there is no such network.
    """
    networks = {name: truth(data_dir, name) for name in names}
    drawn = {
        name: tuple(seeds) if len(network.variables) <= sizes.features else tuple(seeds[:1])
        for name, network in networks.items()
    }
    lines: dict[str, list[tuple[object, ...]]] = {of: [] for of in _TITLES}
    for method in track(get_args(Method), "methods"):
        found = {
            name: [_measured(network, method, sizes, seed) for seed in drawn[name]]
            for name, network in networks.items()
        }
        for how, of in found[names[0]][0]:
            scores = {name: torch.stack([each[how, of] for each in over]) for name, over in found.items()}
            lines[of] += [(name, method, how, *line) for name, line in _summarised(scores, drawn).items()]
    headings = ("network", "method", "graph", *_SCORES, "F1, deviation", "seeds")
    known = [
        (name, len(each.variables), len(each.skeleton.edges), len(each.moral_graph.edges))
        for name, each in networks.items()
    ]
    chain = [_chain_line(sizes, seed) for seed in seeds]
    tables = {
        **{title.replace(" ", "-"): pd.DataFrame(lines[of], columns=headings) for of, title in _TITLES.items()},
        "networks": pd.DataFrame(known, columns=("network", "features", "skeleton", "moral graph")),
        "chain": pd.DataFrame(chain, columns=("model", "seed", "edges", *_SCORES, "released F1")),
    }
    title = "Feature graphs of federated neural graphical models (Chajewska, Shrivastava)"
    return Page(title, _text(sizes), tables, seeds)


def _measured(network: BayesianNetwork, method: Method, sizes: Sizes, seed: int) -> dict[tuple[str, str], Tensor]:
    """Scores of the draw of one seed, means over clients, by source of a graph and reference."""
    clients = [ClientRows.drawn(network, f"client-{place}", sizes.rows, seed) for place in range(sizes.clients)]
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


def _chain_line(sizes: Sizes, seed: int) -> tuple[object, ...]:
    """The graph that a revealer of default settings finds."""
    names = tuple(f"x{place}" for place in range(sizes.chain))
    chain = FeatureGraph(names, tuple(pairwise(names)))
    rows = _chain(sizes.chain, sizes.chain_rows, seed)
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
        raise ExperimentError(f"there is no network '{name}' in {folder}; there are {', '.join(known) or 'none'}")
    return read_bif(folder / f"{name}.bif.gz")


def _text(sizes: Sizes) -> str:
    return (
        "Published at <https://arxiv.org/abs/2309.11680>.\n\n"
        "How near the graphs that clients recover from their rows, and what these become together, come to the true "
        "ones, beside those of rivals.\n\n"
        "{moral-graph}\n\n"
        f"Each of {sizes.clients} clients draws {sizes.rows:,} rows of its own from the network. What graphs are "
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
        f"{sizes.features} features are drawn with the first seed alone.\n\n"
        "The table above is against the moral graph: who is linked to whom whatever all others are.\n\n"
        "## Recovered graphs against the skeleton\n\n"
        "Parents and children alone, without the links between parents.\n\n{skeleton}\n\n"
        "## The networks\n\n"
        "Their features, and the edges of both graphs.\n\n{networks}\n\n"
        "## A Gaussian chain\n\n"
        f"{sizes.chain} features, of which neighbours have a correlation of {_CORRELATION}, and "
        f"{sizes.chain_rows:,} rows. A neural graph revealer of default settings finds the edges by itself.\n\n"
        "{chain}"
    )


def main(
    data_dir: DataDir = DATA,
    seeds: Seeds = [0, 1, 2],  # noqa: B006
    out: Out = Path("reproductions/fedngm-graphs"),
    results: ResultsFile = None,
) -> None:
    """Recover graphs of Bayesian networks and of a Gaussian chain. It takes some 13 minutes on one core."""
    graphs(data_dir, seeds).write(out, results)


if __name__ == "__main__":
    run(partial(typer.run, main))
