"""A graphical model of one client, or the global one, to be asked and drawn from in the units of its table.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.2 to 2.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.data.table_files import Table
from fedgraph.errors import DataError, GraphError, RunError
from fedgraph.graphical.columns import Floats
from fedgraph.graphical.conditional import conditional
from fedgraph.graphical.encoding import Encoding
from fedgraph.graphical.feature_graph import FeatureGraph
from fedgraph.graphical.inference import InferenceSettings, infer
from fedgraph.graphical.network import Network
from fedgraph.graphical.ngm_settings import NGMSettings
from fedgraph.graphical.rows import Rows, values_of
from fedgraph.graphical.sampling import SamplingSettings, draw
from fedgraph.graphical.scaling import Range, Scaling, ScalingSettings
from fedgraph.graphical.schema import Feature, Schema
from fedgraph.graphical.schema_json import schema_as_json, schema_from_json
from fedgraph.graphical.stitched_network import StitchedNetwork
from fedgraph.graphical.values import as_table
from fedgraph.state_file import State, load_state, save_state

FORMAT = "fedgraph graphical model 1"

_NAME = "model"
"""Under which random numbers are drawn: samples depend on model and seed alone."""


@dataclass(frozen=True)
class Numbers:
    """The distribution of a number in each of some rows, in its own units; of ordered words, positions among them.

    mean, deviation : ``[rows]``.
    quantiles       : by level, ``[rows]``.
    """

    mean: Floats
    deviation: Floats
    quantiles: Mapping[float, Floats]


@dataclass(frozen=True)
class Categories:
    """The distribution of a binary or categorical feature in each of some rows.

    probabilities : ``[rows, categories]``.
    """

    categories: tuple[str, ...]
    probabilities: Floats


@dataclass(frozen=True)
class GraphicalModel:
    """A trained model.

    network    : over one graph for all clients.
    parameters : ``[parameters]``.
    encoding   : between the table and the units of the network.

    Rows are a :class:`Table`, values ``[rows, features]``, a dict by feature or several of them; what they lack, and
    what is missing in them, is unknown. Raises RunError where the three do not fit each other.
    """

    network: Network
    parameters: Tensor
    encoding: Encoding

    def __post_init__(self) -> None:
        if self.encoding.schema != self.network.schema or self.network.adjacency.dim() != 2:
            raise RunError("network and encoding of a graphical model have one schema, and the network has one graph")
        self.network.state(self.parameters[None])
        _ = self.encoding.scales

    @classmethod
    def of_one(cls, network: Network, parameters: Tensor, encoding: Encoding) -> GraphicalModel:
        """The only model of ``parameters`` ``[1, parameters]``, as it comes from a fit, also one that found its graph.

        Raises RunError for more models or graphs than one.
        """
        if len(parameters) != 1 or (network.adjacency.dim() == 3 and len(network.adjacency) != 1):
            raise RunError("a graphical model is one model over one graph; these are more")
        if network.adjacency.dim() == 3:
            network = network.over(network.adjacency[0])
        return cls(network, parameters[0], encoding)

    @cached_property
    def graph(self) -> FeatureGraph:
        """Which features depend on each other directly."""
        return FeatureGraph.from_adjacency(self.encoding.schema.names, self.network.adjacency)

    def predict(
        self, rows: Rows, target: str, settings: InferenceSettings | None = None
    ) -> NDArray[np.float64] | NDArray[np.str_]:
        """The expectation of a number, not rounded, or the most probable category, ``[rows]``; of an embedding ``[rows,
        numbers]``.

        Of a number on a logarithmic scale it is the value whose unit is expected, which is about the median.
        Values of the target in ``rows`` do not count. Raises DataError for rows that cannot be used.
        """
        feature, units = self._asked(rows, [target])
        found = infer(self.network, self.parameters[None], units, settings)[0]
        if feature.kind == "embedding":
            return self._in_own_units(found[:, self._slice(target)], target)
        if feature.is_number and not feature.categories:
            return self._in_own_units(found[:, self._slice(target)][:, 0], target)
        if feature.is_number:
            codes = self.encoding.decode(found)[:, self.encoding.schema.value_slices[target].start].astype(int)
        else:
            codes = self.network.probabilities(found, target).argmax(-1).numpy()
        return np.array(feature.categories)[codes]

    def predict_proba(self, rows: Rows, target: str, settings: InferenceSettings | None = None) -> Floats:
        """Of the categories of a binary or categorical feature, in the order of the schema, ``[rows, categories]``.

        With neighbours of the target unknown, these are probabilities where those are as expected; :meth:`conditional`
        takes into account what else they may be.
        """
        feature, units = self._asked(rows, [target])
        if feature.is_scaled:
            raise DataError(f"'{target}' is {feature.kind} and has no probabilities: ask predict or conditional")
        found = infer(self.network, self.parameters[None], units, settings)[0]
        return _floats(self.network.probabilities(found, target))

    def conditional(
        self,
        rows: Rows,
        targets: Sequence[str],
        quantiles: Sequence[float] = (0.05, 0.5, 0.95),
        draws: int = 100,
        seed: int = 0,
        settings: SamplingSettings | None = None,
    ) -> dict[str, Numbers | Categories]:
        """The distribution of each target given all that is known but the targets; see
        :func:`fedgraph.graphical.conditional.conditional`. Raises DataError for embeddings among the targets."""
        _, units = self._asked(rows, targets)
        if wide := [name for name in targets if self.encoding.schema[name].kind == "embedding"]:
            raise DataError(f"{', '.join(wide)}: of embeddings there are no distributions; ask predict, or sample")
        found = conditional(self.network, self.parameters[None], units, targets, [_NAME], seed, draws, settings)
        asked = self.encoding.schema.slices
        position = {unit: place for place, unit in enumerate(found.units.tolist())}
        mean, levels = found.mean[0], found.quantiles(quantiles)[0]
        result: dict[str, Numbers | Categories] = {}
        for name in targets:
            feature, column = self.encoding.schema[name], position[asked[name].start]
            if feature.is_number:
                components = _floats(found.expected[0, ..., column])
                centre, deviation = self.encoding.scales[name].moments(components, float(found.noise[0, column]))
                result[name] = Numbers(
                    mean=centre,
                    deviation=deviation,
                    quantiles={
                        level: self._in_own_units(levels[:, place, column], name)
                        for place, level in enumerate(quantiles)
                    },
                )
                continue
            shares = _floats(mean[:, column : column + feature.width])
            both = np.concatenate([1 - shares, shares], 1) if feature.width == 1 else shares
            result[name] = Categories(feature.categories, both)
        return result

    def marginals(self) -> dict[str, Numbers | Categories]:
        """The distribution of every feature in the training rows but embeddings, as one row; numbers without quantiles.

        Units of numbers on a logarithmic scale are taken for normal.
        """
        state = {name: values[0] for name, values in self.network.state(self.parameters[None]).items()}
        result: dict[str, Numbers | Categories] = {}
        for feature in self.encoding.schema.features:
            if feature.kind == "embedding":
                continue
            mean = state["mean"][self._slice(feature.name)]
            if feature.is_number:
                scale = state["deviation"][self._slice(feature.name)]
                # What is constant is not scaled, which the buffer says by a 1.
                deviation = float(scale.masked_fill(scale == 1, 0.0))
                moments = self.encoding.scales[feature.name].moments(_floats(mean)[:, None], deviation)
                result[feature.name] = Numbers(*moments, {})
            else:
                shares = self.network.probabilities(state["mean"][None], feature.name)
                result[feature.name] = Categories(feature.categories, _floats(shares))
        return result

    def sample(
        self, count: int, given: Rows | None = None, seed: int = 0, settings: SamplingSettings | None = None
    ) -> Table:
        """Draw ``count`` rows; see :func:`fedgraph.graphical.sampling.draw`.

        given : what is known of them: one row for all, or ``count`` rows. Known values come back as they are.
        """
        if count < 0:
            raise DataError(f"{count} rows cannot be drawn")
        schema = self.encoding.schema
        known = np.full((1, schema.num_values), np.nan) if given is None else values_of(given, schema)
        if len(known) not in (1, count):
            raise DataError(f"{len(known):,} rows are given: give one for all {count:,} rows to draw, or as many")
        units = draw(
            self.network, self.parameters[None], count, [_NAME], seed, self.encoding.encode(known)[None], settings
        )
        values = self.encoding.decode(units[0])
        return as_table(np.where(np.isnan(known), values, known), schema, "the samples")

    def save(self, path: Path) -> None:
        """Write the model in one step, as safetensors."""
        settings = self.network.settings.model_dump(mode="json", by_alias=True)
        state = {
            "format": FORMAT,
            "schema": schema_as_json(self.encoding.schema),
            "ranges": self.encoding.scaling.as_json(),
            "outside": self.encoding.outside,
            "own_ranges": self.encoding.own_ranges,
            "settings": {key: settings[key] for key in NGMSettings.keys()},  # noqa: SIM118
            "adjacency": self.network.adjacency,
            "parameters": self.parameters,
            # Of a personal model, from which the two networks that it is made of are known again.
            "common_size": list(self.network.common_size) if isinstance(self.network, StitchedNetwork) else None,
        }
        save_state(path, state)

    @classmethod
    def load(cls, path: Path, ranges: Mapping[str, Range] | None = None) -> GraphicalModel:
        """Read a model.

        ranges : of numbers that have another range at every client (scaling ``source = "own"``), those of the client
                 whose units are meant; without them such numbers can only be unknown, and are not told.

        Raises RunError for a file that is missing, damaged or no such model.
        """
        state = load_state(path)
        if state.get("format") != FORMAT:
            raise RunError(f"{path} is no graphical model of this version: its format is {state.get('format')!r}")
        try:
            schema = schema_from_json(state["schema"])
            network = _network(schema, state)
            if not bool(state["parameters"].isfinite().all()):
                raise GraphError("some of its parameters are not finite")
            outside = ScalingSettings(outside=state["outside"]).outside
            scaling = Scaling.from_json(state["ranges"]).completed(Scaling(dict(ranges or {})))
            encoding = Encoding(schema, scaling, outside, bool(state.get("own_ranges", False)))
            return cls(network, state["parameters"], encoding)
        except Exception as error:  # what a changed file leads to can be anything
            raise RunError(f"{path} is a damaged graphical model: {error}") from None

    def _asked(self, rows: Rows, targets: Sequence[str]) -> tuple[Feature, Tensor]:
        """The first target, and units ``[1, rows, units]`` in which targets are unknown."""
        schema = self.encoding.schema
        features = [schema[name] for name in targets]
        if not features:
            raise DataError("name at least one feature that is asked for")
        values = values_of(rows, schema, ignored=targets)
        return features[0], self.encoding.encode(values)[None]

    def _slice(self, name: str) -> slice:
        return self.encoding.schema.slices[name]

    def _in_own_units(self, units: Tensor, name: str) -> Floats:
        return self.encoding.scales[name].values(_floats(units))


def _network(schema: Schema, state: State) -> Network:
    """That of the model that a file holds."""
    adjacency, settings = state["adjacency"], NGMSettings.model_validate(state["settings"])
    if state.get("common_size") is None:
        return Network(schema, adjacency, settings)
    features, hidden = state["common_size"]
    return StitchedNetwork.rebuilt(schema, adjacency, settings, (features, hidden))


def _floats(values: Tensor) -> Floats:
    return values.double().numpy()
