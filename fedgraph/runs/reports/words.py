"""Results of runs for people: a table, and a plain sentence about the measurements."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.table import Table

from fedgraph.runs import attendance
from fedgraph.training import AFTER_TURN, EXTREMES, LAST, num_extreme

_MOST_COLUMNS = 4
"""Number of runs that fit side by side."""

_METRICS_OF_MANY = 3
"""Number of metrics that fit where every run is a row."""

_MOST_GROUPS = 20

_DOWN, _UP = "MB down, per client", "MB up, per client"


def shown_split(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the split that results are shown for: test if it was measured, else the last that was."""
    measured = list(summaries[0]["metrics"])
    return "test" if "test" in measured or not measured else measured[-1]


def results_table(summaries: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Build a table of results: mean and standard deviation over clients of each metric, then the cost of the run.

    Up to four runs are columns, if the terminal is wide enough. Others become rows, with the means of the last metrics
    that most runs have, those of the longest forecast.

    Parameters
    ----------
    summaries : sequence of mappings
        Contents of ``summary.json``, one per run.

    Returns
    -------
    RenderableType
        To print on a rich console.
    """
    split = shown_split(summaries)
    title = (
        f"On {split} data" if any("measured" in each for each in summaries) else f"On each client's own {split} data"
    )
    runs = [_named(summary) for summary in summaries]
    took = costs(summaries)
    lost = attendance.rows(summaries, split)
    means = _results(summaries, split, _mean, most=_METRICS_OF_MANY)
    rows = _RowPerRun(title, runs, {**means, **lost, _UP: took[_UP], "seconds": took["seconds"]})
    if len(summaries) > _MOST_COLUMNS:
        return rows
    return _ColumnPerRun(title, runs, (_results(summaries, split, _spread), lost, _targets(summaries), took), rows)


def _named(summary: Mapping[str, Any]) -> str:
    """Return the method, and the remark that is needed to read its numbers."""
    remark = f"\n({summary['remark']})" if summary.get("remark") else ""
    return escape(f"{summary['method']}{remark}")


def costs(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return rounds, exchanges, traffic and time of each run, by their names in tables.

    Bytes of a client are those of a client on a node of its own: the totals of nodes with several clients cannot be
    compared between methods that answer with a mean and methods that answer with every client's own model.
    """
    nodes = list(dict.fromkeys(summary["nodes"] for summary in summaries if summary.get("nodes")))
    took = {
        "rounds": [str(summary["rounds"]) for summary in summaries],
        "exchanges": [str(summary["exchanges"]) for summary in summaries],
        "models moved a round": [_one_decimal(summary.get("models_per_round")) for summary in summaries],
        _DOWN: [_megabytes(summary.get("bytes_down_per_client")) for summary in summaries],
        _UP: [_megabytes(summary.get("bytes_up_per_client")) for summary in summaries],
        f"MB in all, {_plural(nodes[0], 'node')}" if len(nodes) == 1 else "MB in all (nodes)": [
            _in_all(summary, with_nodes=len(nodes) > 1) for summary in summaries
        ],
        "seconds": [f"{summary['seconds']:.1f}" for summary in summaries],
    }
    if not any(summary.get("models_per_round") for summary in summaries):
        del took["models moved a round"]
    return took


def _in_all(summary: Mapping[str, Any], with_nodes: bool) -> str:
    if summary.get("bytes_down") is None or summary.get("bytes_up") is None:
        return "-"
    nodes = f" ({summary.get('nodes') or '?'})" if with_nodes else ""
    return f"{_megabytes(summary['bytes_down'] + summary['bytes_up'])}{nodes}"


def _targets(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the cost until each target was reached by the mean over clients, and in brackets by the first client.

    The rows are rounds, bytes per client and seconds.
    """
    wanted = {
        (name, reached["target"])
        for summary in summaries
        for name, reached in summary.get("rounds_to_target", {}).items()
    }
    rows = {}
    for name, target in sorted(wanted):
        for key, label, shown in (
            ("rounds_to_target", "rounds", str),
            ("bytes_to_target", "MB per client", lambda value: _megabytes(value)),
            ("seconds_to_target", "seconds", lambda value: f"{value:.1f}"),
        ):
            rows[f"{label} to {name} {target:g} (first)"] = [
                _mean_and_first(summary.get(key, {}).get(name, {}), shown) for summary in summaries
            ]
    return rows


def _mean_and_first(reached: Mapping[str, Any], shown: Callable[[Any], str]) -> str:
    mean, first = ("-" if reached.get(who) is None else shown(reached[who]) for who in ("mean", "first"))
    return f"{mean} ({first})"


def _results(
    summaries: Sequence[Mapping[str, Any]],
    split: str,
    shows: Callable[[Mapping[str, float | None] | None], str],
    most: int | None = None,
) -> dict[str, list[str]]:
    """Return an entry for each run per metric.

    The last ``most`` metrics of those that most runs have, fairness where it was followed, then best, worst and groups
    of the first of them.
    """
    measured = [summary["metrics"].get(split, {}) for summary in summaries]
    having = Counter(metric for values in measured for metric in values)
    shown = list(having)
    if most is not None:
        final = [metric for metric in shown if not metric.endswith((AFTER_TURN, LAST))]
        runs = max((having[metric] for metric in final), default=0)
        shown = [metric for metric in final if having[metric] == runs][-most:]
    results = {metric: [shows(values.get(metric)) for values in measured] for metric in shown}
    if any("fairness" in summary for summary in summaries):
        results["fairness"] = [shown_number(summary.get("fairness", {}).get("last")) for summary in summaries]
    if not shown:
        return results
    first = shown[0]
    over = extreme_clients(summaries, split, first)
    for key, label in EXTREMES.items():
        results[f"{first}, {label}, {over}"] = [shown_number(values.get(first, {}).get(key)) for values in measured]
    for group in _groups(summaries, split):
        values = [summary.get("per_group", {}).get(split, {}).get(group, {}).get(first) for summary in summaries]
        results[f"{first}, {group}"] = [shows(each) for each in values]
    return results


def extreme_clients(summaries: Sequence[Mapping[str, Any]], split: str, metric: str) -> str:
    """Return in words how many clients the best and the worst 5 % are.

    Returns
    -------
    str
        For example ``1 client``, or ``2 or 3 clients`` where runs differ.
    """
    counts = set()
    for summary in summaries:
        values = summary.get("per_client", {}).get(split, {}).get(metric)
        known = summary["clients"] if values is None else sum(value is not None for value in values.values())
        counts.add(num_extreme(known))
    few = sorted(counts)
    return f"{' or '.join(map(str, few))} client{'' if few == [1] else 's'}"


@dataclass(frozen=True)
class _ColumnPerRun:
    """A table with a column for each run, or ``otherwise`` where the terminal is too narrow to read it."""

    title: str
    runs: Sequence[str]
    parts: Sequence[Mapping[str, Sequence[str]]]
    otherwise: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table."""
        rows = [(label, values) for part in self.parts for label, values in part.items()]
        labels = [_OF_RUNS_AND_SPREAD, *(label for label, _ in rows)]
        values = [
            _longest(line for _, of in rows for line in of[place].splitlines()) for place in range(len(self.runs))
        ]
        least = [max(_longest(run.split()), width) for run, width in zip(self.runs, values, strict=True)]
        frame = 3 * len(self.runs) + 4
        room = options.max_width - frame - sum(least)
        if room < _longest(word for label in labels for word in label.split()):
            yield self.otherwise
            return
        whole = [max(_longest(run.splitlines()), width) for run, width in zip(self.runs, values, strict=True)]
        fits = frame + _longest(labels) + sum(whole) <= options.max_width
        table = Table(title=self.title, title_justify="left")
        table.add_column(_OF_RUNS_AND_SPREAD, max_width=None if fits else room)
        for run, width in zip(self.runs, whole if fits else least, strict=True):
            table.add_column(run, justify="right", width=width)
        for part in self.parts:
            for label, of in part.items():
                table.add_row(escape(label), *map(escape, of))
            table.add_section()
        yield table


@dataclass(frozen=True)
class _RowPerRun:
    """A table with a row for each run, as wide as the terminal: what is less important is left out where it is narrow.

    Numbers are never cut, and names are broken between words alone.
    """

    title: str
    runs: Sequence[str]
    columns: Mapping[str, Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table."""
        names = _longest(word for run in [*self.runs, _OF_RUNS] for word in run.split())
        widths = {
            label: _longest(line for text in (_lines(label), *of) for line in text.splitlines())
            for label, of in self.columns.items()
        }
        kept = list(self.columns)
        for label in sorted(kept[1:], key=_importance):
            if names + sum(1 + widths[each] for each in kept) <= options.max_width:
                break
            kept.remove(label)
        table = Table(title=self.title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
        table.add_column(_OF_RUNS, min_width=names)
        for label in kept:
            table.add_column(escape(_lines(label)), justify="right", no_wrap=True, min_width=widths[label])
        for place, run in enumerate(self.runs):
            table.add_row(run, *(escape(self.columns[label][place]) for label in kept))
        yield table


_OF_RUNS, _OF_RUNS_AND_SPREAD = "mean of clients", "mean ± std of clients"


def _longest(words: Iterable[str]) -> int:
    return max(map(len, words), default=0)


def _lines(label: str) -> str:
    return label.replace(", ", "\n")


def _importance(label: str) -> int:
    """Return 0 for what is left out first: best clients, then time, traffic and worst clients, then metrics."""
    if EXTREMES["best5"] in label:
        return 0
    return {"seconds": 1, _UP: 2}.get(label, 3 if EXTREMES["worst5"] in label else 4)


def _groups(summaries: Sequence[Mapping[str, Any]], split: str) -> list[str]:
    """Return the groups of clients that have a row of their own; none where there are too many to read."""
    found = dict.fromkeys(group for summary in summaries for group in summary.get("per_group", {}).get(split, {}))
    return list(found) if len(found) <= _MOST_GROUPS else []


def sentence(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Describe in plain words what was measured on which data, and what bytes per client mean.

    Parameters
    ----------
    summaries : sequence of mappings
        Contents of ``summary.json``, one per run.

    Returns
    -------
    str
        One or more sentences.
    """
    split = shown_split(summaries)
    data = " / ".join(dict.fromkeys(summary["data"] for summary in summaries))
    measured = attendance.captions(summaries, split)
    about = (_about_metrics(summaries, split), _about_training(summaries), _about_bytes(summaries))
    return f"{measured}. Data: {data}.{''.join(about)}"


def _about_metrics(summaries: Sequence[Mapping[str, Any]], split: str) -> str:
    """Say what F1 and the area under the curve are of, and the unit of errors, where the runs have one task."""
    tasks = [summary["task"] for summary in summaries if summary.get("task")]
    if not tasks or any(task != tasks[0] for task in tasks):
        return ""
    task, names = tasks[0], [name for summary in summaries for name in summary["metrics"].get(split, {})]
    found = {part for name in names for part in name.split("-")}
    classes, two = task["classes"], task["output_shape"][:1] == [2]
    said = []
    if "f1" in found:
        of_one = f"that of the class '{classes[1] if classes else 1}'"
        said.append(f"f1 is {of_one if two else 'the mean over the classes'}")
    if "auc" in found:
        said.append(f"auc is the area under the ROC curve{'' if two else ', the mean over pairs of classes'}")
    errors = [name for name in ("mae", "rmse") if name in found]
    if errors and task["unit"]:
        said.append(f"{' and '.join(errors)} {'is' if len(errors) == 1 else 'are'} in {task['unit']}")
    return f" {'; '.join(said)}." if said else ""


def _about_training(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Say how models were trained, where nodes have said so, and all runs alike."""
    found = {summary.get("trained", "") for summary in summaries}
    return f" Models were trained {found.pop()}." if len(found) == 1 and "" not in found else ""


def _about_bytes(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Explain bytes per client, and where nodes of several clients have sent less than these together."""
    saved = []
    counted = [summary for summary in summaries if summary.get("bytes_down_per_client") is not None]
    for summary in counted:
        alone = summary["clients"] * (summary["bytes_down_per_client"] + summary["bytes_up_per_client"])
        if summary["bytes_down"] + summary["bytes_up"] < 0.95 * alone:
            saved.append(f"{summary['method']} {_in_all(summary, with_nodes=False)} in place of {_megabytes(alone)}")
    if not counted:
        return ""
    return " MB per client: of a client that has a node to itself." + (
        f" Nodes of several clients send less where these share a model: {', '.join(saved)} MB in all." if saved else ""
    )


def as_text(summary: Mapping[str, Any]) -> str:
    """Format table and sentence of one run.

    Returns
    -------
    str
        Plain text, 100 columns wide.
    """
    console = Console(file=io.StringIO(), width=100, color_system=None)
    console.print(results_table([summary]))
    console.print(sentence([summary]), markup=False)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def _spread(values: Mapping[str, float | None] | None) -> str:
    if not values:
        return "-"
    return f"{shown_number(values['mean'])} ± {shown_number(values['std'])}"


def _mean(values: Mapping[str, float | None] | None) -> str:
    return shown_number(values["mean"]) if values else "-"


def _one_decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f}"


def shown_number(value: float | None) -> str:
    """Return a number as tables show it; a dash for none."""
    return "-" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
