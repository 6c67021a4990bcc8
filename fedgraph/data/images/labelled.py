"""The user's own images with classes: a folder with a sub-folder for each class, or arrays in an .npz file."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedgraph.data.images.files import Bytes, FileKey, Images, file_key
from fedgraph.support.errors import DataError

_SUFFIXES = (".png", ".jpg", ".jpeg")
_MODES = {1: "L", 3: "RGB"}


def read_labelled(path: Path, classes: Sequence[str], shape: tuple[int, int, int]) -> Images:
    """Read all images, class by class and sorted by file name; labels are positions in ``classes``.

    Images in files are scaled to the ``shape`` (channels, height, width); those of arrays must have it. The last few
    sets are cached in the process as long as no file changes.

    Raises
    ------
    DataError
        For classes that ``classes`` does not list, for a file that is not an image, and when there is no image. The
        message names the file or folder.
    """
    if not path.is_dir():
        return _read_npz(file_key([path]) if path.is_file() else (), path, tuple(classes), shape)
    listed = _listed(path, classes)
    return _read_files(file_key([file for file, _ in listed]), tuple(label for _, label in listed), shape)


def read_new(path: Path, classes: Sequence[str], shape: tuple[int, int, int]) -> tuple[Images, tuple[str, ...], bool]:
    """Read images whose labels need not be known: without them, files lie in the folder itself.

    Returns
    -------
    images : Images
        Their labels are -1 where unknown.
    names : tuple of str
        Of the files within the folder, or numbers from 0.
    labelled : bool
        Whether labels are known.

    Raises
    ------
    DataError
        As :func:`read_labelled`.
    """
    if not path.is_dir():
        images = _read_npz(file_key([path]) if path.is_file() else (), path, tuple(classes), shape, labelled=False)
        return images, tuple(map(str, range(len(images.labels)))), bool((images.labels >= 0).all())
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES and file.name[0] != ".")
    listed = [(file, -1) for file in files] or _listed(path, classes)
    images = _read_files(file_key([file for file, _ in listed]), tuple(label for _, label in listed), shape)
    return images, tuple(str(file.relative_to(path)) for file, _ in listed), not files


def _listed(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """List every image file below ``folder`` with its class."""
    found = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    unknown = [name for name in found if name not in classes]
    if unknown:
        raise DataError(
            f"{folder} has the sub-folders {', '.join(map(repr, unknown[:5]))}, which [data] classes does not list; it "
            f"lists {', '.join(classes)}"
        )
    listed = [
        (file, label)
        for label, name in enumerate(classes)
        if name in found
        for file in sorted((folder / name).iterdir())
        if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
    ]
    if not listed:
        raise DataError(
            f"{folder} holds no images: .png, .jpg or .jpeg files in sub-folders that are called as the classes are, "
            f"{', '.join(classes)}"
        )
    return listed


@lru_cache(maxsize=4)
def _read_files(files: FileKey, labels: tuple[int, ...], shape: tuple[int, int, int]) -> Images:
    pixels = np.stack([_pixels(path, shape) for path, _ in files])
    return Images(pixels, np.array(labels, dtype=np.int64), len(files))


def _pixels(path: Path, shape: tuple[int, int, int]) -> Bytes:
    """Read one image, upright, ``[channels, height, width]``."""
    channels, height, width = shape
    try:
        with Image.open(path) as picture:
            if picture.mode.startswith(("I", "F")):
                raise DataError(
                    f"{path} has more than 8 bits for a colour, which would be cut off: write it anew with 8, or give "
                    "all images as bytes in an .npz file"
                )
            upright = ImageOps.exif_transpose(picture).convert(_MODES[channels])
            if upright.size != (width, height):
                upright = upright.resize((width, height), Image.Resampling.BILINEAR)
            values = np.asarray(upright)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image ({error})") from None
    return values.reshape(height, width, channels).transpose(2, 0, 1)


@lru_cache(maxsize=4)
def _read_npz(
    key: FileKey, path: Path, classes: tuple[str, ...], shape: tuple[int, int, int], labelled: bool = True
) -> Images:
    if not key or path.suffix != ".npz":
        raise DataError(f"{path} is neither a folder with a sub-folder for each class nor an .npz file: check path")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, NDArray[Any]] = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read as an .npz file ({error})") from None
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
    return Images(np.ascontiguousarray(images.transpose(0, 3, 1, 2)), numbers, len(images))
