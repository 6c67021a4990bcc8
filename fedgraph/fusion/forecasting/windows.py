"""The windows that owners of time series send, and all owners' windows side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedgraph.support.errors import DataError, quoted


@dataclass(frozen=True)
class OwnerWindows:
    """The windows of one split.

    Attributes
    ----------
    keys : Tensor
        Int64 ``[windows]``, ascending: when each window starts, alike for all owners.
    present : Tensor
        Bool ``[owners, windows]``: who has the window.
    embeddings : Tensor
        Float ``[owners, windows, size]``, 0 where an owner lacks the window.
    targets : Tensor
        Float ``[owners, windows, steps]``, the readings that are forecast, each owner's scaled by its own mean and
        deviation, or embeddings of later windows; ``[owners, windows, 0]`` where they stay with their owners.
    known : Tensor
        Bool of the same shape: which of the targets were read.
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

    def ahead(self, seconds: int) -> OwnerWindows:
        """The same windows, with each owner's own embedding of its window ``seconds`` later as target."""
        wanted = self.keys + seconds
        later = torch.searchsorted(self.keys, wanted).clamp(max=max(len(self) - 1, 0))
        known = self.present[:, later] & (self.keys[later] == wanted)
        targets = self.embeddings[:, later]
        return replace(self, targets=targets, known=known[..., None].expand(-1, -1, targets.shape[2]))

    @classmethod
    def of(cls, starts: Tensor, embeddings: Tensor, targets: Tensor, known: Tensor) -> OwnerWindows:
        """The windows of all owners side by side.

        Parameters
        ----------
        starts : Tensor
            Int64 ``[owners, examples]``: when each owner's examples start, -1 behind its last one.
        embeddings, targets, known : Tensor
            Of these examples, ``[owners, examples, ...]``.
        """
        there = starts >= 0
        keys = starts[there].unique()
        if starts.shape[1] == len(keys) and bool((starts == keys).all()):
            return cls(keys, there, embeddings, targets, known)
        owners, examples = there.nonzero(as_tuple=True)
        places = owners, torch.searchsorted(keys, starts[there])

        def placed(values: Tensor) -> Tensor:
            whole = values.new_zeros(len(starts), len(keys), *values.shape[2:])
            whole[places] = values[owners, examples]
            return whole

        return cls(keys, placed(there), placed(embeddings), placed(targets), placed(known))

    def of_owners(self, values: Tensor, starts: Tensor) -> Tensor:
        """Values ``[owners, windows, ...]`` in the order of each owner's examples, ``[owners, examples, ...]``.

        They are 0 behind an owner's last example, where ``starts`` are -1.
        """
        there = starts >= 0
        if starts.shape[1] == len(self.keys) and bool((starts == self.keys).all()):
            return values
        owners, examples = there.nonzero(as_tuple=True)
        found = values.new_zeros(*starts.shape, *values.shape[2:])
        found[owners, examples] = values[owners, torch.searchsorted(self.keys, starts[there])]
        return found


def shared_windows(present: Tensor, names: Sequence[str]) -> str:
    """Say how many windows clients share: only in these does anybody learn from others.

    Raises DataError where there are several clients, and no window is that of two of them.

    Parameters
    ----------
    present : Tensor
        Bool ``[clients, windows]``: who has a window that starts at that time.
    names : sequence of str
        Of the clients.
    """
    having = present.sum(0)
    shared, of_all = int((having > 1).sum()), int((having == len(names)).sum())
    if len(names) > 1 and not shared:
        raise DataError(
            f"no window of {quoted(names)} starts when one of another client does, so that nothing can be learned from "
            "each other: let the times of all cover the same months, and stamp readings at the beginning of a step "
            "everywhere (or at its end)"
        )
    if of_all == present.shape[1]:
        return f"all {of_all:,} training windows are those of all clients"
    unshared = [name for name, row in zip(names, present, strict=True) if not bool((row & (having > 1)).any())]
    lonely = f"; {quoted(unshared)} {'shares' if len(unshared) == 1 else 'share'} none" if unshared else ""
    return f"of {present.shape[1]:,} training windows clients share {shared:,}, and {of_all:,} are those of all{lonely}"
