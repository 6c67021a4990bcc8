"""Released rows of an owner's samples, stored so that repeated requests get the same numbers.

Averages over new draws would remove noise. F3 (Ma, Hoang, Chen; UAI 2023), section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedgraph.support.errors import RunError
from fedgraph.support.files import json_digest, load_state, locked, private_folder, save_state


class Released:
    """Rows of numbers by sample key, in one file per owner and purpose, never deleted.

    The released row of a key does not change, even if the features of the sample do.

    Parameters
    ----------
    folder : Path
        Folder on the owner's node for its frozen models, in all runs.
    owner : str
        Name of the owner.
    purpose : JSON value
        Everything else that determines the numbers, such as the frozen model's fingerprint and settings of the noise.
        Rows for another purpose are drawn separately.
    """

    def __init__(self, folder: Path, owner: str, purpose: Any) -> None:
        self.owner = owner
        self.path = folder / f"{json_digest([owner, purpose])[:32]}.safetensors"

    def rows(self, keys: Sequence[str], draw: Callable[[Tensor], Tensor]) -> Tensor:
        """Return rows ``[keys, size]`` in the order of ``keys``; new ones are drawn and stored first.

        Raises RunError when the file is broken, or contains rows of another size or type.

        Parameters
        ----------
        keys : sequence of str
            Samples, all different.
        draw : callable
            Returns rows to release for some positions of ``keys``, int64 ``[positions]``.
        """
        if not keys:
            return draw(torch.zeros(0, dtype=torch.int64))
        private_folder(self.path.parent)
        # Concurrent requests must not draw twice for one sample.
        with locked(self.path.with_suffix(".lock")):
            kept = load_state(self.path) if self.path.exists() else {"keys": [], "rows": None}
            place = {key: row for row, key in enumerate(kept["keys"])}
            missing = torch.tensor([row for row, key in enumerate(keys) if key not in place], dtype=torch.int64)
            drawn = draw(missing)
            whole = drawn if kept["rows"] is None else kept["rows"]
            if whole.shape[1:] != drawn.shape[1:] or whole.dtype != drawn.dtype:
                raise RunError(
                    f"{self.path} holds {list(whole.shape[1:])} numbers per sample of owner '{self.owner}', not "
                    f"{list(drawn.shape[1:])}; it belongs to another model: was it moved there?"
                )
            if len(missing):
                whole = drawn if kept["rows"] is None else torch.cat([whole, drawn])
                place |= {keys[row]: len(place) + number for number, row in enumerate(missing.tolist())}
                save_state(self.path, {"keys": list(place), "rows": whole})
        return whole[torch.tensor([place[key] for key in keys])]
