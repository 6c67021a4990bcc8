"""Images of one's own, dealt to clients or of one client of a node."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.data.own import OwnData
from fedgraph.support.errors import DataError, ExperimentError, IdentityError

TABLE = {"set": "images", "path": "x.npz", "classes": ["cat", "dog"], "size": 4, "channels": 3, "clients": 3}


@pytest.fixture
def folder(tmp_path):
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, (60, 4, 4, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", images=images, labels=draws.integers(2, size=60))
    return tmp_path


def rows_of(data):
    return [sorted(row for row in torch.cat([s.rows[c] for s in data.splits.values()]).tolist() if row >= 0) for c in
            range(len(data.names))]  # fmt: skip


def test_images_are_dealt_out_and_split_by_the_names_of_clients(folder):
    source = open_source(parse_data(TABLE), folder)
    assert source.client_names() == ["client-0", "client-1", "client-2"]
    data = source.load(source.client_names())
    assert sorted(sum(rows_of(data), [])) == list(range(60))  # noqa: RUF017
    assert [split.num_examples.tolist() for split in data.splits.values()] == [[14] * 3, [2] * 3, [4] * 3]
    assert data.label_counts.sum().item() == 14 * 3
    alone = source.load(["client-2"])
    for kind, split in data.splits.items():
        assert torch.equal(alone.splits[kind].rows[0], split.rows[2])
    assert source.describe() == (
        "x.npz, 60 images 4x4 of 2 classes, 3 clients, independent and identically distributed"
    )
    assert source.given_graph() is None


def test_all_of_a_nodes_own_images_are_of_its_client(folder):
    settings = parse_data({key: value for key, value in TABLE.items() if key != "path"})
    source = open_source(settings, folder / "elsewhere", OwnData(folder / "x.npz", ("mercy",)))
    assert source.client_names() == ["mercy"]
    data = source.load(["mercy"])
    assert rows_of(data) == [list(range(60))]
    assert data.task.classes == ("cat", "dog")
    with pytest.raises(DataError, match="'client-0'; .*mercy"):
        source.load(["client-0"])
    with pytest.raises(IdentityError, match="it names 2, mercy, st-olav"):
        open_source(settings, folder, OwnData(folder / "x.npz", ("mercy", "st-olav"))).client_names()


def test_pixels_are_scaled_as_the_settings_say(folder):
    indices = torch.arange(14)[None]
    plain = open_source(parse_data(TABLE), folder).load(["client-0"]).splits["train"].batch(indices).inputs
    assert plain.shape == (1, 14, 3, 4, 4)
    assert plain.max() <= 1.0
    moments = {"normalise": "standard", "mean": [0.4, 0.5, 0.6], "deviation": [0.1, 0.2, 0.4], "augment": ["flip"]}
    found = open_source(parse_data({**TABLE, **moments}), folder).load(["client-0"])
    mean, deviation = (torch.tensor(moments[key])[:, None, None] for key in ("mean", "deviation"))
    torch.testing.assert_close(found.splits["train"].batch(indices).inputs, (plain - mean) / deviation)
    assert found.augment is not None
    flat = open_source(parse_data({**TABLE, "layout": "flat"}), folder).load(["client-0"])
    assert flat.task.input_shape == (48,)


def test_all_clients_are_tested_on_images_that_are_put_aside(folder):
    table = {**TABLE, "partition": "classes", "clients": 2, "test": "shared"}
    source = open_source(parse_data(table), folder)
    data = source.load(source.client_names())
    test = data.splits["test"]
    assert test.num_examples.tolist() == [12, 12]
    assert torch.equal(test.rows[0], test.rows[1])
    labels = test.batch(torch.arange(12)[None].expand(2, -1)).targets[0]
    assert set(labels.tolist()) == {0, 1}
    own = {row for kind in ("train", "validation") for row in data.splits[kind].rows.flatten().tolist() if row >= 0}
    assert own == set(range(60)) - set(test.rows[0].tolist())
    assert source.describe().endswith("2 clients, disjoint classes in equal parts, tested on the same 12 images")


def test_all_clients_are_tested_on_images_of_another_file(folder):
    images = np.random.default_rng(1).integers(0, 256, (5, 4, 4, 3), dtype=np.uint8)
    np.savez(folder / "test.npz", images=images, labels=[0, 1, 1, 0, 1])
    table = {**TABLE, "test": "shared", "test-path": "test.npz"}
    own = OwnData(folder / "x.npz", ("mercy",))
    for source in (open_source(parse_data(table), folder), open_source(parse_data(table), folder, own)):
        data = source.load(source.client_names())
        batch = data.splits["test"].batch(torch.arange(5)[None].expand(len(data.names), -1))
        torch.testing.assert_close(batch.inputs[0], torch.from_numpy(images).permute(0, 3, 1, 2) / 255)
        assert batch.targets[0].tolist() == [0, 1, 1, 0, 1]
        parts = data.splits["train"].num_examples + data.splits["validation"].num_examples
        assert parts.sum().item() == 60
        assert "60 images 4x4" in source.describe()
        assert source.describe().endswith("tested on the same 5 images")
    with pytest.raises(DataError, match="needs test-path"):
        open_source(parse_data({**TABLE, "test": "shared"}), folder, own).load(["mercy"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ["cat"]}, "classes"),
        ({"classes": ["cat", "cat"]}, "classes: .*differ"),
        ({"normalise": "standard"}, "mean, .*3 channels"),
        ({"normalise": "standard", "mean": [0.1, 0.1, 0.1], "deviation": [0.2]}, "needs deviation, a number for each"),
        ({"augment": ["crop"]}, "crop-padding .*less .*4 pixels"),
        ({"augment": ["flip"], "layout": "flat"}, "augment moves pixels around"),
        ({"size": [4, 0]}, "size"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ExperimentError, match=message):
        parse_data({**TABLE, **changes})


def test_folders_of_sites_are_the_clients(tmp_path):
    """Whose images have an even value are those of one site; no partition deals them out."""
    from PIL import Image

    for place, site in enumerate(("north", "south")):
        for label, name in enumerate(("a", "b")):
            (tmp_path / "scans" / site / name).mkdir(parents=True)
            for number in range(10):
                value = 2 * (10 * label + number) + place
                path = tmp_path / "scans" / site / name / f"{number}.tif"
                Image.fromarray(np.full((4, 4), value, np.uint8)).save(path)
    (tmp_path / "scans/north/a/notes.txt").write_text("x")
    table = {"set": "images", "path": "scans", "classes": ["a", "b"], "size": 4, "channels": 1, "clients": 5}
    source = open_source(parse_data(table), tmp_path)
    assert source.client_names() == ["north", "south"]
    told = source.describe()
    assert "40 images 4x4 of 2 classes, 2 clients, the folders of sites" in told
    assert told.endswith("; 1 file is no image and was left out (1 .txt in 'a')")
    data = source.load(["south", "north"])
    for row, odd in ((0, 1), (1, 0)):
        for split in data.splits.values():
            held = split.inputs[split.rows[row][split.rows[row] >= 0]]
            assert (held[:, 0, 0, 0] % 2 == odd).all()
    assert sum(int(split.num_examples.sum()) for split in data.splits.values()) == 40
