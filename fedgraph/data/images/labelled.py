"""The user's own images with classes: a folder with sub-folders for classes, or arrays in an .npz file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedgraph.data.images.image_files import Bytes, FileKey, Images, file_key
from fedgraph.data.own import LOOKED_FOR
from fedgraph.support.csv_text import composed
from fedgraph.support.errors import DataError, counted, quoted
from fedgraph.support.files import read_arrays

_MODES = {1: "L", 3: "RGB"}
_NO_FILES = {"thumbs.db", "desktop.ini", "__macosx"}
"""Files that operating systems add to folders, in lower case."""

_NO_READERS = {"BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF"}
"""Formats that Pillow can only read with other programs."""

_PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
"""Names of folders that are splits of a data set, not sites."""

_DEEP = 257
"""65,535, the largest value of 16 bits, divided by 255."""

_OF_16_BITS = "with 16 bits per channel; the upper 8 are used"
"""What is said of such images."""

_DARK = 64
"""Values of 8 bits below which images are said to be dark: those of 14 bits in files of 16."""

_MOST_BROKEN = 10
"""Number of unreadable images that an error names."""

Ground = Literal["white", "black"]
"""Background of transparent images."""


@dataclass(frozen=True)
class OwnImages(Images):
    """A user's own images.

    Attributes
    ----------
    sites : names of the clients, if each has a folder with folders for each class; else empty.
    site : index into ``sites`` of each image; None without sites.
    notes : what was left out or changed.
    """

    sites: tuple[str, ...] = ()
    site: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()


def read_labelled(
    path: Path, classes: Sequence[str], shape: tuple[int, int, int], ground: Ground = "white", every_class: bool = False
) -> OwnImages:
    """Read all images, class by class and sorted by file name; labels are positions in ``classes``.

    A folder has a sub-folder for each class, with any nesting, or a sub-folder for each site with sub-folders for
    classes. All formats of Pillow are read, also with 16 bits per channel, a palette or transparency (on ``ground``);
    of several frames the first. Image files are resized to ``shape`` (channels, height, width); arrays must have it.
    The last few sets are cached until a file changes. Raises DataError for classes that ``classes`` does not list, for
    a class with files none of which is an image, or, with ``every_class``, without any image, for an image that cannot
    be read, and when there is none. The message names the file or folder.
    """
    if not path.exists():
        raise DataError(f"there is no {path}: {LOOKED_FOR}")
    if not path.is_dir():
        return _read_npz(file_key([path]), path, tuple(classes), shape)
    return _Folder.of(path, [composed(name) for name in classes], every_class).read(shape, ground)


def read_new(
    path: Path, classes: Sequence[str], shape: tuple[int, int, int], ground: Ground = "white"
) -> tuple[OwnImages, tuple[str, ...], bool]:
    """Read images with or without labels; without, files lie in the folder itself, or in one for each site.

    Raises DataError as :func:`read_labelled`.

    Returns
    -------
    images : OwnImages
        Their labels are -1 where unknown.
    names : tuple of str
        Of the files within the folder, or numbers from 0.
    labelled : bool
        Whether labels are known.
    """
    if not path.is_dir():
        images = _read_npz(file_key([path]) if path.is_file() else (), path, tuple(classes), shape, labelled=False)
        return images, tuple(map(str, range(len(images.labels)))), bool((images.labels >= 0).all())
    listed = [composed(name) for name in classes]
    found = _Folder.without_classes(path, listed) or _Folder.of(path, listed, every_class=False)
    labelled = all(label >= 0 for _, label, _ in found.files)
    return found.read(shape, ground), tuple(str(file.relative_to(path)) for file, _, _ in found.files), labelled


@dataclass(frozen=True)
class _Folder:
    """The images of a folder: path, class (-1: unknown) and site of each; the sites, and notes on ignored files."""

    files: list[tuple[Path, int, int]]
    sites: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, folder: Path, classes: Sequence[str], every_class: bool) -> _Folder:
        found = {composed(entry.name): entry for entry in _entries(folder) if entry.is_dir()}
        sites = () if set(found) & set(classes) else tuple(found)
        without = [site for site in sites if not set(classes) & {*_folder_names(found[site])}]
        if len(without) == len(sites):
            sites = ()
        elif without:
            complete = [site for site in sites if site not in without]
            raise DataError(
                f"{folder}: there are folders of classes in {quoted(complete, 5)}, but not in {quoted(without, 5)}: "
                f"with a folder for each site, each needs one of a class ({', '.join(classes)}); add it, or move the "
                "folder elsewhere"
            )
        if parts := [name for name in sites if name.lower() in _PARTS]:
            training = next((name for name in parts if name.lower().startswith("train")), parts[0])
            raise DataError(
                f"{folder} has the folders {', '.join(parts)}, which seem to be splits of the data, not sites: name "
                f'the one to train on, [data] path = ".../{training}", and for the others test = "shared" and test-path'
            )
        roots = {name: found[name] for name in sites} or {"": folder}
        files, others = [], Counter[tuple[str, str]]()
        for place, root in enumerate(roots.values()):
            inside = {composed(entry.name): entry for entry in _entries(root) if entry.is_dir()}
            unknown = [name for name in inside if name not in classes]
            if unknown:
                raise DataError(
                    f"{root} has the sub-folders {', '.join(map(repr, unknown[:5]))}, which [data] classes does not "
                    f"list; it lists {', '.join(classes)}. (Or there is a folder for each site, and in it one for each "
                    "of these classes)"
                )
            for label, name in enumerate(classes):
                for file in _files(inside[name]) if name in inside else ():
                    if file.suffix.lower() in _known_suffixes():
                        files.append((file, label, place))
                    else:
                        others[name, file.suffix.lower() or "without a suffix"] += 1
        cls._check(folder, classes, files, others, every_class)
        beside = sum(len(_loose(root)) for root in {folder, *roots.values()})
        left = [f"{count:,} {suffix} in '{name}'" for (name, suffix), count in others.items()]
        notes = [f"{_no_images(others.total())} ({', '.join(left)})"] if left else []
        notes += [f"{counted(beside, 'image')} beside the folders of classes left out"] if beside else []
        # Class by class, as without sites.
        return cls(sorted(files, key=lambda row: row[1]), sites, tuple(notes))

    @classmethod
    def without_classes(cls, folder: Path, classes: Sequence[str]) -> _Folder | None:
        """Return the images that lie in the folder itself, or in a folder for each site; None if there are classes.

        Raises DataError for images beside folders with images that are no classes.
        """
        folders = {composed(entry.name): entry for entry in _entries(folder) if entry.is_dir()}
        inner = {name.lower() for each in folders.values() for name in _folder_names(each)}
        if {*map(str.lower, folders), *inner} & {*map(str.lower, classes)}:
            return None
        sites = {name: _loose(entry) for name, entry in folders.items()}
        if loose := _loose(folder):
            beside = [name for name, images in sites.items() if images]
            if beside:
                raise DataError(
                    f"{folder} has images, and more of them in {quoted(beside)}: put all into one folder, or into a "
                    "folder for each site or class"
                )
            return cls([(file, -1, 0) for file in loose], (), _note_on_others([folder]))
        if not sites or not all(sites.values()):
            return None
        files = [(file, -1, place) for place, inside in enumerate(sites.values()) for file in inside]
        return cls(files, tuple(sites), _note_on_others([folder, *folders.values()]))

    def read(self, shape: tuple[int, int, int], ground: Ground) -> OwnImages:
        """Return the images."""
        pixels, changed = _read_files(file_key([file for file, _, _ in self.files]), shape, ground)
        labels, site = (np.array([row[place] for row in self.files], dtype=np.int64) for place in (1, 2))
        notes = (*self.notes, *changed)
        return OwnImages(pixels, labels, len(labels), self.sites, site if self.sites else None, notes)

    @staticmethod
    def _check(
        folder: Path, classes: Sequence[str], files: Sequence[tuple[Path, int, int]], others: Counter[tuple[str, str]],
        every_class: bool,
    ) -> None:  # fmt: skip
        if not files and not others:
            raise DataError(
                f"{folder} holds no images: put them in sub-folders named after the classes, {', '.join(classes)}"
            )
        present = {label for _, label, _ in files}
        for label, name in enumerate(classes):
            unread = [f"{count:,} {suffix}" for (of, suffix), count in others.items() if of == name]
            if label not in present and unread:
                raise DataError(
                    f"{folder}: class '{name}' has no readable image ({', '.join(unread)}): convert them to .png, .jpg "
                    "or .tif"
                )
            if label not in present and every_class:
                raise DataError(
                    f"{folder}: there is no image of class '{name}': leave it out of [data] classes, or add some"
                )


def _no_images(count: int) -> str:
    return f"{counted(count, 'file is no image and was', 'files are not images and were')} left out"


def _note_on_others(folders: Sequence[Path]) -> tuple[str, ...]:
    """Say how many files directly in these folders are no images."""
    files = sum(entry.is_file() for folder in folders for entry in _entries(folder))
    count = files - sum(len(_loose(folder)) for folder in folders)
    return (_no_images(count),) if count else ()


def _entries(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return [entry for entry in entries if not entry.name.startswith(".") and entry.name.lower() not in _NO_FILES]


def _folder_names(folder: Path) -> list[str]:
    return [composed(entry.name) for entry in _entries(folder) if entry.is_dir()]


def _loose(folder: Path) -> list[Path]:
    """Return the images directly in a folder."""
    return [file for file in _entries(folder) if file.is_file() and file.suffix.lower() in _known_suffixes()]


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files below a folder, its own first."""
    entries = _entries(folder)
    yield from (entry for entry in entries if entry.is_file())
    for entry in entries:
        if entry.is_dir():
            yield from _files(entry)


@cache
def _known_suffixes() -> frozenset[str]:
    Image.init()
    readers = set(Image.OPEN) - _NO_READERS
    return frozenset(suffix for suffix, reader in Image.registered_extensions().items() if reader in readers)


@lru_cache(maxsize=4)
def _read_files(files: FileKey, shape: tuple[int, int, int], ground: Ground) -> tuple[Bytes, tuple[str, ...]]:
    read, broken = [], []
    for path, _ in files:
        try:
            read.append(_pixels(path, shape, ground))
        except DataError as error:
            broken.append(str(error))
    if broken:
        lines = "\n".join(broken[:_MOST_BROKEN])
        count, them = (f"{len(broken):,} images", "them") if len(broken) > 1 else ("1 image", "it")
        more = f"\nand {len(broken) - _MOST_BROKEN:,} more" if len(broken) > _MOST_BROKEN else ""
        raise DataError(f"{count} of {len(files):,} cannot be used: repair {them} or take {them} away\n{lines}{more}")
    counts = Counter(change for _, changes in read for change in changes)
    notes = [f"{counted(count, 'image')} {words}" for words, count in counts.items()]
    brightest = max((int(pixels.max()) for pixels, changes in read if _OF_16_BITS in changes), default=_DARK)
    if brightest < _DARK:
        notes.append(
            f"the largest value of those with 16 bits is then {brightest} of 255: if they use fewer bits, such as 12, "
            "multiply them up to 65,535"
        )
    return np.stack([pixels for pixels, _ in read]), tuple(notes)


def _pixels(path: Path, shape: tuple[int, int, int], ground: Ground) -> tuple[Bytes, list[str]]:
    """Read one image, upright, ``[channels, height, width]``, and a list of changes."""
    channels, height, width = shape
    changes = []
    try:
        with Image.open(path) as picture:
            if getattr(picture, "n_frames", 1) > 1:
                changes.append("with several frames; the first is used")
            upright = ImageOps.exif_transpose(picture)
            if upright.mode.startswith(("I", "F")):
                upright = _to_8_bits(np.asarray(upright), path)
                changes.append(_OF_16_BITS)
            if upright.has_transparency_data:
                behind = Image.new("RGBA", upright.size, ground)
                front = upright.convert("RGBA")
                if front.getextrema()[-1][0] < 255:  # type: ignore[index]
                    changes.append(f"with transparent parts, put on a {ground} background")
                upright = Image.alpha_composite(behind, front)
            upright = upright.convert(_MODES[channels])
            if upright.size != (width, height):
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
            values = np.asarray(upright)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image ({error})") from None
    return values.reshape(height, width, channels).transpose(2, 0, 1), changes


def _to_8_bits(values: NDArray[Any], path: Path) -> Image.Image:
    """Convert an image from 16 to 8 bits per channel. Raises DataError for values out of range."""
    if values.dtype.kind not in "iu" or values.min() < 0 or values.max() > 255 * _DEEP:
        raise DataError(
            f"{path} has pixel values that are not integers from 0 to 65,535: save it with 8 or 16 bits per "
            "channel, or give all images as bytes in an .npz file"
        )
    return Image.fromarray(np.rint(values / _DEEP).astype(np.uint8))


@lru_cache(maxsize=4)
def _read_npz(
    key: FileKey, path: Path, classes: tuple[str, ...], shape: tuple[int, int, int], labelled: bool = True
) -> OwnImages:
    if not key or path.suffix != ".npz":
        raise DataError(f"{path} is neither a folder of images, or of a sub-folder for each class, nor an .npz file")
    arrays = read_arrays(path)
    if not labelled and "images" in arrays:
        arrays.setdefault("labels", np.full(len(arrays["images"]), -1))
    if not {"images", "labels"} <= arrays.keys():
        raise DataError(f"{path} needs the arrays images and labels; it holds {', '.join(arrays) or 'nothing'}")
    images, labels = arrays["images"], arrays["labels"]
    channels, height, width = shape
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (height, width, channels) or not len(images):
        raise DataError(
            f"{path}: images must be bytes (uint8) [images, {height}, {width}, {channels}], as size and channels say; "
            f"they are {arrays['images'].dtype} {list(arrays['images'].shape)}"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iuU":
        raise DataError(f"{path}: labels must be {len(images)} names of classes, or their numbers from 0 on")
    if labels.dtype.kind == "U":
        unknown = sorted(set(labels.tolist()) - set(classes))
        places = {name: place for place, name in enumerate(classes)}
        numbers = np.array([places.get(label, -1) for label in labels.tolist()], dtype=np.int64)
    else:
        numbers = labels.astype(np.int64)
        least = 0 if labelled else -1
        unknown = sorted({str(label) for label in numbers.tolist() if not least <= label < len(classes)})
    if unknown:
        raise DataError(
            f"{path} has the labels {', '.join(map(repr, unknown[:5]))}, which [data] classes does not list; it lists "
            f"{', '.join(classes)}"
        )
    return OwnImages(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), numbers, len(images))
