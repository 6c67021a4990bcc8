"""Embeddings of owners as Python objects, joined by sample, and the labels of these samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedgraph.support.errors import quoted

_MOST_NAMED = 3


@dataclass(frozen=True)
class OwnerSamples:
    """Samples of several owners.

    Attributes
    ----------
    owners : names of the owners, sorted.
    embeddings : float32 ``[samples, owners, size]``, 0 where an owner lacks a sample and beyond its own size.
    present : bool ``[samples, owners]``.
    sizes : int64 ``[owners]``, length of each owner's embedding; 0 for an owner without any sample.
    ids : ids of the samples, in order of appearance; None if samples are numbered.
    same_ids : whether all owners give the same ids in the same order, which labels without ids then follow.
    columns : names of the columns of owners that give data frames.
    """

    owners: tuple[str, ...]
    embeddings: Tensor
    present: Tensor
    sizes: Tensor
    ids: tuple[Any, ...] | None = None
    same_ids: bool = False
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.present)

    @property
    def order(self) -> list[int]:
        """The positions of the samples, sorted by the text of their ids as in a federation."""
        if self.ids is None:
            return list(range(len(self)))
        texts = [str(each) for each in self.ids]
        return sorted(range(len(texts)), key=texts.__getitem__)

    def labels(self, y: Any) -> NDArray[Any]:
        """Return the labels in the order of the samples, ``[samples]``, or in the shape of y.

        Raises ValueError when a sample has no label, or the assignment of labels is ambiguous.

        Parameters
        ----------
        y : labels of samples by their number; or, where owners give ids, a Series with the ids as index, a mapping of
            ids to labels, or a pair of ids and labels. Labels of other samples are ignored.
        """
        if self.ids is None or (self.same_ids and not _has_ids(y)):
            values = _given_labels(y)
            if not values.ndim:
                raise ValueError(f"y should be a 1d array of labels; got {y!r}")
            if len(values) != len(self):
                raise ValueError(f"inconsistent numbers of samples: {len(self)} samples, {len(values)} labels")
            return values
        return _given_labels(self._in_order(_by_id(y, "y", "label"), "y", "label"))

    def weights(self, sample_weight: Any, y: Any) -> NDArray[Any] | None:
        """Return the weights in the order of the samples, ``[samples]``; None for None.

        Raises ValueError when a sample has no weight.

        Parameters
        ----------
        sample_weight : weights by id, in the forms of labels by id; or in the order of y.
        y : the labels, as for :meth:`labels`.
        """
        if sample_weight is None or self.ids is None or not (_has_ids(sample_weight) or _has_ids(y)):
            return None if sample_weight is None else np.asarray(sample_weight)
        if not _has_ids(sample_weight):
            sample_weight = (list(_by_id(y, "y", "label")), sample_weight)
        return np.asarray(self._in_order(_by_id(sample_weight, "sample_weight", "weight"), "sample_weight", "weight"))

    def _in_order(self, by_id: Mapping[Any, Any], name: str, what: str) -> list[Any]:
        """Return values by id in the order of the samples. Raises ValueError when a sample has none."""
        lacking = [str(each) for each in self.ids or () if each not in by_id]
        if lacking:
            raise ValueError(
                f"{name} has no {what} for {len(lacking)} of {len(self)} samples: {quoted(lacking, _MOST_NAMED)}; ids "
                "and their types must be the same as the owners'"
            )
        return [by_id[each] for each in self.ids or ()]

    def over(self, owners: Sequence[str], sizes: Tensor, columns: Mapping[str, Sequence[str]]) -> OwnerSamples:
        """Return the samples with a column for each of ``owners``, the input of a model over these.

        Raises ValueError for an unknown owner, for embeddings whose length is not that in ``sizes``, and for a data
        frame with other columns or another order of columns.

        Parameters
        ----------
        owners : the owners of the model.
        sizes : length of each owner's embedding, int64 ``[owners]``.
        columns : names of the columns of owners that had data frames when the model was fitted.
        """
        unknown = [name for name in self.owners if name not in owners]
        if unknown:
            raise ValueError(f"unknown owners: {quoted(unknown)}; the model was fitted on {quoted(list(owners), 8)}")
        embeddings = torch.zeros(len(self), len(owners), int(sizes.max()))
        present = torch.zeros(len(self), len(owners), dtype=torch.bool)
        for column, name in enumerate(self.owners):
            place, size = owners.index(name), int(self.sizes[column])
            if not bool(self.present[:, column].any()):
                continue
            if size != int(sizes[place]):
                raise ValueError(
                    f"embeddings of owner '{name}' have {size} numbers, but the model was fitted on {int(sizes[place])}"
                )
            if name in columns and name in self.columns:
                _check_columns(name, self.columns[name], columns[name])
            embeddings[:, place, :size] = self.embeddings[:, column, :size]
            present[:, place] = self.present[:, column]
        return replace(self, owners=tuple(owners), embeddings=embeddings, present=present, sizes=sizes)


def from_mapping(found: Mapping[Any, Any]) -> OwnerSamples:
    """Join the samples of owners, given by name. Raises ValueError for invalid input.

    Parameters
    ----------
    found : embeddings ``[samples, size]`` by owner: either arrays or tensors whose rows are the same samples; or
        pandas data frames, whose index has the ids of the samples, or pairs of ids and embeddings. A row of NaN is a
        sample that the owner lacks.
    """
    if not found:
        raise ValueError("no owners: pass the embeddings of each owner by its name")
    names = {str(name): value for name, value in found.items()}
    if len(names) < len(found):
        raise ValueError("two owners have the same name")
    owners = tuple(sorted(names))
    read = {name: _ids_and_values(name, names[name]) for name in owners}
    keyed = [name for name in owners if read[name][0] is not None]
    if keyed and len(keyed) < len(owners):
        others = [name for name in owners if name not in keyed]
        raise ValueError(
            f"{quoted(keyed)} have ids of samples, but {quoted(others)} do not: pass ids for all owners, as data "
            "frames with an index or as pairs (ids, embeddings), or for none"
        )
    arrays = {name: values for name, (_, values) in read.items()}
    columns = {name: named for name in owners if (named := _column_names(names[name])) is not None}
    if not keyed:
        lengths = {name: len(values) for name, values in arrays.items()}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise ValueError(
                f"owners have different numbers of samples ({listed}): pass ids of the samples, as data frames with an "
                "index or as pairs (ids, embeddings)"
            )
        placed = _placed(arrays, {name: list(range(length)) for name, length in lengths.items()}, None)
        return replace(placed, columns=columns)
    ids = {name: list(read[name][0] or ()) for name in owners}
    every = list(dict.fromkeys(each for name in owners for each in ids[name]))
    if len({str(each) for each in every}) < len(every):
        raise ValueError("some ids of samples differ only in type, such as 1 and '1': use the same type everywhere")
    place_of = {each: place for place, each in enumerate(every)}
    placed = _placed(arrays, {name: [place_of[each] for each in ids[name]] for name in owners}, tuple(every))
    return replace(placed, same_ids=all(each == every for each in ids.values()), columns=columns)


def from_columns(
    values: NDArray[Any], columns: Mapping[str, Sequence[int]], names: Sequence[str] | None = None
) -> OwnerSamples:
    """Read the samples of one array ``[samples, features]``, given the columns of each owner."""
    arrays = {name: _checked(name, values[:, list(columns[name])]) for name in sorted(columns)}
    placed = _placed(arrays, {name: list(range(len(values))) for name in arrays}, None)
    if names is None:
        return placed
    return replace(placed, columns={owner: tuple(str(names[place]) for place in columns[owner]) for owner in arrays})


def owner_columns(owners: Any, num_columns: int, names: Sequence[str] | None) -> dict[str, list[int]]:
    """Return the columns of each owner in an array.

    Raises ValueError when there are fewer columns than owners, an owner has none, or a column does not exist.

    Parameters
    ----------
    owners : a number of equal parts; or by owner a slice, a list of positions or of names of columns, or a mask.
    names : names of the columns, of a data frame.
    """
    if isinstance(owners, (int, np.integer)) and not isinstance(owners, bool):
        if owners < 1:
            raise ValueError(f"owners: the number of parts must be at least 1; got {owners}")
        if num_columns < owners:
            raise ValueError(
                f"{num_columns} feature(s) (shape=(n_samples, {num_columns})) while a minimum of {owners} is required, "
                "one for each owner"
            )
        width = len(str(owners - 1))
        parts = np.array_split(np.arange(num_columns), owners)
        return {f"owner-{place:0{width}}": part.tolist() for place, part in enumerate(parts)}
    if not isinstance(owners, Mapping) or not owners:
        raise ValueError(
            "X is one array, but owners does not assign its columns: pass owners={'a': slice(0, 10), ...}, lists of "
            f"columns, or a number of equal parts; or X as a mapping by owner (owners is {owners!r})"
        )
    return {str(owner): _columns_of_one(str(owner), each, num_columns, names) for owner, each in owners.items()}


def _columns_of_one(owner: str, chosen: Any, num_columns: int, names: Sequence[str] | None) -> list[int]:
    if isinstance(chosen, slice):
        found = list(range(num_columns))[chosen]
    else:
        listed = _listed_columns(owner, chosen, num_columns)
        known = list(names) if names is not None else []
        words = [each for each in listed if isinstance(each, str)]
        lacking = [each for each in words if each not in known]
        if lacking:
            where = f"X has the columns {quoted(known, 8)}" if known else "X has no column names"
            raise ValueError(f"unknown columns of owner '{owner}': {quoted(lacking)}; {where}")
        found = [known.index(each) if isinstance(each, str) else int(each) for each in listed]
    outside = [place for place in found if not -num_columns <= place < num_columns]
    if outside:
        raise ValueError(f"owner '{owner}' has the column {outside[0]}, but X has {num_columns} columns")
    if not found:
        raise ValueError(f"owner '{owner}' has none of the {num_columns} columns of X")
    return found


def _listed_columns(owner: str, chosen: Any, num_columns: int) -> list[Any]:
    """Return positions and names of columns; a mask stands for the positions where it is true."""
    listed = np.atleast_1d(np.asarray(chosen))
    if listed.dtype.kind == "b":
        if listed.shape != (num_columns,):
            raise ValueError(f"owner '{owner}' has a mask of {len(listed)} columns, but X has {num_columns} columns")
        return np.flatnonzero(listed).tolist()
    if listed.dtype.kind == "f" and len(listed):
        raise ValueError(f"owner '{owner}' has the column {listed[0]}: columns are positions, names or a mask")
    return listed.tolist()


def _placed(
    arrays: Mapping[str, NDArray[np.float32]], rows: Mapping[str, list[int]], ids: tuple[Any, ...] | None
) -> OwnerSamples:
    """Put each owner's rows at their positions; a row of NaN is a missing sample."""
    number = len(ids) if ids is not None else max(map(len, rows.values()))
    sizes = torch.tensor([values.shape[1] for values in arrays.values()])
    embeddings = torch.zeros(number, len(arrays), int(sizes.max()))
    present = torch.zeros(number, len(arrays), dtype=torch.bool)
    for column, (name, values) in enumerate(arrays.items()):
        there = torch.from_numpy(~np.isnan(values).all(1))
        places = torch.tensor(rows[name], dtype=torch.int64)[there]
        embeddings[places, column, : values.shape[1]] = torch.from_numpy(values)[there]
        present[places, column] = True
    return OwnerSamples(tuple(arrays), embeddings, present, sizes, ids)


def _ids_and_values(owner: str, samples: Any) -> tuple[list[Any] | None, NDArray[np.float32]]:
    """Read the samples of one owner."""
    if isinstance(samples, tuple):
        if len(samples) != 2:
            raise ValueError(f"owner '{owner}' has a tuple of length {len(samples)}; a pair is (ids, embeddings)")
        ids, values = _plain_ids(samples[0]), _checked(owner, samples[1])
    elif _is_frame(samples):
        ids, values = _plain_ids(samples.index), _checked(owner, samples)
    else:
        return None, _checked(owner, samples)
    if len(ids) != len(values):
        raise ValueError(f"owner '{owner}' has {len(ids)} ids but {len(values)} embeddings")
    if len(set(ids)) < len(ids):
        twice = next(each for each in ids if ids.count(each) > 1)
        raise ValueError(f"owner '{owner}' has sample {twice!r} more than once")
    return ids, values


def _column_names(samples: Any) -> tuple[str, ...] | None:
    """Return the column names of an owner's data frame, also in a pair with ids; None for arrays."""
    values = samples[1] if isinstance(samples, tuple) and len(samples) == 2 else samples
    # ``columns`` of a pyarrow table are the values.
    names = getattr(values, "column_names", None) or getattr(values, "columns", None)
    return None if names is None or callable(names) else tuple(str(name) for name in names)


def _check_columns(owner: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise ValueError, worded as in scikit-learn, unless an owner's data frame has the columns of ``fit``."""
    if tuple(found) == tuple(wanted):
        return
    unseen = [name for name in found if name not in wanted]
    missing = [name for name in wanted if name not in found]
    ways = [f"unseen at fit time: {quoted(unseen)}"] if unseen else []
    ways += [f"seen at fit time, yet now missing: {quoted(missing)}"] if missing else []
    differences = "; ".join(ways) or "they are in another order than during fit"
    raise ValueError(
        f"owner '{owner}': The feature names should match those that were passed during fit ({differences}); they were "
        f"{quoted(list(wanted), 8)}"
    )


def _plain_ids(ids: Any) -> list[Any]:
    """Return ids as plain Python values."""
    listed = ids.tolist() if hasattr(ids, "tolist") else ids
    return [each.item() if isinstance(each, np.generic) else each for each in listed]


def _checked(owner: str, samples: Any) -> NDArray[np.float32]:
    """Return an owner's embeddings as float32 ``[samples, size]``; whole rows may be NaN."""
    if isinstance(samples, Tensor):
        samples = samples.detach().cpu()
        samples = samples.float() if samples.dtype == torch.bfloat16 else samples
    elif hasattr(samples, "to_numpy"):
        samples = samples.to_numpy()
    try:
        # Numbers beyond float32 become infinite and are found below.
        with np.errstate(over="ignore"):
            values = np.asarray(samples).astype(np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(f"embeddings of owner '{owner}' are not numbers: {error}") from None
    if values.ndim != 2 or not values.shape[1]:
        raise ValueError(f"embeddings of owner '{owner}' must have shape [samples, size]; got {values.shape}")
    missing = np.isnan(values)
    broken = np.isinf(values).any(1) | (missing.any(1) & ~missing.all(1))
    if broken.any():
        raise ValueError(
            f"the embedding of owner '{owner}' in row {int(broken.argmax())} contains NaN, infinity or a value too "
            "large for float32; only a row of NaN marks a sample that the owner lacks"
        )
    return values


def _has_ids(y: Any) -> bool:
    return isinstance(y, Mapping) or _is_frame(y) or (isinstance(y, tuple) and len(y) == 2)


def _is_frame(samples: Any) -> bool:
    """Whether it is a pandas data frame or series, whose index has the ids of samples."""
    return hasattr(samples, "index") and hasattr(samples, "to_numpy")


def _given_labels(y: Any) -> NDArray[Any]:
    """Return labels as an array. Raises ValueError for missing ones, of which NumPy would make the text ``nan``."""
    import pandas as pd

    objects = np.array(y, dtype=object)
    missing = int(pd.isna(objects).sum()) if objects.ndim == 1 else 0
    if missing:
        raise ValueError(f"Input y contains NaN: {missing} of {len(objects)} samples have no label; leave them out")
    return np.asarray(y)


def _by_id(given: Any, name: str, what: str) -> dict[Any, Any]:
    """Return labels, or other values, by sample id; ``name`` and ``what`` are the argument and a value of it."""
    if isinstance(given, Mapping):
        return dict(zip(_plain_ids(given), given.values(), strict=True))
    if _is_frame(given):
        values = given.to_numpy()
        ids = _plain_ids(given.index)
        if values.ndim == 2 and values.shape[1] == 1:
            values = values[:, 0]
    elif isinstance(given, tuple) and len(given) == 2:
        ids, values = _plain_ids(given[0]), np.asarray(given[1])
    else:
        raise ValueError(
            f"samples have ids, but {name} does not: pass a Series with the ids as index, a mapping of ids to {what}s, "
            f"or a pair (ids, {what}s)"
        )
    if values.ndim != 1 or len(values) != len(ids):
        raise ValueError(f"{name} has {len(ids)} ids but {what}s of shape {values.shape}")
    found = dict(zip(ids, values, strict=True))
    if len(found) < len(ids):
        raise ValueError(f"{name} has more than one {what} for a sample")
    return found
