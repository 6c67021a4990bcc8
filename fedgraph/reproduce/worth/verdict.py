"""The verdict of a comparison: the method against each rival, with intervals, and a conclusion in one sentence."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from fedgraph.reproduce.result_file import ResultLine
from fedgraph.reproduce.spreads import Difference, Spread
from fedgraph.support.errors import RunError

if TYPE_CHECKING:
    import pandas as pd

ALONE, AVERAGE, TUNED = "training alone", "FedAvg", "FedAvg with fine-tuning"
"""The rivals that need no graph."""


@dataclass(frozen=True)
class Effect:
    """The method against a rival: the change of an error in per cent, or the difference in a score.

    Attributes
    ----------
    mean : float
        Mean over seeds; the method is better if it is negative for an error, positive for a score.
    low, high : float
        The 95 % interval of the mean.
    is_error : bool
        Whether lower is better.
    in_points : bool
        Whether the difference in a score is in percentage points, as for accuracy, and not in its own unit.
    """

    mean: float
    low: float
    high: float
    is_error: bool
    in_points: bool = True

    @classmethod
    def between(cls, method: Spread, rival: Spread, is_error: bool, in_points: bool = True) -> Effect:
        """Compare paired by seed. Raises RunError for an error of 0, to which no other is relative."""
        seeds = sorted(method.values.keys() & rival.values.keys())
        if is_error and (zero := [seed for seed in seeds if rival.values[seed] == 0]):
            raise RunError(
                f"with seed {zero[0]} a rival has an error of 0, and changes in per cent of it are undefined: choose "
                "another metric (--metric), or data on which errors are made"
            )
        factor = 100 if is_error or in_points else 1
        change = {
            seed: factor * (method.values[seed] / rival.values[seed] - 1 if is_error else
                            method.values[seed] - rival.values[seed])
            for seed in seeds
        }  # fmt: skip
        difference = Difference.between(Spread.over(change), Spread.over(dict.fromkeys(seeds, 0.0)), overlap=0.0)
        assert difference is not None
        margin = float("inf") if difference.margin is None else difference.margin
        return cls(difference.mean, difference.mean - margin, difference.mean + margin, is_error, in_points)

    @property
    def relation(self) -> str:
        """``better``, ``worse``, or ``level`` if the interval contains 0."""
        if self.low <= 0 <= self.high:
            return "level"
        return "better" if (self.high < 0) == self.is_error else "worse"

    @property
    def same_with_each_seed(self) -> bool:
        """Whether all seeds gave the same difference, other than 0, so that the interval has no width."""
        return abs(self.mean) > 1e-6 and self.high - self.low < 1e-6

    def __str__(self) -> str:
        """Format as ``-8.1 % [-11.0, -5.2] error``, ``+2.3 points [+1.0, +3.6]`` or ``+0.023 [+0.010, +0.036]``."""
        if self.is_error:
            return f"{self.mean:+.1f} % [{self.low:+.1f}, {self.high:+.1f}] error"
        if self.in_points:
            return f"{self.mean:+.1f} points [{self.low:+.1f}, {self.high:+.1f}]"
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


@dataclass(frozen=True)
class Worth:
    """The results of a comparison. Printed on a rich console, it is a table and the verdict.

    Attributes
    ----------
    method : str
        The method of the experiment.
    metric : str
        The metric, on validation data.
    spreads : dict of str to Spread
        Mean, deviation and values by seed of each row; the method's row has its name.
    effects : dict of str to Effect
        The method against each other row.
    settings : dict of str to list of str
        Chosen settings of each row, as overrides.
    experiment : str
        Name or path of the experiment.
    folder : Path
        Folder of ``worth.html``, ``worth.md`` and ``worth.csv``.
    seconds : float
        Total duration of all runs.
    overrides : tuple of str
        Keys of the experiment that all rows had other values of.
    """

    method: str
    metric: str
    spreads: dict[str, Spread]
    effects: dict[str, Effect]
    settings: dict[str, list[str]]
    experiment: str
    folder: Path
    seconds: float = 0.0
    overrides: tuple[str, ...] = ()

    @property
    def pays(self) -> bool:
        """Whether the method is better than training alone, fine-tuned FedAvg, and itself over a permuted graph."""
        rivals = [label for label in (ALONE, TUNED, f"{self.method} over a permuted graph") if label in self.effects]
        return all(self.effects[label].relation == "better" for label in rivals)

    @property
    def best(self) -> str:
        """The row with the best mean."""
        choose = min if next(iter(self.effects.values())).is_error else max
        real = {label: spread for label, spread in self.spreads.items() if "permuted" not in label}
        return choose(real, key=lambda label: real[label].mean)

    @property
    def verdict(self) -> str:
        """The conclusion in one sentence, and a second one about intervals without width."""
        against_alone = (
            f"neighbours help {{}} against {ALONE}",
            f"neighbours hurt {{}} against {ALONE}",
            f"neighbours make no clear difference {{}} against {ALONE}",
        )
        parts = [_phrase(self.effects[ALONE], *against_alone)]
        permuted = self.effects.get(f"{self.method} over a permuted graph")
        if permuted is not None:
            parts.append(
                _phrase(
                    permuted,
                    "the graph itself helps {} against a permuted one",
                    "the graph is worse than a permuted one {}",
                    "the graph itself makes no clear difference {} against a permuted one",
                )
            )
        parts.append(
            _phrase(
                self.effects[TUNED],
                f"{TUNED} is behind {{}}",
                f"{TUNED} is better {{}}",
                f"{TUNED} makes no clear difference {{}}",
            )
        )
        same = [label for label, effect in self.effects.items() if effect.same_with_each_seed]
        doubt = f" Every seed gave the same difference against {', '.join(same)}: the seed may change nothing here."
        return f"{'Yes' if self.pays else 'No'}: {'; '.join(parts)}.{doubt if same else ''}"

    @property
    def command(self) -> str:
        """The command that continues with the best row."""
        options = " ".join(f"--set {shlex.quote(each)}" for each in (*self.overrides, *self.settings[self.best]))
        return f"fedgraph run {shlex.quote(self.experiment)} {options}".rstrip()

    @property
    def frame(self) -> pd.DataFrame:
        """A row per method, with columns ``mean``, ``deviation``, ``change``, ``low``, ``high``, and one per seed."""
        import pandas as pd

        rows = {}
        for label, spread in self.spreads.items():
            effect = self.effects.get(label)
            change = {key: getattr(effect, name, None) for key, name in
                      (("change", "mean"), ("low", "low"), ("high", "high"))}  # fmt: skip
            by_seed = {f"seed {seed}": value for seed, value in spread.values.items()}
            rows[label] = {"mean": spread.mean, "deviation": spread.deviation, **change, **by_seed}
        return pd.DataFrame.from_dict(rows, orient="index")

    def result_lines(self) -> list[ResultLine]:
        """Return the numbers as lines of a result file: a row per method, the experiment as column."""
        lines, column = [], " ".join([self.experiment, *(f"--set {each}" for each in self.overrides)])
        for label, numbers in self.frame.to_dict("index").items():
            source = f"fedgraph worth {column}"
            lines += [
                ResultLine(label, column, metric, value=f"{value:.6g}", source=source)
                for metric, value in numbers.items()
                if value is not None and isfinite(value)
            ]
        totals = {"pays": int(self.pays), "seconds": round(self.seconds)}
        verdict = [ResultLine("verdict", column, key, value=str(each), source=self.verdict)
                   for key, each in totals.items()]  # fmt: skip
        return [*lines, *verdict]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table, the verdict, and the command to continue."""
        seeds = len(self.spreads[self.method].values)
        table = Table(title=f"{self.metric}, {seeds} seeds", title_justify="left")
        for heading in ("", "mean", f"{self.method} against it"):
            table.add_column(heading, justify="left" if not heading else "right")
        for label, mean, effect in self._rows():
            table.add_row(label, mean, Text(effect))
        yield table
        yield Text(self.verdict)
        yield Text(f"To continue with {self.best}, the best here: {self.command}")

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return label, mean with deviation, and the method's difference of each row, as text."""
        rows = []
        for label, spread in self.spreads.items():
            deviation = "" if spread.deviation is None else f" ± {spread.deviation:.4f}"
            effect = self.effects.get(label)
            rows.append((label, f"{spread.mean:.4f}{deviation}", f"{effect} ({effect.relation})" if effect else ""))
        return rows

    def markdown(self) -> str:
        """Return the table, the verdict, and the command to continue, as Markdown."""
        lines = [
            f"# Is {self.method} worth it? {self.experiment}",
            "",
            self.verdict,
            "",
            f"| {self.metric} | mean | {self.method} against it |",
            "|---|---|---|",
        ]
        lines += [f"| {label} | {mean} | {effect} |" for label, mean, effect in self._rows()]
        tuned = "; ".join(f"{label}: {', '.join(chosen)}" for label, chosen in self.settings.items())
        return "\n".join([
            *lines, "",
            "Intervals are of the mean over seeds (Student's t, 95 %), paired by seed, on this data set. Every row was "
            f"tuned in the same way, on the same validation data: {tuned}.",
            "", f"To continue with {self.best}, the best here:", "", f"    {self.command}", "",
        ])  # fmt: skip

    def write_page(self, runs: Mapping[str, Path]) -> Path:
        """Write ``worth.html``: verdict, command, table and intervals, then ``runs``, a run folder per row."""
        from fedgraph.runs import compare
        from fedgraph.runs.reports import charts
        from fedgraph.runs.reports.page import Block, write_page

        some = next(iter(self.effects.values()))
        text = f"{'Below' if some.is_error else 'Above'} 0 {self.method} is better. 95 % intervals over seeds, paired."
        drawn = charts.intervals(
            {label: (each.mean, each.low, each.high) for label, each in self.effects.items()},
            "change of the error, %" if some.is_error else
            f"difference in {self.metric}{', points' if some.in_points else ''}",
            title=f"{self.method} against the others", text=text,
        )  # fmt: skip
        compared = compare(list(runs.values()))
        compared.labels = list(runs)
        block = Block(
            compared,
            text=self.verdict,
            facts=tuple(self._rows()),
            command=self.command,
            shown=(drawn,),
        )
        return write_page(f"Is {self.method} worth it? {self.experiment}", "", [block], self.folder / "worth.html")


def _phrase(effect: Effect, better: str, worse: str, level: str) -> str:
    return {"better": better, "worse": worse, "level": level}[effect.relation].format(f"({effect})")
