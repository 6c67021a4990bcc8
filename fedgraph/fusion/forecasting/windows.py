"""The windows of owners of time series, joined by their start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgraph.support.errors import DataError, quoted

NO_WINDOW = -1
"""Start that pads those of an owner with fewer windows than others. Times before 1970 are negative as well, and no
window starts a second before its first Monday."""


@dataclass(frozen=True)
class OwnerWindows:
    """The windows of one split.

    Attributes
    ----------
    keys : Tensor
        Int64 ``[windows]``, ascending: the start of each window.
    present : Tensor
        Bool ``[owners, windows]``.
    embeddings : Tensor
        Float ``[owners, windows, size]``, 0 where an owner lacks the window.
    targets : Tensor
        Float ``[owners, windows, steps]``, the readings to forecast, standardised per owner, or embeddings of later
        windows; ``[owners, windows, 0]`` if they stay with their owners.
    known : Tensor
        Bool of the same shape: which targets were observed.
    """

    keys: Tensor
    present: Tensor
    embeddings: Tensor
    targets: Tensor
    known: Tensor

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.keys)

    def batch(self, places: Tensor) -> OwnerWindows:
        """The windows at ``places``, int64 ``[batch]``, with embeddings as float32."""
        return OwnerWindows(
            self.keys[places],
            self.present[:, places],
            self.embeddings[:, places].float(),
            self.targets[:, places].float(),
            self.known[:, places],
        )

    def ahead(self, seconds: int, tolerance: int = 0) -> OwnerWindows:
        """The same windows; the target is the owner's embedding of the window ``seconds`` later.

        It may be ``tolerance`` seconds earlier or later, as months are.
        """
        wanted = self.keys + seconds
        after = torch.searchsorted(self.keys, wanted).clamp(max=max(len(self) - 1, 0))
        before = (after - 1).clamp(min=0)
        is_before = (self.keys[before] - wanted).abs() < (self.keys[after] - wanted).abs()
        later = torch.where(is_before, before, after)
        known = self.present[:, later] & ((self.keys[later] - wanted).abs() <= tolerance)
        targets = self.embeddings[:, later]
        return replace(self, targets=targets, known=known[..., None].expand(-1, -1, targets.shape[2]))

    @classmethod
    def of(cls, starts: Tensor, embeddings: Tensor, targets: Tensor, known: Tensor) -> OwnerWindows:
        """Join the windows of all owners by their start.

        Parameters
        ----------
        starts : Tensor
            Int64 ``[owners, examples]``: starts of each owner's examples, padded with :data:`NO_WINDOW`.
        embeddings, targets, known : Tensor
            ``[owners, examples, ...]``.
        """
        present = starts != NO_WINDOW
        keys = starts[present].unique()
        if starts.shape[1] == len(keys) and bool((starts == keys).all()):
            return cls(keys, present, embeddings, targets, known)
        owners, examples = present.nonzero(as_tuple=True)
        places = owners, torch.searchsorted(keys, starts[present])

        def placed(values: Tensor) -> Tensor:
            whole = values.new_zeros(len(starts), len(keys), *values.shape[2:])
            whole[places] = values[owners, examples]
            return whole

        return cls(keys, placed(present), placed(embeddings), placed(targets), placed(known))

    def of_owners(self, values: Tensor, starts: Tensor) -> Tensor:
        """Values ``[owners, windows, ...]`` in the order of each owner's examples, ``[owners, examples, ...]``.

        Padding, where ``starts`` is :data:`NO_WINDOW`, is 0.
        """
        present = starts != NO_WINDOW
        if starts.shape[1] == len(self.keys) and bool((starts == self.keys).all()):
            return values
        owners, examples = present.nonzero(as_tuple=True)
        found = values.new_zeros(*starts.shape, *values.shape[2:])
        found[owners, examples] = values[owners, torch.searchsorted(self.keys, starts[present])]
        return found


def shared_windows(present: Tensor, names: Sequence[str]) -> str:
    """Describe how many windows clients share; clients learn from each other only in these.

    Raises DataError if several clients share no window.

    Parameters
    ----------
    present : Tensor
        Bool ``[clients, windows]``: whether a client has a window with this start.
    names : sequence of str
        Of the clients.
    """
    having = present.sum(0)
    shared, of_all = int((having > 1).sum()), int((having == len(names)).sum())
    if len(names) > 1 and not shared:
        raise DataError(
            f"the windows of {quoted(names)} share no start with another client's, so clients cannot learn from each "
            "other: the times of all clients should cover the same period, with timestamps at the beginning (or end) "
            "of a step everywhere"
        )
    if of_all == present.shape[1]:
        return f"all {of_all:,} training windows are shared by all clients"
    unshared = [name for name, row in zip(names, present, strict=True) if not bool((row & (having > 1)).any())]
    lonely = f"; {quoted(unshared)} {'shares' if len(unshared) == 1 else 'share'} none" if unshared else ""
    return f"{shared:,} of {present.shape[1]:,} training windows are shared by clients, {of_all:,} by all{lonely}"
