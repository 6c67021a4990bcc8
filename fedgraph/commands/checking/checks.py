"""The checks: each is a function of the trials that returns a remark, or raises what went wrong and what to do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from fedgraph.commands.checking.disturbances import SPOILT, Disturbed, Place, ShuffledGrid, silent
from fedgraph.commands.checking.trials import ABSOLUTE, RELATIVE, TOLERANT, Finished, Trials
from fedgraph.commands.keys import inner_tables
from fedgraph.strategies.engine.chosen import ChosenMethod, is_ours
from fedgraph.strategies.engine.stock_settings import build_stock
from fedgraph.support.errors import ContractError, ExperimentError, FedgraphError
from fedgraph.support.plugins import load_object
from fedgraph.support.settings import Configured, Settings, parse

_UNKNOWN = "no-such-key"


class Contract(NamedTuple):
    """One check.

    Attributes
    ----------
    words : str
        What is checked, in plain words.
    check : callable
        Function of the trials; returns a remark, raises ContractError, or SkipTest where it does not apply.
    of_clients : bool
        Whether client classes are checked too.
    """

    words: str
    check: Callable[[Trials], str]
    of_clients: bool = True


# ---- settings ------------------------------------------------------------------------------------------------------


def settings(trials: Trials) -> str:
    """Check that keys are declared and documented, and others refused."""
    subject = trials.subject
    strategy, checked = subject.strategy, subject.checked
    where = f"[{subject.experiment.method.name}]"
    if not subject.is_client and not is_ours(checked):
        _refuses(lambda: build_stock(checked, {_UNKNOWN: 1}, where, clients=1), checked.__name__)
        return "the arguments of its constructor are its keys"
    kind: type[Settings] | None = getattr(checked, "settings_type", None)
    if kind is None:
        return "it declares none"
    table = subject.experiment.method_table
    if not subject.is_client:
        _refuses(lambda: parse(kind, {**table, _UNKNOWN: 1}, where), kind.__name__)
    _check_documented(kind)
    _check_received(strategy, load_object(ChosenMethod(subject.experiment).client, "[experiment] client"))
    return f"{kind.__name__}: {', '.join(kind.keys())}" if kind.model_fields else "it has none"


def _refuses(parse_table: Callable[[], object], name: str) -> None:
    try:
        parse_table()
    except ExperimentError as error:
        if _UNKNOWN in str(error):
            return
        raise ContractError(f"the table of the experiment does not fit {name}: {error}") from None
    raise ContractError(
        f"{name} takes the unknown key '{_UNKNOWN}', so that a key that is misspelt goes unnoticed: leave extra as it "
        "is in fedgraph.support.settings.Settings, and take no arbitrary keyword arguments"
    )


def _check_documented(kind: type[Settings]) -> None:
    said = " ".join(base.__doc__ or "" for base in kind.__mro__ if issubclass(base, Settings) and base is not Settings)
    unsaid = [name for name in kind.model_fields if not re.search(rf"\b({name}|{name.replace('_', '-')})\b", said)]
    if unsaid:
        raise ContractError(
            f"the docstring of {kind.__name__} does not say what {', '.join(unsaid)} is: add a line 'key : meaning' "
            "under Attributes, from which `fedgraph keys` takes it"
        )
    for inner in inner_tables(kind).values():
        _check_documented(inner)


def _check_received(strategy: type[Any], client: type[Any]) -> None:
    """Raise ContractError for keys of a client class that no experiment can set, because the strategy refuses them."""
    if not is_ours(strategy) or not issubclass(client, Configured):
        return
    known = set(strategy.settings_type.keys())
    strange = [key for key in client.settings_type.keys() if key not in known]  # noqa: SIM118
    if strange:
        raise ContractError(
            f"{client.__name__} reads the keys {', '.join(strange)}, which the settings of {strategy.__name__} do not "
            "have, so that nodes never receive them: let both sides take the same settings class"
        )


# ---- runs that nothing disturbs ------------------------------------------------------------------------------------


def finishes(trials: Trials) -> str:
    """Check that a run finishes with finite numbers."""
    run = trials.must_finish()
    _check_finite(run)
    means = [
        (f"{split} {name}", numbers["mean"])
        for split, metrics in run.summary["metrics"].items()
        for name, numbers in metrics.items()
        if _is_finite(numbers["mean"])
    ]
    return ", ".join([f"{run.clients} clients", *(f"{name} {mean:.3f}" for name, mean in means[:1])])


def _check_finite(run: Finished) -> None:
    bad = [name for name, tensor in run.tensors.items() if not bool(torch.isfinite(tensor.float()).all())]
    if bad:
        raise ContractError(
            f"the run ends with NaN or infinite values in {bad[0]}: look for a division by zero in what the server "
            "computes of the replies, or a learning rate that is too large"
        )
    for split, metrics in run.summary["per_client"].items():
        # Some numbers are not there for clients that lack what they measure; that none is there is something else.
        if not any(all(map(_is_finite, values.values())) for values in metrics.values()):
            raise ContractError(
                f"no metric of the split {split} is a finite number for every client at the end of the run: "
                f"{', '.join(metrics)}"
            )


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


_ABOUT_NODES = (
    "what a client does must not depend on which others share its node; in a client class each row of a tensor "
    "[clients, ...] is one client, so take no mean, maximum or random number over the first dimension; at the "
    "server, count clients, not replies of nodes"
)


def same_seed(trials: Trials) -> str:
    """Check that a second run gives the same bits."""
    first = trials.one_node
    second = trials.finish("a second time", 1)
    trials.repeats = second.difference(first) == 0
    _check_same(
        second,
        first,
        "a second run with the same seed",
        "draw random numbers from fedgraph.support.randomness.generator(seed, purpose, client, round), not from global "
        "generators, and let nothing depend on the time or on the order of a set",
    )
    return "bit for bit"


def number_of_nodes(trials: Trials) -> str:
    """Check that clients may be divided among nodes as one likes."""
    one, apart = trials.one_node, trials.must_finish(apart=True)
    runs = {apart.clients: apart}
    if apart.clients > 2:
        runs[2] = trials.finish("on two nodes", 2)
    furthest = 0.0
    for nodes, run in runs.items():
        furthest = max(furthest, run.difference(one))
        if furthest > 1:
            raise ContractError(
                f"on {nodes} nodes the weights are others than on one, by more than sums in another order explain (a "
                f"difference of {RELATIVE:g} of a weight plus {ABSOLUTE:g}): {_ABOUT_NODES}"
            )
    same = "bit for bit" if furthest == 0 else f"within {RELATIVE:g} of a weight plus {ABSOLUTE:g}"
    return f"1, {', '.join(map(str, sorted(runs)))} nodes: {same}"


def reply_order(trials: Trials) -> str:
    """Check that the order of arrival does not matter."""
    apart = trials.apart
    _check_same(
        trials.finish("with replies in another order", apart.clients, grid=ShuffledGrid),
        apart,
        "a run whose replies arrive in another order, from nodes with other ids",
        "sort by the names of clients before anything is computed; replies of a method of rounds are sorted already",
    )
    return "bit for bit"


def _check_same(run: Finished, other: Finished, what: str, advice: str) -> None:
    if run.difference(other) > 0:
        raise ContractError(f"{what} has other final weights or metrics: {advice}")


# ---- runs that are disturbed ---------------------------------------------------------------------------------------


def node_restart(trials: Trials) -> str:
    """Check that nodes keep what their clients remember in their state folders."""
    whole = trials.one_node
    _check_same(
        trials.with_restarts(1),
        whole,
        "a run on a node that is restarted before every message",
        "what a client remembers from round to round belongs in its node's state folder (CohortClient.remember and "
        "recall), not in attributes of a class or module",
    )
    return "before every message, bit for bit"


def resume(trials: Trials) -> str:
    """Check that a run that was stopped goes on."""
    whole = trials.widest
    try:
        run = trials.resumed(whole.summary["nodes"])
    except ContractError:
        raise
    except FedgraphError as error:
        raise ContractError(f"the run could not go on after it was stopped: {error}") from error
    _check_same(
        run,
        whole,
        "a run that was stopped within a round and resumed",
        "all that the server remembers between rounds belongs in the state that round returns, not in attributes; what "
        "a client remembers belongs under the round (CohortClient.remember), since the last round is run again",
    )
    return "stopped within a round after a node had done its work; bit for bit"


def absent_client(trials: Trials) -> str:
    """Check that a run goes on without a client that does not answer."""
    _check_finite(trials.with_lost_replies)
    policies = ["skip"]
    if trials.has_rounds and is_ours(trials.subject.strategy):
        policies.append("keep-last")
        named = TOLERANT | {"on_missing": "keep-last"}
        nodes = trials.apart.clients
        _check_finite(trials.finish('with on-missing = "keep-last"', nodes, silent(trials.places), **named))
    return f"on-missing = {', '.join(policies)}"


def all_absent(trials: Trials) -> str:
    """Check that a round in which nobody answers is an error."""
    nodes = trials.apart.clients
    places = [Place(node, 2 if trials.has_rounds else None) for node in range(nodes)]
    try:
        trials.run(nodes, silent(places), **TOLERANT)
    except ContractError:
        raise
    except FedgraphError as error:
        return f"'{_shortened(error)}'"
    raise ContractError(
        "nobody answered, and the run finished as if somebody had: let check_present decide whether enough clients are "
        "left, or raise a RunError"
    )


def malformed_replies(trials: Trials) -> str:
    """Check that what is wrong with a reply keeps it from every model, as if it had not arrived."""
    try:
        left_out = trials.with_lost_replies
    except ContractError:
        # A method that takes no absence: whatever is malformed must stop it.
        left_out = None
    told = []
    for kind, spoil in SPOILT.items():
        answer = Disturbed(trials.places, spoil)
        try:
            run = trials.run(trials.apart.clients, answer, **TOLERANT)
        except ContractError as error:
            raise ContractError(f"a reply with {kind}: {error}") from error
        except FedgraphError as error:
            told.append(f"{kind}: '{_shortened(error)}'")
            continue
        if answer.happened and (left_out is None or run.difference(left_out) > 0):
            raise ContractError(
                f"a reply with {kind} changes the weights: they are not those of a run that this reply never reached. "
                "Name in an Ask what clients answer (returns), so that it is checked (methods of phases: check in the "
                "function that reads a reply, and raise ReplyError)"
            )
    return "; ".join(["left out", *told]) if len(told) < len(SPOILT) else "; ".join(told)


def _shortened(error: FedgraphError) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 100 else f"{text[:100]}..."


def ray(trials: Trials) -> str:
    """Check that nodes on Ray give the same bits."""
    here = trials.finish("on two nodes", 2) if trials.one_node.clients > 1 else trials.one_node
    _check_same(
        trials.on_ray(min(2, here.clients)),
        here,
        "the same run on Ray",
        "every message may be answered in another process there: keep nothing in attributes of a class or module",
    )
    return "bit for bit"


CONTRACT: dict[str, Contract] = {
    "settings": Contract("its keys are declared and documented, and unknown ones refused", settings),
    "finishes": Contract("a run finishes, with finite weights and metrics", finishes),
    "same-seed": Contract("the same seed gives the same weights", same_seed),
    "number-of-nodes": Contract("weights do not depend on how clients are divided among nodes", number_of_nodes),
    "reply-order": Contract("weights do not depend on the order of replies", reply_order, False),
    "node-restart": Contract("clients remember what they need when their node restarts", node_restart),
    "resume": Contract("a run that was stopped ends with the same weights once resumed", resume),
    "absent-client": Contract("a run goes on without a client that does not answer", absent_client, False),
    "all-absent": Contract("a round in which nobody answers is a clear error", all_absent, False),
    "malformed-replies": Contract("a malformed reply reaches no model", malformed_replies, False),
    "ray": Contract("the same weights on Ray", ray),
}
"""All checks by name, in the order in which they are made; ``expected_failures`` of a class are by these names."""

COMPARED = ("number-of-nodes", "reply-order", "node-restart", "resume", "malformed-replies", "ray")
"""Checks that compare a run with an undisturbed one, which says nothing where two of those differ."""
