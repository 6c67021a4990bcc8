"""Rehearsal of a node before it joins a run: its work on its own data, without a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import Context, RecordDict

from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.base import CohortClient
from fedgraph.clients.engine.disclosure import Disclosure, check_covered, check_noise, disclosure
from fedgraph.clients.engine.node import Node
from fedgraph.data import SPLITS
from fedgraph.data.owners import SAMPLE_SPLITS, OwnerData, OwnerSource
from fedgraph.data.schema import as_text, infer_schema
from fedgraph.data.tables import ClientTableSource
from fedgraph.experiment import Experiment
from fedgraph.federation import configured_clients
from fedgraph.fusion import decided
from fedgraph.fusion.owner_models import SingleOwner
from fedgraph.support.errors import IdentityError, closest_first, counted, if_any
from fedgraph.support.plugins import a_client, load_object
from fedgraph.training import Cohort


@dataclass(frozen=True)
class Rehearsal:
    """Result of a rehearsal.

    Attributes
    ----------
    clients : clients of the run on the node.
    data : descriptions of their data, for its owner only.
    disclosure : what leaves the node, and what stays.
    """

    clients: tuple[str, ...]
    data: tuple[str, ...]
    disclosure: Disclosure
    unexpected: str = ""
    """A message about clients of the node config that the run does not expect."""


def takes_part(experiment: Experiment, method: Mapping[str, Any], node_config: Mapping[str, Any]) -> bool:
    """Return whether a node hosts clients of the run, or aggregates secret shares; arguments as :func:`rehearse`."""
    node = Node.of(Context(0, 0, dict(node_config), RecordDict(), {}))
    return bool(node.hosted(Assignment.of(experiment.client_part(method)))) or node.aggregator is not None


def rehearse(
    experiment: Experiment, client: str, method: Mapping[str, Any], node_config: Mapping[str, Any]
) -> Rehearsal:
    """Read the data of a node as in a run of the experiment; describe it and what leaves the node.

    Raises FedgraphError for everything that prevents the node from taking part, such as missing clients or data.

    Parameters
    ----------
    client : dotted path of the client class.
    method : settings of the method, resolved by the strategy.
    """
    node = Node.of(Context(0, 0, dict(node_config), RecordDict(), {}))
    part = experiment.client_part(method)
    assignment = Assignment.of(part)
    clients = tuple(sorted(node.hosted(assignment)))
    if not clients and node.aggregator is None:
        named = configured_clients(node_config)
        subject = f"this node is to host {', '.join(named)}, and" if named else "this node"
        expected = if_any(": ", closest_first(named, assignment.expect or ()))
        raise IdentityError(f"{subject} hosts none of the expected clients{expected}")
    client_class = load_object(client, "[experiment] client", a_client)
    assignment.check_terms(client_class)
    check_noise(client_class, assignment, node.limits.epsilon)
    if not clients:
        # Aggregators need no data.
        return Rehearsal((), (), disclosure(experiment, client, node))
    source = node.source(assignment)
    if (check := getattr(client_class, "check_source", None)) is not None:
        check(source)
    stacked = issubclass(client_class, CohortClient)
    if isinstance(source, OwnerSource) and not stacked:
        lines = _describe_owners(source, clients, node)
    elif isinstance(source, ClientTableSource) and not stacked:
        lines = _describe_tables(source, clients, node)
    else:
        cohort = node.opening_cohort(part, clients, client_class)
        # Numbers of labels are not asked for where the method does not use the graph, which is for the server to know.
        check_covered(client_class, assignment, label_counts=False, moments=cohort.data.moments is not None)
        lines = _describe_cohort(cohort, assignment)
    left = [name for name in configured_clients(node_config) if name not in clients] if assignment.expect else []
    unexpected = f"{', '.join(left)}: not expected by the run, which expects " if left else ""
    unexpected += closest_first(left, assignment.expect or ()) if left else ""
    return Rehearsal(clients, (source.describe(), *lines), disclosure(experiment, client, node), unexpected)


def _by_split(counts: Mapping[str, int], word: str) -> str:
    """Return ``14 train, 2 validation, 1 test row``: the noun belongs to the last count."""
    *most, (split, count) = counts.items() or [("", 0)]
    return ", ".join([*(f"{number:,} {name}" for name, number in most), counted(count, f"{split} {word}".strip())])


def _describe_cohort(cohort: Cohort, assignment: Assignment) -> Iterator[str]:
    """Yield the number and kind of examples of each client."""
    data = cohort.data
    assignment.horizons_of(data.task)
    shape = " x ".join(map(str, data.task.input_shape))
    features = f"{shape} feature{'' if shape == '1' else 's'}"
    named = f": {', '.join(data.task.features)}" if data.task.features else ""
    of = {
        "": f"from inputs of {shape}",
        "node": f"of nodes with {features}",
        "graph": f"of graphs, nodes of which have {features}",
    }
    yield f"{data.task.kind} {of[data.task.level]}{named}"
    if data.task.classes:
        yield f"classes: {', '.join(data.task.classes)}"
    for row, name in enumerate(data.names):
        counts = _by_split({split: int(data.splits[split].num_examples[row]) for split in SPLITS}, "example")
        held = ""
        if data.label_counts is not None:
            labels = data.task.classes or tuple(map(str, range(data.label_counts.shape[1])))
            per_class = zip(labels, data.label_counts[row].tolist(), strict=True)
            listed = ", ".join(f"{label}: {count:,}" for label, count in per_class if count)
            held = f"; training examples by class: {listed}"
        yield f"{name}: {counts}{held}"


def _describe_owners(source: OwnerSource, clients: tuple[str, ...], node: Node) -> Iterator[str]:
    """Yield the samples of each owner, the share that it lacks, and the outputs of its existing model."""
    data, models = source.load_owners(clients), node.existing_models(clients, source.client_names())
    yield f"samples from '{data.keys[0]}' to '{data.keys[-1]}'; all owners must use the same keys"
    for row, name in enumerate(data.owners):
        present = data.present[row]
        counts = torch.bincount(data.split[present].long(), minlength=len(SAMPLE_SPLITS)).tolist()
        shape = " x ".join(map(str, data.tasks[row].input_shape))
        missing = 1 - float(present.float().mean())
        held: dict[str, int] = {split: count for split, count in zip(SAMPLE_SPLITS, counts, strict=True) if count}
        lacks = f"; lacks {missing:.1%} of the samples of this node" if missing else ""
        node.check_rows(name, held)
        yield f"{name}: {_by_split(held, 'sample')} with inputs of {shape}{lacks}"
        if name in models:
            yield from (f"    {line}" for line in _describe_model(data, row, models[name]))


def _describe_model(data: OwnerData, row: int, model: str) -> Iterator[str]:
    """Yield the inputs and outputs of an owner's model; raises ExperimentError as the run would."""
    found, _ = SingleOwner(data, row, None).brought(model)
    task = data.tasks[row]
    classes = task.classes or tuple(map(str, range(task.output_shape[0])))
    yield f"its model {model}: embeddings of {counted(found.embeddings.shape[1], 'number')}"
    if task.features:
        yield f"features, in order: {', '.join(task.features)}"
    yield f"classes, in order: {', '.join(classes)}"
    training = data.present[row] & (data.split == SAMPLE_SPLITS.index("train"))
    if training.any():
        right = decided(found.probabilities[training]) == data.labels[training]
        yield f"accuracy on its training samples: {float(right.float().mean()):.0%}"


def _describe_tables(source: ClientTableSource, clients: tuple[str, ...], node: Node) -> Iterator[str]:
    """Yield the rows and features of each client, with shares of missing values."""
    settings = source.table_schema.with_least_rows(node.least_rows)
    for name in clients:
        held = source.load_table(name)
        counts: dict[str, int] = {split: len(held.rows(split)) for split in SPLITS}
        node.check_rows(name, counts)
        yield f"{name}: {_by_split(counts, 'row')}"
        schema = infer_schema(held.table, settings, partial=True)
        yield from (f"    {line}" for line in as_text(schema, held.table, settings).splitlines())
