"""``python -m fedgraph.simulations.f3.theory``: theorems 1 to 5 of Ma et al. 2023, each with a picture and numbers."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from fedgraph.simulations.f3.theory.bias import theorem_3
from fedgraph.simulations.f3.theory.distributions import theorem_1, theorem_2
from fedgraph.simulations.f3.theory.section import Check
from fedgraph.simulations.f3.theory.signs import theorem_4
from fedgraph.simulations.f3.theory.sinkhorn import theorem_5
from fedgraph.simulations.scripts import Out, Page, ResultsFile, run
from fedgraph.support.threads import pinned_threads

_TEXT = """\
Published at <https://proceedings.mlr.press/v216/ma23b.html>.

Every theorem of the paper and its supplement, by draws of the graphs and iterates of the alignment that are used in \
training, and by numerical integration of the printed distributions.

{checks}

"""


def theory(draws: int, bias_draws: int, iterations: int, settled: int, seed: int = 0) -> Page:
    """Work out every theorem; ``main`` explains the arguments."""
    # Draws are made side by side by threads of their own.
    with pinned_threads(1):
        sections = [
            theorem_1(draws, seed),
            theorem_2(draws, seed),
            theorem_3(bias_draws, seed),
            theorem_4(draws, seed),
            theorem_5(iterations, settled, seed),
        ]
    checks = pd.DataFrame([astuple(check) for each in sections for check in each.checks], columns=Check.HEADINGS)
    text = "\n\n".join(
        f"## {each.title}\n\n{each.text}\n\n![{each.title}]({each.name}.png)\n\n{{{each.name}}}" for each in sections
    )
    tables = {"checks": checks, **{each.name: each.table for each in sections}}
    figures = {each.name: each.figure for each in sections}
    return Page("Theorems of federated feature fusion (Ma, Hoang, Chen 2023)", _TEXT + text, tables, (seed,), figures)


def main(
    draws: Annotated[int, typer.Option(help="Of each variable, to compare distributions with.")] = 1_000_000,
    bias_draws: Annotated[int, typer.Option(help="Of each variable, to compare biases with.")] = 2_000_000,
    iterations: Annotated[int, typer.Option(help="Of Sinkhorn and Knopp that are looked at.")] = 200,
    settled: Annotated[int, typer.Option(help="Iterations after which the limit is taken.")] = 5000,
    out: Out = Path("reproductions/f3-theory"),
    results: ResultsFile = None,
) -> None:
    """Check theorems 1 to 5 of Ma et al. 2023 on the code that draws graphs and aligns features.

    It takes under a minute on two cores.
    """
    theory(draws, bias_draws, iterations, settled).write(out, results)


if __name__ == "__main__":
    run(partial(typer.run, main))
