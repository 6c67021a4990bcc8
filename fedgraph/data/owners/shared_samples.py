"""Data sets whose clients hold different features of the same samples: splits by key, missing samples.

The setting of federated feature fusion (Ma, Hoang, Chen, UAI 2023, section 2).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from fedgraph.data.base import CohortData, DataSource, Shares
from fedgraph.data.columns.table import RawRows
from fedgraph.data.own import OwnData
from fedgraph.data.owners.preparation import Preparation
from fedgraph.data.owners.samples import NO_LABEL, SAMPLE_SPLITS, OwnerData, cohort_data
from fedgraph.graph import ClientGraph
from fedgraph.models import TaskSpec
from fedgraph.support.errors import DataError, counted
from fedgraph.support.randomness import derive_seed, hashed
from fedgraph.support.settings import Settings

_Part = Annotated[float, Field(ge=0.0, lt=1.0)]
_OVERLAPPING = torch.tensor([SAMPLE_SPLITS.index("train"), SAMPLE_SPLITS.index("validation")], dtype=torch.int8)


class SharedSampleSettings(Settings):
    """The keys of ``[data]`` of every set whose clients hold different features of the same samples.

    Attributes
    ----------
    shares        : fractions of the samples for training, validation and test. The split of a sample follows from its
                    key and split_seed alone, so that clients on different nodes agree without communication; the shares
                    hold on average. A set with its own test samples is tested on those, and the first two of the
                    shares divide the others.
    split_seed    : seed of the split.
    new_share     : fraction of the samples held back as new: without label, for inference after training.
    lacking_share : fraction of the samples that each client lacks, drawn at random for each, to study missing data.
    test_without  : clients that lack all test and new samples, to study predictions in their absence.
    overlap       : fraction of the training and validation samples that all clients hold, drawn by key and split_seed;
                    only these are learned from jointly. Each of the others is held by one client and used for its own
                    model only. Test and new samples are held by all.
    scaling       : ``client`` = each feature as z-scores from the client's own training samples; ``none``. In either
                    case a missing number becomes the mean of the client's training samples.
    clients       : the clients to use; all by default.
    without       : clients among them to leave out.
    """

    shares: Shares = (0.7, 0.1, 0.2)
    split_seed: int = 0
    new_share: _Part = 0.0
    lacking_share: _Part = 0.0
    test_without: tuple[str, ...] = ()
    overlap: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    scaling: Literal["client", "none"] = "client"
    clients: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Holdings:
    """The raw data of some clients: unscaled, with samples in any order.

    Attributes
    ----------
    keys : of all samples of the data set, distinct.
    labels : int64 ``[samples]``, ``NO_LABEL`` where one is missing.
    inputs : for each client float32 ``[samples, ..., features]``, NaN where a number is missing.
    present : bool ``[clients, samples]``, whether a client has a sample.
    features : for each client the names of its features; empty where they have none.
    scaled : for each client bool ``[features]``, the features that may be scaled; None for all.
    is_test : bool ``[samples]``, the test samples of a data set that defines them.
    parts : int8 ``[samples]``, the split of each sample unless it follows from its key, see :func:`block_splits`.
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


class OwnerSource(ABC):
    """A data set whose clients hold different features of the same samples, read as :class:`Holdings`.

    Attributes
    ----------
    own : a node's own data, which contains only the clients that the node hosts.
    """

    settings: SharedSampleSettings
    title: str
    own: OwnData | None = None

    @abstractmethod
    def every_client(self) -> tuple[str, ...]:
        """Return all clients in the data, also those that the settings do not choose."""

    @abstractmethod
    def holdings(self, names: Sequence[str], classes: tuple[str, ...] = ()) -> Holdings:
        """Read the data of the clients ``names``; without names only the samples.

        Cheap after the first call in a process. With known ``classes``, labels may be missing.
        """

    def as_trained(self, prepared: Mapping[str, Preparation]) -> OwnerSource:
        """Return the source in which clients hold the features that their models were trained on; by default itself."""
        return self

    def every_graph(self) -> ClientGraph | None:
        """Return the graph over all clients; None when the data comes without one."""
        return None

    def arranged(self, name: str, inputs: Tensor) -> Tensor:
        """Bring scaled inputs ``[samples, ..., features]`` of a client to the shape of its model's input."""
        return inputs

    def identities(self, name: str, keys: Sequence[str], classes: tuple[str, ...] = ()) -> Tensor:
        """Return a number for each sample of a client by its content, whatever its key, int64 ``[keys]``.

        Samples of equal content are numbered in the order of the data.
        """
        found = self.holdings((name,), classes)
        rows = pa.array([hashlib.sha256(row.tobytes()).hexdigest() for row in found.inputs[0].numpy()], pa.string())
        return at_keys(found.keys, RawRows([rows]).identities, keys)

    def client_names(self) -> list[str]:
        """Return the clients that the settings choose, in their order; else all."""
        every = self.every_client()
        if self.own is not None:
            left_out = set(every) - set(self.settings.clients or every) | set(self.settings.without)
            return [name for name in every if name not in left_out]
        chosen = every if self.settings.clients is None else self.settings.clients
        _check_known(self.title, "key clients: ", chosen, every)
        _check_known(self.title, "key without: ", self.settings.without, every)
        _check_known(self.title, "key test-without: ", self.settings.test_without, every)
        left = [name for name in chosen if name not in self.settings.without]
        if not left:
            raise DataError(f"{self.title}: the key without leaves no clients")
        return left

    def load(self, names: Sequence[str]) -> CohortData:
        """Load the clients ``names`` for methods with one model architecture; raises as :func:`cohort_data` does."""
        return cohort_data(self.load_owners(names))

    def load_owners(self, names: Sequence[str], prepared: Mapping[str, Preparation] | None = None) -> OwnerData:
        """Load the data of the clients ``names``, in that order, without samples that all of them lack.

        Raises DataError for unknown names, for two samples with the same key, for an overlap of data that are a node's
        own, and for features that lack one of those prepared.

        Parameters
        ----------
        prepared : how inputs of some of them were made when their models were trained, which is done again: in the same
            order, by the same scale, and with the same classes, which the data need not contain.
        """
        every = self.client_names()
        _check_known(self.title, "", names, every)
        if self.own is not None and self.settings.overlap < 1:
            raise DataError(
                f"{self.title}: leave out overlap, which divides one data set that all nodes have: this node has its "
                "own data, and shared samples are found by key"
            )
        known = dict(prepared or {})
        found = self.as_trained(known).holdings(names, next((each.classes for each in known.values()), ()))
        repeated = [key for key, count in Counter(found.keys).items() if count > 1]
        if repeated:
            whose = "" if self.own is None else f" of {', '.join(names[:8])}"
            raise DataError(
                f"{self.title}{whose}: the sample key '{repeated[0]}' occurs more than once; keys must differ",
                quoted=f"'{repeated[0]}'",
            )
        split, shared = self._drawn(found)
        lacking = _draws(found.keys, names, "lacking", self.settings) < self.settings.lacking_share
        present = found.present & ~lacking
        if self.settings.overlap < 1:
            # A sample that is not shared goes to the client with the highest draw for it.
            holder = _draws(found.keys, every, "holder", self.settings).argmax(0)
            present &= shared | (holder == torch.tensor([every.index(name) for name in names])[:, None])
        away = torch.tensor([name in self.settings.test_without for name in names], dtype=torch.bool)
        present &= ~(away[:, None] & ~torch.isin(split, _OVERLAPPING))
        order = torch.tensor(sorted(range(len(found.keys)), key=found.keys.__getitem__), dtype=torch.int64)
        order = order[present[:, order].any(0)]
        split = split[order]
        labels = found.labels[order].masked_fill(split == SAMPLE_SPLITS.index("new"), NO_LABEL)
        present = present[:, order]
        inputs, preparations, unscaled = [], [], []
        for row, name in enumerate(names):
            values, preparation = found.inputs[row][order], known.get(name)
            if preparation is None:
                scaled = None if found.scaled is None else found.scaled[row]
                training = values[(split == 0) & present[row]]
                preparation = Preparation.measured(training, scaled, found.features[row], found.classes)
                scalable = self.settings.scaling == "client" and (scaled is None or bool(scaled.any()))
                if scalable and not len(training):
                    unscaled.append(name)
            else:
                values = preparation.in_order(values, found.features[row], f"{self.title}, client '{name}'")
            values = preparation.inputs(values, present[row], self.settings.scaling)
            inputs.append(self.arranged(name, values))
            preparations.append(preparation)
        return OwnerData(
            owners=tuple(names),
            keys=tuple(found.keys[row] for row in order.tolist()),
            split=split,
            labels=labels,
            inputs=tuple(inputs),
            present=present,
            shared=shared[order],
            tasks=tuple(
                TaskSpec(
                    kind="classification",
                    input_shape=tuple(own.shape[1:]),
                    output_shape=(len(found.classes),),
                    features=preparation.features,
                    classes=found.classes,
                )
                for own, preparation in zip(inputs, preparations, strict=True)
            ),
            preparations=tuple(preparations),
            unscaled=tuple(unscaled),
        )

    def given_graph(self) -> ClientGraph | None:
        """Return the graph over the clients; raises GraphError when a client is not in it."""
        graph = self.every_graph()
        return None if graph is None else graph.reindex(self.client_names(), missing="error", extra="drop")

    def describe(self, classes: tuple[str, ...] = ()) -> str:
        """Describe the data, e.g. ``digits in 2 x 2 patches, 4 clients, 1,797 samples of 10 classes``."""
        found, chosen, every = self.holdings((), classes), len(self.client_names()), len(self.every_client())
        clients = counted(every, "client") if chosen == every else f"{chosen:,} of {counted(every, 'client')}"
        held = f"{counted(len(found.keys), 'sample')} of {counted(len(found.classes), 'class', 'classes')}"
        whole = f"{self.title}, {clients}, {held}"
        if self.settings.overlap == 1:
            return whole
        split, shared = self._drawn(found)
        learned = torch.isin(split, _OVERLAPPING)
        count, every_sample = int((shared & learned).sum()), int(learned.sum())
        return f"{whole}, {count:,} of the {every_sample:,} for training and validation held by all clients"

    def _drawn(self, found: Holdings) -> tuple[Tensor, Tensor]:
        """Return the split of each sample, int8, and whether all clients hold it, bool, each ``[samples]``."""
        settings = self.settings
        split = sample_splits(found.keys, settings, found.is_test, found.parts)
        split[found.labels == NO_LABEL] = SAMPLE_SPLITS.index("new")
        drawn = _uniform(_key_numbers(found.keys), derive_seed(settings.split_seed, "overlap")) < settings.overlap
        return split, drawn | ~torch.isin(split, _OVERLAPPING)


def at_keys(every: Sequence[str], identities: NDArray[np.int64], keys: Sequence[str]) -> Tensor:
    """Return the ``identities`` of some samples, int64 ``[keys]``, of those of ``every`` sample."""
    place = {key: row for row, key in enumerate(every)}
    return torch.from_numpy(identities[[place[key] for key in keys]])


def owner_source(source: DataSource, method: str) -> OwnerSource:
    """Check that the clients of a data set hold different features of the same samples.

    Returns ``source`` itself. Raises DataError when it is not an :class:`OwnerSource`.

    Parameters
    ----------
    source : DataSource
        Any data set.
    method : str
        Names the method in the message.
    """
    if not isinstance(source, OwnerSource):
        raise DataError(
            f"method '{method}' needs clients that hold different features of the same samples, which this data set "
            "does not have; sets that do: metr-la-rush-hour, pems-bay-rush-hour, image-patches, table-columns, "
            "grid-stability, panel"
        )
    return source


def sample_splits(
    keys: tuple[str, ...],
    settings: SharedSampleSettings,
    is_test: Tensor | None = None,
    parts: Tensor | None = None,
) -> Tensor:
    """Return the split of each sample, int8 index ``[samples]`` into ``SAMPLE_SPLITS``, from its key and the settings.

    ``is_test`` marks the test samples of a data set that defines them, bool ``[samples]``. ``parts`` are splits that do
    not follow from keys; new samples are drawn from them too.
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


def sample_folds(keys: tuple[str, ...], folds: int, seed: int) -> Tensor:
    """Return the fold of each sample, int64 ``[samples]``, drawn by key, so that all owners agree."""
    return (_uniform(_key_numbers(keys), derive_seed(seed, "fold")) * folds).long()


def block_splits(blocks: Tensor, settings: SharedSampleSettings, in_order: bool, title: str) -> Tensor:
    """Return the split of each sample, int8 ``[samples]``, with whole blocks in one split.

    Raises DataError when there are too few blocks for a split with a share above 0.

    Parameters
    ----------
    blocks : int64 ``[samples]``, the block of each sample, in order of time.
    in_order : whether blocks are split in time order; otherwise ``split_seed`` draws them.
    title : names the data set in messages.
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


def _draws(keys: tuple[str, ...], names: Sequence[str], purpose: str, settings: SharedSampleSettings) -> Tensor:
    """Return a draw of each client for each sample, float64 ``[clients, samples]`` in [0, 1)."""
    seeds = [derive_seed(settings.split_seed, purpose, name) for name in names]
    return _uniform(_key_numbers(keys), torch.tensor(seeds, dtype=torch.int64)[:, None])


@lru_cache(maxsize=4)
def _key_numbers(keys: tuple[str, ...]) -> Tensor:
    """Hash each key to an int64, ``[samples]``; cached, as many nodes of a process share the keys."""
    digests = b"".join(hashlib.blake2b(key.encode(), digest_size=8).digest() for key in keys)
    return torch.from_numpy(np.frombuffer(digests, dtype="<i8").astype(np.int64))


def _uniform(numbers: Tensor, seed: int | Tensor) -> Tensor:
    """Return float64 draws in [0, 1) that follow from each number and the seed."""
    return ((hashed(numbers ^ seed) >> 11) & ((1 << 53) - 1)).double() / (1 << 53)


def _check_known(title: str, where: str, names: Sequence[str], known: Sequence[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown or len(set(names)) < len(names):
        shown = ", ".join(list(known)[:8]) + (", ..." if len(known) > 8 else "")
        problem = f"there is no client '{unknown[0]}'" if unknown else "a client is named twice"
        raise DataError(f"{title}, {where}{problem}; the clients are {shown}")
