"""A graphical model of one client, or the global one, queried and sampled in the units of its table.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.2 to 2.4.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.data.columns import Floats, Table
from fedgraph.data.encoding import (
    Encoding,
    Range,
    Rows,
    Scaling,
    ScalingSettings,
    as_dicts,
    as_table,
    is_missing,
    to_values,
)
from fedgraph.data.schema import Feature, Schema, schema_as_json, schema_from_json
from fedgraph.graph import FeatureGraph
from fedgraph.graphical.inference.answers import Categories, Numbers, answers, of_all_categories
from fedgraph.graphical.inference.conditional import DRAWS, Conditional, conditional
from fedgraph.graphical.inference.full_conditionals import DETERMINED, FullConditionals
from fedgraph.graphical.inference.kept_rows import KeptRows
from fedgraph.graphical.inference.sampling import SamplingSettings, draw
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.network.stitched import StitchedNetwork
from fedgraph.support.errors import DataError, GraphError, RunError, quoted
from fedgraph.support.files import State, load_state, save_state
from fedgraph.support.notebook import table_as_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("fedgraph")

FORMAT = "fedgraph graphical model 2"

_NAME = "model"
"""Name that keys random numbers, so that samples depend on model and seed only."""


@dataclass(frozen=True, repr=False)
class GraphicalModel:
    """Trained graphical model of a mixed table.

    Methods take rows as a data frame of pandas, polars or pyarrow, a :class:`Table`, values ``[rows, features]``, a
    dict by feature or a list of dicts. Absent features and missing values are unknown. Raises RunError when network,
    parameters and encoding do not fit each other.

    Attributes
    ----------
    network : Network
        Over one graph for all clients.
    parameters : Tensor
        ``[parameters]``.
    encoding : Encoding
        Between the table and the units of the network.
    """

    network: Network
    parameters: Tensor
    encoding: Encoding

    def __post_init__(self) -> None:
        if self.encoding.schema != self.network.schema or self.network.adjacency.dim() != 2:
            raise RunError(
                "network and encoding of a graphical model need the same schema, and the network a single graph"
            )
        self.network.state(self.parameters[None])
        _ = self.encoding.scales

    @classmethod
    def of_one(cls, network: Network, parameters: Tensor, encoding: Encoding) -> GraphicalModel:
        """Return the only model of ``parameters`` ``[1, parameters]``, over its given or recovered graph.

        Raises RunError when there are several models or graphs.
        """
        if len(parameters) != 1 or (network.adjacency.dim() == 3 and len(network.adjacency) != 1):
            raise RunError("a graphical model needs a single model over a single graph")
        if network.adjacency.dim() == 3:
            network = network.over(network.adjacency[0])
        return cls(network, parameters[0], encoding)

    @cached_property
    def graph(self) -> FeatureGraph:
        """Graph of the features that depend on each other directly."""
        return FeatureGraph.from_adjacency(self.encoding.schema.names, self.network.adjacency)

    def __repr__(self) -> str:
        features, edges = len(self.encoding.schema.names), len(self.graph.edges)
        return f"GraphicalModel({features} features, {edges} dependencies, {self.parameters.numel():,} parameters)"

    def _repr_html_(self) -> str:
        adjacency = self.graph.adjacency
        rows = [
            (each.name, each.kind, quoted([self.graph.names[place] for place in row.nonzero().flatten().tolist()]))
            for each, row in zip(self.encoding.schema.features, adjacency, strict=True)
        ]
        return table_as_html(repr(self), "", ("feature", "kind", "depends on"), rows)

    def plot(self) -> Figure:
        """Plot the graph. A notebook shows the figure; ``savefig`` writes it."""
        return self.graph.plot()

    def predict(
        self,
        rows: Rows,
        target: str,
        draws: int = DRAWS,
        seed: int = 0,
        sampling: SamplingSettings | None = None,
    ) -> NDArray[np.float64] | NDArray[np.str_]:
        """Predict a feature: the expectation of a number, not rounded, or the most probable category.

        Marginalises over unknown features, as :meth:`conditional` does. For a number on a logarithmic scale, the result
        is the value of the expected unit, close to the median. Returns
        ``[rows]``, or ``[rows, numbers]`` for an embedding. Raises DataError when the rows cannot be used.

        Parameters
        ----------
        rows : Rows
            Known values; those of the target are ignored.
        target : str
            Feature to predict.
        draws, seed : int
            Number and seed of the draws of the unknown features of each row.
        sampling : SamplingSettings, optional
            How they are drawn.
        """
        feature, units = self._asked(rows, [_single_target(target)])
        found = self._conditional(units, [target], draws, seed, sampling).mean[0]
        if feature.kind == "embedding":
            return self._in_own_units(found, target)
        if feature.is_number and not feature.categories:
            return self._in_own_units(found[:, 0], target)
        if feature.is_number:
            codes = self._in_own_units(found[:, 0], target).round()
            return np.array(feature.categories)[codes.clip(0, len(feature.categories) - 1).astype(int)]
        return np.array(feature.categories)[of_all_categories(found, feature).argmax(1)]

    def predict_proba(
        self,
        rows: Rows,
        target: str,
        draws: int = DRAWS,
        seed: int = 0,
        sampling: SamplingSettings | None = None,
    ) -> Floats:
        """Predict the probabilities of the categories of a binary or categorical feature.

        Parameters are those of :meth:`predict`. Returns ``[rows, categories]``, in the order of the schema. Raises
        DataError when the target has no probabilities, or the rows cannot be used.
        """
        feature, units = self._asked(rows, [_single_target(target)])
        if feature.is_scaled:
            raise DataError(f"'{target}' is {feature.kind} and has no probabilities: use predict or conditional")
        return of_all_categories(self._conditional(units, [target], draws, seed, sampling).mean[0], feature)

    def conditional(
        self,
        rows: Rows,
        targets: str | Sequence[str],
        quantiles: float | Sequence[float] = (0.05, 0.5, 0.95),
        draws: int = DRAWS,
        seed: int = 0,
        settings: SamplingSettings | None = None,
    ) -> dict[str, Numbers | Categories]:
        """Compute the distribution of each target given all that is known except the targets.

        See :func:`fedgraph.graphical.inference.conditional.conditional`. Returns a dict of str to Numbers or Categories
        by target. Raises DataError when a target is an embedding or not a feature, or is given in a dict, or the rows
        cannot be used.

        Parameters
        ----------
        rows : Rows
            Known values; those of the targets in a table, data frame or array are ignored.
        targets : str or sequence of str
            Features to predict, or the name of one.
        quantiles : float or sequence of float
            Levels of the quantiles of numbers, between 0 and 1.
        draws, seed : int
            Number and seed of the draws of the unknown features of each row.
        settings : SamplingSettings, optional
            How they are drawn.
        """
        targets = [targets] if isinstance(targets, str) else list(targets)
        # A value in a dict is given on purpose; a table has all columns.
        reported = [pair for row in as_dicts(rows) for pair in row.items()]
        given = {name for name, value in reported if not is_missing(value)}
        if twice := [name for name in targets if name in given]:
            raise DataError(f"{quoted(twice)} cannot be both given and a target: leave it out of one of them")
        _, units = self._asked(rows, targets)
        if wide := [name for name in targets if self.encoding.schema[name].kind == "embedding"]:
            raise DataError(f"{', '.join(wide)}: embeddings have no distributions; use predict or sample")
        found = self._conditional(units, targets, draws, seed, settings)
        return answers(found, self.encoding, targets, np.atleast_1d(quantiles).tolist())

    def sample(
        self, count: int, given: Rows | None = None, seed: int = 0, settings: SamplingSettings | None = None
    ) -> Table:
        """Draw rows from the model; see :func:`fedgraph.graphical.inference.sampling.draw`.

        Its ``columns`` are Arrow arrays by name; ``to_pandas()`` makes a data frame of it. Raises DataError when
        ``count`` is not a whole number from 0 on, or ``given`` has another number of rows.

        Parameters
        ----------
        count : int
            Number of rows.
        given : Rows, optional
            Known values: one row for all, or ``count`` rows. They are returned unchanged.
        seed : int
            Seed of the draws.
        settings : SamplingSettings, optional
            How rows are drawn.
        """
        if not isinstance(count, int | np.integer) or count < 0:
            raise DataError(f"{count!r} rows cannot be drawn: it is a whole number from 0 on")
        schema = self.encoding.schema
        known = np.full((1, schema.num_values), np.nan) if given is None else to_values(given, schema)
        if len(known) not in (1, count):
            raise DataError(f"{len(known):,} rows are given: give one for all {count:,} rows to draw, or {count:,}")
        kept = None if np.isnan(known).all() else self._kept(seed, settings)
        _ = self._determined
        units = draw(
            self.network, self.parameters[None], count, [_NAME], seed, self.encoding.encode(known)[None], settings, kept
        )
        values = self.encoding.decode(units[0])
        return as_table(np.where(np.isnan(known), values, known), schema, "the samples")

    def save(self, path: Path) -> None:
        """Write the model atomically, as safetensors."""
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
            # The two networks of a personal model are rebuilt from it.
            "common_size": list(self.network.common_size) if isinstance(self.network, StitchedNetwork) else None,
        }
        save_state(path, state)

    @classmethod
    def load(cls, path: Path, ranges: Mapping[str, Range] | None = None) -> GraphicalModel:
        """Read a model.

        Raises RunError when the file is missing, damaged or not a graphical model. Raises DataError when the ranges are
        invalid.

        Parameters
        ----------
        path : Path
            File written by :meth:`save`.
        ranges : mapping of str to tuple of float, optional
            Ranges of one client, for numbers scaled by each client (scaling ``source = "own"``). Without them, such
            numbers are unknown and are not returned.
        """
        given = Scaling.given(ranges or {})
        state = load_state(path)
        if state.get("format") != FORMAT:
            raise RunError(f"{path} is not a graphical model of this version: its format is {state.get('format')!r}")
        try:
            schema = schema_from_json(state["schema"])
            network = _network(schema, state)
            if not bool(state["parameters"].isfinite().all()):
                raise GraphError("some of its parameters are not finite")
            outside = ScalingSettings(outside=state["outside"]).outside
            scaling = Scaling.from_json(state["ranges"]).completed(given)
            encoding = Encoding(schema, scaling, outside, bool(state.get("own_ranges", False)))
            return cls(network, state["parameters"], encoding)
        except Exception as error:  # a changed file can lead to any error
            raise RunError(f"{path} is a damaged graphical model: {error}") from None

    def _asked(self, rows: Rows, targets: Sequence[str]) -> tuple[Feature, Tensor]:
        """Return the first target, and units ``[1, rows, units]`` in which the targets are unknown."""
        schema = self.encoding.schema
        features = [schema[name] for name in targets]
        if not features:
            raise DataError("name at least one feature to predict")
        values = to_values(rows, schema, ignored=targets)
        for name, value in self.encoding.beyond(values).items():
            low, *_, high = self.encoding.scaling.ranges[name]
            log.warning(
                "%s = %g is far outside the range %g to %g of the training data: predictions are "
                "extrapolated", name, value, low, high,
            )  # fmt: skip
        return features[0], self.encoding.encode(values)[None]

    def _conditional(
        self, units: Tensor, targets: Sequence[str], draws: int, seed: int, settings: SamplingSettings | None
    ) -> Conditional:
        def kept() -> KeptRows:
            return self._kept(seed, settings)

        def answer(some: Tensor) -> Conditional:
            return conditional(self.network, self.parameters[None], some, targets, [_NAME], seed, draws, settings, kept)

        common = self._global
        if common is None or not set(targets) <= set(common.encoding.schema.names):
            return answer(units)
        count = len(common.encoding.schema.unit_feature)
        reported = ~units[0, :, count:].isnan().all(1)
        if bool(reported.all()):
            return answer(units)
        # Without a private feature the additions have no effect, also not as drawn values.
        others = common._conditional(units[:, ~reported, :count], targets, draws, seed, settings)
        return Conditional.joined(answer(units[:, reported]), others, reported)

    @cached_property
    def _global(self) -> GraphicalModel | None:
        """The global model in a stitched personal one; else None."""
        network, encoding = self.network, self.encoding
        if not isinstance(network, StitchedNetwork):
            return None
        known = network.common.schema
        ranges = Scaling({name: own for name, own in encoding.scaling.ranges.items() if name in known.names})
        row = network.common.layout.flatten(network.common_state(network.state(self.parameters[None])))
        return GraphicalModel(network.common, row[0], Encoding(known, ranges, encoding.outside, encoding.own_ranges))

    def _kept(self, seed: int, settings: SamplingSettings | None) -> KeptRows:
        """Return rows of the joint distribution, cached for further queries."""
        settings = settings or SamplingSettings()
        key = (seed, settings.model_dump_json())
        if key not in self._kept_rows:
            drawn = KeptRows.drawn(self.network, self.parameters[None], [_NAME], seed, settings)
            _ = self._determined
            # Only the last are cached: queries mostly repeat one seed.
            self._kept_rows.clear()
            self._kept_rows[key] = drawn
        return self._kept_rows[key]

    @cached_property
    def _determined(self) -> list[str]:
        """Numbers that other columns nearly determine, so that Gibbs sampling hardly changes them; warns of them."""
        names = FullConditionals(self.network, self.parameters[None].detach()).determined()
        if names:
            log.warning(
                "other columns nearly determine %s (up to %.0f %% of its deviation): rows drawn from the model hardly "
                "move between such values, and answers and samples may be far off, however many draws they rest on; "
                "leave out the column, or those that follow from it", quoted(names, 8), 100 * DETERMINED,
            )  # fmt: skip
        return names

    @cached_property
    def _kept_rows(self) -> dict[tuple[int, str], KeptRows]:
        return {}

    def _in_own_units(self, units: Tensor, name: str) -> Floats:
        return self.encoding.scales[name].values(units.double().numpy())


def _single_target(target: str) -> str:
    """Check that the target is a single name; a list is an easy mistake, as conditional takes one."""
    if not isinstance(target, str):
        raise DataError(f"{target!r} is not the name of a feature: name the one to predict; conditional takes several")
    return target


def _network(schema: Schema, state: State) -> Network:
    """Rebuild the network of the model in a file."""
    adjacency, settings = state["adjacency"], NGMSettings.model_validate(state["settings"])
    if state.get("common_size") is None:
        return Network(schema, adjacency, settings)
    features, hidden = state["common_size"]
    return StitchedNetwork.rebuilt(schema, adjacency, settings, (features, hidden))
