"""Answers of all owners, joined by sample key; missing parts are masked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from fedgraph.data.owners import NO_LABEL
from fedgraph.fusion import JoinedSamples
from fedgraph.messages import EmbedReply
from fedgraph.support.errors import DataError, IdentityError, by_reason

log = logging.getLogger("fedgraph")

_SAID: dict[str, Callable[[EmbedReply], Tensor]] = {
    "split": lambda answer: answer.split.long(),
    "label": lambda answer: answer.labels,
}
"""The facts about a sample that all owners must agree on."""

_ALIKE = "all need the same labels and splits, in an experiment the same shares and split-seed"

_MOST_NUMBERS = 1 << 32
"""Most numbers in all embeddings (16 GiB), to protect the memory from oversized ones."""

_ROUNDING = 1e-9
"""Relative error of sums of votes; a majority must exceed half by more."""


def join(
    answers: Mapping[int, EmbedReply],
    owners: Sequence[str] | None = None,
    tolerant: bool = False,
    embedded: bool = True,
) -> tuple[JoinedSamples, dict[str, str]]:
    """Join the answers of all nodes by sample key.

    Owners with unusable numbers are left out, with samples that no other owner has. Raises IdentityError when no owner
    sent anything usable. Raises DataError when owners disagree on the classes or, unless ``tolerant``, on the split or
    label of a sample, and when the embeddings would take more than 16 GiB.

    Parameters
    ----------
    owners : owners that get a column, in this order; the column of an owner that did not answer is empty, and other
        owners are ignored. By default all owners with usable answers, sorted by name.
    tolerant : also leave out owners that contradict most nodes whose owners have a sample; and samples on which nodes
        disagree and none has most on its side.
    embedded : whether embeddings were requested, so that owners without any are left out.

    Returns
    -------
    joined : JoinedSamples
        All samples that an owner with a column has.
    absent : dict of str to str
        Owners that did not answer or sent nothing usable, and why. They have no column unless ``owners`` names them.
    """
    answers = {node: answer for node, answer in answers.items() if answer.clients}
    hosted = [name for answer in answers.values() for name in answer.clients]
    absent: dict[str, str] = {}
    for answer in answers.values():
        absent |= answer.unusable(embedded)
    usable = sorted(name for name in hosted if name not in absent)
    names = tuple(usable if owners is None else owners)
    absent |= {name: "no answer" for name in names if name not in hosted}
    if not set(usable) & set(names):
        reasons = "; ".join(by_reason(absent))
        raise IdentityError("no owner sent anything usable" + (f" ({reasons})" if reasons else ""))
    classes = _common_classes(answers)
    keys = tuple(sorted(set().union(*(answer.keys for answer in answers.values()))))
    place_of = {key: place for place, key in enumerate(keys)}
    places = {node: torch.tensor([place_of[key] for key in answer.keys]).long() for node, answer in answers.items()}
    if tolerant:
        absent |= _outvoted(answers, _rows_of(answers, set(names) - set(absent)), places, keys)
        names = names if owners is not None else tuple(name for name in names if name not in absent)
    position = {name: place for place, name in enumerate(names)}
    used = _rows_of(answers, set(names) - set(absent))
    # Ignore splits and labels of samples that none of a node's owners in use has.
    held_by = {node: answer.present[used[node]].any(0) for node, answer in answers.items()}
    (split, clear_split), (labels, clear_labels) = (
        _agreed(
            {node: (places[node][there], read(answers[node])[there]) for node, there in held_by.items()},
            keys,
            word,
            tolerant,
        )
        for word, read in _SAID.items()
    )
    longest = {node: int(answer.sizes[used[node]].max()) for node, answer in answers.items() if used[node]}
    size = max(longest.values())
    if len(keys) * len(names) * size > _MOST_NUMBERS:
        node = max(longest, key=longest.__getitem__)
        owner = answers[node].clients[max(used[node], key=answers[node].sizes.__getitem__)]
        raise DataError(
            f"owner '{owner}' sent embeddings of {size} numbers; for {len(names)} owners and {len(keys)} samples "
            f"that would take {len(keys) * len(names) * size * 4 / 2**30:.0f} GiB: give it a model with a smaller "
            "layer before the last one, or leave it out"
        )
    embeddings = torch.zeros(len(keys), len(names), size)
    # In a vote, owners without predictions would count as votes for the first class.
    predicted_classes = min(answers[node].predictions.shape[2] for node in longest)
    predictions = torch.zeros(len(keys), len(names), predicted_classes)
    present = torch.zeros(len(keys), len(names), dtype=torch.bool)
    sizes = torch.zeros(len(names), dtype=torch.int64)
    fingerprints = dict.fromkeys(names, "")
    for node, answer in answers.items():
        rows = used[node]
        columns = torch.tensor([position[answer.clients[row]] for row in rows], dtype=torch.int64)
        there = answer.present[rows]
        # Where an owner lacks a sample, the fusion model gets zeros, regardless of what the node sent.
        inside = torch.arange(answer.embeddings.shape[2]) < answer.sizes[rows, None]
        known = torch.where(there[..., None] & inside[:, None], answer.embeddings[rows], 0.0)[..., :size]
        index = (places[node][:, None], columns[None])
        embeddings[..., : known.shape[2]].index_put_(index, known.transpose(0, 1))
        predicted = torch.where(there[..., None], answer.predictions[rows, :, :predicted_classes], 0.0)
        predictions.index_put_(index, predicted.transpose(0, 1))
        present.index_put_(index, there.T)
        sizes[columns] = answer.sizes[rows]
        fingerprints |= {answer.clients[row]: answer.fingerprints[row] for row in rows}
    joined = JoinedSamples(
        owners=names,
        keys=keys,
        classes=classes,
        split=split.to(torch.int8),
        labels=labels,
        embeddings=embeddings,
        present=present,
        predictions=predictions,
        sizes=sizes,
        fingerprints=tuple(fingerprints[name] for name in names),
    )
    # Samples that only owners without a column have are useless.
    held = present.any(1) & clear_split & clear_labels
    return joined if bool(held.all()) else joined.only(held), absent


def _rows_of(answers: Mapping[int, EmbedReply], names: Collection[str]) -> dict[int, list[int]]:
    """Return the rows of each answer that belong to ``names``."""
    return {node: [row for row, name in enumerate(answer.clients) if name in names] for node, answer in answers.items()}


def _common_classes(answers: Mapping[int, EmbedReply]) -> tuple[str, ...]:
    first = next(iter(answers.values()))
    for answer in answers.values():
        if answer.classes != first.classes:
            raise DataError(
                f"owners '{first.clients[0]}' and '{answer.clients[0]}' have different classes: "
                f"{', '.join(first.classes)} against {', '.join(answer.classes)}"
            )
    return first.classes


def _agreed(
    parts: Mapping[int, tuple[Tensor, Tensor]], keys: Sequence[str], what: str, tolerant: bool
) -> tuple[Tensor, Tensor]:
    """Merge the values of all nodes to int64 ``[samples]``, given places and values by node; unknown labels agree with
    all.

    Returns them and where nodes agree, bool ``[samples]``. Raises DataError naming a sample on which two nodes
    disagree, unless ``tolerant``.
    """
    whole = torch.full((len(keys),), NO_LABEL, dtype=torch.int64)
    clear = torch.ones(len(keys), dtype=torch.bool)
    for places, values in parts.values():
        before = whole[places]
        differs = (before != values) & (before != NO_LABEL) & (values != NO_LABEL)
        clear[places[differs]] = False
        if bool(differs.any()) and not tolerant:
            sample = int(differs.nonzero()[0])
            raise DataError(
                f"owners on different nodes disagree on the {what} of sample '{keys[int(places[sample])]}': {_ALIKE}"
            )
        whole[places] = torch.where(values != NO_LABEL, values, before)
    if not bool(clear.all()):
        log.warning("%d samples are left out, because owners disagree on their %s", int((~clear).sum()), what)
    return whole, clear


def _outvoted(
    answers: Mapping[int, EmbedReply],
    used: Mapping[int, Sequence[int]],
    places: Mapping[int, Tensor],
    keys: Sequence[str],
) -> dict[str, str]:
    """Return the owners that contradict most nodes whose owners have a sample, with the reason.

    Nodes vote, since one that lies does so for all its owners; where as many nodes are on both sides, their owners with
    the sample decide. Owners are removed sequentially, the most contradictory one first, and the majorities are
    taken again without its votes: owners that it helped to outvote may be right.
    """
    names = [answers[node].clients[row] for node, rows in used.items() for row in rows]
    nodes = torch.tensor([column for column, rows in enumerate(used.values()) for _ in rows])
    votes = {word: torch.full((len(keys), len(names)), NO_LABEL) for word in _SAID}
    start = 0
    for node, rows in used.items():
        present = answers[node].present[list(rows)]
        index = (places[node][:, None], torch.arange(start, start + len(rows))[None])
        for word, read in _SAID.items():
            votes[word].index_put_(index, torch.where(present, read(answers[node]), NO_LABEL).T)
        start += len(rows)
    found: dict[str, str] = {}
    while True:
        minority = {word: _minority(values, nodes) for word, values in votes.items()}
        times = torch.stack([each.sum(0) for each in minority.values()])
        if not bool(times.any()):
            return found
        worst = int(times.sum(0).argmax())
        word = next(word for word, each in minority.items() if bool(each[:, worst].any()))
        samples = minority[word][:, worst].nonzero().flatten()
        found[names[worst]] = (
            f"contradicts most owners on the {word} of {len(samples)} samples, such as '{keys[int(samples[0])]}': "
            f"{_ALIKE}"
        )
        for values in votes.values():
            values[:, worst] = NO_LABEL


def _minority(votes: Tensor, nodes: Tensor) -> Tensor:
    """Return which votes ``[samples, owners]`` contradict more than half of a sample's votes.

    ``nodes`` are those of the owners, counted from 0; ``NO_LABEL`` is not a vote.
    """
    cast = votes != NO_LABEL
    if not bool(cast.any()):
        return cast
    by_node = torch.zeros(len(votes), int(nodes.max()) + 1).double().index_add_(1, nodes, cast.double())
    # The owners of one node can have more samples in total than all owners share.
    weight = torch.where(cast, 1 + len(nodes) / by_node[:, nodes].clamp(min=1), 0.0)
    count = torch.zeros(len(votes), int(votes.max()) + 1).double()
    most, value = count.scatter_add_(1, votes.clamp(min=0), weight).max(1)
    return cast & (2 * most > weight.sum(1) * (1 + _ROUNDING))[:, None] & (votes != value[:, None])
