"""The page of ``fedgraph reproduce f3-theory``: theorems 1 to 5 of Ma et al. 2023, each with a picture and numbers."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import PositiveInt

from fedgraph.reproduce import NumberTable, StudyContext, StudyPage
from fedgraph.simulations.f3.theory.bias import theorem_3
from fedgraph.simulations.f3.theory.distributions import theorem_1, theorem_2
from fedgraph.simulations.f3.theory.section import Section
from fedgraph.simulations.f3.theory.signs import theorem_4
from fedgraph.simulations.f3.theory.sinkhorn import theorem_5
from fedgraph.support.settings import Settings
from fedgraph.support.threads import pinned_threads


class TheoryOptions(Settings):
    """``[study.options]``.

    draws      : of each variable, to compare distributions with.
    bias_draws : of each variable, to compare biases with.
    iterations : of Sinkhorn and Knopp that are looked at.
    settled    : iterations after which the limit is taken.
    """

    draws: PositiveInt = 1_000_000
    bias_draws: PositiveInt = 2_000_000
    iterations: PositiveInt = 200
    settled: PositiveInt = 5000


def theory_page(context: StudyContext) -> StudyPage:
    """Work out every theorem with the first seed; a picture and a table for each."""
    options, seed = context.parsed_options(TheoryOptions), context.seeds[0]
    parts: list[Callable[[], Section]] = [
        lambda: theorem_1(options.draws, seed),
        lambda: theorem_2(options.draws, seed),
        lambda: theorem_3(options.bias_draws, seed),
        lambda: theorem_4(options.draws, seed),
        lambda: theorem_5(options.iterations, options.settled, seed),
    ]
    sections = []
    for number, part in enumerate(parts, start=1):
        # Draws are made side by side by threads of their own.
        with context.console.status(f"theorem {number} of {len(parts)}"), pinned_threads(1):
            section = part()
        section.figure.savefig(context.folder / f"{section.name}.png")
        sections.append(section)
    text = "\n\n".join(
        f"## {section.title}\n\n{section.text}\n\n![{section.title}]({section.name}.png)\n\n{section.table.markdown()}"
        for section in sections
    )
    checks = tuple(
        (check.theorem, check.claim, check.expected, check.found, check.holds)
        for section in sections
        for check in section.checks
    )
    summary = NumberTable("checks", "What was checked", ("theorem", "claim", "expected", "found", "holds"), checks)
    return StudyPage(text, summary, [section.table for section in sections])
