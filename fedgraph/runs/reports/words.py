"""What tables, pages and sentences say of results: labels, numbers as text, and a plain sentence about a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedgraph.runs import attendance
from fedgraph.runs.reports.results import Spread, shown_split
from fedgraph.training import num_extreme

DOWN, UP = "MB down, per client", "MB up, per client"


def title(summaries: Sequence[Mapping[str, Any]], split: str) -> str:
    """Return the heading of a table of results."""
    shared = any("measured" in each for each in summaries)
    return f"On {split} data" if shared else f"On each client's own {split} data"


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
        DOWN: [_megabytes(summary.get("bytes_down_per_client")) for summary in summaries],
        UP: [_megabytes(summary.get("bytes_up_per_client")) for summary in summaries],
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


def targets(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
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
    return mean if first == "-" else f"{mean} ({first})"


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
            saved.append(
                f"{_in_all(summary, with_nodes=False)} instead of {_megabytes(alone)} MB for {summary['method']}"
            )
    if not counted:
        return ""
    here = f"; here clients of a node share downloads ({', '.join(saved)})" if saved else ""
    return f" MB per client assumes one client per node{here}."


def spread_text(values: Spread | None) -> str:
    """Return mean and deviation as tables show them; a dash for none."""
    if not values:
        return "-"
    mean = shown_number(values["mean"])
    return mean if values["std"] is None else f"{mean} ± {shown_number(values['std'])}"


def mean_text(values: Spread | None) -> str:
    """Return a mean as tables show it; a dash for none."""
    return shown_number(values["mean"]) if values else "-"


def range_text(values: Spread | None) -> str:
    """Return the means of the worst and the best clients; nothing where they are not known."""
    worst, best = (None if values is None else values.get(key) for key in ("worst5", "best5"))
    ends = (shown_number(worst), shown_number(best))
    return "" if "-" in ends or ends[0] == ends[1] else " to ".join(ends)


def _one_decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f}"


def shown_number(value: float | None) -> str:
    """Return a number as tables show it; a dash for none."""
    return "-" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
