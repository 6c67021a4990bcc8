"""Who was measured at the end of a run, and who missed training: counted once, for tables, pages and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedgraph.federation import by_reason

_NAMED = 3
"""Clients that a cell of a table names."""

Values = Mapping[str, Mapping[str, Any]]
"""Values by client of every metric of a split, as in ``summary.json``; None where there is none."""


def measured_clients(values: Values) -> list[str]:
    """Return the clients that have a value of at least one metric."""
    names = dict.fromkeys(name for of_metric in values.values() for name in of_metric)
    return [name for name in names if any(of_metric.get(name) is not None for of_metric in values.values())]


def attendance(
    names: Sequence[str],
    per_client: Mapping[str, Values],
    absent: Mapping[str, str],
    trainings: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return what ``summary.json`` says of clients that were lost; empty where there are none.

    Parameters
    ----------
    names : sequence of str
        Clients of the run.
    per_client : mapping of str to mapping
        Values by client, by split and metric.
    absent : mapping of str to str
        Reasons of clients that were not measured, be they among ``names`` or not.
    trainings : iterable of mapping
        Lines of ``metrics.jsonl`` about training.

    Returns
    -------
    dict
        ``not_measured`` has, by split and client, the reason; ``missed_training``, by client, in how many ``rounds`` of
        how many (``of``) it did not train, and the last ``reason``.
    """
    everybody = dict.fromkeys((*names, *absent))
    without = {}
    for split, values in per_client.items():
        found = set(measured_clients(values))
        lost = {name: absent.get(name, "no finite value") for name in everybody if name not in found}
        if lost:
            without[split] = lost
    lines = [line["absent"] for line in trainings]
    reasons = {name: reason for line in lines for name, reason in line.items()}
    missed = {
        name: {"rounds": sum(name in line for line in lines), "of": len(lines), "reason": reasons[name]}
        for name in sorted(reasons)
    }
    return {
        **({"not_measured": without} if without else {}),
        **({"missed_training": missed} if missed else {}),
    }


def counts(summary: Mapping[str, Any], split: str) -> tuple[int, int]:
    """Return the number of clients that were measured on a split at the end of a run, and that of all clients."""
    values = summary.get("per_client", {}).get(split)
    lost = summary.get("not_measured", {}).get(split, {})
    measured = len(measured_clients(values)) if values else int(summary["clients"])
    strangers = [name for name in lost if not any(name in of_metric for of_metric in (values or {}).values())]
    return measured, int(summary["clients"]) + len(strangers)


def in_words(measured: int, everybody: int) -> str:
    """Return ``4 clients``, or ``2 of 4 clients`` where some were not measured."""
    return f"{everybody} clients" if measured == everybody else f"{measured} of {everybody} clients"


def captions(summaries: Sequence[Mapping[str, Any]], split: str) -> str:
    """Say how many clients were measured on what, who was not and why; for each run where runs differ."""
    said = [_caption(summary, split) for summary in summaries]
    if len(set(said)) == 1:
        return said[0]
    if all("measured" in summary for summary in summaries) and not any("not_measured" in each for each in summaries):
        return "; ".join(dict.fromkeys(said))
    return "; ".join(f"{summary['method']}: {text}" for summary, text in zip(summaries, said, strict=True))


def _caption(summary: Mapping[str, Any], split: str) -> str:
    if "measured" not in summary and "per_client" in summary and not any(summary["per_client"].values()):
        return f"{summary['clients']} clients, none of which was measured"
    who = in_words(*counts(summary, split))
    usual = f"{who}, each measured on its own {split} data with the model it holds at the end"
    lost = summary.get("not_measured", {}).get(split, {})
    said = [str(summary.get("measured", usual))]
    if lost:
        said.append(f"not measured: {'; '.join(by_reason(lost))}")
    never = {name: of["reason"] for name, of in summary.get("missed_training", {}).items() if _never(of)}
    if never:
        said.append(f"never trained: {'; '.join(by_reason(never))}")
    return "; ".join(said)


def _never(missed: Mapping[str, Any]) -> bool:
    return bool(missed["rounds"] == missed["of"])


def rows(summaries: Sequence[Mapping[str, Any]], split: str) -> dict[str, list[str]]:
    """Return rows of a table about clients that were lost, by label, with a cell for each run; none without any."""
    counted = [counts(summary, split) for summary in summaries]
    missed = [summary.get("missed_training", {}) for summary in summaries]
    never = [{name: of for name, of in each.items() if _never(of)} for each in missed]
    some = [{name: of for name, of in each.items() if not _never(of)} for each in missed]
    found = {}
    if any(measured < everybody for measured, everybody in counted):
        found["clients measured"] = [f"{measured} of {everybody}" for measured, everybody in counted]
    if any(never):
        found["never trained"] = [_cell(list(each)) for each in never]
    if any(some):
        found["missed rounds"] = [
            _cell([f"{name}: {of['rounds']} of {of['of']}" for name, of in each.items()]) for each in some
        ]
    return found


def _cell(entries: Sequence[str]) -> str:
    more = len(entries) - _NAMED
    return "\n".join([*entries[:_NAMED], *([f"and {more} more"] if more > 0 else [])]) or "-"
