"""The moral graph of a Bayesian network, found by pgmpy's hill climbing (Koller, Friedman, 2009, section 18.4.3)."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from fedgraph.graph import FeatureGraph
from fedgraph.support.errors import ExperimentError


def hill_climbing_graph(names: tuple[str, ...], units: Tensor, unit_feature: Tensor, bins: int) -> FeatureGraph:
    """Return the moral graph of the network with the best BIC, with features as categories; see ``as_categories``.

    Raises ExperimentError where pgmpy is not installed.
    """
    pandas, discovery = _library("pandas"), _library("pgmpy.causal_discovery")
    table = as_categories(units, unit_feature, len(names), bins)
    # Columns are numbers: pgmpy breaks ties in the order of a set, which for text differs by process.
    frame = pandas.DataFrame({column: table[:, column].numpy().astype(str) for column in range(len(names))})
    frame = frame.astype("category")
    search = discovery.HillClimbSearch(scoring_method="bic-d", return_type="dag", show_progress=False)
    network = search.fit(frame).causal_graph_
    parents = {names[child]: [names[each] for each in network.predecessors(child)] for child in network.nodes}
    return FeatureGraph.moral(names, parents)


def as_categories(units: Tensor, unit_feature: Tensor, num_features: int, bins: int) -> Tensor:
    """Convert features to positions of categories, int64 ``[rows, features]``.

    Several units are one category each; a single one is cut at its quantiles into ``bins`` where it has more values.
    Missing values are replaced by the commonest category.
    """
    columns = []
    for feature in range(num_features):
        own = units[:, unit_feature == feature]
        missing = own.isnan().any(1)
        column = _numbers_as_categories(own[:, 0], bins) if own.shape[1] == 1 else own.nan_to_num().argmax(1)
        present = column[~missing]
        columns.append(torch.where(missing, present.mode().values if len(present) else 0, column))
    return torch.stack(columns, 1)


def _numbers_as_categories(values: Tensor, bins: int) -> Tensor:
    present = values[~values.isnan()].double()
    borders = present.unique()
    if len(borders) > bins:
        borders = present.quantile(torch.arange(1, bins, dtype=torch.float64) / bins)
    return torch.bucketize(values.double().nan_to_num(), borders)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExperimentError(
            f"method 'hill-climbing' needs pgmpy, which is not installed here ({error}): pip install "
            "'fedgraph-flower[structure]', or take another method"
        ) from None
