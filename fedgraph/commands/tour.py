"""The command ``fedgraph tour``: one example per method, on data that needs no download."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from fedgraph.support.errors import ExperimentError
from fedgraph.support.terminal import messages_for_people

if TYPE_CHECKING:
    from fedgraph.graphical import GraphicalModel
    from fedgraph.runs import Run
    from fedgraph.runs.reports.page import Block

Start = Callable[..., "Run"]
""":func:`fedgraph.run` with the folder of the tour, and without a progress bar."""

_INTRODUCTION = (
    "Every part is an experiment on included or simulated data, with the command that runs it again. Its experiment "
    "file is at the end of the part."
)


def tour(
    part: Annotated[str | None, typer.Argument(help="A single part: forecast, sfl, f3, ipa or fedngm.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the run folders and the page.")] = Path("runs"),
) -> None:
    """Show every method on an example, in about two minutes.

    No data is downloaded. The results are also written as a page.
    """
    from fedgraph.runs.reports.page import write_page
    from fedgraph.starting import running

    console = Console()
    with messages_for_people():
        if part is not None and part not in _PARTS:
            raise ExperimentError(f"unknown part '{part}' of the tour; known: {', '.join(_PARTS)}")
        wanted = list(_PARTS) if part is None else [part]
        start = partial(running.run, out=out, progress=False)
        blocks = []
        for number, name in enumerate(wanted, 1):
            began = time.monotonic()
            with console.status(f"{name} ..."):
                block = _PARTS[name](start)
            blocks.append(block)
            _tell(console, block, f"{number} of {len(wanted)}" if len(wanted) > 1 else "", time.monotonic() - began)
        page = write_page("fedgraph: a tour", _INTRODUCTION, blocks, out / f"{part or 'tour'}.html")
    console.print(f"\nAll results, with charts and every client: {page.resolve()}", markup=False, soft_wrap=True)
    console.print(
        "Next: fedgraph run sfl/digits-groups.toml, fedgraph runs, fedgraph new strategy NAME", highlight=False
    )


def _tell(console: Console, block: Block, number: str, seconds: float) -> None:
    console.rule(f"[bold]{block.title}[/bold]{f'  ({number})' if number else ''}", align="left")
    console.print(block.text, highlight=False)
    table = Table(box=box.SIMPLE, show_header=False, padding=(0, 2, 0, 1), pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    for words, value in (*block.numbers, *block.facts):
        table.add_row(words, value)
    console.print(table)
    console.print(f"{block.command}    ({seconds:.0f} s)\n", style="dim", highlight=False, markup=False)


def _mean(run: Run, metric: str) -> float:
    return float(run.summary["metrics"]["test"][metric]["mean"])


def _right(run: Run, metric: str = "accuracy") -> float:
    """Return the share of correct predictions, in per cent."""
    return 100 * _mean(run, metric)


def _forecast(run: Start) -> Block:
    from fedgraph.runs import Comparison
    from fedgraph.runs.reports.page import Block

    experiment, controls = "forecasting/synthetic-traffic.toml", ["none", "complete", "given", "permuted"]
    result = run(experiment, set={"f3-forecast.controls": controls})
    rows = {
        "a sensor's own model, nobody else": "-local",
        "the same network, nobody else's embeddings": "-no-graph",
        "everybody's embeddings alike": "-complete-graph",
        "over the road graph": "-given-graph",
        "over the road graph with the sensors in wrong places": "-permuted-graph",
        "over the graph that the server has learned": "",
    }
    return Block(
        Comparison([result]),
        "Forecasts: what others know, sent once",
        "30 simulated road sensors forecast their speed an hour ahead. Each sends embeddings of its readings once. The "
        "server learns who should listen to whom, and mixes embeddings over that graph. Others' embeddings pay; which "
        "graph they are mixed over hardly matters here. Error in mph, on unseen days.",
        f"fedgraph run {experiment} --set 'f3-forecast.controls={json.dumps(controls)}'",
        compared={words: _mean(result, f"mae-60min{suffix}") for words, suffix in rows.items()},
        unit="mph",
        own="over the graph that the server has learned",
    )


def _sfl(run: Start) -> Block:
    from fedgraph.runs import Comparison
    from fedgraph.runs.reports.page import Block

    experiment = "sfl/digits-groups.toml"

    def tuned(method: str, rate: float, **own: Any) -> Run:
        """Run a method with the rate that is best for it on validation images, of 0.5 to 4 times the experiment's."""
        return run(experiment, method=method, set={"train.learning-rate-factor": rate, **own})

    over_graph, pfedgraph = tuned("sfl", 2), tuned("pfedgraph", 2, **{"pfedgraph.alpha": 0.8})
    others = {"fedavg": tuned("fedavg", 2), "fedavg-ft": tuned("fedavg-ft", 4), "local": tuned("local", 1)}
    complete = tuned("sfl", 4, **{"sfl.alpha": 0.5, "graph.source": "complete"})
    permuted = tuned("sfl", 4, **{"sfl.alpha": 0.5, "graph.permute-seed": 0})
    own = "SFL over the graph of the groups"
    rows = {
        "each client alone": others["local"],
        "one model for all (FedAvg)": others["fedavg"],
        "FedAvg, and a round of training at home": others["fedavg-ft"],
        "SFL over a graph that joins all": complete,
        "SFL over the same graph with the clients in wrong places": permuted,
        own: over_graph,
        "mixtures that find the groups themselves (pFedGraph)": pfedgraph,
    }
    return Block(
        Comparison([over_graph, pfedgraph, *others.values()]),
        "SFL: neighbours who have what a client lacks",
        "40 clients have 24 handwritten digits each, too few to learn from alone. Each of four groups labels digits "
        "differently, so one model for all is of no use. SFL averages models over the graph of the groups, which "
        "pFedGraph finds without being told. Every method has its best rate on validation images. Share of test digits "
        "with the label of the client's group.",
        f"fedgraph run {experiment} --set train.learning-rate-factor=2",
        compared={words: _right(each) for words, each in rows.items()},
        own=own,
    )


def _f3(run: Start) -> Block:
    from fedgraph.runs import Comparison
    from fedgraph.runs.reports.page import Block

    experiment = "f3/grid-stability.toml"
    # Fewer samples than in the experiment, and a single network: runs in seconds, and is nearly as good.
    short = {"data.samples": 3000, "f3.fusion": "graph", "f3.owner-dropout": 0.0, "f3.epochs": 60}
    fused = run(experiment, set=short)
    no_graph = run(experiment, set={**short, "f3.graph": "none"})
    complete = run(experiment, set={**short, "f3.graph": "given", "graph.source": "complete"})
    together = {"data.together": True, "train.local-epochs": 200, "model.hidden": [128, 64]}
    pooled = run(experiment, set={**short, "f3.preset": "paper", "f3.fusion": "best-owner", **together})
    gradients = {
        "vfl.hidden": 32, "vfl.head": [32], "vfl.alignment-affine": True, "vfl.draw-per": "never", "vfl.epochs": 150,
        "vfl.patience": 10, "vfl.batch-size": 250, "vfl.learning-rates": [0.01],
    }  # fmt: skip
    vertical = run(experiment, method="vfl", set={"data.samples": short["data.samples"], **gradients})
    options = " ".join(f"--set {key}={value}" for key, value in short.items())
    own = "fused over a learned graph"
    return Block(
        Comparison([fused, no_graph, vertical]),
        "F3: will the grid swing apart? No participant can tell alone",
        "A producer and three consumers of a simulated electricity grid know their own reaction time, power and price "
        "elasticity. Each sends embeddings of its own model once; the server aligns them, learns a graph over the "
        "participants and fuses them. The exchange pays; the graph adds nothing here. Share of test grids whose "
        "stability is predicted correctly.",
        f"fedgraph run {experiment} {options}",
        (
            ("sent by each participant", f"{fused.summary['bytes_up_per_client'] / 1e3:.0f} kB"),
            ("in vertical learning", f"{vertical.summary['bytes_up_per_client'] / 1e3:,.0f} kB"),
        ),
        compared={
            "the best participant alone": 100 * fused.clients["test/accuracy-local"].max(),
            "fused after one exchange, without a graph": _right(no_graph),
            "over a graph that joins all": _right(complete),
            own: _right(fused),
            f"vertical learning, with {vertical.summary['exchanges']:,} exchanges": _right(vertical),
            "all columns in one place": _right(pooled),
        },
        own=own,
    )


def _ipa(run: Start) -> Block:
    from fedgraph.runs import Comparison
    from fedgraph.runs.reports.page import Block

    experiment = "ipa/digits.toml"
    five: dict[str, Any] = {
        "data.class-groups": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
        "experiment.rounds": 100,
        "train.learning-rate-factor": [[1, 1.0], [81, 0.2]],
    }
    # The settings that are best for each on validation images, from the table ipa-own-models.
    plain = {**five, "train.optimizer": "sgd", "train.keep-optimizer": False}
    together, alone = run(experiment, set=five), run(experiment, method="local", set=five)
    averaged = run(experiment, method="fedavg", set={**plain, "train.learning-rate": 0.3, "train.local-epochs": 1})
    corrected = run(experiment, method="feddyn", set={**plain, "train.learning-rate": 0.1, "feddyn.alpha": 0.1})

    def sent(result: Run) -> str:
        return f"{result.summary['bytes_up_per_client'] / 1e6:.1f} MB"

    return Block(
        Comparison([together, averaged, corrected, alone]),
        "IPA: five peers without a class in common",
        "Each peer has two of the ten digits, and they start from different models. Nothing is averaged: each peer "
        "trains its own model and pulls its parameters towards the others'. Each method has its own best settings. "
        "Share of all ten digits read correctly.",
        " ".join(["fedgraph run", experiment, *(f"--set '{key}={value}'" for key, value in five.items())]),
        (("sent by each peer, aligning / averaging", f"{sent(together)} / {sent(averaged)}"),),
        compared={
            "each for itself": _right(alone),
            "with iterative parameter alignment, mean of the five": _right(together),
            "one model for all (FedAvg)": _right(averaged),
            "one model for all, drift corrected (FedDyn)": _right(corrected),
        },
        own="with iterative parameter alignment, mean of the five",
    )


def _fedngm(run: Start) -> Block:
    from fedgraph.data.tables import asia_network
    from fedgraph.graphical.inference import posterior
    from fedgraph.runs import Comparison
    from fedgraph.runs.reports.page import Block

    usual = {"data.rows": 4000, "fedngm.recovery.method": "ges"}
    federated = run("fedngm/asia.toml", set=usual)
    pooled = run(
        "fedngm/asia.toml", set={**usual, "fedngm.global-model": "pooled", "fedngm.recovery.masks": False}, nodes=1
    )
    averaged = run("fedngm/asia.toml", set={**usual, "fedngm.global-model": "average"})
    model, truth = federated.graphical_model, asia_network()
    score = model.graph.score(truth.moral_graph)
    right = round(score.recall * len(truth.moral_graph.edges))
    wrong = len(model.graph.edges) - right
    known = {"xray": "yes", "smoke": "yes"}

    def risk(of: GraphicalModel) -> float:
        answer: Any = of.conditional(known, ["lung"])["lung"]
        return 100 * float(answer.probabilities[0, answer.categories.index("yes")])

    exact = float(posterior(truth, "lung", _positions(known, truth.variables))[0])
    auc = " / ".join(f"{_mean(federated, name):.3f}" for name in ("mean-auc", "mean-auc-local"))
    drawn_from = "The network that the patients are drawn from, with an edge between two parents of one feature."
    return Block(
        Comparison([federated]),
        "FedNGM: three clinics, one model of their patients",
        "Each clinic has 4,000 patients and shares no row. The clinics agree on which features depend on each other, "
        "and one model is distilled from samples of their models. It answers any query.",
        "fedgraph run fedngm/asia.toml --set data.rows=4000 --set fedngm.recovery.method=ges",
        (
            ("true dependencies found", f"{right} of {len(truth.moral_graph.edges)}"),
            ("false dependencies", str(wrong)),
            ("mean AUC of all features, the model / a clinic's own", auc),
        ),
        shown=(truth.moral_graph.chart(title="The true graph", text=drawn_from),),
        compared={
            "lung cancer, if a smoker's X-ray is positive: the model": risk(model),
            "the mean of the clinics' parameters, in place of samples": risk(averaged.graphical_model),
            "a model of all rows in one place": risk(pooled.graphical_model),
            "the exact probability": 100 * exact,
        },
        own="lung cancer, if a smoker's X-ray is positive: the model",
    )


def _positions(known: Mapping[str, str], variables: Mapping[str, Any]) -> dict[str, int]:
    return {name: variables[name].categories.index(value) for name, value in known.items()}


_PARTS: dict[str, Callable[[Start], Block]] = {
    "forecast": _forecast, "sfl": _sfl, "f3": _f3, "ipa": _ipa, "fedngm": _fedngm,
}  # fmt: skip
