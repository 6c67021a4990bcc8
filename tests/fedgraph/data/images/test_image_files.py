from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedgraph.data.images import image_files
from fedgraph.support.errors import DataError

DATA = Path(os.environ.get("FEDGRAPH_DATA", Path(__file__).parents[4].parent / "shared" / "data"))
RANDOM = np.random.default_rng(0)


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def old_string(raw):
    """A Python 2 string in a protocol 2 pickle, as the published batches hold them."""
    return b"T" + struct.pack("<I", len(raw)) + raw


def python2_batch(pixels, labels, key=b"labels"):
    """The bytes cPickle of Python 2 wrote for {'data': pixels, key: labels}."""
    rows, columns = pixels.shape
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        b"(cnumpy\nndarray\n" + b"(K\x00t" + old_string(b"b") + b"tR"
        b"(K\x01" + b"(" + b"J" + struct.pack("<i", rows) + b"J" + struct.pack("<i", columns) + b"t"
        b"cnumpy\ndtype\n(" + old_string(b"u1") + b"K\x00K\x01tR"
        b"(K\x03" + old_string(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"I00\n" + old_string(pixels.tobytes()) + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + old_string(b"data") + array + old_string(key) + listed + b"u."


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_round_trip(tmp_path, suffix):
    array = RANDOM.integers(0, 256, (5, 4, 3), dtype=np.uint8)
    path = write(tmp_path / f"images{suffix}", idx(array))
    assert np.array_equal(image_files.read_idx(path, hashlib.sha256(idx(array)).hexdigest()), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>not found</html>", "'3c 68 74 6d'"),
        (b"\0\0\x0d\x01\0\0\0\x01\0", "not an idx file of unsigned bytes"),
        (b"", "not an idx file"),
        (idx(np.zeros((3, 2), np.uint8))[:-1], r"\(3, 2\) bytes .*holds 5"),
    ],
)
def test_idx_header_is_checked(tmp_path, content, message):
    with pytest.raises(DataError, match=message):
        image_files.read_idx(write(tmp_path / "file", content))


def test_damaged_gzip_and_other_content_are_named(tmp_path):
    path = write(tmp_path / "images.gz", idx(RANDOM.integers(0, 256, (50, 50), dtype=np.uint8)))
    with pytest.raises(DataError, match=r"images\.gz .*SHA-256 00"):
        image_files.read_idx(path, "00")
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"images.gz cannot be read"):
        image_files.read_idx(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match=r"images.gz cannot be read"):
        image_files.read_idx(path)


def idx_set(folder, num_labels=6):
    train, test = (RANDOM.integers(0, 256, (n, 4, 4), dtype=np.uint8) for n in (6, 3))
    contents = (train, np.arange(num_labels, dtype=np.uint8), test, np.arange(3, dtype=np.uint8))
    return (
        [write(folder / f"{n}.gz", idx(a)) for n, a in zip(image_files.IDX_NAMES, contents, strict=True)],
        train,
        test,
    )


def test_idx_set_puts_training_images_first(tmp_path):
    paths, train, test = idx_set(tmp_path)
    images = image_files.read_images(image_files.file_key(paths))
    assert images.num_train == 6
    assert np.array_equal(images.pixels[:, 0], np.concatenate([train, test]))
    assert images.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert images.labels.dtype == np.int64


def test_files_are_read_once_until_they_change(tmp_path):
    paths, *_ = idx_set(tmp_path)
    first = image_files.read_images(image_files.file_key(paths))
    assert image_files.read_images(image_files.file_key(paths)) is first
    os.utime(paths[0], ns=(1, 1))
    assert image_files.read_images(image_files.file_key(paths)) is not first


def test_images_and_labels_must_match(tmp_path):
    paths, *_ = idx_set(tmp_path, num_labels=5)
    with pytest.raises(DataError, match=r"images \(6, 4, 4\).*labels \(5,\)"):
        image_files.read_images(image_files.file_key(paths))


def cifar_folder(folder, names, key=b"labels"):
    batches = [(RANDOM.integers(0, 256, (4, 3072), dtype=np.uint8), [7, 0, 3, 9]) for _ in names]
    paths = [write(folder / n, python2_batch(*b, key)) for n, b in zip(names, batches, strict=True)]
    return paths, np.concatenate([pixels for pixels, _ in batches])


@pytest.mark.parametrize(
    ("names", "key"), [(image_files.CIFAR10_NAMES, b"labels"), (image_files.CIFAR100_NAMES, b"fine_labels")]
)
def test_cifar_batches_of_python_2(tmp_path, names, key):
    paths, pixels = cifar_folder(tmp_path / "batches", names, key)
    images = image_files.read_images(image_files.file_key(paths))
    assert images.pixels.shape == (4 * len(names), 3, 32, 32)
    assert images.num_train == 4 * (len(names) - 1)
    assert images.labels.tolist() == [7, 0, 3, 9] * len(names)
    assert np.array_equal(images.pixels.reshape(-1, 3072), pixels)


def test_cifar_archive_equals_its_folder(tmp_path):
    paths, _ = cifar_folder(tmp_path / "cifar-10-batches-py", image_files.CIFAR10_NAMES)
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(paths[0].parent, arcname="cifar-10-batches-py")
    packed, unpacked = (image_files.read_images(image_files.file_key(chosen)) for chosen in ([archive], paths))
    assert np.array_equal(packed.pixels, unpacked.pixels)
    assert np.array_equal(packed.labels, unpacked.labels)


def test_batches_saved_again_by_python_3_are_read(tmp_path):
    pixels = RANDOM.integers(0, 256, (2, 3072), dtype=np.uint8)
    saved = [pickle.dumps({"data": order, b"fine_labels": [1, 2]}) for order in (pixels, np.asfortranarray(pixels))]
    paths = [write(tmp_path / name, raw) for name, raw in zip(image_files.CIFAR100_NAMES, saved, strict=True)]
    images = image_files.read_images(image_files.file_key(paths))
    assert np.array_equal(images.pixels.reshape(2, 2, 3072), [pixels, pixels])
    assert images.labels.tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (pickle.dumps({"data": os.system}), "CIFAR batch: it asks to load"),
        (pickle.dumps([1]), "CIFAR batch: it holds list"),
        (b"", "CIFAR batch"),
        (pickle.dumps({"data": np.zeros((2, 3072)), "fine_labels": [1, 2]}), "float64 in place of bytes"),
        (python2_batch(np.zeros((2, 100), np.uint8), [1, 2]), "'data' .*3072 bytes"),
    ],
)
def test_other_batches_are_refused(tmp_path, raw, problem):
    paths = [write(tmp_path / name, raw) for name in image_files.CIFAR100_NAMES]
    with pytest.raises(DataError, match=f"train of .*{problem}"):
        image_files.read_images(image_files.file_key(paths))


def test_incomplete_cifar_is_named(tmp_path):
    archive = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        content = python2_batch(np.zeros((1, 3072), np.uint8), [1])
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    with pytest.raises(DataError, match="data_batch_2, .*data_batch_5, test_b"):
        image_files.read_images(image_files.file_key([archive]))
    archive.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar-10-python.tar\.gz .*read"):
        image_files.read_images(image_files.file_key([archive]))


def test_mosaics(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "MOSAIC_ROWS", 2)
    monkeypatch.setattr(image_files, "MOSAIC_COLUMNS", 3)
    tiles = RANDOM.integers(0, 256, (12, 6, 32, 32, 3), dtype=np.uint8)
    paths = [tmp_path / name for name in image_files.MOSAIC_NAMES]
    for path, own in zip(paths[1:], tiles, strict=True):
        rows = [np.concatenate(list(own[start : start + 3]), axis=1) for start in (0, 3)]
        Image.fromarray(np.concatenate(rows)).save(path, lossless=True)
    np.savez(paths[0], y_train=np.arange(60) % 10, y_test=np.arange(12) % 10, lossy_train=[1])
    images = image_files.read_images(image_files.file_key(paths))
    assert images.num_train == 60
    assert np.array_equal(images.pixels, tiles.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))
    assert images.labels.tolist() == [*np.arange(60) % 10, *np.arange(12) % 10]

    np.savez(paths[0], y_train=np.arange(59), y_test=np.arange(12))
    with pytest.raises(DataError, match="71 labels, .*72"):
        image_files.read_images(image_files.file_key(paths))
    np.savez(paths[0], labels=np.arange(59))
    with pytest.raises(DataError, match="y_train and y_test .*labels"):
        image_files.read_mosaic_labels(paths[0])
    paths[0].write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"labels\.npz .*npz"):
        image_files.read_mosaic_labels(paths[0])
    Image.new("RGB", (8, 8)).save(paths[1], lossless=True)
    with pytest.raises(DataError, match=r"train_00\.webp .*8 x 8 .*96 x 64"):
        image_files._tiles(paths[1])
    paths[1].write_bytes(b"no image")
    with pytest.raises(DataError, match=r"train_00\.webp cannot be read"):
        image_files._tiles(paths[1])


@pytest.mark.skipif(not (DATA / "cifar10" / "labels.npz").is_file(), reason="no CIFAR-10 mosaics in the data folder")
def test_one_real_mosaic_has_smooth_tiles():
    tiles = image_files._tiles(DATA / "cifar10" / "train_00.webp").astype(float)
    assert tiles.shape == (5000, 3, 32, 32)
    # neighbouring pixels resemble each other inside a picture, not across a wrong cut
    inside = np.abs(np.diff(tiles, axis=3)).mean()
    across = np.abs(tiles[1:, :, :, 0] - tiles[:-1, :, :, -1]).mean()
    assert inside < 0.4 * across


# ---- digits, which are those of scikit-learn


@pytest.fixture
def afresh():
    image_files.read_digits.cache_clear()
    yield
    image_files.read_digits.cache_clear()


def test_they_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    bunch, (images, labels) = load_digits(), image_files.read_digits()
    assert (images.dtype, labels.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(images, bunch.images)
    np.testing.assert_array_equal(labels, bunch.target)


def test_nothing_of_it_is_imported():
    script = (
        "import sys; from fedgraph.data.images.image_files import read_digits; read_digits(); "
        "print('sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout == b"False\n"


def test_without_scikit_learn_or_its_file(afresh, monkeypatch, tmp_path):
    monkeypatch.setattr(image_files, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install scikit-learn"):
        image_files.read_digits()

    class Elsewhere:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(image_files, "find_spec", lambda name: Elsewhere)
    with pytest.raises(DataError, match=r"digits\.csv\.gz"):
        image_files.read_digits()
