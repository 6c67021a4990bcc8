"""The server's global model, learned from samples of the clients' models, without any of their rows.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2.3, eq. 2 and 3, and section 2.5 for
neural graph revealers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fedgraph.data.schema import Schema
from fedgraph.graphical.learning.ngm import NGMFit, fit_ngm
from fedgraph.graphical.learning.ngr import NGRFit, fit_ngr
from fedgraph.graphical.network.network import AT_ONCE, Network
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings

SERVER = "server"
"""Name of the global model among clients."""


_SAMPLES_OF_ROW, _FEWEST_SAMPLES, _MOST_SAMPLES = 100, 10_000, 100_000


class DistillationSettings(Settings):
    """The samples on which the global model is trained.

    Attributes
    ----------
    samples       : total number drawn from all clients' models; in the paper 100,000 from each. By default 100 for each
                    row of all clients, at least 10,000 and at most 100,000. All models contribute the same number.
    public_weight : of a public row, in samples; 0: public rows are not learned from. Each is copied as often as the
                    whole part of the weight; for the rest, rows are drawn so that the total weight is right.
    targets       : of each sample: the mean prediction of all clients' models (``ensemble``; Lin et al., NeurIPS 2020),
                    or its own values (``samples``, as in the paper), which have the noise of the model that it was
                    drawn from.
    held_out      : share of the samples, and of the public rows, for choosing the best epochs.
    """

    samples: int | None = Field(default=None, ge=2)
    public_weight: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    targets: Literal["ensemble", "samples"] = "ensemble"
    held_out: float = Field(default=0.1, gt=0, lt=1)

    def counts(self, num_examples: Sequence[int]) -> list[int]:
        """Return the number of samples of each client's model, from the clients' numbers of examples."""
        total = self.samples or min(max(_SAMPLES_OF_ROW * sum(num_examples), _FEWEST_SAMPLES), _MOST_SAMPLES)
        least, more = divmod(total, len(num_examples))
        return [least + (place < more) for place in range(len(num_examples))]


def pool(
    samples: Tensor | Sequence[Tensor],
    num_examples: Sequence[int],
    settings: DistillationSettings,
    seed: int,
    public: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the rows ``[rows, units]`` that the global model is trained on, and those that are held out.

    samples      : of each client's model, ``[clients, rows, units]`` or as many tables ``[rows, units]``; the first
                   ones are taken.
    num_examples : rows of each client.
    public       : public rows ``[rows, units]`` (eq. 3).

    Raises DataError when there are fewer samples of a client than it has to contribute, or too few in total to hold any
    out.
    """
    counts = settings.counts(num_examples)
    parts = []
    for client, (table, count) in enumerate(zip(samples, counts, strict=True)):
        if len(table) < count:
            raise DataError(f"{count:,} samples of the client {client} are needed, but {len(table):,} were drawn")
        parts.append(table[:count])
    random = generator(seed, "distillation")
    training, held_out = _split(torch.cat(parts), settings.held_out, random)
    if not len(held_out) or not len(training):
        raise DataError(f"{sum(counts)} samples are too few to hold out the share {settings.held_out}")
    if public is None:
        return training, held_out
    # Split before rows are copied: otherwise some would be both trained on and held out.
    public_parts = _split(public, settings.held_out, random)
    more, others = (_weighted(part, settings.public_weight, random) for part in public_parts)
    return torch.cat([training, more]), torch.cat([held_out, others])


def with_ensemble(network: Network, parameters: Tensor, samples: Tensor, shares: Sequence[int]) -> Tensor:
    """Append to samples of each client's model the mean, weighted by ``shares``, of the predictions of all models.

    ``[clients, rows, units]`` -> ``[..., 2 * units]``.
    """
    weights = torch.tensor(shares, dtype=torch.float32)
    weights = (weights / weights.sum())[:, None, None]
    rows = samples.flatten(0, 1)[None]
    means = [
        (weights * network.predict(parameters, some.expand(len(parameters), -1, -1))).sum(0)
        for some in rows.split(max(1, AT_ONCE // len(parameters)), 1)
    ]
    return torch.cat([samples, torch.cat(means).view_as(samples)], 2)


def distil(
    network: Network,
    models: Tensor,
    samples: Tensor,
    num_examples: Sequence[int],
    settings: DistillationSettings,
    training: NGMSettings | NGRSettings,
    seed: int,
    public: Tensor | None = None,
) -> tuple[Network, Tensor]:
    """Train the global model on samples of the clients' models.

    Returns the global model's network, and its parameters ``[1, parameters]``. Raises DataError when a client has fewer
    samples than it has to contribute, or there are too few to hold any out.

    Parameters
    ----------
    network : Network
        Network of the clients' models.
    models : Tensor
        Their parameters, ``[clients, parameters]``.
    samples : Tensor
        Samples of each model, ``[clients, rows, units]``.
    num_examples : sequence of int
        Training rows of each client.
    settings : DistillationSettings
        What is learned of each sample, and how many there are.
    training : NGMSettings or NGRSettings
        How the global model is trained; with the latter it finds its own graph.
    seed : int
        Seed of the experiment.
    public : Tensor, optional
        Public rows, ``[rows, units]``.
    """
    if settings.targets == "ensemble":
        samples = with_ensemble(network, models, samples, settings.counts(num_examples))
        public = None if public is None else torch.cat([public, public], 1)
    rows = pool(samples, num_examples, settings, seed, public)
    if isinstance(training, NGRSettings):
        found = distil_ngr(network.schema, *rows, training, seed)
        return Network(network.schema, found.adjacency[0], training), found.fit.parameters
    return network, distil_ngm(network.schema, network.adjacency, *rows, training, seed).parameters


def distil_ngm(
    schema: Schema, adjacency: Tensor, training: Tensor, held_out: Tensor, settings: NGMSettings, seed: int
) -> NGMFit:
    """Train the global model on pooled rows over the consensus graph (eq. 2 and 3); see ``fit_ngm``."""
    return fit_ngm(schema, adjacency, [training], [held_out], [SERVER], settings, seed)


def distil_ngr(schema: Schema, training: Tensor, held_out: Tensor, settings: NGRSettings, seed: int) -> NGRFit:
    """Train the global revealer on pooled rows (section 2.5); see ``fit_ngr``."""
    return fit_ngr(schema, [training], [held_out], [SERVER], settings, seed)


def _split(rows: Tensor, share: float, random: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(rows), generator=random)
    count = round(share * len(rows))
    return rows[order[count:]], rows[order[:count]]


def _weighted(rows: Tensor, weight: float, random: torch.Generator) -> Tensor:
    copies = math.floor(weight)
    rest = torch.randperm(len(rows), generator=random)[: round((weight - copies) * len(rows))]
    return torch.cat([rows.repeat(copies, 1), rows[rest]])
