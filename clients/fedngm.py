"""The client class of FedNGM: a client's table, its graph, and its models. Rows stay here.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.1 to 2.6.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from flwr.app import Message, RecordDict
from torch import Tensor

from clients.node import Assignment, Node
from fedgraph.atomic import write_atomically
from fedgraph.client_state import ClientState
from fedgraph.data.base import SplitName
from fedgraph.data.client_tables import ClientTable, client_table_source, schema_settings
from fedgraph.errors import IdentityError, ReplyError
from fedgraph.graphical.agreement import with_own_features
from fedgraph.graphical.columns import Floats
from fedgraph.graphical.encoding import Encoding
from fedgraph.graphical.feature_graph import FeatureGraph
from fedgraph.graphical.fedngm_settings import FedNGMSettings
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.network import Network
from fedgraph.graphical.network_training import train
from fedgraph.graphical.ngm import NGMFit, fit_ngm, fitted
from fedgraph.graphical.ngr import fit_ngr
from fedgraph.graphical.recovery import UnitTable, recover
from fedgraph.graphical.sample_quality import sample_quality
from fedgraph.graphical.sampling import draw
from fedgraph.graphical.scaling import Scaling
from fedgraph.graphical.schema import Schema
from fedgraph.graphical.schema_inference import infer_schema
from fedgraph.graphical.schema_json import schema_as_json
from fedgraph.graphical.shared_statistics import SharedStatistics, shared_statistics
from fedgraph.graphical.stitching import ClientRows, GlobalModel, stitch_ngm, stitch_ngr
from fedgraph.graphical.target_scores import as_predictions, score_targets
from fedgraph.graphical.values import read_values
from fedgraph.graphical.yardsticks import Yardstick, predict_targets
from fedgraph.graphical_messages import PhaseReply, PhaseRequest, scores_as_text
from fedgraph.naming import file_name, json_digest
from fedgraph.seeding import derive_seed

_EVERYBODY = "everybody"
_ROWS = 4096
_SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


@dataclass(frozen=True)
class _Rows:
    """A client's rows of one schema, by split."""

    encoding: Encoding
    values: Mapping[str, Floats]

    def units(self, split: str) -> Tensor:
        """``[rows, units]``, NaN for missing."""
        return self.encoding.encode(self.values[split])


@dataclass(frozen=True)
class _Model:
    """A model ``[1, parameters]``, and the units that it takes."""

    network: Network
    parameters: Tensor
    encoding: Encoding

    def save(self, path: Path) -> None:
        """As a file that ``GraphicalModel.load`` reads."""
        GraphicalModel.of_one(self.network, self.parameters, self.encoding).save(path)

    def scores(self, values: Floats, targets: Sequence[str]) -> dict[str, dict[str, float]]:
        """Of each target, predicted from all other features of rows ``[rows, features]``."""
        units = self.encoding.encode(values)
        found: dict[str, Floats] = {}
        for target in targets:
            asked = self.encoding.schema.slices[target]
            kept = units[:, asked].clone()
            # A perceptron with all features in common would see its own target.
            units[:, asked] = torch.nan
            with torch.no_grad():
                predicted = torch.cat(
                    [self.network.forward(self.parameters, part[None])[0] for part in units.split(_ROWS)]
                )
            units[:, asked] = kept
            found |= as_predictions(self.network, self.encoding, predicted, [target])
        return score_targets(self.encoding.schema, values, found)


class FedNGMClient:
    """Serves the clients of one node, all at once."""

    def __init__(self, node: Node, request: PhaseRequest) -> None:
        self.node = node
        self.request = request
        self.assignment = Assignment.of(request.experiment)
        self.settings = FedNGMSettings.model_validate(self.assignment.method)
        self.source = client_table_source(node.source(self.assignment), "fedngm")
        self.clients = tuple(sorted(node.hosted(self.assignment)))

    @classmethod
    def handle(cls, message: Message, node: Node) -> RecordDict:
        """Answer a message: the entry that the ClientApp calls."""
        return cls(node, PhaseRequest.unpack(message.content)).reply().pack()

    def reply(self) -> PhaseReply:
        """What the phase asks of the clients of this node."""
        partition = self.node.partition()
        if not self.clients:
            return PhaseReply.of_nobody(partition)
        nothing = torch.zeros(len(self.clients), 0)
        if self.request.phase == "fit":
            texts, parameters = self.fit()
        else:
            asked: dict[str, Callable[[], list[str]]] = {
                "schema": self.schemas,
                "statistics": self.statistics,
                "graph": self.graphs,
                "finish": self.finish,
            }
            texts, parameters = asked[self.request.phase](), nothing
        return PhaseReply(
            clients=self.clients,
            partition=partition,
            data=self.source.describe(),
            num_rows=tuple(len(self.tables[name].rows("train")) for name in self.clients),
            texts=tuple(texts),
            parameters=parameters,
        )

    # ---- phases ----------------------------------------------------------------------------------------------------

    def schemas(self) -> list[str]:
        """Of each client: names and types of its features."""
        return [schema_as_json(self._schema(name)) for name in self.clients]

    def statistics(self) -> list[str]:
        """Of each client: what it tells of the common features, as far as this node consents."""
        return [self._told(name).as_json() for name in self.clients]

    def graphs(self) -> list[str]:
        """Of each client: its feature graph among the common features, recovered from all of its features."""
        common = self.common.names
        found = self._recovered({name: self._whole(name) for name in self.clients})
        return [json.dumps(found[name].subgraph(common).as_json()) for name in self.clients]

    def fit(self) -> tuple[list[str], Tensor]:
        """Of each client: a model of its training rows, ``[clients, parameters]``, and how well it fits held-out ones.

        The models are kept until the last phase.
        """
        rows = {name: self._rows(name, self.common) for name in self.clients}
        parts = {split: [rows[name].units(split) for name in self.clients] for split in ("train", "validation")}
        names = list(self.clients)
        if self.settings.global_model == "pooled":
            self._refuse_strangers()
            parts, names = {split: [torch.cat(tables)] for split, tables in parts.items()}, [_EVERYBODY]
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
        """Of each client: how well the global model, its own and its personal one predict the targets.

        The personal model, or the global one where that is the client's, stays in this node's model folder as
        ``graphical/<run>/<client>.safetensors``, to be read by ``GraphicalModel.load``.
        """
        own = self._state.load(
            self.clients,
            self.settings.rounds + 1,
            {"parameters": torch.zeros(self._network_of_fit.layout.num_parameters)},
        )
        texts = []
        for place, name in enumerate(self.clients):
            local = own["parameters"][place : place + 1]
            texts.append(scores_as_text(self._finished(name, local)))
        return texts

    # ---- one client ------------------------------------------------------------------------------------------------

    def _finished(self, name: str, local: Tensor) -> dict[str, float]:
        """Scores of one client; ``local`` is its own model ``[1, parameters]``."""
        parameters = self.request.parameters
        assert parameters is not None
        rows = self._rows(name, self.common)
        given = _Model(self._network, parameters, rows.encoding)
        models = {"": given, "-local": _Model(self._network_of_fit, local, rows.encoding)}
        personal = self._personal(name, given)
        if personal is not None:
            models["-personal"] = personal
        (personal or given).save(self._model_file(name))
        tables = {"test": rows.values["test"]}
        if (public := self._public(self.common)) is not None:
            tables["public"] = public
        scores: dict[str, float] = {}
        for split, values in tables.items():
            for suffix, model in models.items():
                schema = model.encoding.schema
                own = values if schema == self.common else self._more(name, schema, split, values)
                scores |= _named(split, suffix, model.scores(own, self._targets(schema)))
            for yardstick in get_args(Yardstick) if self.settings.yardsticks else ():
                targets = list(self._targets(self.common))
                found = predict_targets(
                    yardstick, self.common, rows.values["train"], values, targets, self.assignment.seed
                )
                scores |= _named(split, f"-{yardstick}", score_targets(self.common, values, found))
            if self.settings.sample_quality:
                scores |= _named(split, "", {"samples": self._sample_quality(name, given, values)})
        return scores

    def _sample_quality(self, name: str, model: _Model, values: Floats) -> dict[str, float]:
        """Of as many samples of a model as there are rows ``[rows, features]``; see ``SampleQuality``."""
        seed, encoding = self.assignment.seed, model.encoding
        samples = draw(model.network, model.parameters, len(values), [name], seed, settings=self.settings.sampling)[0]
        # What is whole in a table is whole in its rows.
        samples = encoding.encode(encoding.decode(samples))
        found = sample_quality(encoding.schema, samples, encoding.encode(values), seed)
        distances = list(found.marginal.values())
        return {
            "marginal-distance": float(np.mean(distances)),
            "marginal-distance-largest": max(distances),
            "correlation-difference": found.correlation[1],
            "correlation-difference-largest": found.correlation[0],
            "told-apart": found.auc,
        }

    def _personal(self, name: str, model: _Model) -> _Model | None:
        """The client's model from the global one; None where it would be the same."""
        settings, seed = self.settings, self.assignment.seed
        if settings.personal == "fine-tuned":
            rows = self._rows(name, self.common)
            parts = [rows.units("train")], [rows.units("validation")]
            trained = train(model.network, model.parameters, *parts, [name], settings.network, seed)
            found = fitted(model.network, trained, parts[1])
            return _Model(found.network, found.parameters, model.encoding)
        whole = self._whole(name)
        if settings.personal == "none" or len(whole.features) == len(self.common.features):
            return None
        rows = self._rows(name, whole)
        own = ClientRows(name, rows.units("train"), rows.units("validation"))
        start = GlobalModel(model.network, model.parameters)
        if settings.model == "ngr":
            found = stitch_ngr(start, whole, own, settings.ngr, seed).fit
        else:
            graph = self._recovered({name: whole})[name]
            found = stitch_ngm(start, whole, graph.adjacency, own, settings.ngm, seed)
        return _Model(found.network, found.parameters, rows.encoding)

    def _targets(self, schema: Schema) -> list[str]:
        """Of a model of these features: those asked for, and what is private to the client."""
        private = [name for name in schema.names if name not in self.common.names]
        return [*(name for name in self.settings.targets or self.common.names if name in self.common.names), *private]

    def _more(self, name: str, schema: Schema, split: str, values: Floats) -> Floats:
        """Rows of a schema with the client's private features, which are unknown in public ones."""
        if split != "public":
            return self._rows(name, schema).values[split]
        more = np.full((len(values), len(schema.features)), np.nan)
        more[:, : values.shape[1]] = values
        return more

    def _public(self, schema: Schema) -> Floats | None:
        table = self.source.public_table()
        return None if table is None else read_values(table, schema, schema_settings(self.source))

    def _told(self, name: str) -> SharedStatistics:
        """What a client tells; with noise, the same whenever it is asked the same of the same rows."""
        settings = self.settings
        values = self._values(name, self.common)["train"]
        asked = [name, self.source.describe(), schema_as_json(self.common), len(values)]
        digest = json_digest([*asked, settings.scaling.as_table(), settings.statistics.as_table()])
        kept = self.node.released_dir / "statistics" / f"{digest}.json"
        if kept.is_file():
            return SharedStatistics.from_json(kept.read_text(encoding="utf-8"), self.common)
        told = shared_statistics(values, self.common, settings.scaling, settings.statistics, self.node.consent)
        if settings.statistics.noise is not None:
            write_atomically(kept, told.as_json().encode())
        return told

    def _recovered(self, schemas: Mapping[str, Schema]) -> dict[str, FeatureGraph]:
        """The graph of each client's training rows, from all features of its schema."""
        tables = []
        for name, schema in schemas.items():
            units = self._rows(name, schema).units("train")
            tables.append(UnitTable(name, schema.names, units, schema.unit_feature))
        found = recover(self.settings.recovery, tables, self.assignment.seed)
        return {name: each.graph for name, each in zip(schemas, found, strict=True)}

    def _fitted(self, training: list[Tensor], held_out: list[Tensor], names: list[str]) -> NGMFit:
        """A model for each name, over the consensus graph, or with a graph of its own to be found."""
        settings, seed, start = self.settings, self.assignment.seed, self.request.parameters
        if start is not None:
            network, first = self._network_of_fit, start.expand(len(names), -1).contiguous()
            # Rows come in another order each time.
            shuffled = derive_seed(seed, "round", self.request.round)
            return fitted(
                network, train(network, first, training, held_out, names, settings.network, shuffled), held_out
            )
        if settings.model == "ngr":
            return fit_ngr(self.common, training, held_out, names, settings.ngr, seed).fit
        return fit_ngm(self.common, self._network.adjacency, training, held_out, names, settings.ngm, seed)

    # ---- what is known of clients ----------------------------------------------------------------------------------

    @property
    def common(self) -> Schema:
        """The common features, as the server says."""
        if self.request.common is None:
            raise ReplyError(f"the request for phase '{self.request.phase}' lacks the common features")
        return self.request.common

    @cached_property
    def tables(self) -> dict[str, ClientTable]:
        """What the clients hold."""
        return {name: self.source.load_table(name) for name in self.clients}

    @cached_property
    def _network(self) -> Network:
        graph = self.request.graph
        if graph is None:
            raise ReplyError(f"the request for phase '{self.request.phase}' lacks the graph")
        return Network(self.common, graph.subgraph(self.common.names).adjacency, self.settings.network)

    @cached_property
    def _network_of_fit(self) -> Network:
        """That of the clients' own models, which may have graphs of their own: then one over a full graph."""
        if self.settings.model == "ngm":
            return self._network
        features = len(self.common.features)
        return Network(self.common, torch.ones(features, features, dtype=torch.bool), self.settings.network)

    @property
    def _state(self) -> ClientState:
        return self.node.state(self.request.run, "ngm")

    def _model_file(self, name: str) -> Path:
        folder = self.node.model_dir / "graphical" / file_name(self.request.run)
        return folder / f"{file_name(name)}.safetensors"

    def _schema(self, name: str) -> Schema:
        return infer_schema(self.tables[name].table, schema_settings(self.source), partial=True)

    def _whole(self, name: str) -> Schema:
        return with_own_features(self.common, self._schema(name))

    def _values(self, name: str, schema: Schema) -> dict[str, Floats]:
        held = self.tables[name]
        values = read_values(held.table, schema, schema_settings(self.source))
        return {split: values[held.rows(split).numpy()] for split in _SPLITS}

    def _rows(self, name: str, schema: Schema) -> _Rows:
        """With ranges as the server says, and of the client's own training rows where it says nothing."""
        values, settings = self._values(name, schema), self.settings.scaling
        own = Scaling.measured(values["train"], schema, settings.quantile, settings.skewed)
        scaling = own if self.request.scaling is None else self.request.scaling.completed(own)
        return _Rows(Encoding(schema, scaling, settings.outside), values)

    def _refuse_strangers(self) -> None:
        others = sorted(set(self.source.client_names()) - set(self.clients))
        if others:
            raise IdentityError(
                f"global-model = 'pooled' is one model of everybody's rows, and this node lacks those of "
                f"{', '.join(others[:8])}: put all clients on one node (--nodes 1)"
            )


def _named(split: str, suffix: str, scores: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    return {
        f"{split}/{target}-{metric}{suffix}": value
        for target, own in scores.items()
        for metric, value in own.items()
        if metric != "rows"
    }
