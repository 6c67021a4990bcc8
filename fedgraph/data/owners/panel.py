"""Windows of many series with one common label, such as events measured by the units of a power grid.

A substitute for the PMU data of F3 (Ma, Hoang, Chen, UAI 2023, supplement C), which cannot be published.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from fedgraph.data.own import LOOKED_FOR, OwnData, data_path, data_title
from fedgraph.data.owners.samples import NO_LABEL
from fedgraph.data.owners.shared_samples import Holdings, OwnerSource, SharedSampleSettings
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.support.errors import DataError
from fedgraph.support.files import read_arrays, replacing

Singles = NDArray[np.float32]


class PanelSettings(SharedSampleSettings):
    """The table ``[data]`` with ``set = "panel"``: an .npz file, one for all or one at each node.

    Its arrays: ``values`` ``[samples, clients, steps, features]``, NaN where a reading is missing; ``labels``, whole
    numbers from 0, -1 for a new sample; and, optionally, the texts ``owners`` (client names), ``keys`` (of the samples)
    and ``classes``. A file at each node needs ``owners`` and ``keys``, and ``classes`` if nodes have not seen all of
    them. A missing reading is interpolated linearly within its window, or is that of the nearest step at the ends; a
    window without any reading is a sample that the client lacks. A file to predict needs no ``labels`` and ``classes``.

    Attributes
    ----------
    path  : the file, looked for next to the experiment, in the current folder, and in the data folder. Not needed where
            every node has its own file (node config ``data``).
    graph : file of the given client graph, looked for as ``path`` is.
    """

    set: Literal["panel"] = "panel"
    path: str | None = None
    graph: str | None = None


@dataclass(frozen=True)
class Panel:
    """The content of a file: values float32 ``[samples, clients, steps, features]``, labels int64 ``[samples]`` if any.

    ``classes`` is empty where the file does not name them; ``arrays`` are the names of all its arrays.
    """

    values: Singles
    labels: NDArray[np.int64] | None
    owners: tuple[str, ...]
    keys: tuple[str, ...]
    classes: tuple[str, ...]
    arrays: tuple[str, ...]


class PanelSource(OwnerSource):
    """The data set that :class:`PanelSettings` describe."""

    def __init__(self, settings: PanelSettings, data_dir: Path, own: OwnData | None = None) -> None:
        self.settings: PanelSettings = settings
        self.data_dir = data_dir
        self.own = own
        self.graph_path = None if settings.graph is None else data_dir / Path(settings.graph).expanduser()
        self.title = data_title(settings.path, own)

    def every_client(self) -> tuple[str, ...]:
        """Return the owners in the file."""
        return self._panel().owners

    def holdings(self, names: Sequence[str], classes: tuple[str, ...] = ()) -> Holdings:
        """Return windows ``[samples, steps, features]`` of the clients ``names``.

        Raises DataError for labels beyond the classes, and without labels unless ``classes`` are known.
        """
        panel = self._panel()
        named = self._classes(panel, classes)
        values = panel.values[:, [panel.owners.index(name) for name in names]].swapaxes(0, 1)
        return Holdings(
            keys=panel.keys,
            labels=torch.full((len(panel.keys),), NO_LABEL) if panel.labels is None else torch.from_numpy(panel.labels),
            classes=named,
            inputs=tuple(torch.from_numpy(interpolated(values))),
            present=torch.from_numpy(np.isfinite(values).any((2, 3))),
            features=((),) * len(names),
        )

    def every_graph(self) -> ClientGraph | None:
        """Return the graph that the settings name."""
        return None if self.graph_path is None else read_graph(self.graph_path, names=list(self.every_client()))

    def given_graph(self) -> ClientGraph | None:
        """Return the graph over the clients; where nodes have their own files, that of the whole file."""
        if self.graph_path is None or self.settings.path is not None:
            return super().given_graph()
        return read_graph(self.graph_path)

    def _classes(self, panel: Panel, known: tuple[str, ...]) -> tuple[str, ...]:
        """Return the classes that the file names, else the ``known`` ones, else as many numbers as labels need."""
        if panel.labels is None:
            if not known:
                raise _lacks(self._path, "labels", panel.arrays)
            return panel.classes or known
        count = max(int(panel.labels.max()) + 1, 2)
        named = panel.classes or known or tuple(map(str, range(count)))
        if len(named) < count:
            raise DataError(f"{self._path}: there are labels up to {count - 1} for {len(named)} classes")
        return named

    @property
    def _path(self) -> Path:
        return data_path(self.settings.path, self.data_dir, self.own)

    def _panel(self) -> Panel:
        path = self._path
        try:
            changed = path.stat().st_mtime_ns
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror}); {LOOKED_FOR}") from None
        return _read(path.absolute(), changed, ("values",) if self.own is None else ("values", "owners", "keys"))


def without_labels(place: Path, file: Path) -> Path:
    """Return the file of samples without labels: ``place`` itself if none has one, else ``file``, which is written."""
    arrays = read_arrays(place)
    if bool((arrays.get("labels", np.full(1, NO_LABEL)) == NO_LABEL).all()):
        return place
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **{name: array for name, array in arrays.items() if name != "labels"})  # type: ignore[arg-type]
    return file


def interpolated(values: Singles) -> Singles:
    """Fill gaps (NaN) between two readings of ``values`` ``[..., steps, features]`` linearly along the steps.

    Before the first and after the last reading its value is repeated; without any reading NaN stays.
    """
    steps = values.shape[-2]
    present = np.isfinite(values)
    step = np.arange(steps)[:, None]
    before = np.maximum.accumulate(np.where(present, step, -1), axis=-2)
    after = np.flip(np.minimum.accumulate(np.flip(np.where(present, step, steps), -2), axis=-2), -2)
    first, last = np.where(before < 0, after, before), np.where(after >= steps, before, after)
    # Without any reading both positions lie outside, and the NaN read there stays, as intended.
    low = np.take_along_axis(values, first.clip(0, steps - 1), -2)
    high = np.take_along_axis(values, last.clip(0, steps - 1), -2)
    share = (step - first) / np.maximum(last - first, 1)
    filled: Singles = np.where(present, values, low + np.where(last > first, share, 0.0) * (high - low))
    return filled.astype(np.float32)


@lru_cache(maxsize=4)
def _read(path: Path, _changed: int, needed: tuple[str, ...]) -> Panel:
    """Read a file; cached, as many nodes of a process load different clients of one file."""
    arrays = read_arrays(path)
    lacking = [name for name in needed if name not in arrays]
    if lacking:
        raise _lacks(path, lacking[0], arrays)
    values, labels = arrays["values"], arrays.get("labels")
    if values.ndim != 4 or values.dtype.kind not in "fiu" or 0 in values.shape:
        raise DataError(
            f"{path}: values must be numbers [samples, owners, steps, features], none of them 0; they are "
            f"{values.dtype} {list(values.shape)}"
        )
    samples, owners = values.shape[:2]
    if np.isinf(values).any():
        sample, owner, step, _ = (int(place) for place in np.argwhere(np.isinf(values))[0])
        raise DataError(
            f"{path}: values[{sample}, {owner}, {step}] is infinite: a missing reading is NaN (places from 0: sample, "
            "owner, step)"
        )
    if labels is not None and (labels.shape != (samples,) or labels.dtype.kind not in "iu" or labels.min() < NO_LABEL):
        raise DataError(f"{path}: labels must be {samples} whole numbers, one per sample, from 0 on or -1 for new ones")
    names = _texts(path, arrays, "owners", owners, [f"owner-{number:03d}" for number in range(owners)])
    keys = _texts(path, arrays, "keys", samples, [f"sample-{number:06d}" for number in range(samples)])
    single = values.astype(np.float32)
    return Panel(
        values=np.where(np.isfinite(single), single, np.float32(np.nan)),
        labels=None if labels is None else labels.astype(np.int64),
        owners=names,
        keys=keys,
        classes=tuple(map(str, arrays.get("classes", ()))),
        arrays=tuple(arrays),
    )


def _lacks(path: Path, name: str, arrays: Iterable[str]) -> DataError:
    return DataError(f"{path}: has no array '{name}'; it holds: {', '.join(arrays) or 'nothing'}")


def _texts(
    path: Path, arrays: dict[str, NDArray[Any]], name: str, count: int, otherwise: Sequence[str]
) -> tuple[str, ...]:
    """Return the texts of an array, all different, or ``otherwise`` if there is no such array."""
    texts = tuple(str(text) for text in arrays.get(name, np.array(otherwise)))
    if len(texts) != count or len(set(texts)) < count or arrays.get(name, np.zeros(1)).ndim != 1:
        raise DataError(f"{path}: {name} must be {count} texts, all different")
    return texts
