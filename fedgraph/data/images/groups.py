"""Planted groups of clients with different tasks: the same images, with classes permuted or images rotated.

The usual test of methods that cluster clients: permuted labels as in Sattler, Müller, Samek (IEEE TNNLS 2021), rotated
images as in Ghosh et al. (NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from fedgraph.data.base import SPLITS, SplitName
from fedgraph.data.images.image_files import Bytes, Images
from fedgraph.data.partition import Indices, client_names
from fedgraph.graph import ClientGraph
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings

QUARTERS = 4
"""Rotations of a square image by right angles."""

Rows = Mapping[SplitName, Indices]


class GroupSettings(Settings):
    """The keys of ``[data]`` that plant groups of clients.

    Attributes
    ----------
    groups        : number of groups; client k is in group k modulo ``groups``. The first group is unchanged.
    groups_differ : ``labels`` = each other group permutes the classes, drawn by ``partition-seed``; ``turned`` = it
                    rotates the images by 90 degrees more than the group before.
    """

    groups: int = Field(default=1, ge=1)
    groups_differ: Literal["labels", "turned"] = "labels"

    @model_validator(mode="after")
    def _check_turns(self) -> GroupSettings:
        if self.groups_differ == "turned" and self.groups > QUARTERS:
            raise ValueError(f'groups-differ = "turned" allows at most {QUARTERS} groups; got groups = {self.groups}')
        return self


def planted_graph(clients: int, groups: int) -> ClientGraph:
    """Return the client graph that joins all clients of a group."""
    names = client_names(clients)
    pairs = [
        (names[first], names[second]) for first in range(clients) for second in range(first + groups, clients, groups)
    ]
    return ClientGraph.from_edges(pairs, names)


def planted(
    settings: GroupSettings, images: Images, group: Sequence[int], rows: Sequence[Rows], classes: int, seed: int
) -> tuple[Images, list[Rows]]:
    """Change images or labels by group. Returns the images, group after group, and each client's rows of them.

    Parameters
    ----------
    group : of each client, from 0.
    rows : of each client, rows of ``images`` in each split.
    seed : of the order of classes.

    Returns
    -------
    images : Images
        Those that the clients use, group after group.
    rows : list of mappings
        Of each client, rows of these.
    """
    pixels, labels, moved = [], [], [dict[SplitName, Indices]() for _ in rows]
    start = 0
    for number in sorted(set(group)):
        members = [client for client, own in enumerate(group) if own == number]
        used = np.unique(np.concatenate([rows[client][split] for client in members for split in SPLITS]))
        for client in members:
            moved[client] = {split: start + np.searchsorted(used, own) for split, own in rows[client].items()}
        pixels.append(_turned(images.pixels[used], number if settings.groups_differ == "turned" else 0))
        order = _order(number if settings.groups_differ == "labels" else 0, classes, seed)
        labels.append(order[images.labels[used]])
        start += len(used)
    return Images(np.concatenate(pixels), np.concatenate(labels), start), list(moved)


def _turned(pixels: Bytes, quarters: int) -> Bytes:
    return np.ascontiguousarray(np.rot90(pixels, quarters, axes=(2, 3)))


def _order(group: int, classes: int, seed: int) -> Indices:
    """Return the permutation of classes of a group; the identity for the first."""
    if group == 0:
        return np.arange(classes)
    return torch.randperm(classes, generator=generator(seed, "groups", str(group))).numpy()
