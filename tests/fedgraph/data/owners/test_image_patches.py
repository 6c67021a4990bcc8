"""Patches of images, put together again."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedgraph.data import open_source, parse_data
from fedgraph.data.images import image_files
from fedgraph.data.owners import image_patches
from fedgraph.data.owners.image_patches import ImagePatchSettings, ImagePatchSource
from fedgraph.support.errors import DataError, ExperimentError


def test_the_patches_of_the_digits_make_the_digits(tmp_path):
    source = ImagePatchSource(ImagePatchSettings(grid=(2, 3), scaling="none"), tmp_path)
    names = source.client_names()
    assert names == ["patch-0-0", "patch-0-1", "patch-0-2", "patch-1-0", "patch-1-1", "patch-1-2"]
    data = source.load_owners(names)
    assert [task.input_shape for task in data.tasks] == [(1, 4, 3), (1, 4, 2), (1, 4, 3)] * 2
    rows = [torch.cat(data.inputs[start : start + 3], 3) for start in (0, 3)]
    bunch = load_digits()
    np.testing.assert_allclose(torch.cat(rows, 2)[:, 0], bunch.images / 16, atol=1e-6)
    assert data.labels.tolist() == bunch.target.tolist()
    assert (data.keys[0], data.keys[-1]) == ("image-00000", "image-01796")
    shares = torch.bincount(data.split.long(), minlength=4) / len(data.keys)
    np.testing.assert_allclose(shares, [0.7, 0.1, 0.2, 0.0], atol=0.03)


def test_rows_and_vectors(tmp_path):
    settings = parse_data({"set": "image-patches", "as-rows": ["patch-0-1"], "flatten": ["patch-1-0"]})
    data = open_source(settings, tmp_path).load_owners(["patch-0-0", "patch-0-1", "patch-1-0"])
    plain = ImagePatchSource(ImagePatchSettings(), tmp_path).load_owners(["patch-0-0", "patch-0-1", "patch-1-0"])
    assert [task.input_shape for task in data.tasks] == [(1, 4, 4), (4, 4), (16,)]
    assert torch.equal(data.inputs[1], plain.inputs[1][:, 0])
    assert torch.equal(data.inputs[2], plain.inputs[2].flatten(1))


def colour_images(monkeypatch, train=30, test=10):
    pixels = np.random.default_rng(0).integers(256, size=(train + test, 3, 32, 32), dtype=np.uint8)
    labels = np.random.default_rng(1).integers(10, size=train + test)
    monkeypatch.setattr(image_patches, "require", lambda entry, folder: (folder,))
    monkeypatch.setattr(image_files, "read_images", lambda files, sha256=(): image_files.Images(pixels, labels, train))
    return pixels, labels


def test_colours_are_scaled_each_for_itself_and_lie_side_by_side_in_rows(monkeypatch, tmp_path):
    pixels, labels = colour_images(monkeypatch)
    settings = ImagePatchSettings(images="cifar10", grid=(1, 2), as_rows=("patch-0-1",))
    data = ImagePatchSource(settings, tmp_path).load_owners(["patch-0-0", "patch-0-1"])
    order = [*range(30, 40), *range(30)]  # by key, "test-..." comes before "train-..."
    assert data.labels.tolist() == labels[order].tolist()
    training = (data.split == 0).numpy()
    for owner in range(2):
        patch = pixels[order][..., 16 * owner : 16 * owner + 16].astype(np.float64)
        mean, std = (statistic(patch[training], (0, 2, 3), keepdims=True) for statistic in (np.mean, np.std))
        expected = (patch - mean) / std
        if owner:
            expected = expected.transpose(0, 2, 3, 1).reshape(40, 32, 48)
        np.testing.assert_allclose(data.inputs[owner], expected, atol=1e-4)


def test_test_images_of_the_set_and_the_first_of_them(monkeypatch, tmp_path):
    pixels, _ = colour_images(monkeypatch)
    data = ImagePatchSource(ImagePatchSettings(images="cifar10"), tmp_path).load_owners(["patch-0-0"])
    assert [key for key, split in zip(data.keys, data.split.tolist(), strict=True) if split == 2] == [
        f"test-{number:05d}" for number in range(10)
    ]
    few = ImagePatchSettings(images="cifar10", first_examples=6, grid=(1, 1), scaling="none")
    data = ImagePatchSource(few, tmp_path).load_owners(["patch-0-0"])
    assert data.keys == ("test-00000", "test-00001", *(f"train-{number:05d}" for number in range(6)))
    np.testing.assert_allclose(data.inputs[0], pixels[[30, 31, 0, 1, 2, 3, 4, 5]] / 255, atol=1e-6)


def test_patches_that_touch_are_neighbours(tmp_path):
    settings = ImagePatchSettings(grid=(2, 2), clients=("patch-1-1", "patch-0-1", "patch-0-0"))
    graph = ImagePatchSource(settings, tmp_path).given_graph()
    assert graph.names == ("patch-1-1", "patch-0-1", "patch-0-0")
    assert graph.dense().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    whole = ImagePatchSource(ImagePatchSettings(grid=(3, 4)), tmp_path).given_graph()
    for first in whole.names:
        for second in whole.names:
            (a, b), (c, d) = (map(int, name.split("-")[1:]) for name in (first, second))
            assert (second in whole.neighbours(first)) == (abs(a - c) + abs(b - d) == 1)
    assert ImagePatchSource(ImagePatchSettings(grid=(1, 1)), tmp_path).given_graph().num_edges == 0


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"grid": [9, 2]}, r"grid = \[9, 2\] is finer than the 8 x 8 pixels"),
        ({"as-rows": ["patch-2-0"]}, "as-rows .*'patch-2-0'; .*patch-1-1"),
        ({"as-rows": ["patch-0-0"], "flatten": ["patch-0-0"]}, "'patch-0-0' .*as-rows"),
    ],
)
def test_settings_that_cannot_be(keys, message):
    with pytest.raises(ExperimentError, match=message):
        parse_data({"set": "image-patches", **keys})


def test_files_that_are_missing_or_of_another_set(monkeypatch, tmp_path):
    source = ImagePatchSource(ImagePatchSettings(images="mnist"), tmp_path)
    with pytest.raises(DataError, match="fedgraph data --download mnist"):
        source.load_owners(["patch-0-0"])
    colour_images(monkeypatch)
    with pytest.raises(DataError, match=r"\(3, 32, 32\).*is this another set"):
        source.load_owners(["patch-0-0"])


def test_the_real_fashion_mnist(data_dir):
    folder = data_dir / "fashion-mnist"
    if not (folder / "t10k-images-idx3-ubyte.gz").exists():
        pytest.skip("Fashion-MNIST is not in FEDGRAPH_DATA")
    settings = ImagePatchSettings(images="fashion-mnist", first_examples=300, scaling="none")
    data = ImagePatchSource(settings, data_dir).load_owners(["patch-1-0"])
    raw = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())
    first = np.frombuffer(raw, np.uint8, 784, 16).reshape(28, 28)
    np.testing.assert_allclose(data.inputs[0][0, 0], first[14:, :14] / 255, atol=1e-6)
    assert (len(data.keys), int((data.split == 2).sum())) == (350, 50)
