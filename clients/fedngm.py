"""The client class of FedNGM: a client's table, its graph, and its models. Rows stay here.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1 to 2.6.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from fedgraph.algorithms.fedngm_messages import PhaseReply, PhaseRequest, scores_as_text
from fedgraph.algorithms.fedngm_settings import FedNGMSettings
from fedgraph.clients.engine.assignment import Assignment
from fedgraph.clients.engine.disclosure import described
from fedgraph.clients.engine.node import Node
from fedgraph.clients.engine.table_rows import Rows, TableRows
from fedgraph.clients.engine.table_scores import TableScores
from fedgraph.clients.engine.table_statistics import TableStatistics, loss_in_all
from fedgraph.data import SPLITS, DataSource
from fedgraph.data.encoding import Encoding
from fedgraph.data.schema import ExclusionReason, Schema, schema_as_json
from fedgraph.data.tables import client_table_source
from fedgraph.experiment import Experiment
from fedgraph.graph import FeatureGraph
from fedgraph.graphical import GraphicalModel
from fedgraph.graphical.learning import (
    EVERYBODY,
    ClientRows,
    GlobalModel,
    NGMFit,
    fit_ngm,
    fit_ngr,
    fitted,
    stitch_ngm,
    stitch_ngr,
)
from fedgraph.graphical.network import Network, train
from fedgraph.graphical.recovery import UnitTable, recover
from fedgraph.support.errors import GraphError, IdentityError, ReplyError, counted, quoted
from fedgraph.support.files import file_name, json_digest, run_state, write_atomically
from fedgraph.support.randomness import derive_seed
from fedgraph.support.settings import Configured, select_settings
from fedgraph.training import ClientState

log = logging.getLogger("fedgraph")

_EXCLUDED: dict[ExclusionReason, str] = {
    "empty": "is not a feature: it has no value",
    "rare": "is not a feature: none of its values occurs in least-rows rows or more",
    "partly": "has values in fewer than least-rows rows, which count as missing unless another client has more",
}
"""What is said of a column, by why it is excluded."""


class FedNGMClient(Configured[FedNGMSettings]):
    """Serves all clients of one node at once."""

    keeps: ClassVar[tuple[str, ...]] = ("values, except the names of categories", "each client's personal model")

    @classmethod
    def sends_as(cls, experiment: Experiment, node: Node) -> list[str]:
        """Describe what leaves the node, see ``fedgraph.clients.engine.disclosure``."""
        sent = [
            "the names and kinds of each client's features, and the names of categories in at least least-rows of "
            "[data.table-schema] (5) of its rows, and of [agreement] (10)",
            "each client's feature graph among the common features",
            "the parameters of each client's model of the common features",
        ]
        settings = select_settings(FedNGMSettings, experiment.method_table, f"[{experiment.method.name}]")
        noise, disclosed = settings.statistics.noise, settings.disclosed
        with_noise = f", with noise of epsilon {noise.epsilon:g}" if noise else ""
        if "ranges" in disclosed:
            sent.append(f"ranges of numbers (low, high, median){with_noise}")
        if "sums" in disclosed:
            masked = ", which the server sees only summed over all clients" if settings.recovery.masks else ""
            sent[1] = f"sums over each client's rows of all pairs of units{with_noise}{masked}"
        return [*sent, *loss_in_all(settings)]

    def __init__(self, node: Node, request: PhaseRequest, assignment: Assignment | None = None) -> None:
        self.node = node
        self.request = request
        self.assignment = assignment or Assignment.of(request.experiment)
        self.settings = self.assignment.method_as(FedNGMSettings)
        self.source = client_table_source(node.source(self.assignment), "fedngm")
        self.clients = tuple(sorted(node.hosted(self.assignment)))
        self._held = node.once_per_run(
            request.run, ("tables", request.experiment, self.clients),
            lambda: TableRows(self.source, self.clients, self.settings.scaling, node.least_rows),
        )  # fmt: skip

    @classmethod
    def check_source(cls, source: DataSource) -> None:
        """Raise DataError for data without tables; called in a rehearsal."""
        client_table_source(source, "fedngm")

    @classmethod
    def handle(cls, message: Message, node: Node) -> RecordDict:
        """Answer a message; called by the ClientApp."""
        request = PhaseRequest.unpack(message.content)
        served = cls(node, request)
        # Keys and sums are asked for again when a client is lost, and sums count by their rows.
        if request.phase not in ("keys", "sums"):
            node.record(request.run, f"phase '{request.phase}' {request.round}", served.clients, message.content)
        return served.reply().pack()

    def reply(self) -> PhaseReply:
        """Return the results of the phase for the clients of this node."""
        partition = self.node.partition()
        if not self.clients:
            return PhaseReply.empty(partition)
        self._check_request()
        nothing, sums = torch.zeros(len(self.clients), 0), None
        if self.request.phase == "fit":
            texts, parameters = self.fit()
        else:
            requested: dict[str, Callable[[], list[str]]] = {
                "schema": self.schemas,
                "statistics": lambda: self._statistics.ranges(),
                "graph": self.graphs,
                "keys": lambda: self._statistics.keys(),
                "sums": lambda: [""] * len(self.clients),
                "finish": self.finish,
            }
            texts, parameters = requested[self.request.phase](), nothing
            sums = self._statistics.sums() if self.request.phase == "sums" else None
        num_rows = self._held.num_training
        self.node.done.append(f"finished phase '{self.request.phase}' on {counted(sum(num_rows), 'row')}")
        return PhaseReply(
            clients=self.clients,
            partition=partition,
            data=described(self.source, self.node),
            num_rows=num_rows,
            texts=tuple(texts),
            parameters=parameters,
            sums=sums,
            excluded_columns=self.excluded_columns() if self.request.phase == "schema" else (),
        )

    def _check_request(self) -> None:
        """Raise ReplyError for features that a client does not have, and for rounds out of range.

        Raises ExperimentError for fewer rows than the site's agreement requires.
        """
        last = max(self.settings.rounds, 1) if self.request.phase == "fit" else 1
        if not 1 <= self.request.round <= last:
            raise ReplyError(f"round {self.request.round} of phase '{self.request.phase}' is outside of 1 to {last}")
        for name in self.clients:
            table = self._held.tables[name]
            self.node.check_rows(name, {split: len(table.rows(split)) for split in SPLITS})
            if self.request.common is None:
                continue
            own = {feature.name: feature for feature in self._held.schema(name).features}
            for feature in self.request.common.features:
                known = own.get(feature.name)
                if known is None or (known.is_number and not feature.is_number):
                    raise ReplyError(f"the request names a feature that {name} does not have, or has of another kind")

    # ---- phases ----------------------------------------------------------------------------------------------------

    def schemas(self) -> list[str]:
        """Return the schema of each client, as JSON."""
        return [schema_as_json(self._held.schema(name)) for name in self.clients]

    def excluded_columns(self) -> tuple[dict[str, ExclusionReason], ...]:
        """Return the columns that are not features, in whole or in part, and why, if the server may read full errors.

        Otherwise their names are only in the log of the node.
        """
        found = {name: self._held.excluded_columns(name) for name in self.clients}
        if self.node.sends_full_errors:
            return tuple(found.values())
        for column, reason in dict.fromkeys(item for columns in found.values() for item in columns.items()):
            of_clients = [name for name, columns in found.items() if columns.get(column) == reason]
            log.warning("column '%s' of %s %s", column, quoted(of_clients), _EXCLUDED[reason])
        return ()

    def graphs(self) -> list[str]:
        """Return each client's feature graph of the common features, recovered from all its features."""
        common = self.common.names
        schemas = {name: self._held.whole(name, self.common) for name in self.clients}
        found = self._recovered(schemas)
        for name, schema in schemas.items():
            if self.settings.personal == "stitched" and len(schema.names) > len(common):
                sent = {"of": self._recovered_from(name, schema), "graph": found[name].as_json()}
                write_atomically(self._graph_file(name), json.dumps(sent).encode(), private=True)
        return [json.dumps(found[name].subgraph(common).as_json()) for name in self.clients]

    def fit(self) -> tuple[list[str], Tensor]:
        """Fit a model to each client's training rows; it is stored until the last phase.

        Returns
        -------
        texts : list of str
            Scores of each model on the client's validation rows.
        parameters : Tensor
            ``[clients, parameters]``.
        """
        rows = {name: self._rows(name, self.common) for name in self.clients}
        parts = {split: [rows[name].units(split) for name in self.clients] for split in ("train", "validation")}
        names = list(self.clients)
        if self.settings.global_model == "pooled":
            self._check_hosted()
            parts, names = {split: [torch.cat(tables)] for split, tables in parts.items()}, [EVERYBODY]
        found = self._fitted(parts["train"], parts["validation"], names)
        parameters, r_squared = found.parameters, found.r_squared
        if self.settings.global_model == "pooled":
            parameters = parameters.expand(len(self.clients), -1).contiguous()
            r_squared = r_squared.expand(len(self.clients), -1)
        self._state.save(self.clients, self.request.round, {"parameters": parameters}, self.request.round)
        texts = [
            scores_as_text(
                {f"validation/{each}-r2-local": value for each, value in zip(self.common.names, row, strict=True)}
            )
            for row in r_squared.tolist()
        ]
        return texts, parameters

    def finish(self) -> list[str]:
        """Score the predictions of the targets by the global, own and personal model of each client.

        A client whose own model is no longer on this node, or only one of an earlier round, has no scores of it. The
        personal model, or else the global one, is saved in this node's model folder as
        ``graphical/<run>/<client>.safetensors``, for ``GraphicalModel.load``.
        """
        rounds, state = self.settings.rounds, self._state
        empty = {"parameters": torch.zeros(self._network_of_fit.layout.num_parameters)}
        own = state.load(self.clients, rounds + 1, empty)["parameters"]
        if lost := [name for name in self.clients if state.found[name] != rounds]:
            log.warning("the state folder no longer has the models of round %d of %s", rounds, quoted(lost))
        return [
            scores_as_text(self._finished(name, None if name in lost else local[None]))
            for name, local in zip(self.clients, own, strict=True)
        ]

    # ---- one client ------------------------------------------------------------------------------------------------

    def _finished(self, name: str, local: Tensor | None) -> dict[str, float]:
        """Return the metrics of one client; ``local`` is its own model ``[1, parameters]``, if there still is one."""
        parameters = self._global(self._network)
        rows = self._rows(name, self.common)
        given = self._given(parameters, rows.encoding)
        models = {"": given}
        if local is not None:
            models["-local"] = GraphicalModel.of_one(self._network_of_fit, local, rows.encoding)
        personal = self._personal(name, given)
        if personal is not None:
            models["-personal"] = personal
        (personal or given).save(self._model_file(name))
        return self._scores.of(name, models)

    def _given(self, parameters: Tensor, encoding: Encoding) -> GraphicalModel:
        """Return the global model, shared by clients of equal ranges with its sampled rows."""
        found = next((model for model in self._global_models if model.encoding == encoding), None)
        if found is None:
            found = GraphicalModel.of_one(self._network, parameters, encoding)
            self._global_models.append(found)
        return found

    def _personal(self, name: str, model: GraphicalModel) -> GraphicalModel | None:
        """Return the client's personal model, or None if it equals the global one."""
        settings, seed = self.settings, self.assignment.seed
        if settings.personal == "fine-tuned":
            rows = self._rows(name, self.common)
            parts = [rows.units("train")], [rows.units("validation")]
            trained = train(model.network, model.parameters[None], *parts, [name], settings.network, seed)
            found = fitted(model.network, trained, parts[1])
            return GraphicalModel.of_one(found.network, found.parameters, model.encoding)
        whole = self._held.whole(name, self.common)
        if settings.personal == "none" or len(whole.features) == len(self.common.features):
            return None
        rows = self._rows(name, whole)
        own = ClientRows(name, rows.units("train"), rows.units("validation"))
        start = GlobalModel(model.network, model.parameters[None])
        if settings.model == "ngr":
            found = stitch_ngr(start, whole, own, settings.ngr, seed).fit
        else:
            graph = self._graph_of(name, whole)
            found = stitch_ngm(start, whole, graph.adjacency, own, settings.ngm, seed)
        return GraphicalModel.of_one(found.network, found.parameters, rows.encoding)

    def _graph_of(self, name: str, whole: Schema) -> FeatureGraph:
        """Return the graph of a client's rows from all its features: the one that was sent, if any."""
        with suppress(OSError, ValueError, GraphError):
            sent = json.loads(self._graph_file(name).read_text(encoding="utf-8"))
            if sent["of"] == self._recovered_from(name, whole):
                return FeatureGraph.from_json(sent["graph"])
        return self._recovered({name: whole})[name]

    def _recovered_from(self, name: str, schema: Schema) -> str:
        """Return a digest of everything that determines a client's graph."""
        rows = hashlib.sha256(self._rows(name, schema).units("train").numpy().tobytes()).hexdigest()
        settings = [self.settings.recovery.as_table(), list(self.settings.targets), self.assignment.seed]
        return json_digest([name, schema_as_json(schema), rows, settings])

    def _recovered(self, schemas: Mapping[str, Schema]) -> dict[str, FeatureGraph]:
        """Return the graph of each client's training rows over all features of its schema."""
        tables = [
            UnitTable.of(name, schema, self._rows(name, schema).units("train")) for name, schema in schemas.items()
        ]
        found = recover(self.settings.recovery, tables, self.assignment.seed, targets=self.settings.targets)
        return {name: each.graph for name, each in zip(schemas, found, strict=True)}

    def _fitted(self, training: list[Tensor], held_out: list[Tensor], names: list[str]) -> NGMFit:
        """Fit a model for each name, over the consensus graph or a learned one."""
        settings, seed = self.settings, self.assignment.seed
        if self.request.parameters is not None:
            network = self._network_of_fit
            first = self._global(network).expand(len(names), -1).contiguous()
            # Each round has another order of rows.
            shuffled = derive_seed(seed, "round", self.request.round)
            return fitted(
                network, train(network, first, training, held_out, names, settings.network, shuffled), held_out
            )
        if settings.model == "ngr":
            return fit_ngr(self.common, training, held_out, names, settings.ngr, seed).fit
        return fit_ngm(self.common, self._network.adjacency, training, held_out, names, settings.ngm, seed)

    # ---- data of clients -------------------------------------------------------------------------------------------

    @property
    def common(self) -> Schema:
        """The common features of the request. Raises ReplyError when it lacks them."""
        if self.request.common is None:
            raise ReplyError(f"the request for phase '{self.request.phase}' lacks the common features")
        return self.request.common

    def _global(self, network: Network) -> Tensor:
        """Return the global model ``[1, parameters]``. Raises ReplyError when it is missing or does not fit."""
        parameters = self.request.parameters
        if parameters is None or parameters.shape != (1, network.layout.num_parameters):
            raise ReplyError(f"the request for phase '{self.request.phase}' lacks the global model of this graph")
        return parameters

    @cached_property
    def _network(self) -> Network:
        graph = self.request.graph
        if graph is None:
            raise ReplyError(f"the request for phase '{self.request.phase}' lacks the graph")
        return Network(self.common, graph.subgraph(self.common.names).adjacency, self.settings.network)

    @cached_property
    def _global_models(self) -> list[GraphicalModel]:
        return []

    @cached_property
    def _network_of_fit(self) -> Network:
        """Network of the clients' own models; over a complete graph if they learn their graphs."""
        if self.settings.model == "ngm":
            return self._network
        features = len(self.common.features)
        return Network(self.common, torch.ones(features, features, dtype=torch.bool), self.settings.network)

    def _rows(self, name: str, schema: Schema) -> Rows:
        """Return a client's rows on the scale of the request."""
        return self._held.rows(name, schema, self.request.scaling)

    @cached_property
    def _statistics(self) -> TableStatistics:
        settings, seen = self.settings, self.common
        return TableStatistics(self.node, self.request, self.clients, settings, seen, self._held)

    @cached_property
    def _scores(self) -> TableScores:
        return TableScores(self._held, self.clients, self.common, self.settings, self.assignment.seed)

    @property
    def _state(self) -> ClientState:
        return self.node.state(self.request.run, "ngm")

    def _graph_file(self, name: str) -> Path:
        """Return the file of the graph of a client with private features between phases."""
        return run_state(self.node.state_dir, self.request.run) / "feature-graphs" / f"{file_name(name)}.json"

    def _model_file(self, name: str) -> Path:
        folder = self.node.model_dir / "graphical" / file_name(self.request.run)
        return folder / f"{file_name(name)}.safetensors"

    def _check_hosted(self) -> None:
        others = sorted(set(self.source.client_names()) - set(self.clients))
        if others:
            raise IdentityError(
                f"global-model = 'pooled' needs the rows of all clients, but this node lacks those of "
                f"{', '.join(others[:8])}: put all clients on one node (--nodes 1)"
            )
