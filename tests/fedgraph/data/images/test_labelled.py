"""Images of one's own: folders with a sub-folder for each class, and arrays."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from fedgraph.data.images.labelled import read_labelled, read_new
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
    with pytest.raises(DataError, match="'owl', .*cat, dog"):
        read_labelled(folder, CLASSES[:2], (1, 4, 3))
    with pytest.raises(DataError, match="no images: .*cat, dog, owl"):
        read_labelled(folder / "owl", CLASSES, (1, 4, 3))
    with pytest.raises(DataError, match="nowhere: .*data-dir"):
        read_labelled(folder / "nowhere", CLASSES, (1, 4, 3))
    (folder / "text.txt").write_text("no images")
    with pytest.raises(DataError, match="neither a folder"):
        read_labelled(folder / "text.txt", CLASSES, (1, 4, 3))
    (folder / "text.txt").unlink()
    Image.fromarray(pixels(0).astype(np.float32) / 255).save(folder / "cat/deep.tif")
    with pytest.raises(DataError, match=r"deep\.tif .*65,535"):
        read_labelled(folder, CLASSES, (1, 4, 3))
    (folder / "cat/deep.tif").unlink()
    (folder / "cat/deep.png").write_bytes((folder / "owl/b.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"deep\.png cannot be read"):
        read_labelled(folder, CLASSES, (1, 4, 3))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pixels(0, (5, 4, 3))}, "images and labels; .*images$"),
        ({"images": pixels(0, (5, 3, 4)), "labels": np.zeros(5, int)}, r"\[images, 4, 3, 1\].* uint8 \[5, 3, 4\]"),
        ({"images": np.zeros((5, 4, 3)), "labels": np.zeros(5, int)}, "must be bytes .* they are float64"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.zeros(4, int)}, "labels must be 5 names of classes"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.full(5, 3)}, "'3', .*cat, dog, owl"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.array(["cow"] * 5)}, "has the labels 'cow'"),
        ({"images": pixels(0, (5, 4, 3)), "labels": np.array([object()] * 5)}, "cannot be read as an .npz file"),
    ],
)
def test_arrays_that_cannot_be(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(DataError, match=message):
        read_labelled(tmp_path / "x.npz", CLASSES, (1, 4, 3))


def save(folder, name, image):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path)


def test_images_of_all_kinds_and_in_deeper_folders(tmp_path):
    grey = pixels(3)
    for name in ("cat/a.bmp", "cat/b.tif", "cat/c.TIFF", "cat/d.png", "cat/2021/march/e.gif", "cat/f.webp"):
        options = {"lossless": True} if name.endswith("webp") else {}
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(grey).save(tmp_path / name, **options)
    deep = grey.astype(np.uint16) * 257
    save(tmp_path, "dog/deep.png", Image.fromarray(deep))
    save(tmp_path, "dog/deep.tif", Image.fromarray(deep))
    Image.fromarray(grey).save(tmp_path / "dog/frames.tif", save_all=True, append_images=[Image.fromarray(255 - grey)])
    found = read_labelled(tmp_path, CLASSES, (1, 4, 3))
    assert found.labels.tolist() == [0] * 6 + [1] * 3
    np.testing.assert_array_equal(found.pixels[:, 0], [grey] * 9)
    assert found.notes == (
        "2 images with 16 bits per channel; the upper 8 are used",
        "1 image with several frames; the first is used",
    )


@pytest.mark.parametrize(("factor", "told"), [(16, True), (257, False)])
def test_images_of_12_bits_in_files_of_16_are_said_to_be_dark(tmp_path, factor, told):
    for name in ("cat/a.png", "dog/b.tif"):
        save(tmp_path, name, Image.fromarray(pixels(3).clip(0, 240).astype(np.uint16) * factor))
    found = read_labelled(tmp_path, CLASSES, (1, 4, 3))
    assert any("the largest value of those with 16 bits is then 15 of 255" in note for note in found.notes) is told


def test_palettes_and_transparent_parts_on_a_stated_ground(tmp_path):
    colours = pixels(4, (4, 3, 3))
    palette = Image.fromarray(colours).quantize(12)
    save(tmp_path, "cat/a.png", palette)
    exact = np.asarray(palette.convert("RGB"))
    half = np.dstack([colours, np.full((4, 3), 255, np.uint8)])
    half[:2, :, 3] = 0  # what is behind it would be shown
    save(tmp_path, "cat/b.png", Image.fromarray(half))
    save(tmp_path, "cat/c.png", Image.fromarray(np.dstack([colours, np.full((4, 3), 255, np.uint8)])))
    for ground, value in (("white", 255), ("black", 0)):
        found = read_labelled(tmp_path, CLASSES, (3, 4, 3), ground)
        np.testing.assert_array_equal(found.pixels[0].transpose(1, 2, 0), exact)
        assert (found.pixels[1][:, :2] == value).all()
        np.testing.assert_array_equal(found.pixels[1][:, 2:].transpose(1, 2, 0), colours[2:])
        np.testing.assert_array_equal(found.pixels[2].transpose(1, 2, 0), colours)
        assert found.notes == (f"1 image with transparent parts, put on a {ground} background",)


def test_what_is_left_out_is_counted_and_a_class_without_an_image_is_an_error(folder):
    (folder / "cat/deep").mkdir()
    (folder / "cat/deep/x.dcm").write_bytes(b"x")
    (folder / "cat/Thumbs.db").write_bytes(b"x")
    (folder / "cat/.ipynb_checkpoints").mkdir()
    (folder / "cat/.ipynb_checkpoints/z.png").write_bytes(b"x")
    notes = read_labelled(folder, CLASSES, (1, 4, 3)).notes
    assert notes == ("2 files are not images and were left out (1 .txt in 'cat', 1 .dcm in 'cat')",)
    with pytest.raises(DataError, match="class 'dog'"):
        read_labelled(folder, CLASSES, (1, 4, 3), every_class=True)
    (folder / "dog").mkdir()
    assert read_labelled(folder, CLASSES, (1, 4, 3)).notes == notes
    for name in ("a.dcm", "b.dcm", "c.nii"):
        (folder / "dog" / name).write_bytes(b"x")
    with pytest.raises(DataError, match=r"'dog' .*\(2 \.dcm, 1 \.nii\)"):
        read_labelled(folder, CLASSES, (1, 4, 3))


def test_a_folder_for_each_site(tmp_path):
    for place, site in enumerate(("mercy", "county")):
        for label, name in enumerate(("cat", "owl")):
            for number in range(2 + place):
                save(
                    tmp_path, f"{site}/{name}/{number}.png", Image.fromarray(pixels(10 * place + label + 100 * number))
                )
    found = read_labelled(tmp_path, CLASSES, (1, 4, 3))
    assert found.sites == ("county", "mercy")
    assert found.labels.tolist() == [0] * 5 + [2] * 5
    assert found.site is not None
    assert found.site.tolist() == [0, 0, 0, 1, 1] * 2
    np.testing.assert_array_equal(found.pixels[3, 0], pixels(0))
    np.testing.assert_array_equal(found.pixels[5, 0], pixels(11))
    (tmp_path / "notes").mkdir()
    with pytest.raises(DataError, match="in 'county', 'mercy', but not in 'notes'.*each site"):
        read_labelled(tmp_path, CLASSES, (1, 4, 3))


def test_names_with_accents_apart_are_the_same_names(tmp_path):
    save(tmp_path, "Gro\u0308sse/a.png", Image.fromarray(pixels(0)))
    save(tmp_path, "klein/a.png", Image.fromarray(pixels(1)))
    for classes in (("Gr\u00f6sse", "klein"), ("Gro\u0308sse", "klein")):
        assert read_labelled(tmp_path, classes, (1, 4, 3)).labels.tolist() == [0, 1]


def test_parts_of_the_data_are_no_sites(tmp_path):
    for part in ("train", "Test"):
        for name in ("cat", "owl"):
            save(tmp_path, f"{part}/{name}/a.png", Image.fromarray(pixels(0)))
    with pytest.raises(DataError, match=r"Test, train, .*\.\.\./train.*test-path"):
        read_labelled(tmp_path, CLASSES, (1, 4, 3))
    assert len(read_labelled(tmp_path / "train", CLASSES, (1, 4, 3)).labels) == 2


def test_all_damaged_images_are_named_at_once(folder):
    for name in ("cat/broken.png", "owl/broken.png"):
        (folder / name).write_bytes(b"no image")
    with pytest.raises(DataError, match="2 images of 5 cannot be used: repair them") as error:
        read_labelled(folder, CLASSES, (1, 4, 3))
    lines = str(error.value).splitlines()[1:]
    assert [line.partition(" cannot be read")[0] for line in lines] == [
        str(folder / "cat/broken.png"), str(folder / "owl/broken.png"),
    ]  # fmt: skip
    (folder / "dog").mkdir()
    for number in range(12):
        (folder / "dog" / f"{number:02d}.png").touch()
    with pytest.raises(DataError, match=r"(?s)14 images of 17 .*and 4 more$"):
        read_labelled(folder, CLASSES, (1, 4, 3))


@pytest.mark.parametrize("labelled", [True, False])
def test_new_images_of_sites_belong_to_them(tmp_path, labelled):
    for value, site in enumerate(("north", "south")):
        for label, name in enumerate(CLASSES[:2]):
            place = tmp_path / site / name if labelled else tmp_path / site
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((4, 3), 10 * label + value, np.uint8)).save(place / f"{name}.png")
    images, names, known = read_new(tmp_path, CLASSES, (1, 4, 3))
    assert known == labelled
    assert images.sites == ("north", "south")
    assert (images.pixels[:, 0, 0, 0] % 10 == images.site).all()
    assert [name.partition("/")[0] for name in names] == [images.sites[site] for site in images.site]
    if labelled:
        assert (images.labels == images.pixels[:, 0, 0, 0] // 10).all()
    else:
        assert (images.labels == -1).all()


def test_images_beside_folders_are_counted_or_refused(tmp_path):
    for name in ("cat", "owl"):
        save(tmp_path, f"new/{name}/a.png", Image.fromarray(pixels(0)))
    save(tmp_path, "new/overview.png", Image.fromarray(pixels(1)))
    images, _, labelled = read_new(tmp_path / "new", CLASSES, (1, 4, 3))
    assert labelled
    assert images.labels.tolist() == [0, 2]
    assert images.notes == ("1 image beside the folders of classes left out",)
    save(tmp_path, "mix/a.png", Image.fromarray(pixels(0)))
    save(tmp_path, "mix/more/b.png", Image.fromarray(pixels(0)))
    with pytest.raises(DataError, match="has images, and more of them in 'more'"):
        read_new(tmp_path / "mix", CLASSES, (1, 4, 3))


def test_folders_whose_names_are_nearly_those_of_classes_are_no_sites(tmp_path):
    for name in ("Cat", "Dog"):
        (tmp_path / name).mkdir()
        Image.fromarray(pixels(0)).save(tmp_path / name / "a.png")
    with pytest.raises(DataError, match="'Cat', 'Dog', which .* classes does not list"):
        read_new(tmp_path, CLASSES, (1, 4, 3))
