"""The contract: for each promise a sentence, and a function that returns a remark or raises what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from fedgraph.commands.checking.disturbance import AGAIN, ALL_LOST, CUT, LOST, ON_RAY, REORDERED, RESTARTED, SPOILT
from fedgraph.commands.checking.trials import ABSOLUTE, RELATIVE, Finished, Nodes, StoppedError, Trials
from fedgraph.commands.keys import inner_tables
from fedgraph.strategies.engine.chosen import is_ours
from fedgraph.strategies.engine.stock_settings import build_stock
from fedgraph.support.errors import ContractError, ExperimentError, FedgraphError
from fedgraph.support.plugins import a_client, load_object
from fedgraph.support.settings import Configured, Settings, parse

_UNKNOWN = "no-such-key"


class Promise(NamedTuple):
    """One promise: what it says, the function that checks it, and whether client classes make it too.

    The function returns a remark, raises ContractError, or SkipTest where the promise does not apply.
    """

    words: str
    check: Callable[[Any], str]
    of_clients: bool = True


def require(kept: bool, problem: str) -> None:
    """Raise ContractError, with what went wrong and what to do, unless something is as promised."""
    if not kept:
        raise ContractError(problem)


def _settings(trials: Trials) -> str:
    strategy, checked, where = trials.strategy, trials.checked, f"[{trials.experiment.method.name}]"
    if not trials.is_client and not is_ours(checked):
        _check_refuses(lambda: build_stock(checked, {_UNKNOWN: 1}, where, clients=1), checked.__name__)
        return "the arguments of its constructor are its keys"
    kind: type[Settings] | None = getattr(checked, "settings_type", None)
    if kind is None:
        return "it declares none"
    if not trials.is_client:
        table = {**trials.experiment.method_table, _UNKNOWN: 1}
        _check_refuses(lambda: parse(kind, table, where), kind.__name__)
    _check_documented(kind)
    client = load_object(trials.client_path, "[experiment] client", a_client)
    if is_ours(strategy) and issubclass(client, Configured):
        unsent = ", ".join(key for key in client.settings_type.keys() if key not in strategy.settings_type.keys())  # noqa: SIM118
        require(
            not unsent,
            f"{client.__name__} reads the keys {unsent}, which the settings of {strategy.__name__} do not have, so "
            "that nodes never receive them: use the same settings class on both sides",
        )
    return f"{kind.__name__}: {', '.join(kind.keys())}" if kind.model_fields else "it has none"


def _check_refuses(parse_table: Callable[[], object], name: str) -> None:
    try:
        parse_table()
    except ExperimentError as error:
        require(_UNKNOWN in str(error), f"the table of the experiment does not fit {name}: {error}")
        return
    raise ContractError(
        f"{name} takes the unknown key '{_UNKNOWN}', so that a misspelt key goes unnoticed: leave extra as it is in "
        "fedgraph.support.settings.Settings, and take no arbitrary keyword arguments"
    )


def _check_documented(kind: type[Settings]) -> None:
    text = " ".join(base.__doc__ or "" for base in kind.__mro__ if issubclass(base, Settings) and base is not Settings)
    missing = [name for name in kind.model_fields if not re.search(rf"\b({name}|{name.replace('_', '-')})\b", text)]
    require(
        not missing,
        f"the docstring of {kind.__name__} does not say what {', '.join(missing)} is: add a line 'key : meaning' under "
        "Attributes, from which `fedgraph keys` takes it",
    )
    for inner in inner_tables(kind).values():
        _check_documented(inner)


def _finishes(trials: Trials) -> str:
    run = trials.run(1)
    _check_finite(run)
    every = ((split, *metric) for split, metrics in run.summary["metrics"].items() for metric in metrics.items())
    means = [f"{split} {name} {each['mean']:.3f}" for split, name, each in every if each["mean"] is not None]
    return ", ".join([f"{run.clients} clients", *means[:1]])


def _check_finite(run: Finished) -> None:
    bad = [name for name, tensor in run.tensors.items() if name != "metrics" and not bool(tensor.isfinite().all())]
    require(
        not bad,
        f"the run ends with NaN or infinite values in {', '.join(bad[:1])}: look for a division by zero in what the "
        "server computes of the replies, or a learning rate that is too large",
    )
    for split, metrics in run.summary["per_client"].items():
        # A metric may be undefined (None, as are NaN and infinity) for some clients; one must be defined for all.
        defined = any(None not in values.values() for values in metrics.values())
        require(defined, f"no metric of {split} data is finite for every client at the end: {', '.join(metrics)}")


def _same(
    words: str,
    change: str,
    advice: str,
    nodes: Nodes = "one",
    remark: str = "bit for bit",
    of_clients: bool = True,
) -> Promise:
    """Return a promise: the run with one thing changed ends with the weights of the undisturbed run."""

    def check(trials: Trials) -> str:
        whole = trials.undisturbed(many := trials.nodes(nodes), change)
        same = trials.run(many, change).same(whole)
        require(same, f"a run with {change} has other final weights or metrics: {advice}")
        return remark

    return Promise(words, check, of_clients)


def _number_of_nodes(trials: Trials) -> str:
    one = trials.undisturbed(trials.nodes("one"))
    numbers = sorted({min(2, one.clients), one.clients})
    runs = [trials.run(nodes) for nodes in reversed(numbers)]
    within = f"{RELATIVE:g} of a weight plus {ABSOLUTE:g}"
    require(
        all(run.close(one) for run in runs),
        f"on {' or '.join(map(str, numbers))} nodes the weights differ by more than {within} from those on one node: a "
        "client must not depend on which others share its node. In a client class each row of a tensor [clients, ...] "
        "is one client: take no mean, maximum or random number over rows; at the server, count clients, not replies",
    )
    same = "bit for bit" if all(run.same(one) for run in runs) else f"within {within}"
    return f"1, {', '.join(map(str, numbers))} nodes: {same}"


def _absent_client(trials: Trials) -> str:
    policies = ["skip", "keep-last"] if trials.has_rounds and is_ours(trials.strategy) else ["skip"]
    for policy in policies:
        _check_finite(trials.run(trials.nodes("each"), LOST, policy))
    return f"on-missing = {', '.join(policies)}"


def _all_absent(trials: Trials) -> str:
    stop = _with_changed(trials, ALL_LOST)
    if isinstance(stop, str):
        return stop
    raise ContractError(
        "nobody answered, and the run finished: let check_present decide whether enough clients are left, or raise "
        "RunError"
    )


def _malformed_replies(trials: Trials) -> str:
    trials.undisturbed(trials.nodes("each"))
    try:
        without = trials.run(trials.nodes("each"), LOST, "skip")
    except FedgraphError:
        without = None  # the method tolerates no absence: a malformed reply must stop it
    stops = []
    for kind in SPOILT:
        run = _with_changed(trials, kind)
        if isinstance(run, str):
            stops.append(f"{kind}: {run}")
            continue
        require(
            not run.changed or (without is not None and run.same(without)),
            f"a reply with {kind} changes the weights: they are not those of a run that this reply never reached. Name "
            "in an Ask what clients answer (returns), so that it is checked (methods of phases: check in the function "
            "that reads a reply, and raise ReplyError)",
        )
    return "; ".join(stops if len(stops) == len(SPOILT) else ["left out", *stops])


def _with_changed(trials: Trials, change: str) -> Finished | str:
    """Return the run with replies lost or spoilt, or the beginning of the error that stopped it."""
    try:
        return trials.run(trials.nodes("each"), change, "skip")
    except StoppedError as stop:
        text = " ".join(str(stop.__cause__).split())
        return f"'{text if len(text) <= 100 else f'{text[:100]}...'}'"


CONTRACT: dict[str, Promise] = {
    "settings": Promise("its keys are declared and documented, and unknown ones refused", _settings),
    "finishes": Promise("a run finishes, with finite weights and metrics", _finishes),
    "same-seed": _same(
        "the same seed gives the same weights",
        AGAIN,
        "draw random numbers from fedgraph.support.randomness.generator(seed, purpose, client, round), not from global "
        "generators, and let nothing depend on the time or on the order of a set",
    ),
    "number-of-nodes": Promise("weights do not depend on how clients are divided among nodes", _number_of_nodes),
    "reply-order": _same(
        "weights do not depend on the order of replies",
        REORDERED,
        "sort by the names of clients before anything is computed; replies of a method of rounds are sorted already",
        "each",
        of_clients=False,
    ),
    "node-restart": _same(
        "clients remember what they need when their node restarts",
        RESTARTED,
        "what a client remembers from round to round belongs in its node's state folder (CohortClient.remember and "
        "recall), not in attributes of a class or module",
        remark="before every message, bit for bit",
    ),
    "resume": _same(
        "a run that was stopped ends with the same weights once resumed",
        CUT,
        "all that the server remembers between rounds belongs in the state that round returns, not in attributes; what "
        "a client remembers belongs under the round (CohortClient.remember), since the last round is run again",
        "most",
        "stopped within a round after a node had done its work; bit for bit",
    ),
    "absent-client": Promise("a run goes on without a client that does not answer", _absent_client, False),
    "all-absent": Promise("a round in which nobody answers is a clear error", _all_absent, False),
    "malformed-replies": Promise("a malformed reply reaches no model", _malformed_replies, False),
    "ray": _same(
        "the same weights on Ray",
        ON_RAY,
        "every message may be answered in another process there: keep nothing in attributes of a class or module",
        "two",
    ),
}
"""All promises by name, in the order in which they are checked; ``expected_failures`` of a class are by these names."""
