from __future__ import annotations

import gzip
import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph.data.base import SPLITS
from fedgraph.data.images import sets as image_sets
from fedgraph.data.images.images import IMAGES, ImageSettings, ImageSource, _digits
from fedgraph.support.catalogue import find
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import parse

DATA = Path(os.environ.get("FEDGRAPH_DATA", Path(__file__).parents[4].parent / "shared" / "data"))
NOWHERE = Path("no-such-folder")
real_mnist = pytest.mark.skipif(
    not (DATA / "mnist" / "train-images-idx3-ubyte.gz").is_file(), reason="no MNIST in the data folder"
)


def digits(**table):
    return ImageSource(ImageSettings(**table), NOWHERE)


def rows(cohort, client, kind):
    own = cohort.splits[kind].rows[client]
    return own[own >= 0].tolist()


def everything(cohort, kind):
    split = cohort.splits[kind]
    return split.batch(torch.arange(int(split.num_examples.max())).expand(len(cohort.names), -1))


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"partition": "iid", "clients": 7},
        {"partition": "dirichlet", "clients": 10},
        {"partition": "classes", "class_groups": (5, 5), "clients": 2},
        {"partition": "power-law", "clients": 5},
        {"partition": "class-imbalance", "clients": 5},
        {"limit": 500, "partition": "iid", "clients": 5},
    ],
)
def test_clients_and_splits_are_disjoint(table):
    source = digits(**table)
    cohort = source.load(source.client_names())
    used = [row for client in range(len(cohort.names)) for kind in SPLITS for row in rows(cohort, client, kind)]
    assert len(used) == len(set(used))
    images = _digits(0)
    assert all(row < images.num_train for kind in ("train", "validation") for row in rows(cohort, 0, kind))
    assert min(rows(cohort, 0, "test")) >= images.num_train
    assert all((cohort.splits[kind].num_examples > 0).all() for kind in SPLITS)


def test_digits_are_split_in_fifths_of_each_class_by_the_seed():
    images, other = _digits(0), _digits(1)
    train, test = np.bincount(images.labels[: images.num_train]), np.bincount(images.labels[images.num_train :])
    assert np.abs(test / (train + test) - 0.2).max() < 0.004
    spec = image_sets.SETS["digits"]
    assert (images.num_train, len(images.labels) - images.num_train) == (spec.num_train, spec.num_test)
    assert images.pixels.shape == (1797, 1, 8, 8)
    assert not np.array_equal(images.pixels, other.pixels)


def test_a_part_of_the_clients_is_the_same_rows_of_the_whole():
    source = digits(partition="dirichlet", clients=6)
    whole = source.load(source.client_names())
    chosen = ["client-4", "client-1"]
    part = ImageSource(ImageSettings(partition="dirichlet", clients=6), NOWHERE).load(chosen)
    assert part.names == tuple(chosen)
    for kind in SPLITS:
        for here, there in ((0, 4), (1, 1)):
            assert rows(part, here, kind) == rows(whole, there, kind)
    assert torch.equal(part.label_counts, whole.label_counts[[4, 1]])
    indices = torch.tensor([[0, 3, 5], [2, 2, 1]])
    wide = torch.zeros(6, 3, dtype=torch.int64)
    wide[[4, 1]] = indices
    assert torch.equal(part.splits["train"].batch(indices).inputs, whole.splits["train"].batch(wide).inputs[[4, 1]])


def test_task_label_counts_and_names():
    source = digits(clients=10)
    cohort = source.load(source.client_names())
    assert cohort.names == tuple(f"client-{n:02d}" for n in range(10))
    assert (cohort.task.kind, cohort.task.input_shape, cohort.task.output_shape) == ("classification", (1, 8, 8), (10,))
    assert cohort.task.classes == tuple("0123456789")
    batch = everything(cohort, "train")
    for client in range(10):
        counted = torch.bincount(batch.targets[client][batch.weights[client] > 0], minlength=10)
        assert torch.equal(cohort.label_counts[client], counted)
    assert cohort.label_counts.dtype == torch.int64
    assert cohort.mean.tolist() == [0] * 10
    assert cohort.std.tolist() == [1] * 10
    assert source.given_graph() is None


def test_inputs_are_the_published_pixels():
    from sklearn.datasets import load_digits

    known = {image.tobytes(): int(label) for image, label in zip(*load_digits(return_X_y=True), strict=True)}
    cohort = digits(layout="flat").load(["client-03"])
    assert cohort.task.input_shape == (64,)
    batch = everything(cohort, "test")
    assert batch.inputs.max() <= 1
    for pixels, label in zip(batch.inputs[0], batch.targets[0], strict=True):
        assert known[(pixels.double() * 16).numpy().tobytes()] == int(label)


def test_standard_pixels_have_mean_0_and_deviation_1():
    source = digits(normalise="standard", partition="iid", clients=1, validation_share=0.0)
    cohort = source.load(["client-0"])
    inputs = everything(cohort, "train").inputs
    assert abs(float(inputs.mean())) < 0.01
    assert abs(float(inputs.std()) - 1) < 0.01
    assert cohort.splits["validation"].num_examples.tolist() == [0]
    flat = digits(normalise="standard", partition="iid", clients=1, validation_share=0.0, layout="flat")
    assert torch.equal(everything(flat.load(["client-0"]), "train").inputs, inputs.flatten(2))


def test_matched_test_sets_have_the_mix_of_the_training_set():
    source = digits(partition="dirichlet", clients=5)
    cohort = source.load(source.client_names())
    test = everything(cohort, "test")
    for client in range(5):
        train = sum(
            torch.bincount(b.targets[client][b.weights[client] > 0], minlength=10)
            for b in (everything(cohort, "train"), everything(cohort, "validation"))
        )
        tested = torch.bincount(test.targets[client][test.weights[client] > 0], minlength=10)
        assert (train * 0.25 - tested).abs().max() <= 1.5


def test_shared_test_set_is_the_whole_one():
    cohort = digits(test="shared").load(["client-00", "client-19"])
    assert cohort.splits["test"].num_examples.tolist() == [359, 359]
    assert rows(cohort, 0, "test") == rows(cohort, 1, "test")


def test_validation_share_is_taken_of_each_client():
    source = digits(partition="iid", clients=10, validation_share=0.25)
    cohort = source.load(source.client_names())
    share = cohort.splits["validation"].num_examples / (cohort.splits["train"].num_examples * 4 / 3)
    assert (share - 0.25).abs().max() < 0.01


def test_shared_validation_is_what_was_kept_of_everybody():
    table = {"partition": "classes", "class_groups": (5, 5), "clients": 2, "validation_share": 0.2}
    own, shared = (digits(**table, validation=kind).load(["client-0", "client-1"]) for kind in ("own", "shared"))
    kept = [rows(own, client, "validation") for client in (0, 1)]
    assert rows(shared, 0, "validation") == rows(shared, 1, "validation") == sorted(kept[0] + kept[1])
    batch = everything(shared, "validation")
    assert sorted(set(batch.targets[0].tolist())) == list(range(10)), "all classes, of which a client trains on five"
    assert [rows(shared, client, "train") for client in (0, 1)] == [rows(own, client, "train") for client in (0, 1)]


def test_limit_is_balanced_over_classes():
    source = digits(limit=200, partition="iid", clients=4, validation_share=0.0)
    assert source.load(source.client_names()).label_counts.sum(0).tolist() == [20] * 10


def test_descriptions():
    assert digits().describe() == "digits (scikit-learn, 1,797 images 8x8), 20 clients, 2 shards each"
    limited = ImageSource(ImageSettings(set="mnist", limit=1000, partition="iid", clients=3), NOWHERE)
    assert limited.describe().startswith("MNIST (70,000 images 28x28, 1,000 of 60,000 training images), 3 clients")


def test_errors_name_the_client():
    with pytest.raises(DataError, match="'anna'; .*client-00"):
        digits().load(["client-00", "anna"])
    with pytest.raises(DataError, match=r"client-\d+ .*359 for 500"):
        digits(partition="iid", clients=500).load(["client-000"])
    with pytest.raises(DataError, match="leaves client-1438 without examples"):
        digits(partition="iid", clients=1439).load(["client-0000"])
    with pytest.raises(DataError, match=r"client-0038 .*\(1\)"):
        digits(partition="iid", clients=1400, test="shared").load(["client-1399"])


def test_augmentation_is_that_of_the_settings():
    assert digits().load(["client-00"]).augment is None
    augment = digits(augment=("flip", "crop"), crop_padding=2, cutout_size=3).load(["client-00"]).augment
    assert (augment.changes, augment.crop_padding, augment.cutout_size) == ({"flip", "crop"}, 2, 3)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"augment": ["crop"], "layout": "flat"}, 'augment .*layout = "image"'),
        ({"augment": ["crop"], "crop-padding": 8}, "crop-padding .*8$"),
        ({"augment": ["cutout"]}, "cutout-size .*8$"),
        ({"augment": ["flip", "flip"]}, "augment: .*differ"),
        ({"augment": ["rotate"]}, "augment.0: .*'crop', 'flip' or 'cutout'"),
        ({"normalize": "unit"}, "'normalize'; .*normalise"),
        ({"validation-share": 1.0}, "validation-share"),
        ({"validation": "shared", "validation-share": 0.0}, 'validation = "shared" .*validation-share'),
        ({"groups": 0}, "groups"),
        ({"clients": 6, "groups": 7}, "groups"),
        ({"groups": 5, "groups-differ": "turned"}, "groups"),
        ({"groups": 2, "groups-differ": "size"}, "groups"),
    ],
)
def test_settings_that_cannot_be(table, message):
    with pytest.raises(ExperimentError, match=message):
        parse(ImageSettings, {"set": "digits", **table}, "[data]")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100"])
def test_missing_files_are_named_with_their_address_and_place(name, tmp_path):
    with pytest.raises(DataError) as caught:
        ImageSource(ImageSettings(set=name), tmp_path).load(["client-00"])
    first = image_sets.catalogue_entry(name).alternatives[0][0]
    for fact in (first.path.name, first.url, str(tmp_path / first.path), first.sha256):
        assert fact in str(caught.value)


def test_catalogue_is_complete_and_consistent():
    assert [entry.name for entry in IMAGES] == list(image_sets.SETS)
    for entry in IMAGES:
        for files in entry.alternatives:
            assert all(file.path.parts[0] == entry.name for file in files)
            assert all(file.sha256 is None or len(bytes.fromhex(file.sha256)) == 32 for file in files)
    assert len(set(image_sets.SETS["cifar100"].classes)) == 100
    assert list(image_sets.SETS["cifar100"].classes) == sorted(image_sets.SETS["cifar100"].classes)


@real_mnist
def test_mnist_reads_packed_and_unpacked_files_and_refuses_others(tmp_path):
    source = ImageSource(ImageSettings(set="mnist"), DATA)
    cohort = source.load(source.client_names())
    assert cohort.splits["train"].num_examples.sum() == 54_000
    assert cohort.splits["test"].num_examples.sum() == 10_000
    pixels = cohort.splits["train"].inputs
    assert pixels.dtype == torch.uint8
    mean, deviation = pixels[:60_000].float().mean() / 255, pixels[:60_000].float().std() / 255
    assert float(mean) == pytest.approx(0.1307, abs=1e-4)
    assert float(deviation) == pytest.approx(0.3081, abs=1e-4)
    again = ImageSource(ImageSettings(set="mnist", partition="iid"), DATA).load(["client-00"])
    assert again.splits["train"].inputs.data_ptr() == pixels.data_ptr()

    (tmp_path / "mnist").mkdir()
    for packed in (DATA / "mnist").glob("*.gz"):
        content = gzip.decompress(packed.read_bytes())
        (tmp_path / "mnist" / packed.stem).write_bytes(content)
        entry = image_sets.catalogue_entry("mnist")
        listed = next(file for file in entry.alternatives[1] if file.path.name == packed.stem)
        assert listed.sha256 == hashlib.sha256(content).hexdigest()
    assert find(image_sets.catalogue_entry("mnist"), tmp_path) is not None
    unpacked = ImageSource(ImageSettings(set="mnist"), tmp_path).load(["client-00"])
    assert torch.equal(unpacked.splits["train"].inputs, pixels)
    shutil.copy(DATA / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz", tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz")
    for name in image_sets.IDX_NAMES[:3]:
        shutil.copy(DATA / "mnist" / f"{name}.gz", tmp_path / "mnist")
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz"):
        ImageSource(ImageSettings(set="mnist"), tmp_path).load(["client-00"])


@pytest.mark.skipif(not (DATA / "cifar10" / "labels.npz").is_file(), reason="no CIFAR-10 mosaics in the data folder")
def test_cifar10_mosaics():
    source = ImageSource(ImageSettings(set="cifar10", clients=10), DATA)
    assert "60,000 images 32x32, 103 of them approximate" in source.describe()
    cohort = source.load(["client-00"])
    pixels = cohort.splits["train"].inputs
    assert pixels.shape == (60_000, 3, 32, 32)
    spec = image_sets.SETS["cifar10"]
    mean = pixels[:50_000].float().mean((0, 2, 3)) / 255
    assert torch.allclose(mean, torch.tensor(spec.mean), atol=2e-3)
    assert cohort.task.input_shape == (3, 32, 32)
