"""The trials of a sweep as a table, and as Optuna's slice plot."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from optuna.trial import TrialState
from rich.markup import escape
from rich.table import Table

from fedgraph.reproduce.sweeps.search import Search

if TYPE_CHECKING:
    import pandas as pd

_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


def trials(search: Search) -> pd.DataFrame:
    """Return the trials, best first, with values by seed and names of runs."""
    import pandas as pd

    rows = []
    for each in search.tried():
        about, stopped = each.user_attrs, "it was stopped" if each.state == TrialState.FAIL else ""
        values = about.get("values", [])
        rows.append({
            "trial": each.number,
            "state": _STATES[each.state],
            **{key: each.params[key] for key in search.axes},
            str(search.quantity): fmean(values) if values else None,
            "deviation": stdev(values) if len(values) > 1 else None,
            "seeds": " ".join(map(str, search.seeds)),
            "values": " ".join(map(str, values)),
            "seconds": about.get("seconds", 0.0),
            "runs": " ".join(about.get("runs", ())),
            "problem": about.get("problem", stopped),
        })  # fmt: skip
    return pd.DataFrame(rows, dtype=object)


def trials_table(search: Search) -> Table:
    """Return a table of the trials for the terminal, best first."""
    frame, quantity = trials(search), str(search.quantity)
    counts = frame["state"].value_counts()
    table = Table(title=", ".join(f"{count} {state}" for state, count in counts.items()), title_justify="left")
    for heading in ("trial", *search.axes, quantity, "seconds", "state"):
        table.add_column(escape(heading), justify="left" if heading == "state" else "right", overflow="fold")
    for each in frame.to_dict("records"):
        mean = mean_in_words([*map(float, each["values"].split())])
        state = ": ".join(filter(None, (each["state"], each["problem"])))
        settings = [f"{each[key]:.4g}" if isinstance(each[key], float) else str(each[key]) for key in search.axes]
        table.add_row(*map(escape, (str(each["trial"]), *settings, mean, f"{each['seconds']:.1f}", state)))
    return table


def mean_in_words(values: Sequence[float]) -> str:
    """Format the mean over seeds, with the deviation for several."""
    if not values:
        return ""
    return f"{fmean(values):.4g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


def draw(search: Search, path: Path) -> None:
    """Draw the complete trials over each key with Optuna; later trials are darker."""
    from matplotlib import pyplot as plt
    from optuna.visualization.matplotlib import plot_slice

    # The function is experimental, and warns of keys with a single value.
    with warnings.catch_warnings(action="ignore"), plt.style.context("default"):
        plot_slice(search.study, list(search.axes), target_name=str(search.quantity))
        plt.savefig(path, dpi=150, bbox_inches="tight")
        plt.close()
