"""The ClientApp, which dispatches every message to the client class that it names."""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedgraph.clients.engine.agreement import check_answers_any
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.disclosure import check_covered, check_noise, described
from fedgraph.clients.engine.node import Node
from fedgraph.data import SPLITS
from fedgraph.federation.grids import is_simulated
from fedgraph.messages import (
    CHALLENGE_KEY,
    CLIENT_KEY,
    EXPERIMENT_KEY,
    PROOF_KEY,
    Identity,
    check_content,
    error_content,
    mark_empty,
    unpacking_request,
)
from fedgraph.support.errors import FedgraphError
from fedgraph.support.plugins import a_client, add_plugin_paths, is_run_folder, load_object
from fedgraph.support.status import report_status, report_warnings
from fedgraph.support.threads import pinned_threads
from fedgraph.support.untrusted import in_short

log = logging.getLogger("fedgraph")

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

_NO_MEMORY = "allocate memory"
"""PyTorch's message when memory is exhausted."""

_LONGEST_LOGGED = 20_000
_MOST_THREADS = 1_024


def identify(message: Message, context: Context) -> Message:
    """Answer the opening query with the clients of this node and their data."""
    return answered(message, context, lambda node: _identity(message, node).pack())


def work(message: Message, context: Context) -> Message:
    """Answer any other message by the client class that it names."""
    return answered(message, context, lambda node: _work(message, node))


def client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """Return the ClientApp, with mods of Flower or custom ones.

    Parameters
    ----------
    mods : the mods, outermost first. Mods that count or log work with every method; those that change a model
        (``fixedclipping_mod``, ``adaptiveclipping_mod``, ``LocalDpMod``, ``secaggplus_mod``) expect a single model per
        message and refuse all messages of a node that hosts several clients.
    """
    made = ClientApp(mods=list(mods))
    made.query("identify")(identify)
    for kind in (made.train(), made.evaluate(), made.query(), made.query("embed")):
        kind(work)
    return made


def answered(message: Message, context: Context, answer: Callable[[Node], RecordDict]) -> Message:
    """Return the reply to a message, or an error that reveals nothing about this node.

    Parameters
    ----------
    context : Flower's context, whose node config describes the node.
    answer : returns the content of the reply.
    """
    report_warnings()
    node, began = Node.of(context), time.perf_counter()
    try:
        _find_plugins(context, node)
        check_content(message.content)
        content = answer(node)
        _add_proof(message, content, node)
        report_status(f"{', '.join(node.done) or _kind(message)} ({time.perf_counter() - began:.1f} s)")
    except FedgraphError as error:
        log.error("refused: %s", in_short(str(error), _LONGEST_LOGGED))
        text = in_short(str(error) if node.sends_full_errors else error.without_values)
        content = error_content(text if node.sends_full_errors else node.without_places(text))
    except Exception as error:
        if node.raises:
            raise
        log.exception("a message of type %s was not answered", message.metadata.message_type)
        words = in_short(str(error)) if node.sends_full_errors else "details are in the log of the node"
        if isinstance(error, (MemoryError, OverflowError)) or _NO_MEMORY in str(error):
            content = error_content(f"the request exceeds the memory of this node ({_origin(error)}: {words})")
        else:
            content = error_content(f"{_origin(error)}: {words}")
    return Message(mark_empty(content), reply_to=message)


def _kind(message: Message) -> str:
    """Describe the answered message, for client classes that do not report it."""
    metadata = message.metadata
    which = f", round {in_short(metadata.group_id, 20)}" if metadata.group_id else ""
    known = {"train": "trained", "evaluate": "measured"}
    return known.get(metadata.message_type, f"answered a request ({in_short(metadata.message_type, 100)})") + which


def _find_plugins(context: Context, node: Node) -> None:
    """Find modules next to the experiment: that of ``flwr run`` in a simulation, else that of the site's agreement."""
    named = context.run_config.get("experiment") if is_simulated() else node.config.get("agreement")
    experiment = str(named or "")
    folder = os.path.dirname(experiment)
    if os.path.isabs(experiment) and not is_run_folder(folder, context.run_config) and os.path.isfile(experiment):
        add_plugin_paths([folder])


def _origin(error: Exception) -> str:
    """Return the type of an error, and the module and line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {Path(frame.filename).name}, line {frame.lineno}"


def _add_proof(message: Message, content: RecordDict, node: Node) -> None:
    """Add a proof that the node may host its clients, if the message requests it."""
    requested: Any = message.content.config_records.get("config", {})
    if CHALLENGE_KEY in requested:
        answer: Any = content.config_records["config"]
        if answer["clients"]:
            number = message.metadata.dst_node_id
            answer[PROOF_KEY] = node.prove(str(requested[CHALLENGE_KEY]), number, list(answer["clients"]))


def _agreed(message: Message, node: Node) -> tuple[str, str]:
    """Return the client class that a message names, and its part of the experiment as JSON.

    Where the node has an agreement, the message gets the part of the experiment that is agreed. Raises ExperimentError
    for a message that is not, and IdentityError for any to a deployed node without an agreement.
    """
    with unpacking_request():
        config: Any = message.content.config_records["config"]
        path, experiment = str(config[CLIENT_KEY]), str(config[EXPERIMENT_KEY])
    if (agreement := node.agreement) is not None:
        experiment = config[EXPERIMENT_KEY] = agreement.agreed(path, experiment)
        agreement.check_message(message.content)
    else:
        check_answers_any(node.config)
    return path, experiment


def _client_class(path: str, assignment: Assignment, node: Node) -> Any:
    """Import a client class by its dotted path.

    Raises ExperimentError for anything else, and for one that releases without noise what the site wants it for.
    """
    found = load_object(path, "[experiment] client", a_client)
    assignment.check_terms(found)
    check_noise(found, assignment, node.limits.epsilon)
    return found


def _work(message: Message, node: Node) -> RecordDict:
    path, experiment = _agreed(message, node)
    assignment = Assignment.of(experiment)
    threads = min(assignment.train.threads, _MOST_THREADS)
    client_class = _client_class(path, assignment, node)
    with pinned_threads(threads):
        content: RecordDict = client_class.handle(message, node)
    return content


def _identity(message: Message, node: Node) -> Identity:
    path, experiment = _agreed(message, node)
    assignment = Assignment.of(experiment)
    clients = tuple(sorted(node.hosted(assignment)))
    node.done.append(f"answered the roll call as {in_short(', '.join(clients), 200) or 'no client'}")
    divided = node.partition()
    if not clients:
        nothing = torch.zeros(0, dtype=torch.int64)
        return Identity((), None, "", dict.fromkeys(SPLITS, nothing), None, divided)
    client_class = _client_class(path, assignment, node)
    cohort = node.opening_cohort(experiment, clients, client_class)
    data = cohort.data
    assignment.horizons_of(data.task)
    label_counts = bool(message.content.config_records["config"].get("label-counts"))
    check_covered(client_class, assignment, label_counts, data.moments is not None)
    return Identity(
        clients=clients,
        task=data.task,
        data=described(node.source(assignment), node),
        num_examples={split: data.splits[split].num_examples for split in SPLITS},
        label_counts=data.label_counts if label_counts else None,
        partition=divided,
        groups=data.groups,
        untrained=data.untrained,
        moments=data.moments,
        computed=cohort.computed,
    )


app = client_app()
