"""FedNGM: clients with tables of different features learn one probabilistic model of their common features.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1 to 2.6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import torch
from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from torch import Tensor

from fedgraph.data.columns import Floats
from fedgraph.data.encoding import Encoding, Scaling, agreed_scaling, read_values
from fedgraph.data.schema import Agreement, Schema, agree, check_used, schema_as_json
from fedgraph.data.tables import BayesianNetwork, ClientTableSource, client_table_source, schema_settings
from fedgraph.federation import Traffic
from fedgraph.graph import FeatureGraph, client_similarity, write_feature_graph, write_graph
from fedgraph.graphical import GraphicalModel, SharedStatistics
from fedgraph.graphical.asking import draw
from fedgraph.graphical.learning import (
    SERVER,
    average,
    dependencies,
    derivatives,
    distil,
    merge,
    write_dependencies,
)
from fedgraph.graphical.network import Network
from fedgraph.graphical.recovery import UnitSums, recover_from_sums
from fedgraph.messages import to_record
from fedgraph.methods.fedngm import (
    MESSAGE,
    FedNGMSettings,
    Phase,
    PhaseReply,
    PhaseRequest,
    graph_from_text,
    key_from_text,
    scores_from_text,
)
from fedgraph.strategies.engine.graphical_results import (
    against_truth,
    consent_to,
    metrics_of,
    no_common_features,
    without_neighbours,
)
from fedgraph.strategies.engine.members import Answer, Members
from fedgraph.strategies.engine.phases import Outcome, PhasedStrategy
from fedgraph.support.errors import DataError, ExperimentError, IdentityError, ReplyError, RunError
from fedgraph.support.files import State, json_digest, load_state, save_state

log = logging.getLogger("fedgraph")

_LOOKED_AT = 256
"""Number of samples at which derivatives are computed."""


class FedNGMPhases(PhasedStrategy[FedNGMSettings]):
    """Phases: features of clients, their graphs or sums over their rows, their models, and one global model for all.

    After the first request, nothing is sent to any node unless at least as many clients take part as ``min-clients`` of
    ``[fedngm.merge]``, or of ``[experiment]`` if that is larger: common features with their categories, ranges, the
    consensus graph and the global model all reveal something about other clients. This is checked again whenever
    clients are lost. A run that was stopped continues after its last whole phase.
    """

    name = "fedngm"
    title = "Federated neural graphical models: one probabilistic model of all common features, made personal"
    needs = "clients with tables of their own (mixed-table, linked-deaths, bayesian-network); no [model]"
    paper = "https://arxiv.org/abs/2309.11680"
    default_client = "fedgraph.clients.fedngm:FedNGMClient"
    own_models = True

    _members: Members
    _common: Schema

    def execute(self, grid: Grid) -> tuple[Outcome, ArrayRecord]:
        """Run all phases and write graph, model and dependencies to the run folder.

        Raises
        ------
        FedgraphError
            When clients are missing, too few or do not agree on features, and when a phase fails.
        """
        self._grid = grid
        answers = self.ask(grid, self._request("schema").pack(), MESSAGE, PhaseReply.unpack)
        self._members = Members.of(answers)
        self._check_present()
        nodes = len(self._members.hosts)
        if self.settings.global_model == "pooled" and nodes > 1:
            raise IdentityError(
                f"global-model = 'pooled' is one model of everybody's rows, and these are on {nodes} nodes: put all "
                "clients on one node (--nodes 1)"
            )
        log.info(
            "%d clients on %d nodes; data: %s",
            len(self._members.names), len(self._members.hosts), self._members.data,
        )  # fmt: skip
        agreement = self._agreement()
        check_used(schema_settings(self._source), self._members.schemas.values())
        self._check_targets(agreement)
        for line in agreement.describe().splitlines():
            log.info("%s", line)
        self._common = agreement.common
        self._find_again()
        scaling = self._scaling()
        network, parameters = self._global_model(scaling, self._graph(scaling))
        graph = FeatureGraph.from_adjacency(self._common.names, network.adjacency)
        write_feature_graph(graph, self.plan.folder.path / "feature-graph.json")
        written = self._write_model(network, parameters, scaling)
        self._write_dependencies(network, parameters)
        request = self._request("finish", scaling=scaling, graph=graph, parameters=parameters)
        scores = self._phase(request, lambda text, _: scores_from_text(text))
        measured = (
            f"{len(self._members.names)} clients, each target predicted from all other features by the global model; "
            "what ends with -local and -personal is predicted by the client's own model, before and after it was given "
            "the global one"
        )
        private = {name: list(own) for name, own in agreement.private.items() if own}
        facts = {"features": len(self._common.features), "private_features": private, "graph_edges": len(graph.edges)}
        truth = self._true_graph()
        if truth is not None:
            facts["graph_score"] = asdict(graph.score(truth))
        no_features = {
            name: columns
            for answer in answers.values()
            for name, columns in zip(answer.clients, answer.no_features, strict=False)
        }
        expected = {name for names in (getattr(self.plan.data, "private", None) or {}).values() for name in names}
        facts |= {
            **written,
            "notes": [
                *no_common_features(agreement, no_features, expected),
                *without_neighbours(graph, self._targets, self.settings.recovery),
                *([] if truth is None else [against_truth(graph, truth)]),
                *written.get("notes", ()),
            ],
        }
        outcome = Outcome(
            self._members.names, self._members.data, measured,
            metrics_of([scores[name] for name in self._members.names], self._targets),
            parameters[0], rounds=self.settings.rounds, absent=self._members.absent, facts=facts,
        )  # fmt: skip
        return outcome, to_record({name: values[0] for name, values in network.state(parameters).items()})

    def _agreement(self) -> Agreement:
        """Return the common features, where tolerated without clients that keep most others from having any."""
        while True:
            try:
                return agree(self._members.schemas, self.settings.disputes)
            except DataError:
                lost = self._members.disagreeing(self.settings.disputes) if self.plan.tolerant else {}
                if not lost:
                    raise
                self._members = self._members.without(lost)
                self._check_present()

    # ---- phases ----------------------------------------------------------------------------------------------------

    def _scaling(self) -> Scaling:
        """Return the ranges that all clients share, if any."""
        if "scaling" in self._kept:
            return Scaling.from_json(self._kept["scaling"])
        settings = self.settings.scaling
        if settings.source == "public":
            values = self._public_values("scaling source = 'public'")
            measured = Scaling.measured(values, self._common, settings.quantile, settings.skewed)
            scaling = Scaling(dict(settings.ranges)).completed(measured)
        else:
            told = {}
            if settings.source == "shared-ranges":
                told = self._phase(
                    self._request("statistics"), lambda text, _: SharedStatistics.from_json(text, self._common)
                )
            scaling = agreed_scaling(self._common, settings, [one.ranges for one in told.values()])
        self._keep({"scaling": scaling.as_json()})
        return scaling

    def _graph(self, scaling: Scaling) -> FeatureGraph:
        """Return the consensus graph, or a complete one where models learn their own.

        Where clients send graphs, how similar these are is written to the run folder, as a client graph.
        """
        names = self._common.names
        if self.settings.model == "ngr":
            every = torch.ones(len(names), len(names), dtype=torch.bool).fill_diagonal_(False)
            return FeatureGraph.from_adjacency(names, every)
        if "graph" in self._kept:
            return FeatureGraph.from_json(self._kept["graph"])
        if self.settings.recovery.source == "summed-statistics":
            graph = self._joint_graph(scaling)
        else:
            request = self._request("graph", scaling=scaling)
            graphs = self._phase(request, lambda text, _: graph_from_text(text, self._common))
            rows = dict(zip(self._members.names, self._members.num_rows, strict=True))
            graph = merge(self.settings.merge, graphs, rows).subgraph(names)
            write_graph(client_similarity(graphs), self.plan.folder.path / "learned-graph.npz")
            for name, own in graphs.items():
                log.info("client %s has %d edges, the consensus graph %d", name, len(own.edges), len(graph.edges))
        self._keep({"graph": graph.as_json()})
        return graph

    def _joint_graph(self, scaling: Scaling) -> FeatureGraph:
        """Recover one graph of all clients' rows, from their sums.

        Masks of clients that are lost do not cancel: the others then start again.
        """
        settings, common = self.settings.recovery, self._common
        exact = self.settings.statistics.noise is None
        while True:
            keys = self._phase(self._request("keys"), lambda text, _: key_from_text(text)) if settings.masks else None
            asked, request = self._members.names, self._request("sums", scaling=scaling, keys=keys)
            found = self._phase(request, lambda _, flat: flat, sums=UnitSums.width(common))
            if not settings.masks or self._members.names == asked:
                break
        if exact and not settings.masks:
            found = self._of_own_rows(found)
        # Masks add up to zero modulo 2^64, in the arithmetic of int64.
        sums = UnitSums.from_flat(torch.stack(list(found.values())).sum(0), common)
        if exact and settings.masks:
            try:
                sums.check(common, sum(self._members.num_rows))
            except ReplyError as error:
                raise RunError(
                    f"the sum over all clients is none of rows ({error}). Masks hide whose part is wrong: run without "
                    "masks to find out, or without the clients that are in doubt"
                ) from None
        return recover_from_sums(settings, common, sums, self.settings.targets).graph

    def _of_own_rows(self, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums of those clients whose sums can be of as many rows as they have."""
        lost = {}
        for name, rows in zip(self._members.names, self._members.num_rows, strict=True):
            try:
                UnitSums.from_flat(found[name], self._common).check(self._common, rows)
            except ReplyError as error:
                lost[name] = str(error)
        self._lose(lost)
        return {name: found[name] for name in self._members.names}

    def _global_model(self, scaling: Scaling, graph: FeatureGraph) -> tuple[Network, Tensor]:
        """Return the network, and its parameters ``[1, parameters]``."""
        settings = self.settings
        network = Network(self._common, graph.adjacency, settings.network)
        parameters: Tensor | None = self._kept.get("global")
        for number in range(1 + self._kept.get("rounds", 0), 1 + settings.rounds):
            request = self._request("fit", round=number, scaling=scaling, graph=graph, parameters=parameters)
            width = network.layout.num_parameters
            found = self._phase(request, lambda _, row: row, width)
            models = torch.stack([found[name] for name in self._members.names])
            if settings.global_model == "distilled":
                network, parameters = self._distilled(network, models, scaling)
            elif settings.global_model == "average":
                parameters = average(network, models, self._members.num_rows)
            else:
                parameters = models[:1]
            own = FeatureGraph.from_adjacency(self._common.names, network.adjacency)
            self._keep({"global": parameters, "rounds": number, "global-graph": own.as_json()})
            log.info("round %d of %d: a global model from %d clients", number, settings.rounds, len(models))
        assert parameters is not None
        own = FeatureGraph.from_json(self._kept["global-graph"])
        return Network(self._common, own.adjacency, settings.network), parameters

    def _distilled(self, network: Network, models: Tensor, scaling: Scaling) -> tuple[Network, Tensor]:
        """Fit the global model to samples of the clients' models, and to public rows where they count."""
        settings, seed, members = self.settings, self.plan.seed, self._members
        num_samples = max(settings.distillation.counts(members.num_rows))
        samples = draw(network, models, num_samples, members.names, seed, settings=settings.sampling)
        public = None
        if settings.distillation.public_weight:
            encoding = Encoding(self._common, scaling, settings.scaling.outside)
            public = encoding.encode(self._public_values("distillation public-weight"))
        training = settings.network
        return distil(network, models, samples, members.num_rows, settings.distillation, training, seed, public)

    def _phase(
        self, request: PhaseRequest, read: Callable[[str, Tensor], Answer], width: int = 0, sums: int = 0
    ) -> dict[str, Answer]:
        """Ask all members once; those without a usable answer are absent from then on, where that is tolerated."""
        found, lost = self._members.ask(
            self._grid, request, read, timeout=self.plan.timeout, traffic=self.traffic, width=width, sums=sums
        )
        self._lose(lost)
        return {name: found[name] for name in self._members.names}

    def _lose(self, lost: Mapping[str, str]) -> None:
        """Count members as absent, with reasons. Raises as ``_check_present``."""
        if lost:
            self._members = self._members.without(lost)
            self._check_present()

    def _request(self, phase: Phase, **known: object) -> PhaseRequest:
        plan = self.plan
        common = getattr(self, "_common", None)
        return PhaseRequest(plan.client, plan.experiment, plan.folder.name, phase, common=common, **known)  # type: ignore[arg-type]

    # ---- what may not be ------------------------------------------------------------------------------------------

    def _check_present(self) -> None:
        """Check the number of members, after every answer and so before anything is sent next."""
        present = len(self._members.names)
        self.check_present(self._members.absent, present)
        least = max(self.plan.min_clients, self.settings.merge.min_clients)
        if present < least:
            raise RunError(
                f"{present} of at least {least} clients take part: with fewer, none of them is sent common features, "
                "ranges, a graph or a model, which might tell what one of the others has. Wait for more clients, or "
                "set min-clients of [fedngm.merge] and [experiment] lower"
            )

    def _check_targets(self, agreement: Agreement) -> None:
        known = {name for schema in agreement.schemas.values() for name in schema.names}
        unknown = [name for name in self.settings.targets if name not in known]
        if unknown:
            raise ExperimentError(
                f"[fedngm] targets names {', '.join(unknown)}, which no client has; the common features are "
                f"{', '.join(agreement.common.names)}"
            )

    # ---- what the server has ---------------------------------------------------------------------------------------

    @cached_property
    def _source(self) -> ClientTableSource:
        return client_table_source(self.plan.source(), "fedngm")

    @property
    def _targets(self) -> tuple[str, ...]:
        """Features that models are evaluated by."""
        return self.settings.targets or self._common.names

    def _true_graph(self) -> FeatureGraph | None:
        """Return the moral graph of the network that rows were drawn from, over the common features; None for data."""
        network = getattr(self._source, "network", None)
        return network.moral_graph.subgraph(self._common.names) if isinstance(network, BayesianNetwork) else None

    def _public_values(self, what: str) -> Floats:
        table = self._source.public_table()
        if table is None:
            raise ExperimentError(f"[fedngm] {what} needs public rows, which this data set has not")
        return read_values(table, self._common, schema_settings(self._source))

    def _write_model(self, network: Network, parameters: Tensor, scaling: Scaling) -> dict[str, Any]:
        """Write the global model to a file, and return its entries of ``summary.json``.

        Where clients have their own ranges, the file lacks the features that need these.
        """
        settings, name = self.settings.scaling, "graphical-model.safetensors"
        encoding = Encoding(self._common, scaling, settings.outside, settings.source == "own")
        GraphicalModel(network, parameters[0], encoding).save(self.plan.folder.path / name)
        if not encoding.without_range:
            return {"model_file": name}
        lacking = ", ".join(encoding.without_range)
        note = (
            f"the model file has no range of {lacking}, each client having its own: it takes and tells only the other "
            "features, unless GraphicalModel.load is given ranges; for common ones, set source of [fedngm.scaling], "
            f'as to "shared-ranges", which {consent_to("ranges")}'
        )
        return {"model_file": name, "notes": [note]}

    def _write_dependencies(self, network: Network, parameters: Tensor) -> None:
        """Write what the global model predicts each feature from, by its derivatives at samples of its own."""
        samples = draw(network, parameters, _LOOKED_AT, [SERVER], self.plan.seed, settings=self.settings.sampling)
        found = dependencies(network, parameters, derivatives(network, parameters, samples))
        write_dependencies(self._common.names, found[0], self.plan.folder.path / "dependencies")

    # ---- what was kept ---------------------------------------------------------------------------------------------

    def _find_again(self) -> None:
        """Load what a run that was stopped has kept; nothing when members or the experiment have changed."""
        path, members = self.plan.folder.checkpoint, self._members
        texts = {name: schema_as_json(schema) for name, schema in members.schemas.items()}
        asked = json_digest([self.plan.client, self.plan.experiment, texts, members.num_rows])
        self._kept: State = {"asked": asked}
        if path.exists():
            saved = load_state(path)
            if saved.get("asked") == asked:
                self._kept, opening = saved, vars(self.traffic)
                self.count_on(saved)
                self.traffic = Traffic(**{name: count + opening[name] for name, count in vars(self.traffic).items()})
            else:
                log.info("clients or the experiment have changed since this run was stopped: it begins anew")

    def _keep(self, found: State) -> None:
        self._kept |= found
        save_state(self.plan.folder.checkpoint, {**self._kept, **self.counters()})
