"""The moral graph of a Bayesian network that is found by greedy equivalence search, with features as categories."""

from __future__ import annotations

import torch
from torch import Tensor

from fedgraph.graph import FeatureGraph
from fedgraph.graphical.recovery.ges import equivalence_search, parents_of


def moral_graph_by_search(names: tuple[str, ...], units: Tensor, unit_feature: Tensor, bins: int) -> FeatureGraph:
    """Return the moral graph of the network with the best BIC, with features as categories; see ``as_categories``."""
    network = equivalence_search(as_categories(units, unit_feature, len(names), bins).numpy())
    return FeatureGraph.moral(names, parents_of(names, network))


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
