"""Images of one's own: folders with a sub-folder for each class, and arrays."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedgraph.data.images.labelled import read_labelled
from fedgraph.support.errors import DataError

CLASSES = ("cat", "dog", "owl")


def pixels(seed, shape=(4, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    for name in ("owl", "cat", ".hidden"):
        (tmp_path / name).mkdir()
    Image.fromarray(pixels(0)).save(tmp_path / "owl/b.png")
    Image.fromarray(pixels(1)).save(tmp_path / "owl/a.PNG")
    Image.fromarray(pixels(2)).save(tmp_path / "cat/z.png")
    (tmp_path / "cat/notes.txt").write_text("no image")
    (tmp_path / "cat/.DS_Store.png").write_text("no image")
    (tmp_path / "readme.md").write_text("no class")
    return tmp_path


def test_a_folder_for_each_class(folder):
    images = read_labelled(folder, CLASSES, (1, 4, 3))
    np.testing.assert_array_equal(images.pixels[:, 0], [pixels(2), pixels(1), pixels(0)])
    assert images.labels.tolist() == [0, 2, 2]
    assert read_labelled(folder, CLASSES[::-1], (1, 4, 3)).labels.tolist() == [0, 0, 2]
    coloured = read_labelled(folder, CLASSES, (3, 4, 3))
    np.testing.assert_array_equal(coloured.pixels, np.repeat(images.pixels, 3, axis=1))


def test_files_are_scaled_turned_upright_and_read_again_when_they_change(folder):
    flat = Image.fromarray(np.full((8, 9), 77, dtype=np.uint8))
    flat.save(folder / "cat/z.png")
    assert (read_labelled(folder, CLASSES, (1, 4, 3)).pixels[0] == 77).all()
    half = np.zeros((40, 60, 3), dtype=np.uint8)
    half[:, :30] = (200, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees to the right
    Image.fromarray(half).save(folder / "cat/turned.jpg", exif=exif, quality=95)
    turned = read_labelled(folder, CLASSES, (3, 60, 40)).pixels[0]
    assert turned[0, :25].min() > 150
    assert turned[0, 35:].max() < 50


def test_arrays_with_names_or_numbers_of_classes(tmp_path):
    grey, colours = pixels(0, (5, 4, 3)), pixels(1, (5, 4, 3, 3))
    np.savez(tmp_path / "grey.npz", images=grey, labels=np.array([2, 0, 1, 1, 0]))
    np.savez(tmp_path / "colours.npz", images=colours, labels=np.array(["owl", "cat", "dog", "dog", "cat"]))
    first = read_labelled(tmp_path / "grey.npz", CLASSES, (1, 4, 3))
    np.testing.assert_array_equal(first.pixels[:, 0], grey)
    second = read_labelled(tmp_path / "colours.npz", CLASSES, (3, 4, 3))
    np.testing.assert_array_equal(second.pixels, colours.transpose(0, 3, 1, 2))
    assert first.labels.tolist() == second.labels.tolist() == [2, 0, 1, 1, 0]


def test_folders_that_cannot_be(folder):
    with pytest.raises(DataError, match="has the sub-folders 'owl', which .* does not list; it lists cat, dog"):
        read_labelled(folder, CLASSES[:2], (1, 4, 3))
    with pytest.raises(DataError, match="holds no images: .png, .jpg or .jpeg files in sub-folders .* cat, dog, owl"):
        read_labelled(folder / "owl", CLASSES, (1, 4, 3))
    with pytest.raises(DataError, match="neither a folder .* nor an .npz file"):
        read_labelled(folder / "nowhere", CLASSES, (1, 4, 3))
    deep = pixels(0).astype(np.uint16) * 200
    Image.fromarray(deep).save(folder / "cat/deep.png")
    with pytest.raises(DataError, match=r"deep.png has more than 8 bits for a colour"):
        read_labelled(folder, CLASSES, (1, 4, 3))
    (folder / "cat/deep.png").write_bytes((folder / "owl/b.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"deep.png cannot be read as an image"):
        read_labelled(folder, CLASSES, (1, 4, 3))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pixels(0, (5, 4, 3))}, "needs the arrays images and labels; it holds images"),
        ({"images": pixels(0, (5, 3, 4)), "labels": np.zeros(5, int)}, r"\[images, 4, 3, 1\].* uint8 \[5, 3, 4\]"),
        ({"images": np.zeros((5, 4, 3)), "labels": np.zeros(5, int)}, "must be bytes .* they are float64"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.zeros(4, int)}, "labels must be 5 names of classes"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.full(5, 3)}, "has the labels '3', which .* lists cat, dog, owl"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.array(["cow"] * 5)}, "has the labels 'cow'"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.array([object()] * 5)}, "cannot be read as an .npz file"),
    ],
)
def test_arrays_that_cannot_be(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_labelled(tmp_path / "x.npz", CLASSES, (1, 4, 3))
