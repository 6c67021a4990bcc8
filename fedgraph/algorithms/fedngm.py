"""FedNGM: clients with tables of different features learn one probabilistic model of their common features.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1 to 2.6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedgraph.algorithms.fedngm_messages import (
    PhaseName,
    PhaseReply,
    PhaseRequest,
    graph_from_text,
    key_from_text,
    read_answers,
    scores_from_text,
)
from fedgraph.algorithms.fedngm_predictions import predicted_feature
from fedgraph.algorithms.fedngm_results import PhaseResults, build_outcome
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.algorithms.phases import Keep, Opening, Outcome, Phase, PhasedAlgorithm, PhaseRun, Query, Recall, Without
from fedgraph.data.columns import Floats
from fedgraph.data.encoding import Encoding, Range, Scaling, agreed_scaling, read_values
from fedgraph.data.schema import Agreement, Schema, agree, check_used, disagreeing, schema_as_json, schema_from_json
from fedgraph.data.tables import BayesianNetwork, ClientTableSource, client_table_source
from fedgraph.defence import bounded_counts, counts_notes
from fedgraph.graph import FeatureGraph
from fedgraph.graphical import SharedStatistics
from fedgraph.graphical.inference import draw
from fedgraph.graphical.learning import (
    average,
    distil,
    merge,
)
from fedgraph.graphical.network import Network
from fedgraph.graphical.recovery import UnitSums, recover_from_sums
from fedgraph.support.errors import DataError, ExperimentError, IdentityError, ReplyError, RunError, quoted
from fedgraph.support.files import State

log = logging.getLogger("fedgraph")


@dataclass(frozen=True)
class PhaseContext:
    """The state that phases share.

    Attributes
    ----------
    source : the data of the server.
    num_rows, counted_rows : training rows that each client claims, and counts as, see ``[defence] most-examples``.
    kept : checkpointed results.
    """

    run: PhaseRun
    source: ClientTableSource
    common: Schema
    num_rows: Mapping[str, int]
    counted_rows: Mapping[str, int]
    kept: State

    def count_rows(self, names: Iterable[str]) -> dict[str, int]:
        """Return how many training rows some clients count as."""
        return {name: self.counted_rows[name] for name in names}

    def counted(self, name: str, sums: Tensor) -> Tensor:
        """Return the sums over a client's rows, int64, in proportion to the rows that it counts as."""
        claimed, counted = self.num_rows[name], self.counted_rows[name]
        return sums if counted == claimed else (sums.double() * (counted / claimed)).round().long()

    def query(
        self, phase: PhaseName, read: Callable[[str, str, Tensor], Any], width: int = 0, sums: int = 0, **known: Any
    ) -> Query:
        """Return an exchange that sends ``known`` to all clients, and decodes each answer by ``read``."""
        request = PhaseRequest(phase, common=self.common, **known)
        return Query(request, partial(read_answers, read=read, width=width, sums=sums))

    def keep(self, **found: Any) -> Phase[None]:
        """Checkpoint the results of a phase."""
        self.kept.update(found)
        yield Keep(self.kept)

    def public_values(self, what: str) -> Floats:
        """Return the public rows. Raises ExperimentError, naming ``what`` needs them, where there are none."""
        table = self.source.public_table()
        if table is None:
            raise ExperimentError(f"[fedngm] {what} needs public rows, which this data set does not have")
        return read_values(table, self.common, self.source.table_schema)

    @property
    def private(self) -> set[str]:
        """Columns that the experiment keeps private."""
        return {name for names in (getattr(self.run.data, "private", None) or {}).values() for name in names}

    @property
    def truth(self) -> FeatureGraph | None:
        """The moral graph of the network that rows were sampled from, over the common features; None for real data."""
        network = getattr(self.source, "network", None)
        return network.moral_graph.subgraph(self.common.names) if isinstance(network, BayesianNetwork) else None


def text_only(read: Callable[[str], Any]) -> Callable[[str, str, Tensor], Any]:
    """Adapt a reader of text to a client's answer."""
    return lambda name, text, row: read(text)


class FedNGM(PhasedAlgorithm[FedNGMSettings]):
    """Phases: features of clients, their graphs or sums over their rows, their models, and one global model for all.

    After the first request, nothing is sent unless at least as many clients take part as ``min-clients`` of
    ``[fedngm.merge]``, or of ``[experiment]`` if that is larger: common features, ranges, the consensus graph and the
    global model reveal something about other clients. A stopped run continues after its last completed phase.
    """

    name = "fedngm"
    title = "Federated neural graphical models: one probabilistic model of all common features, made personal"
    needs = "clients with tables of their own (mixed-table, linked-deaths, bayesian-network); no [model]"
    paper = "https://arxiv.org/abs/2309.11680"
    own_models = True
    default_client = "fedgraph.clients.fedngm:FedNGMClient"
    predicted = staticmethod(predicted_feature)

    def phases(self, run: PhaseRun) -> Phase[Outcome]:
        """Agree on features, then find ranges, a graph and a model; have clients make it personal and score it.

        Raises DataError or ExperimentError when clients do not agree on features, or settings do not fit them. Raises
        RunError or IdentityError when a graph or a model cannot be computed from what clients sent.
        """
        replies: Mapping[int, PhaseReply] = yield Opening(PhaseRequest("schema"), PhaseReply.unpack)
        schemas = yield from self._schemas(replies)
        agreement = yield from self._agreement(schemas)
        source = client_table_source(run.source(), "fedngm")
        check_used(source.table_schema, agreement.schemas.values())
        self.agreed(agreement)
        counts = {name: rows for one in replies.values() for name, rows in zip(one.clients, one.num_rows, strict=True)}
        num_rows = {name: counts[name] for name in agreement.schemas}
        texts = {name: schema_as_json(schema) for name, schema in agreement.schemas.items()}
        kept = yield Recall((texts, num_rows))
        claimed = torch.tensor(list(num_rows.values()))
        counted = bounded_counts(claimed, run.defence.counted_examples)
        counted_rows = dict(zip(num_rows, counted.tolist(), strict=True))
        context = PhaseContext(run, source, agreement.common, num_rows, counted_rows, kept)
        scaling = yield from self._scaling(context)
        consensus = yield from self._graph(context, scaling)
        network, parameters = yield from self._global_model(context, scaling, consensus)
        graph = FeatureGraph.from_adjacency(context.common.names, network.adjacency)
        read = text_only(scores_from_text)
        scores = yield context.query("finish", read, scaling=scaling, graph=graph, parameters=parameters)
        settings = self.settings.scaling
        found = PhaseResults(
            agreement=agreement,
            excluded_columns={
                name: columns
                for reply in replies.values()
                for name, columns in zip(reply.clients, reply.excluded_columns, strict=False)
            },
            graphs={name: FeatureGraph.from_json(own) for name, own in kept.get("graphs", {}).items()},
            encoding=Encoding(context.common, scaling, settings.outside, settings.source == "own"),
            network=network,
            parameters=parameters,
            scores=scores,
        )
        outcome = build_outcome(self.settings, found, run.seed, context.private, context.truth)
        notes = [*outcome.facts["notes"], *counts_notes(list(num_rows), claimed, counted)]
        return replace(outcome, facts={**outcome.facts, "notes": notes})

    # ---- features --------------------------------------------------------------------------------------------------

    def _schemas(self, replies: Mapping[int, PhaseReply]) -> Phase[dict[str, Schema]]:
        """Return the schemas of all clients with a valid one, in the order of their names."""
        found: dict[str, Schema] = {}
        lost: dict[str, str] = {}
        hosts = 0
        for reply in replies.values():
            before = len(found)
            for name, text in zip(reply.clients, reply.texts, strict=True):
                try:
                    found[name] = schema_from_json(text, f"the schema of client '{name}'")
                except ReplyError as error:
                    lost[name] = str(error)
            hosts += len(found) > before
        names = yield Without(lost)
        if self.settings.global_model == "pooled" and hosts > 1:
            raise IdentityError(
                f"global-model = 'pooled' needs the rows of all clients, and these are on {hosts} nodes: put all "
                "clients on one node (--nodes 1)"
            )
        return {name: found[name] for name in names}

    def _agreement(self, schemas: dict[str, Schema]) -> Phase[Agreement]:
        """Return the common features, without clients that conflict with most others."""
        while True:
            try:
                return agree(schemas, self.settings.disputes)
            except DataError as error:
                lost = disagreeing(schemas, self.settings.disputes)
                if not lost:
                    raise
                names = yield Without(lost, error)
                schemas = {name: schemas[name] for name in names}

    def agreed(self, agreement: Agreement) -> None:
        """Log what clients have in common. Raises ExperimentError for targets that none of them has."""
        known = {name for schema in agreement.schemas.values() for name in schema.names}
        unknown = [name for name in self.settings.targets if name not in known]
        if unknown:
            raise ExperimentError(
                f"[fedngm] targets names {', '.join(unknown)}, which no client has; the common features are "
                f"{', '.join(agreement.common.names)}"
            )
        for line in agreement.describe().splitlines():
            log.info("%s", line)

    def check_enough(self, present: int, least: int) -> None:
        """Raise RunError for too few clients to protect a single one."""
        wanted = max(least, self.settings.merge.min_clients)
        if present < wanted:
            raise RunError(
                f"{present} of at least {wanted} clients take part: with fewer, common features, ranges, a graph or a "
                "model might disclose data of one of the others. Wait for more clients, or lower min-clients of "
                "[fedngm.merge] and [experiment]"
            )

    # ---- ranges and graph ------------------------------------------------------------------------------------------

    def _scaling(self, context: PhaseContext) -> Phase[Scaling]:
        """Return the ranges that all clients share, if any."""
        if "scaling" in context.kept:
            return Scaling.from_json(context.kept["scaling"])
        settings, common = self.settings.scaling, context.common
        if settings.source == "public":
            values = context.public_values("scaling source = 'public'")
            measured = Scaling.measured(values, common, settings.quantile, settings.skewed)
            scaling = Scaling(dict(settings.ranges)).completed(measured)
        else:
            statistics: Mapping[str, SharedStatistics] = {}
            if settings.source == "shared-ranges":
                statistics = yield context.query(
                    "statistics", text_only(lambda text: SharedStatistics.from_json(text, common))
                )
                if self.settings.statistics.noise is None:
                    _warn_of_ranges_apart({client: one.ranges for client, one in statistics.items()})
            scaling = agreed_scaling(common, settings, [one.ranges for one in statistics.values()])
        yield from context.keep(scaling=scaling.as_json())
        return scaling

    def _graph(self, context: PhaseContext, scaling: Scaling) -> Phase[FeatureGraph]:
        """Return the consensus graph, or a complete one where models learn their own."""
        names = context.common.names
        if self.settings.model == "ngr":
            every = torch.ones(len(names), len(names), dtype=torch.bool).fill_diagonal_(False)
            return FeatureGraph.from_adjacency(names, every)
        if "graph" in context.kept:
            return FeatureGraph.from_json(context.kept["graph"])
        found: dict[str, Any] = {}
        if self.settings.recovery.source == "summed-statistics":
            graph = yield from self._joint_graph(context, scaling)
        else:
            read = text_only(lambda text: graph_from_text(text, context.common))
            graphs: Mapping[str, FeatureGraph] = yield context.query("graph", read, scaling=scaling)
            graph = merge(self.settings.merge, graphs, context.count_rows(graphs)).subgraph(names)
            for name, own in graphs.items():
                log.info("client %s has %d edges, the consensus graph %d", name, len(own.edges), len(graph.edges))
            found["graphs"] = {name: own.as_json() for name, own in graphs.items()}
        yield from context.keep(graph=graph.as_json(), **found)
        return graph

    def _joint_graph(self, context: PhaseContext, scaling: Scaling) -> Phase[FeatureGraph]:
        """Recover one graph of all clients' rows, from their sums.

        Masks of lost clients do not cancel: the others then start again.
        """
        settings, common = self.settings.recovery, context.common
        exact = self.settings.statistics.noise is None

        def own(name: str, text: str, row: Tensor) -> Tensor:
            """Refuse sums that are impossible for the client's number of rows, if they are not masked."""
            if exact and not settings.masks:
                UnitSums.from_flat(row, common).check(common, context.num_rows[name])
            return row

        keys: Mapping[str, str] | None = None
        while True:
            if settings.masks:
                keys = yield context.query("keys", text_only(key_from_text))
            found: Mapping[str, Tensor] = yield context.query(
                "sums", own, sums=UnitSums.width(common), scaling=scaling, keys=keys
            )
            if keys is None or found.keys() == keys.keys():
                break
        if keys is None:
            found = {name: context.counted(name, row) for name, row in found.items()}
        # Masks add up to zero modulo 2^64, in the arithmetic of int64; nobody then knows the sums of one client.
        sums = UnitSums.from_flat(torch.stack(list(found.values())).sum(0), common)
        if exact and settings.masks:
            try:
                sums.check(common, sum(context.num_rows[name] for name in found))
            except ReplyError as error:
                raise RunError(
                    f"the sum over all clients cannot be a sum of rows ({error}). Masks hide which client is wrong: "
                    "run without masks to find out, or without the suspected clients"
                ) from None
        return recover_from_sums(settings, common, sums, self.settings.targets).graph

    # ---- the model -------------------------------------------------------------------------------------------------

    def _global_model(
        self, context: PhaseContext, scaling: Scaling, graph: FeatureGraph
    ) -> Phase[tuple[Network, Tensor]]:
        """Return the network, and its parameters ``[1, parameters]``."""
        settings, common = self.settings, context.common
        network = Network(common, graph.adjacency, settings.network)
        parameters: Tensor | None = context.kept.get("global")
        for number in range(1 + context.kept.get("rounds", 0), 1 + settings.rounds):
            found: Mapping[str, Tensor] = yield context.query(
                "fit", lambda name, text, row: row, network.layout.num_parameters,
                round=number, scaling=scaling, graph=graph, parameters=parameters,
            )  # fmt: skip
            rows, models = context.count_rows(found), torch.stack(list(found.values()))
            if settings.global_model == "distilled":
                network, parameters = self._distilled(context, network, models, rows, scaling)
            elif settings.global_model == "average":
                parameters = average(network, models, tuple(rows.values()))
            else:
                parameters = models[:1]
            own = FeatureGraph.from_adjacency(common.names, network.adjacency)
            yield from context.keep(**{"global": parameters, "rounds": number, "global-graph": own.as_json()})
            log.info("round %d of %d: a global model from %d clients", number, settings.rounds, len(models))
        assert parameters is not None
        own = FeatureGraph.from_json(context.kept["global-graph"])
        return Network(common, own.adjacency, settings.network), parameters

    def _distilled(
        self, context: PhaseContext, network: Network, models: Tensor, rows: Mapping[str, int], scaling: Scaling
    ) -> tuple[Network, Tensor]:
        """Fit the global model to samples of the clients' models, and to weighted public rows."""
        settings, seed, counts = self.settings, context.run.seed, tuple(rows.values())
        num_samples = max(settings.distillation.counts(counts))
        samples = draw(network, models, num_samples, tuple(rows), seed, settings=settings.sampling)
        public = None
        if settings.distillation.public_weight:
            encoding = Encoding(context.common, scaling, settings.scaling.outside)
            public = encoding.encode(context.public_values("distillation public-weight"))
        return distil(network, models, samples, counts, settings.distillation, settings.network, seed, public)


def _warn_of_ranges_apart(ranges: Mapping[str, Mapping[str, Range]]) -> None:
    """Warn of clients whose range of a number overlaps with that of no other client, as where their units differ."""
    for name in sorted({name for own in ranges.values() for name in own}):
        ends = {client: (own[name][0], own[name][-1]) for client, own in ranges.items() if name in own}
        apart = [
            client
            for client, (low, high) in ends.items()
            if len(ends) > 1
            and all(high < other[0] or low > other[-1] for each, other in ends.items() if each != client)
        ]
        if apart:
            log.warning(
                "the range of '%s' at %s overlaps with that of no other client: does it have the same unit at all?",
                name, quoted(apart),
            )  # fmt: skip
