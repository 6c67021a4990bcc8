"""What each theorem contributes to the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pandas as pd

BLUE, ORANGE, GREEN, RED, GREY = "#1f6fb4", "#d98324", "#3c8d5a", "#c04a1d", "#6f7a85"


@dataclass(frozen=True)
class Check:
    """One line of the summary.

    expected : by the paper, as text.
    found    : by us, as text.
    holds    : whether the paper's claim does.
    """

    HEADINGS: ClassVar = ("theorem", "claim", "expected", "found", "holds")

    theorem: str
    claim: str
    expected: str
    found: str
    holds: bool


@dataclass(frozen=True)
class Section:
    """A theorem.

    text   : Markdown; says in words what was done and what came out.
    figure : matplotlib's, saved as ``<name>.png``.
    """

    name: str
    title: str
    text: str
    figure: Any
    table: pd.DataFrame
    checks: tuple[Check, ...]
