"""Neural graphical models (NGM) of several clients, over one graph of their features.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.learning.dependence import derivatives, violation
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.penalties import PathPenalty
from fedgraph.graphical.network.rows import stack_rows
from fedgraph.graphical.network.settings import NGMSettings
from fedgraph.graphical.network.training import Trained, train
from fedgraph.support.randomness import generator

EVERYBODY = "everybody"
"""Name of the client if one model is fitted to all rows."""

SAMPLE = 256
"""Number of held-out rows for derivatives."""


@dataclass(frozen=True)
class NGMFit:
    """Trained models, and their fit to the held-out rows, by which their best epochs were chosen too.

    Attributes
    ----------
    network : Network
        Network of all models.
    trained : Trained
        The models, and a record of their training.
    r_squared : Tensor
        Share of each feature's variance that its prediction explains, ``[clients, features]``; NaN where a feature does
        not vary. For features with several units: of the sum of their variances.
    violation : Tensor
        Largest derivative between features that are not neighbours, ``[clients]``.
    """

    network: Network
    trained: Trained
    r_squared: Tensor
    violation: Tensor

    @property
    def parameters(self) -> Tensor:
        """The models, ``[clients, parameters]``; ``residual`` among them is the mean squared error of every unit."""
        return self.trained.parameters


def fit_ngm(
    schema: Schema,
    adjacency: Tensor,
    training: Sequence[Tensor],
    held_out: Sequence[Tensor],
    names: Sequence[str],
    settings: NGMSettings,
    seed: int,
) -> NGMFit:
    """Fit a neural graphical model to each client's rows, over one graph.

    Returns models of the clients, in their order. Raises DataError or RunError as
    :func:`fedgraph.graphical.network.training.train` does.

    Parameters
    ----------
    schema : Schema
        Schema of all clients.
    adjacency : Tensor
        The graph, bool ``[features, features]``.
    training, held_out : sequence of Tensor
        Rows of each client, ``[rows, units]`` in [0, 1], NaN for missing; the best epochs are chosen by the held-out
        ones.
    names : sequence of str
        Names of the clients; they seed the random numbers, with ``seed``.
    settings : NGMSettings
        Architecture and training.
    seed : int
        Seed of the experiment.
    """
    network = Network(schema, adjacency, settings)
    start = torch.stack([network.initial(generator(seed, "ngm", name)) for name in names])
    penalty = None if network.masked else PathPenalty(settings)
    return fitted(network, train(network, start, training, held_out, names, settings, seed, penalty), held_out)


def fitted(network: Network, trained: Trained, held_out: Sequence[Tensor]) -> NGMFit:
    """Measure trained models on their clients' held-out rows ``[rows, units]``, NaN for missing.

    Returns the models with their errors as ``residual``, and their fit.
    """
    rows = stack_rows(held_out)[..., : len(network.schema.unit_feature)]
    errors, total = _squares(network, trained.parameters, rows)
    counts = (~rows.isnan()).sum(1).clamp(min=1)
    parameters = network.with_buffer(trained.parameters, "residual", (errors / counts).float())
    found = derivatives(network, parameters, rows[:, :SAMPLE])
    shares = _shares(network, errors, total)
    return NGMFit(network, replace(trained, parameters=parameters), shares, violation(network, found))


def r_squared(network: Network, parameters: Tensor, rows: Tensor) -> Tensor:
    """Return the share of each feature's variance that its prediction from all others explains.

    Returns ``[clients, features]``, as :attr:`NGMFit.r_squared`.

    Parameters
    ----------
    network : Network
        Network of the models.
    parameters : Tensor
        ``[clients, parameters]``.
    rows : Tensor
        ``[clients, rows, units]``, NaN for missing.
    """
    return _shares(network, *_squares(network, parameters, rows))


def _squares(network: Network, parameters: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return sums of squared errors, and of squared differences from the mean, float64 ``[clients, units]``."""
    errors, total = torch.zeros(2, len(rows), rows.shape[2], dtype=torch.float64)
    mean = rows.nanmean(1, keepdim=True)
    with torch.no_grad():
        for some in rows.split(4096, 1):
            errors += (network.forward(parameters, some) - some).square().nansum(1)
            total += (some - mean).square().nansum(1)
    return errors, total


def _shares(network: Network, errors: Tensor, total: Tensor) -> Tensor:
    errors, total = errors @ network.membership.double(), total @ network.membership.double()
    return (1 - errors / total).masked_fill(total == 0, torch.nan).float()
