"""Texts of reports: names of runs, labels of rows, formatted numbers, sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fedgraph.federation import by_reason
from fedgraph.runs.reports.results import Spread, shown_split
from fedgraph.runs.summary import counts, in_words, measured_clients
from fedgraph.support.errors import counted, some
from fedgraph.support.settings import UNSET
from fedgraph.training import num_extreme

DOWN, UP = "MB down, per client", "MB up, per client"

_MOST_KEYS = 3
"""Maximum number of keys in the name of a run."""
_WITHOUT_EFFECT = ("experiment.name", "evaluation.yardsticks", "output.")
_NAMED = 3
"""Maximum number of clients named in a cell."""


def labels(methods: Sequence[str], experiments: Sequence[Mapping[str, Any]], codes: Sequence[str] = ()) -> list[str]:
    """Return a name for each run: its method and, if methods repeat, the keys in which experiments differ.

    Parameters
    ----------
    methods : sequence of str
        Method of each run.
    experiments : sequence of mapping
        Tables of each run's experiment.
    codes : sequence of str
        Digest of the user's code of each run; empty without one.

    Returns
    -------
    list of str
        For example ``sfl`` and ``sfl (permute-seed=0)``, or ``Mine (code 3f2a1c)`` if the user's code differs. Runs
        that differ in too many keys, or in none, are numbered by position: ``sfl #1``, ``sfl (permute-seed=0) #2``.
    """
    names = list(methods)
    for method in (method for method, count in Counter(methods).items() if count > 1):
        places = [place for place, each in enumerate(methods) if each == method]
        keys = [_keys(experiments[place]) for place in places]
        for values, place in zip(keys, places, strict=True):
            if codes and codes[place]:
                values["code"] = f"code {codes[place]}"
        every = dict.fromkeys(key for values in keys for key in values)
        differing = [key for key in every if any(values.get(key) != keys[0].get(key) for values in keys)]
        named = [_named(method, {key: values[key] for key in differing if key in values}) for values in keys]
        if len(differing) > _MOST_KEYS:
            named = [method for _ in places]
        for place, name in zip(places, named, strict=True):
            names[place] = name if named.count(name) == 1 else f"{name} #{place + 1}"
    return names


def _keys(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of all tables as ``table.key``, without those that do not affect results."""
    return {key: value for key, value in _flat(experiment) if not key.startswith(_WITHOUT_EFFECT)}


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if key == UNSET:
            continue
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", each) for inner, each in _flat(value))
        else:
            yield key, value


def _named(method: str, values: Mapping[str, Any]) -> str:
    # A word such as "ridge" stands without its key.
    parts = [value if isinstance(value, str) else f"{key.rpartition('.')[2]}={value}" for key, value in values.items()]
    return f"{method} ({', '.join(parts)})" if parts else method


def title(summaries: Sequence[Mapping[str, Any]], split: str) -> str:
    """Return the heading of a table of results."""
    shared = any("measured" in each for each in summaries)
    return f"On {split} data" if shared else f"On each client's own {split} data"


def costs(summaries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return rounds, exchanges, traffic and time of each run, by label.

    Bytes per client assume one client per node: with several, totals of methods that reply with a mean cannot be
    compared with totals of methods that reply with every client's model.
    """
    nodes = list(dict.fromkeys(summary["nodes"] for summary in summaries if summary.get("nodes")))
    took = {
        "rounds": [str(summary["rounds"]) for summary in summaries],
        "exchanges": [str(summary["exchanges"]) for summary in summaries],
        "models moved a round": [_one_decimal(summary.get("models_per_round")) for summary in summaries],
        DOWN: [_megabytes(summary.get("bytes_down_per_client")) for summary in summaries],
        UP: [_megabytes(summary.get("bytes_up_per_client")) for summary in summaries],
        f"MB in all, {counted(nodes[0], 'node')}" if len(nodes) == 1 else "MB in all (nodes)": [
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
    """Return rounds, bytes per client and seconds until the mean (the first client in brackets) reached each target."""
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
    """Return how many clients 5 % are: ``1 client``, or ``2 or 3 clients`` if runs differ."""
    counts = set()
    for summary in summaries:
        values = summary.get("per_client", {}).get(split, {}).get(metric)
        known = summary["clients"] if values is None else sum(value is not None for value in values.values())
        counts.add(num_extreme(known))
    few = sorted(counts)
    return " or ".join([*map(str, few[:-1]), counted(few[-1], "client")])


def captions(summaries: Sequence[Mapping[str, Any]], split: str) -> str:
    """Describe how many clients were measured on which data, and which were not; by run if runs differ."""
    texts = [_caption(summary, split) for summary in summaries]
    if len(set(texts)) == 1:
        return texts[0]
    if all("measured" in summary for summary in summaries) and not any("not_measured" in each for each in summaries):
        return "; ".join(dict.fromkeys(texts))
    return "; ".join(f"{summary['method']}: {text}" for summary, text in zip(summaries, texts, strict=True))


def _caption(summary: Mapping[str, Any], split: str) -> str:
    if "measured" not in summary and "per_client" in summary and not any(summary["per_client"].values()):
        return f"{counted(summary['clients'], 'client')}, none of which was measured"
    who = in_words(*counts(summary, split))
    usual = f"{who}, each measured on its own {split} data with the model it holds at the end"
    lost = summary.get("not_measured", {}).get(split, {})
    parts = [str(summary.get("measured", usual))]
    if lost:
        parts.append(f"not measured: {'; '.join(by_reason(lost))}")
    parts += _of_fewer_clients(summary.get("per_client", {}).get(split, {}))
    never = {name: of["reason"] for name, of in summary.get("missed_training", {}).items() if _never(of)}
    if never:
        parts.append(f"never trained: {'; '.join(by_reason(never))}")
    return "; ".join(parts)


def _of_fewer_clients(values: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield which metrics some measured clients have no value of, such as AUC where all examples are of one class."""
    measured = measured_clients(values)
    metrics: dict[int, list[str]] = {}
    for metric, of_clients in values.items():
        metrics.setdefault(sum(of_clients.get(name) is not None for name in measured), []).append(metric)
    for number, found in metrics.items():
        if 0 < number < len(measured):
            yield f"{some(found)} of {counted(number, 'client')} alone"


def _never(missed: Mapping[str, Any]) -> bool:
    return bool(missed["rounds"] == missed["of"])


def lost_clients(summaries: Sequence[Mapping[str, Any]], split: str) -> dict[str, list[str]]:
    """Return rows on absent clients, by label, with a cell per run; empty if all took part."""
    counted = [counts(summary, split) for summary in summaries]
    missed = [summary.get("missed_training", {}) for summary in summaries]
    never = [{name: of for name, of in each.items() if _never(of)} for each in missed]
    some = [{name: of for name, of in each.items() if not _never(of)} for each in missed]
    rows = {}
    if any(measured < everybody for measured, everybody in counted):
        rows["clients measured"] = [f"{measured} of {everybody}" for measured, everybody in counted]
    if any(never):
        rows["never trained"] = [_cell(list(each)) for each in never]
    if any(some):
        rows["missed rounds"] = [
            _cell([f"{name}: {of['rounds']} of {of['of']}" for name, of in each.items()]) for each in some
        ]
    return rows


def _cell(entries: Sequence[str]) -> str:
    more = len(entries) - _NAMED
    return "\n".join([*entries[:_NAMED], *([f"and {more} more"] if more > 0 else [])]) or "-"


def sentence(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Describe which clients were measured on which data, and the meaning of metrics and bytes per client."""
    split = shown_split(summaries)
    data = " / ".join(dict.fromkeys(summary["data"] for summary in summaries))
    measured = captions(summaries, split)
    about = (_about_metrics(summaries, split), _about_training(summaries), _about_bytes(summaries))
    return f"{measured}. Data: {data}.{''.join(about)}"


def _about_metrics(summaries: Sequence[Mapping[str, Any]], split: str) -> str:
    """Explain F1 and AUC and the unit of errors, if all runs have the same task."""
    tasks = [summary["task"] for summary in summaries if summary.get("task")]
    if not tasks or any(task != tasks[0] for task in tasks):
        return ""
    task, names = tasks[0], [name for summary in summaries for name in summary["metrics"].get(split, {})]
    measures = {part for name in names for part in name.split("-")}
    classes, two = task["classes"], task["output_shape"][:1] == [2]
    parts = []
    if "f1" in measures:
        of_one = f"that of the class '{classes[1] if classes else 1}', 0 for clients without it"
        parts.append(f"f1 is {of_one if two else 'the mean over the classes'}")
    if "auc" in measures:
        parts.append(f"auc is the area under the ROC curve{'' if two else ', the mean over pairs of classes'}")
    errors = [name for name in ("mae", "rmse") if name in measures]
    if errors and task["unit"]:
        parts.append(f"{' and '.join(errors)} {'is' if len(errors) == 1 else 'are'} in {task['unit']}")
    return f" {'; '.join(parts)}." if parts else ""


def _about_training(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Describe how models were trained, if known and the same for all runs."""
    texts = {summary.get("trained", "") for summary in summaries}
    return f" Models were trained {texts.pop()}." if len(texts) == 1 and "" not in texts else ""


def _about_bytes(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Explain bytes per client, and name runs in which clients of a node shared downloads."""
    saved = []
    counted = [summary for summary in summaries if summary.get("bytes_down_per_client") is not None]
    for summary in counted:
        alone = summary["clients"] * (summary["bytes_down_per_client"] + summary["bytes_up_per_client"])
        if summary["bytes_down"] + summary["bytes_up"] < 0.95 * alone:
            moved = _told_apart(summary["bytes_down"] + summary["bytes_up"], alone)
            saved.append(f"{moved} for {summary['method']}")
    if not counted:
        return ""
    shared = f"; here clients of a node share downloads ({', '.join(saved)})" if saved else ""
    return f" MB per client assumes one client per node{shared}."


def _told_apart(moved: float, alone: float) -> str:
    """Return ``0.60 instead of 2.40 MB``, in the largest unit in which both are seen to differ."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        less, more = f"{moved / size:.2f}", f"{alone / size:.2f}"
        if less != more and moved >= size / 10:
            return f"{less} instead of {more} {unit}"
    return f"{moved:,.0f} instead of {alone:,.0f} bytes"


def spread_text(values: Spread | None) -> str:
    """Format mean and deviation; a dash for none."""
    if not values:
        return "-"
    mean = shown_number(values["mean"])
    return mean if values["std"] is None else f"{mean} ± {shown_number(values['std'])}"


def mean_text(values: Spread | None) -> str:
    """Format a mean; a dash for none."""
    return shown_number(values["mean"]) if values else "-"


def range_text(values: Spread | None) -> str:
    """Format the means of the worst and the best clients; empty if unknown."""
    worst, best = (None if values is None else values.get(key) for key in ("worst5", "best5"))
    ends = (shown_number(worst), shown_number(best))
    return "" if "-" in ends or ends[0] == ends[1] else " to ".join(ends)


def _one_decimal(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _megabytes(value: float | None) -> str:
    return "-" if value is None else f"{value / 1e6:.2f}"


def shown_number(value: float | None) -> str:
    """Format a number; a dash for none."""
    return "-" if value is None else f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
