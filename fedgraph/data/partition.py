"""Partitions of a labelled data set among clients, as pure functions of labels and a seed.

Sources: shards, Chen et al. (IJCAI 2022, section 5); Dirichlet, disjoint classes, class imbalance and power law,
Gorbett et al. (IEEE Big Data 2023, section IV).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from scipy.special import gammaincinv

from fedgraph.support.errors import DataError, counted
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings

Indices = NDArray[np.int64]
Method = Literal["shards", "iid", "dirichlet", "classes", "class-imbalance", "power-law"]

POWER_LAW_EXPONENT = 1.65911
DIRICHLET_DRAWS = 2000
PAPER_EXAMPLES = 6000


class PartitionSettings(Settings):
    """The keys of ``[data]`` that choose how examples are divided among clients.

    Attributes
    ----------
    partition           : ``shards``, ``iid``, ``dirichlet``, ``classes``, ``class-imbalance`` or ``power-law``.
    clients             : number of clients.
    shards              : number of shards of each client (``shards``).
    alpha, minimum      : concentration, and least number of examples of a client (``dirichlet``).
    class_groups        : numbers of classes, e.g. ``[4, 3, 3]``, or lists of them, e.g. ``[[0, 1], [2]]``, one per
                          client (``classes``; default equal parts).
    examples_per_client : mean size (``class-imbalance``, ``power-law``; default 6000 in all, fewer where there are
                          not as many).
    partition_seed      : seed of the partition.
    """

    partition: Method = "shards"
    clients: int = Field(default=20, ge=1, le=100_000)
    shards: PositiveInt = 2
    alpha: PositiveFloat = 0.3
    minimum: PositiveInt = 10
    class_groups: tuple[PositiveInt, ...] | tuple[tuple[int, ...], ...] | None = None
    examples_per_client: PositiveInt | None = None
    partition_seed: int = Field(default=0, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _one_client_per_group(cls, table: Any) -> Any:
        groups = table.get("class-groups", table.get("class_groups")) if isinstance(table, dict) else None
        return {**table, "clients": len(groups)} if groups and "clients" not in table else table

    @model_validator(mode="after")
    def _groups_fit(self) -> PartitionSettings:
        if self.class_groups is not None and self.partition != "classes":
            raise ValueError('class-groups is only used with partition = "classes"')
        if self.class_groups is not None and len(self.class_groups) != self.clients:
            raise ValueError(f"class-groups lists {len(self.class_groups)} clients, but clients = {self.clients}")
        return self


def client_names(clients: int) -> list[str]:
    """Return ``client-00``, ``client-01``, ...: numbers padded to the width of ``clients``."""
    return [f"client-{number:0{len(str(clients))}d}" for number in range(clients)]


def partition(settings: PartitionSettings, labels: Indices, seed: int) -> list[Indices]:
    """Divide the examples among clients.

    Returns indices into ``labels`` of each client, sorted, without overlap. Raises DataError when a client would have
    no examples, naming it, or when the settings do not fit the labels.
    """
    clients, mean_size = settings.clients, settings.examples_per_client
    if settings.partition == "shards":
        return shards(labels, clients, settings.shards, seed)
    if settings.partition == "iid":
        return iid(labels, clients, seed)
    if settings.partition == "dirichlet":
        return dirichlet(labels, clients, settings.alpha, seed, settings.minimum)
    if settings.partition == "classes":
        return by_class(labels, class_groups(labels, settings.class_groups or clients))
    if settings.partition == "class-imbalance":
        return class_imbalance(labels, clients, mean_size, seed)
    return power_law(labels, clients, mean_size, seed)


def describe(settings: PartitionSettings) -> str:
    """Describe the partition in a phrase for reports, e.g. ``20 clients, 2 shards each``."""
    mean_size = (
        f", {counted(settings.examples_per_client, 'example')} on average" if settings.examples_per_client else ""
    )
    groups = settings.class_groups or ()
    sizes = "/".join(str(group if isinstance(group, int) else len(group)) for group in groups)
    how = {
        "shards": f"{counted(settings.shards, 'shard')} each",
        "iid": "independent and identically distributed",
        "dirichlet": f"Dirichlet {settings.alpha:g} over labels",
        "classes": f"disjoint classes {sizes or 'in equal parts'}",
        "class-imbalance": f"growing number of classes{mean_size}",
        "power-law": f"power-law sizes{mean_size}",
    }
    return f"{counted(settings.clients, 'client')}, {how[settings.partition]}"


def iid(labels: Indices, clients: int, seed: int) -> list[Indices]:
    """Divide all examples at random into equal parts (sizes differ by at most 1)."""
    order = _shuffled(np.arange(len(labels)), generator(seed, "partition", "iid"))
    return _checked(np.array_split(order, clients), "iid")


def shards(labels: Indices, clients: int, shards_per_client: int, seed: int) -> list[Indices]:
    """Sort examples by label, cut them into ``clients * shards_per_client`` equal shards, and shuffle these."""
    count = clients * shards_per_client
    if count > len(labels):
        raise DataError(
            f"{clients} clients with {shards_per_client} shards each need at least {count} examples, and there are "
            f"{len(labels)}: lower clients or shards"
        )
    draws = generator(seed, "partition", "shards")
    shuffled = _shuffled(np.arange(len(labels)), draws)
    pieces = np.array_split(shuffled[np.argsort(labels[shuffled], kind="stable")], count)
    drawn = _shuffled(np.arange(count), draws).reshape(clients, shards_per_client)
    return _checked([np.concatenate([pieces[shard] for shard in own]) for own in drawn], "shards")


def dirichlet(labels: Indices, clients: int, alpha: float, seed: int, minimum: int = 10) -> list[Indices]:
    """Divide each class by a draw of Dir(alpha); clients that already have n / clients examples get no more.

    Redrawn until every client has ``minimum`` examples. Raises DataError if that is impossible or takes more than
    ``DIRICHLET_DRAWS`` draws.
    """
    if clients * minimum > len(labels):
        raise DataError(
            f"{clients} clients with at least {minimum} examples each need {clients * minimum} examples, and there are "
            f"{len(labels)}: lower clients or minimum"
        )
    draws = generator(seed, "partition", "dirichlet")
    members = _by_label(labels, np.unique(labels), draws)
    best = 0
    for _ in range(DIRICHLET_DRAWS):
        counts = _dirichlet_counts([len(rows) for rows in members], clients, alpha, draws)
        best = max(best, int(counts.sum(0).min()))
        if best >= minimum:
            return _deal(members, counts)
    raise DataError(
        f"in {DIRICHLET_DRAWS} draws of Dir({alpha:g}) over {clients} clients the smallest client had {best} examples "
        f"at most, and minimum = {minimum}: raise alpha, or lower clients or minimum"
    )


def _dirichlet_counts(sizes: Sequence[int], clients: int, alpha: float, draws: torch.Generator) -> Indices:
    """Return the number of examples per class and client ``[classes, clients]``, from a draw of gamma variates."""
    uniform = torch.rand(len(sizes), clients, generator=draws, dtype=torch.float64).numpy()
    gamma = np.maximum(gammaincinv(alpha, uniform), np.finfo(np.float64).tiny)
    counts = np.zeros((len(sizes), clients), dtype=np.int64)
    for row, size in enumerate(sizes):
        share = gamma[row] * (counts.sum(0) < sum(sizes) / clients)
        ends = np.rint(np.cumsum(share / share.sum()) * size).astype(np.int64)
        counts[row] = np.diff(ends, prepend=0)
    return counts


def class_groups(labels: Indices, groups: int | Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
    """List the classes of each client: from a number of equal parts, from sizes such as ``(4, 3, 3)``, or as given."""
    classes = np.unique(labels)
    if isinstance(groups, int):
        if groups > len(classes):
            raise DataError(
                f"{groups} clients cannot have classes of their own, there are {len(classes)} classes: lower clients"
            )
        return [part.tolist() for part in np.array_split(classes, groups)]
    sizes = [group for group in groups if isinstance(group, int)]
    if not sizes:
        return [list(group) for group in groups if not isinstance(group, int)]
    if sum(sizes) != len(classes):
        raise DataError(f"class-groups {sizes} share out {sum(sizes)} classes, and the data have {len(classes)}")
    return [part.tolist() for part in np.split(classes, np.cumsum(sizes)[:-1])]


def by_class(labels: Indices, groups: Sequence[Sequence[int]]) -> list[Indices]:
    """Give client k all examples of the classes ``groups[k]``; each class of the data belongs to exactly one client."""
    listed = [int(label) for group in groups for label in group]
    twice = sorted({label for label in listed if listed.count(label) > 1})
    absent = sorted(set(np.unique(labels).tolist()) - set(listed))
    if twice or absent:
        problem = f"classes {twice} twice" if twice else f"no client for classes {absent}"
        raise DataError(f"class-groups names {problem}: each class of the data belongs to exactly one client")
    return _checked([np.flatnonzero(np.isin(labels, list(group))) for group in groups], "classes")


def class_imbalance(labels: Indices, clients: int, examples_per_client: int | None, seed: int) -> list[Indices]:
    """Give client k the first c_k classes in equal numbers, c = linspace(1, classes, clients); equal sizes (CLA).

    Does not use all examples: ``examples_per_client`` examples each, without overlap; None means 6000 / clients, or
    fewer if the scarcest class has not enough. Raises DataError when a class runs out.
    """
    classes, available = np.unique(labels, return_counts=True)
    seen = np.linspace(1, len(classes), clients).astype(np.int64)
    seen[-1] = len(classes)
    rank = np.arange(len(classes))[:, None]
    takers = rank < seen
    most = int(((available - takers.sum(1)) / (takers / seen).sum(1)).min())  # one each is reserved for rounding
    size = examples_per_client or min(PAPER_EXAMPLES // clients, most)
    if size < len(classes):
        raise DataError(
            f"{client_names(clients)[-1]} is to see all {len(classes)} classes with {max(size, 0)} examples: "
            f"raise examples-per-client, or lower clients"
        )
    counts = np.where(takers, size // seen + (rank < size % seen), 0)
    for label, wanted, held in zip(classes, counts.sum(1), available, strict=True):
        if wanted > held:
            raise DataError(
                f"class {label} has {held} examples, and {clients} clients of {size} examples need {wanted} of it: "
                f"lower examples-per-client (to {most}) or clients"
            )
    return _deal(_by_label(labels, classes, generator(seed, "partition", "class-imbalance")), counts)


def power_law(labels: Indices, clients: int, examples_per_client: int | None, seed: int) -> list[Indices]:
    """Assign random examples, with sizes as the quantiles 0.01 ... 0.99 of the power law a x^(a-1), a = 1.65911 (POW).

    Does not use all examples: ``clients * examples_per_client`` in all, without overlap; None means 6000, or all if
    there are fewer. Raises DataError if there are too few, or if a client gets none.
    """
    total = clients * examples_per_client if examples_per_client else min(PAPER_EXAMPLES, len(labels))
    if total > len(labels):
        raise DataError(
            f"{clients} clients with {examples_per_client} examples on average need {total} examples, and there are "
            f"{len(labels)}: lower examples-per-client or clients"
        )
    shares = np.linspace(0.01 ** (1 / POWER_LAW_EXPONENT), 0.99 ** (1 / POWER_LAW_EXPONENT), clients)
    sizes = _apportion(total * shares / shares.sum())
    order = _shuffled(np.arange(len(labels)), generator(seed, "partition", "power-law"))[:total]
    return _checked(np.split(order, np.cumsum(sizes)[:-1]), "power-law")


def match(test_labels: Indices, train_parts: Sequence[Indices], train_labels: Indices, seed: int) -> list[Indices]:
    """Choose test examples for each client, without overlap, in the class proportions of its training part.

    A client gets the same share of each class as it has of that class's training examples. If the parts cover only some
    of ``train_labels``, all shares are raised by a common factor, limited by the scarcest class.
    """
    classes = np.unique(train_labels)
    held = np.stack([(train_labels[part][None] == classes[:, None]).sum(1) for part in train_parts], axis=1)
    available = (train_labels[None] == classes[:, None]).sum(1)
    drawn = held.sum(1)
    factor = (available[drawn > 0] / drawn[drawn > 0]).min()
    members = _by_label(test_labels, classes, generator(seed, "partition", "match"))
    sizes = np.array([len(rows) for rows in members])
    quotas = factor * sizes[:, None] * held / available[:, None]
    counts = np.zeros_like(held)
    owed = np.zeros(len(train_parts))  # carried from class to class, so that rounding keeps each client's total
    for row, quota in enumerate(quotas):
        counts[row] = _apportion(quota, np.where(quota > 0, owed, -np.inf))
        owed += quota - counts[row]
    return _deal(members, counts)


def balanced_subset(labels: Indices, limit: int, seed: int) -> Indices:
    """Choose ``limit`` random examples, balanced over the classes as far as possible; all if there are fewer."""
    classes, sizes = np.unique(labels, return_counts=True)
    members = _by_label(labels, classes, generator(seed, "partition", "subset"))
    left = min(limit, len(labels))
    chosen = []
    for position, row in enumerate(np.argsort(sizes, kind="stable")):
        take = min(int(sizes[row]), left // (len(classes) - position))
        chosen.append(members[row][:take])
        left -= take
    return np.sort(np.concatenate(chosen))


def split(count: int, shares: Sequence[float], draws: torch.Generator, owner: str) -> list[Indices]:
    """Split ``count`` examples into random disjoint index sets; the first takes what rounding leaves.

    A set with a share above 0 has at least one example. Raises DataError naming ``owner`` if there are too few.
    """
    sizes = [max(1, round(count * share)) if share > 0 else 0 for share in shares[1:]]
    first = count - sum(sizes)
    if first < 1:
        raise DataError(
            f"{owner} has too few examples ({count}) to split {' / '.join(f'{share:g}' for share in shares)} with at "
            f"least one in each part: leave it out ([clients] expect names the others), or use fewer clients"
        )
    order = _shuffled(np.arange(count), draws)
    return [np.sort(part) for part in np.split(order, np.cumsum([first, *sizes])[:-1])]


def _shuffled(rows: Indices, draws: torch.Generator) -> Indices:
    return rows[torch.randperm(len(rows), generator=draws).numpy()]


def _by_label(labels: Indices, classes: Indices, draws: torch.Generator) -> list[Indices]:
    return [_shuffled(np.flatnonzero(labels == label), draws) for label in classes]


def _apportion(quotas: NDArray[np.float64], bonus: NDArray[np.float64] | float = 0.0) -> Indices:
    """Round ``quotas`` to integers with the same rounded sum; the largest fractions plus ``bonus`` are rounded up."""
    counts = np.floor(quotas).astype(np.int64)
    left = round(float(quotas.sum())) - int(counts.sum())
    counts[np.argsort(counts - quotas - bonus, kind="stable")[:left]] += 1
    return counts


def _deal(members: Sequence[Indices], counts: Indices) -> list[Indices]:
    """Give each client the next examples of each class, in the numbers ``counts`` ``[classes, clients]``."""
    pieces = [np.split(rows, np.cumsum(count))[:-1] for rows, count in zip(members, counts, strict=True)]
    return [np.sort(np.concatenate(own)) for own in zip(*pieces, strict=True)]


def _checked(parts: Iterable[Indices], method: str) -> list[Indices]:
    """Return ``parts`` sorted; raise DataError naming the clients without examples."""
    ordered = [np.sort(part) for part in parts]
    empty = [name for name, part in zip(client_names(len(ordered)), ordered, strict=True) if len(part) == 0]
    if empty:
        names = ", ".join(empty[:5]) + (f" and {len(empty) - 5} more" if len(empty) > 5 else "")
        raise DataError(
            f'partition = "{method}" leaves {names} without examples ({len(ordered)} clients, '
            f"{sum(len(part) for part in ordered)} examples): use fewer clients or more data"
        )
    return ordered
