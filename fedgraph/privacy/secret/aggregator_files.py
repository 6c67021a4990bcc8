"""Files of an aggregator on its node: its keys, and a record of the maps applied to each sample.

F3 (Ma, Hoang, Chen; UAI 2023), section 5. The server's knowledge of a sample accumulates over requests.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedgraph.privacy.ledger import kept_secret
from fedgraph.privacy.secret.first_stage import check_leaks
from fedgraph.privacy.secret.sealed import PRIVATE_BYTES, KeyPair
from fedgraph.privacy.secret.shamir import ShareSettings
from fedgraph.support.files import file_name, load_state, locked, private_folder, save_state


def folder_of(state_dir: Path, name: str) -> Path:
    """Return the folder, which need not exist, of the aggregator ``name`` in a node's ``state-dir``."""
    return state_dir / "aggregators" / file_name(name)


def own_keys(folder: Path) -> KeyPair:
    """Return the keys of an aggregator, created in ``folder`` at the first call and readable only by its user.

    Raises RunError when the file is damaged.
    """
    path = folder / "private.key"
    return KeyPair.from_private_bytes(kept_secret(path, PRIVATE_BYTES, lambda: KeyPair.create().private_bytes()))


class AppliedMaps:
    """Projections applied to an owner's embeddings, by sample; one file per owner and frozen model.

    Samples are known by the tags that their owner seals with its shares, which follow from their content: the server,
    which names keys, does not see them.

    Parameters
    ----------
    folder : Path
        Folder of the aggregator.
    owner : str
        Name of the owner.
    fingerprint : str
        Fingerprint of its frozen model.
    size : int
        Length of its embedding.
    """

    def __init__(self, folder: Path, owner: str, fingerprint: str, size: int) -> None:
        name = hashlib.sha256("\x1f".join((owner, fingerprint, str(size))).encode()).hexdigest()[:32]
        self.owner, self.size, self.path = owner, size, folder / f"maps-{name}.safetensors"

    def allow(self, tags: Sequence[str], projection: Tensor, settings: ShareSettings) -> None:
        """Record that a projection will be applied to some samples.

        Raises ExperimentError, without recording, when the server would learn too much of a sample from all applied
        projections, see ``check_leaks``. Raises RunError when the file is broken.

        Parameters
        ----------
        tags : sequence of str
            Tags of the samples.
        projection : Tensor
            int64 ``[hidden, size]``.
        settings : ShareSettings
            Settings of the shares.
        """
        private_folder(self.path.parent)
        # Concurrent requests must take each other into account.
        with locked(self.path.with_suffix(".lock")):
            kept = load_state(self.path)["maps"] if self.path.exists() else {}
            same = next((name for name, entry in kept.items() if torch.equal(entry["projection"], projection)), None)
            wanted = set(tags)
            before = {name: wanted & set(entry["tags"]) for name, entry in kept.items() if name != same}
            # Samples with the same applied maps are checked together.
            together = {frozenset(name for name, found in before.items() if tag in found) for tag in tags}
            for names in together:
                projections = [projection[None], *(kept[name]["projection"][None] for name in sorted(names))]
                check_leaks(projections, [self.size], settings, [self.owner])
            entry = kept.setdefault(same or str(len(kept)), {"projection": projection, "tags": []})
            if not wanted <= set(entry["tags"]):
                entry["tags"] = sorted(wanted | set(entry["tags"]))
                save_state(self.path, {"maps": kept})


if __name__ == "__main__":
    # Once the command that printed it; without this it would print nothing, and succeed.
    sys.exit("the fingerprint of an aggregator is printed by: python -m fedgraph.privacy.secret STATE_DIR NAME")
