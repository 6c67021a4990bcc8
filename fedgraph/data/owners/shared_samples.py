"""Data sets whose clients hold different features of the same samples: splits by key, scaling, samples that lack.

The setting of federated feature fusion (Ma, Hoang, Chen, UAI 2023, section 2).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedgraph.data.base import CohortData, Shares
from fedgraph.data.own import OwnData
from fedgraph.data.owners.samples import NO_LABEL, SAMPLE_SPLITS, OwnerData, cohort_data
from fedgraph.graph import ClientGraph
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import derive_seed, hashed
from fedgraph.support.settings import Settings

_Part = Annotated[float, Field(ge=0.0, lt=1.0)]


class SharedSampleSettings(Settings):
    """The keys of ``[data]`` of every set whose clients hold different features of the same samples.

    shares        : train, validation and test parts of the samples. Where a sample belongs follows from its key and
                    split_seed alone, so that clients on different nodes agree without talking; the shares hold on
                    average. Where a set has test samples of its own these are tested on, and the first two of the
                    shares divide the others.
    split_seed    : another split for another number.
    new_share     : part of the samples held back as new: without label, for inference after training.
    lacking_share : part of the samples that each client lacks, drawn at random for each, to try out missing data.
    scaling       : ``client`` = each feature as z-scores from the client's own training samples; ``none``. A missing
                    number becomes the mean of the client's training samples either way.
    clients       : the clients to use; all when not given.
    without       : of those, clients to leave out.
    """

    shares: Shares = (0.7, 0.1, 0.2)
    split_seed: int = 0
    new_share: _Part = 0.0
    lacking_share: _Part = 0.0
    scaling: Literal["client", "none"] = "client"
    clients: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Holdings:
    """What some clients hold, as read: in any order of the samples, not scaled.

    keys     : of all samples of the data set, all different.
    labels   : int64 ``[samples]``, ``NO_LABEL`` where there is none.
    classes  : what the labels count.
    inputs   : for each client float32 ``[samples, ..., features]``, NaN where a number is missing.
    present  : bool ``[clients, samples]``, whether a client has a sample.
    features : for each client the names of its features; empty where they have none.
    scaled   : for each client bool ``[features]``, the features that may be scaled; None: all of all clients.
    is_test  : bool ``[samples]``, the test samples of a set that comes with its own; None: it does not.
    parts    : int8 ``[samples]``, the split of each where it does not follow from its key, see ``block_splits``.
    """

    keys: tuple[str, ...]
    labels: Tensor
    classes: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    present: Tensor
    features: tuple[tuple[str, ...], ...]
    scaled: tuple[Tensor, ...] | None = None
    is_test: Tensor | None = None
    parts: Tensor | None = None


class SharedSampleSource(ABC):
    """A :class:`fedgraph.data.owners.samples.OwnerSource` that reads :class:`Holdings`; subclasses say from where.

    own : a node's own data, which only those clients are in that the node hosts.
    """

    settings: SharedSampleSettings
    title: str
    own: OwnData | None = None

    @abstractmethod
    def every_client(self) -> tuple[str, ...]:
        """All clients there are, whether the settings choose them or not."""

    @abstractmethod
    def holdings(self, names: Sequence[str]) -> Holdings:
        """What the clients ``names`` hold; for no names the samples alone. Cheap after the first call in a process."""

    def every_graph(self) -> ClientGraph | None:
        """The relation graph over all clients; None when the data comes without one."""
        return None

    def arranged(self, name: str, inputs: Tensor) -> Tensor:
        """Scaled inputs ``[samples, ..., features]`` of a client in the shape that its model gets; here as they are."""
        return inputs

    def client_names(self) -> list[str]:
        """The clients that the settings choose, in their order; else all."""
        every = self.every_client()
        if self.own is not None:
            left_out = set(every) - set(self.settings.clients or every) | set(self.settings.without)
            return [name for name in every if name not in left_out]
        chosen = every if self.settings.clients is None else self.settings.clients
        _check_known(self.title, "key clients: ", chosen, every)
        _check_known(self.title, "key without: ", self.settings.without, every)
        left = [name for name in chosen if name not in self.settings.without]
        if not left:
            raise DataError(f"{self.title}: the key without leaves no clients")
        return left

    def load(self, names: Sequence[str]) -> CohortData:
        """The clients ``names`` for methods with one model architecture; raises DataError as ``cohort_data`` does."""
        return cohort_data(self.load_owners(names))

    def load_owners(self, names: Sequence[str]) -> OwnerData:
        """What the clients ``names`` hold, in that order; samples that none of them has are left out.

        Raises
        ------
        DataError
            For unknown names, and for two samples of one key.
        """
        _check_known(self.title, "", names, self.client_names())
        found = self.holdings(names)
        repeated = [key for key, count in Counter(found.keys).items() if count > 1]
        if repeated:
            raise DataError(f"{self.title}: the sample key '{repeated[0]}' occurs more than once; keys must differ")
        present = found.present & ~_lacking(found.keys, names, self.settings)
        order = torch.tensor(sorted(range(len(found.keys)), key=found.keys.__getitem__), dtype=torch.int64)
        order = order[present[:, order].any(0)]
        split = sample_splits(found.keys, self.settings, found.is_test, found.parts)[order]
        labels = found.labels[order]
        split[labels == NO_LABEL] = SAMPLE_SPLITS.index("new")
        labels = labels.masked_fill(split == SAMPLE_SPLITS.index("new"), NO_LABEL)
        present = present[:, order]
        inputs, unscaled = [], []
        for row, name in enumerate(names):
            scaled = None if found.scaled is None else found.scaled[row]
            values = _prepare(found.inputs[row][order], split == 0, present[row], self.settings.scaling, scaled)
            inputs.append(self.arranged(name, values))
            scalable = self.settings.scaling == "client" and (scaled is None or bool(scaled.any()))
            if scalable and not bool((present[row] & (split == 0)).any()):
                unscaled.append(name)
        return OwnerData(
            owners=tuple(names),
            keys=tuple(found.keys[row] for row in order.tolist()),
            split=split,
            labels=labels,
            inputs=tuple(inputs),
            present=present,
            tasks=tuple(
                TaskSpec(
                    kind="classification",
                    input_shape=tuple(own.shape[1:]),
                    output_shape=(len(found.classes),),
                    features=features,
                    classes=found.classes,
                )
                for own, features in zip(inputs, found.features, strict=True)
            ),
            unscaled=tuple(unscaled),
        )

    def given_graph(self) -> ClientGraph | None:
        """The relation graph over the clients; GraphError when a client is not in it."""
        graph = self.every_graph()
        return None if graph is None else graph.reindex(self.client_names(), missing="error", extra="drop")

    def describe(self) -> str:
        """E.g. ``digits in 2 x 2 patches, 4 clients, 1,797 samples of 10 classes``."""
        found, chosen, every = self.holdings(()), len(self.client_names()), len(self.every_client())
        word = "client" if every == 1 else "clients"
        clients = f"{every} {word}" if chosen == every else f"{chosen} of {every} {word}"
        return f"{self.title}, {clients}, {len(found.keys):,} samples of {len(found.classes)} classes"


def sample_splits(
    keys: tuple[str, ...],
    settings: SharedSampleSettings,
    is_test: Tensor | None = None,
    parts: Tensor | None = None,
) -> Tensor:
    """The split of each sample, int8 ``[samples]`` into ``SAMPLE_SPLITS``, from its key and the settings alone.

    ``is_test`` are the test samples of a set that comes with its own, bool ``[samples]``; ``parts`` the splits of one
    whose samples are not drawn one by one, of which new ones are held back all the same.
    """
    numbers = _key_numbers(keys)
    edges = torch.tensor(settings.shares, dtype=torch.float64).cumsum(0)
    draws = _uniform(numbers, derive_seed(settings.split_seed, "split"))
    if parts is not None:
        split = parts.long()
    elif is_test is None:
        split = torch.searchsorted(edges / edges[2], draws, right=True)
    else:
        split = (draws >= edges[0] / edges[1]).long().masked_fill(is_test, 2)
    new = _uniform(numbers, derive_seed(settings.split_seed, "new")) < settings.new_share
    return split.masked_fill(new, SAMPLE_SPLITS.index("new")).to(torch.int8)


def block_splits(blocks: Tensor, settings: SharedSampleSettings, in_order: bool, title: str) -> Tensor:
    """The split of each sample, int8 ``[samples]``, where whole blocks go to one split.

    blocks   : int64 ``[samples]``, the block of each, in order of time.
    in_order : the first blocks are trained on and the last are tested on; else ``split_seed`` draws them.

    Raises DataError where there are too few blocks for every split with a share.
    """
    known, block = blocks.unique(return_inverse=True)
    edges = (torch.tensor(settings.shares, dtype=torch.float64).cumsum(0) / sum(settings.shares) * len(known)).round()
    number = edges.diff(prepend=torch.zeros(1, dtype=torch.float64))
    for name, share, blocks_there in zip(SAMPLE_SPLITS, settings.shares, number.tolist(), strict=False):
        if share > 0 and blocks_there == 0:
            raise DataError(
                f"{title}: {len(known)} blocks are too few for {name} samples of the share {share}; make block-days "
                "smaller"
            )
    place = torch.arange(len(known))
    if not in_order:
        place = _uniform(known, derive_seed(settings.split_seed, "block")).argsort().argsort()
    return torch.searchsorted(edges, place.double(), right=True)[block].to(torch.int8)


def _lacking(keys: tuple[str, ...], names: Sequence[str], settings: SharedSampleSettings) -> Tensor:
    """Bool ``[clients, samples]``, the samples that each client lacks by ``lacking-share``."""
    seeds = [derive_seed(settings.split_seed, "lacking", name) for name in names]
    return _uniform(_key_numbers(keys), torch.tensor(seeds, dtype=torch.int64)[:, None]) < settings.lacking_share


@lru_cache(maxsize=4)
def _key_numbers(keys: tuple[str, ...]) -> Tensor:
    """Each key as an int64 that stands for it, ``[samples]``; kept, as many nodes of a process share the keys."""
    digests = b"".join(hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64))


def _uniform(numbers: Tensor, seed: int | Tensor) -> Tensor:
    """Draws in [0, 1) that follow from each number and the seed, float64."""
    return ((hashed(numbers ^ seed) >> 11) & ((1 << 53) - 1)).double() / (1 << 53)


def _prepare(
    values: Tensor, in_training: Tensor, present: Tensor, scaling: Literal["client", "none"], scaled: Tensor | None
) -> Tensor:
    """``values`` ``[samples, ..., features]`` with gaps filled, scaled, 0 where a sample lacks; may overwrite them."""
    readings = values[in_training & present].flatten(0, -2).double()
    there = ~readings.isnan()
    count = there.sum(0).clamp(min=1)
    mean = readings.nansum(0) / count
    deviation = (((readings - mean).square().nansum(0)) / count).sqrt()
    # A feature that is constant, but for rounding, stays 0 rather than become noise of deviation 1.
    deviation[deviation <= 1e-6 * mean.abs().clamp(min=1.0)] = 1.0
    if scaled is not None:
        mean, deviation = mean.where(scaled, 0.0), deviation.where(scaled, 1.0)
    centre, spread = mean.float(), deviation.float()
    gaps = values.isnan()
    if gaps.any():
        values = torch.where(gaps, centre, values)
    if scaling == "client":
        values.sub_(centre).div_(spread)
    values[~present] = 0.0
    return values


def _check_known(title: str, where: str, names: Sequence[str], known: Sequence[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown or len(set(names)) < len(names):
        shown = ", ".join(list(known)[:8]) + (", ..." if len(known) > 8 else "")
        problem = f"there is no client '{unknown[0]}'" if unknown else "a client is named twice"
        raise DataError(f"{title}, {where}{problem}; the clients are {shown}")
