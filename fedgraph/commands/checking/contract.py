"""The contract of strategies and client classes: for each promise a sentence and a function that checks it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fedgraph.commands.checking.disturbance import AGAIN, ALL_LOST, CUT, LOST, ON_RAY, REORDERED, RESTARTED, SPOILT
from fedgraph.commands.checking.trials import ABSOLUTE, RELATIVE, Finished, StoppedError, Trials
from fedgraph.commands.keys import inner_tables
from fedgraph.strategies.engine.chosen import ChosenMethod, is_ours
from fedgraph.strategies.engine.stock_settings import build_stock
from fedgraph.support.errors import ContractError, ExperimentError, FedgraphError
from fedgraph.support.plugins import load_object
from fedgraph.support.settings import Configured, Settings, parse

_UNKNOWN = "no-such-key"


class Promise(NamedTuple):
    """One promise: its text, the function that checks it, and whether it also applies to client classes.

    The function returns a remark, or raises ContractError, or SkipTest if the promise does not apply.
    """

    words: str
    check: Callable[[Any], str]
    of_clients: bool = True


def require(kept: bool, problem: str) -> None:
    """Raise ContractError with ``problem`` unless the promise is kept."""
    if not kept:
        raise ContractError(problem)


def _settings(trials: Trials) -> str:
    subject = trials.subject
    strategy, checked = subject.strategy, subject.checked
    where = f"[{subject.experiment.method.name}]"
    if not subject.is_client and not is_ours(checked):
        _check_refuses(lambda: build_stock(checked, {_UNKNOWN: 1}, where, clients=1), checked.__name__)
        return "the arguments of its constructor are its keys"
    kind: type[Settings] | None = getattr(checked, "settings_type", None)
    if kind is None:
        return "no settings declared"
    if not subject.is_client:
        table = {**subject.experiment.method_table, _UNKNOWN: 1}
        _check_refuses(lambda: parse(kind, table, where), kind.__name__)
    _check_documented(kind)
    client = load_object(ChosenMethod(subject.experiment).client, "[experiment] client")
    if is_ours(strategy) and issubclass(client, Configured):
        known = strategy.settings_type.keys()
        unknown = [key for key in client.settings_type.keys() if key not in known]  # noqa: SIM118
        require(
            not unknown,
            f"{client.__name__} reads the keys {', '.join(unknown)}, which the settings of {strategy.__name__} lack: "
            "nodes never receive them. Use the same settings class on both sides",
        )
    return f"{kind.__name__}: {', '.join(kind.keys())}" if kind.model_fields else "no settings"


def _check_refuses(parse_table: Callable[[], object], name: str) -> None:
    try:
        parse_table()
    except ExperimentError as error:
        if _UNKNOWN in str(error):
            return
        raise ContractError(f"the table of the experiment is invalid for {name}: {error}") from None
    raise ContractError(
        f"{name} accepts the unknown key '{_UNKNOWN}', so that misspelt keys go unnoticed: keep extra as in "
        "fedgraph.support.settings.Settings, and accept no arbitrary keyword arguments"
    )


def _check_documented(kind: type[Settings]) -> None:
    text = " ".join(base.__doc__ or "" for base in kind.__mro__ if issubclass(base, Settings) and base is not Settings)
    missing = [name for name in kind.model_fields if not re.search(rf"\b({name}|{name.replace('_', '-')})\b", text)]
    require(
        not missing,
        f"the docstring of {kind.__name__} does not explain {', '.join(missing)}: add a line 'key : meaning' under "
        "Attributes, for `fedgraph keys`",
    )
    for inner in inner_tables(kind).values():
        _check_documented(inner)


def _finishes(trials: Trials) -> str:
    run = trials.run(1)
    _check_finite(run)
    means = [
        f"{split} {name} {numbers['mean']:.3f}"
        for split, metrics in run.summary["metrics"].items()
        for name, numbers in metrics.items()
        if _is_finite(numbers["mean"])
    ]
    return ", ".join([f"{run.clients} clients", *means[:1]])


def _check_finite(run: Finished) -> None:
    bad = [name for name, tensor in run.tensors.items() if name != "metrics" and not bool(tensor.isfinite().all())]
    require(
        not bad,
        f"the run ends with NaN or infinite values in {', '.join(bad[:1])}: look for a division by zero at the server, "
        "or a learning rate that is too large",
    )
    for split, metrics in run.summary["per_client"].items():
        # Single metrics may be undefined for some clients, but not all of them.
        require(
            any(all(map(_is_finite, values.values())) for values in metrics.values()),
            f"no metric of the split {split} is finite for every client at the end of the run: {', '.join(metrics)}",
        )


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _same(
    words: str,
    change: str,
    advice: str,
    nodes: Callable[[Trials], int] = lambda _: 1,
    remark: str = "bit for bit",
    of_clients: bool = True,
) -> Promise:
    """Return the promise that a run with one thing changed ends with the weights of the undisturbed run."""

    def check(trials: Trials) -> str:
        many = nodes(trials)
        whole = trials.undisturbed(many, change)
        same = trials.run(many, change).same(whole)
        require(same, f"a run with {change} ends with other weights or metrics: {advice}")
        return remark

    return Promise(words, check, of_clients)


def _number_of_nodes(trials: Trials) -> str:
    one = trials.undisturbed(1)
    numbers = sorted({min(2, one.clients), one.clients})
    runs = [trials.run(nodes) for nodes in reversed(numbers)]
    require(
        all(run.close(one) for run in runs),
        f"weights on {' or '.join(map(str, numbers))} nodes differ from those on one, by more than the order of "
        f"summation explains ({RELATIVE:g} of a weight plus {ABSOLUTE:g}): a client must not depend on the others of "
        "its node; in a client class each row of a tensor [clients, ...] is one client, so take no mean, maximum or "
        "random number over the first dimension; at the server, count clients, not replies of nodes",
    )
    same = "bit for bit" if all(run.same(one) for run in runs) else f"within {RELATIVE:g} of a weight plus {ABSOLUTE:g}"
    return f"1, {', '.join(map(str, numbers))} nodes: {same}"


def _absent_client(trials: Trials) -> str:
    policies = ["skip"]
    if trials.subject.has_rounds and is_ours(trials.subject.strategy):
        policies.append("keep-last")
    for policy in policies:
        _check_finite(trials.run(trials.each, LOST, policy))
    return f"on-missing = {', '.join(policies)}"


def _all_absent(trials: Trials) -> str:
    try:
        trials.run(trials.each, ALL_LOST, "skip")
    except StoppedError as stop:
        return f"'{_shortened(stop)}'"
    raise ContractError(
        "no client replied, but the run finished: let check_present decide whether enough clients are left, or raise a "
        "RunError"
    )


def _malformed_replies(trials: Trials) -> str:
    nodes = trials.each
    trials.undisturbed(nodes)
    try:
        without = trials.run(nodes, LOST, "skip")
    except FedgraphError:
        without = None  # a method that allows no absence must stop on malformed replies
    stops = []
    for kind in SPOILT:
        try:
            run = trials.run(nodes, kind, "skip")
        except StoppedError as stop:
            stops.append(f"{kind}: '{_shortened(stop)}'")
            continue
        require(
            not run.changed or (without is not None and run.same(without)),
            f"a reply with {kind} changes the weights: they differ from those of a run without this reply. Declare the "
            "reply in Ask(returns=...), so that it is checked (methods of phases: check it in the function that reads "
            "it, and raise ReplyError)",
        )
    return "; ".join(stops if len(stops) == len(SPOILT) else ["left out", *stops])


def _shortened(stop: StoppedError) -> str:
    text = " ".join(str(stop.__cause__).split())
    return text if len(text) <= 100 else f"{text[:100]}..."


CONTRACT: dict[str, Promise] = {
    "settings": Promise("keys are declared and documented, and unknown ones refused", _settings),
    "finishes": Promise("a run finishes, with finite weights and metrics", _finishes),
    "same-seed": _same(
        "the same seed gives the same weights",
        AGAIN,
        "draw random numbers from fedgraph.support.randomness.generator(seed, purpose, client, round), not from global "
        "generators, and do not depend on the time or the order of a set",
    ),
    "number-of-nodes": Promise("weights do not depend on how clients are divided among nodes", _number_of_nodes),
    "reply-order": _same(
        "weights do not depend on the order of replies",
        REORDERED,
        "sort by the names of clients before computing; replies of a method of rounds are sorted already",
        lambda trials: trials.each,
        of_clients=False,
    ),
    "node-restart": _same(
        "the state of clients survives a restart of their node",
        RESTARTED,
        "keep the state of a client in its node's state folder (CohortClient.remember and recall), not in attributes "
        "of a class or module",
        remark="before every message, bit for bit",
    ),
    "resume": _same(
        "a stopped and resumed run ends with the same weights",
        CUT,
        "keep the state of the server in the value that round returns, not in attributes, and the state of a client "
        "under its round (CohortClient.remember), since the last round is run again",
        lambda trials: trials.most,
        "stopped within a round, after the work of a node; bit for bit",
    ),
    "absent-client": Promise("a run continues without an absent client", _absent_client, False),
    "all-absent": Promise("a round without replies is a clear error", _all_absent, False),
    "malformed-replies": Promise("a malformed reply does not change a model", _malformed_replies, False),
    "ray": _same(
        "the same weights on Ray",
        ON_RAY,
        "each message may be handled by another process: keep no state in attributes of a class or module",
        lambda trials: min(2, trials.clients),
    ),
}
"""All promises by name, in order of checking; ``expected_failures`` of a class uses these names."""
