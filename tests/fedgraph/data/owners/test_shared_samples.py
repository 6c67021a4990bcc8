"""Splits by key, scaling and lacking samples of any set whose clients share samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedgraph.data import parse_data
from fedgraph.data.owners.samples import SAMPLE_SPLITS, cohort_data
from fedgraph.data.owners.shared_samples import Holdings, OwnerSource, SharedSampleSettings, sample_splits
from fedgraph.graph import ClientGraph
from fedgraph.support.errors import DataError, ExperimentError

NEW = SAMPLE_SPLITS.index("new")
KEYS = tuple(f"sample-{number:04d}" for number in range(400))


class Toy(OwnerSource):
    """Two clients of 3 steps x 2 features, samples in falling order of keys."""

    title = "toy"

    def __init__(self, keys=KEYS[::-1], is_test=None, scaled=None, **settings):
        self.settings = SharedSampleSettings(**settings)
        self.keys, self.is_test, self.scaled = keys, is_test, scaled
        random = np.random.default_rng(0)
        count = len(keys)
        self.values = {
            name: random.normal(5.0, 3.0, (count, 3, 2)).astype(np.float32) for name in ("north", "south", "west")
        }
        self.values["south"][::5, 1, 0] = np.nan
        self.there = {name: random.random(count) < 0.8 for name in self.values}
        self.labels = random.integers(3, size=count)
        self.labels[:4] = -1

    def every_client(self):
        return tuple(self.values)

    def every_graph(self):
        return ClientGraph.complete(self.every_client())

    def holdings(self, names, classes=()):
        return Holdings(
            keys=self.keys,
            labels=torch.from_numpy(self.labels),
            classes=("a", "b", "c"),
            inputs=tuple(torch.from_numpy(self.values[name]) for name in names),
            present=torch.from_numpy(
                np.array([self.there[name] for name in names]).reshape(len(names), len(self.keys))
            ),
            features=(("x", "y"),) * len(names),
            scaled=None if self.scaled is None else (torch.tensor(self.scaled),) * len(names),
            is_test=self.is_test,
        )


def with_everything(**settings):
    source = Toy(**settings)
    source.there = {name: np.ones(len(KEYS), dtype=bool) for name in source.values}
    return source


def rows_of(source, data):
    """The rows of a source that are the samples of its data."""
    row = {key: place for place, key in enumerate(source.keys)}
    return [row[key] for key in data.keys]


def test_shares_hold_on_average_and_the_draws_are_even():
    keys = tuple(str(number) for number in range(40_000))
    settings = SharedSampleSettings(shares=(0.5, 0.2, 0.3), new_share=0.1)
    shares = torch.bincount(sample_splits(keys, settings).long(), minlength=4) / len(keys)
    np.testing.assert_allclose(shares, [0.45, 0.18, 0.27, 0.1], atol=0.01)


@pytest.mark.parametrize("shares", [(1.0, 0.0, 0.0), (0.9, 0.1, 0.0), (0.9, 0.0, 0.1)])
def test_a_share_of_none_is_empty(shares):
    counts = torch.bincount(sample_splits(KEYS, SharedSampleSettings(shares=shares)).long(), minlength=4)
    assert [count > 0 for count in counts.tolist()] == [share > 0 for share in (*shares, 0.0)]


def test_the_split_of_a_sample_follows_from_its_key_and_the_seed_alone():
    settings = SharedSampleSettings(new_share=0.2)
    whole = sample_splits(KEYS, settings)
    assert torch.equal(sample_splits(KEYS[::7], settings), whole[::7])
    # Whether a sample is new changes where no other belongs.
    without = sample_splits(KEYS, settings.model_copy(update={"new_share": 0.0}))
    assert torch.equal(without[whole != NEW], whole[whole != NEW])
    other = sample_splits(KEYS, settings.model_copy(update={"split_seed": 1}))
    assert not torch.equal(other == NEW, whole == NEW)
    known = (other != NEW) & (whole != NEW)
    assert not torch.equal(other[known], whole[known])


def test_new_samples_tell_no_label():
    data = Toy(new_share=0.5).load_owners(["north"])
    assert (data.split == NEW).float().mean().item() == pytest.approx(0.5, abs=0.1)
    assert torch.equal(data.labels == -1, data.split == NEW)


def test_test_samples_of_a_set_of_its_own():
    is_test = torch.arange(len(KEYS)) % 3 == 0
    split = sample_splits(KEYS, SharedSampleSettings(shares=(0.6, 0.2, 0.2)), is_test)
    assert torch.equal(split == 2, is_test)
    assert (split[~is_test] == 1).float().mean().item() == pytest.approx(0.25, abs=0.06)


def test_samples_are_sorted_and_those_that_nobody_has_are_left_out():
    source = Toy()
    data = source.load_owners(["south", "north"])
    someone = source.there["south"] | source.there["north"]
    assert data.owners == ("south", "north")
    assert list(data.keys) == sorted(key for key, there in zip(source.keys, someone, strict=True) if there)
    rows = rows_of(source, data)
    assert data.present.tolist() == [source.there[name][rows].tolist() for name in data.owners]
    labels = torch.from_numpy(source.labels[rows])
    assert torch.equal(data.labels, labels)
    assert torch.equal(data.split == NEW, labels == -1)
    assert (labels == -1).any()
    assert data.split.dtype == torch.int8


def test_a_client_is_the_same_whoever_shares_its_node():
    source = Toy(lacking_share=0.3, new_share=0.1)
    alone, together = source.load_owners(["south"]), source.load_owners(["north", "west", "south"])
    place = {key: row for row, key in enumerate(together.keys)}
    rows = [place[key] for key in alone.keys]
    assert torch.equal(alone.inputs[0], together.inputs[2][rows])
    assert torch.equal(alone.split, together.split[rows])
    assert torch.equal(alone.labels, together.labels[rows])
    assert torch.equal(alone.present[0], together.present[2][rows])
    assert alone.present.all()
    assert not together.present[2].all()


def test_scaling_by_the_clients_own_training_samples():
    source = Toy()
    data = source.load_owners(["south"])
    raw = source.values["south"][rows_of(source, data)].astype(np.float64)
    training = raw[(data.split == 0).numpy()].reshape(-1, 2)
    expected = (raw - np.nanmean(training, 0)) / np.nanstd(training, 0)
    assert np.isnan(expected).any()
    np.testing.assert_allclose(data.inputs[0], np.nan_to_num(expected, nan=0.0), atol=1e-5)


def test_without_scaling_a_gap_is_the_mean_of_training():
    source = Toy(scaling="none")
    data = source.load_owners(["south"])
    raw = source.values["south"][rows_of(source, data)]
    mean = np.nanmean(raw[(data.split == 0).numpy()].reshape(-1, 2), 0, dtype=np.float64)
    np.testing.assert_allclose(data.inputs[0], np.where(np.isnan(raw), mean, raw), rtol=1e-6)


def test_features_that_may_not_be_scaled_and_constant_ones_stay():
    source = Toy(scaled=[True, False])
    source.values["north"][..., 0] = 7.0
    data = source.load_owners(["north"])
    rows = rows_of(source, data)
    assert (data.inputs[0][..., 0] == 0.0).all()
    np.testing.assert_array_equal(data.inputs[0][..., 1], source.values["north"][rows][..., 1])


def test_lacking_samples_are_zero_differ_by_client_and_leave_the_split_alone():
    source, whole = with_everything(lacking_share=0.4), with_everything()
    data, full = source.load_owners(["north", "south"]), whole.load_owners(["north", "south"])
    shares = data.present.float().mean(1) * len(data.keys) / len(KEYS)
    np.testing.assert_allclose(shares, [0.6, 0.6], atol=0.08)
    assert not torch.equal(data.present[0], data.present[1])
    kept = [full.keys.index(key) for key in data.keys]
    assert torch.equal(data.split, full.split[kept])
    for owner in range(2):
        assert (data.inputs[owner][~data.present[owner]] == 0).all()
        assert (data.inputs[owner][data.present[owner]] != 0).any()


def test_clients_that_are_away_lack_all_test_and_new_samples_and_learn_from_the_others():
    away, whole = Toy(test_without=("south",), new_share=0.2), Toy(new_share=0.2)
    names = ["north", "south", "west"]
    data, full = away.load_owners(names), whole.load_owners(names)
    kept = [full.keys.index(key) for key in data.keys]
    asked = (data.split == 2) | (data.split == NEW)
    assert not data.present[1][asked].any()
    assert (data.inputs[1][asked] == 0).all()
    assert torch.equal(data.present[1][~asked], full.present[1][kept][~asked])
    assert torch.equal(data.present[[0, 2]], full.present[[0, 2]][:, kept])
    with pytest.raises(DataError, match="test-without: .*'souht'"):
        Toy(test_without=("souht",)).client_names()


def test_all_hold_the_overlap_and_each_other_sample_one_of_them():
    source = with_everything(overlap=0.25, new_share=0.1)
    data = source.load_owners(["north", "south", "west"])
    assert sorted(data.keys) == sorted(KEYS), "no sample is lost"
    assert (data.present.sum(0) == torch.where(data.shared, 3, 1)).all()
    learned = (data.split == 0) | (data.split == 1)
    assert data.shared[~learned].all(), "test and new samples are held by all"
    for split in (0, 1):
        here = data.split == split
        assert data.shared[here].float().mean().item() == pytest.approx(0.25, abs=0.15)
    own = data.present[:, ~data.shared].float().mean(1)
    np.testing.assert_allclose(own, [1 / 3] * 3, atol=0.08)
    count = int((data.shared & learned).sum())
    whole = "toy, 3 clients, 400 samples of 3 classes"
    assert (
        source.describe()
        == f"{whole}, {count} of the {int(learned.sum())} for training and validation held by all clients"
    )
    assert with_everything(new_share=0.1).describe() == whole


def test_the_overlap_is_the_same_on_every_node_and_another_with_another_seed():
    source = with_everything(overlap=0.5)
    together = source.load_owners(["west", "north", "south"])
    for row, name in enumerate(together.owners):
        alone = source.load_owners([name])
        held = together.present[row]
        assert alone.keys == tuple(key for key, there in zip(together.keys, held.tolist(), strict=True) if there)
        assert torch.equal(alone.shared, together.shared[held])
        assert torch.equal(alone.inputs[0], together.inputs[row][held])
    other = with_everything(overlap=0.5, split_seed=1).load_owners(["west", "north", "south"])
    learned = (other.split < 2) & (together.split < 2)
    assert not torch.equal(other.shared[learned], together.shared[learned])


def test_samples_are_dealt_to_the_clients_in_use():
    data = with_everything(overlap=0.2, without=("south",)).load_owners(["north", "west"])
    assert len(data.keys) == len(KEYS)
    assert (data.present.sum(0) == torch.where(data.shared, 2, 1)).all()


def test_scale_and_model_of_a_client_are_of_all_that_it_holds():
    data = with_everything(overlap=0.1).load_owners(["north", "west"])
    for row, inputs in enumerate(data.inputs):
        held = inputs[data.present[row] & (data.split == 0)].flatten(0, 1)
        np.testing.assert_allclose(held.mean(0), 0, atol=1e-5)
        np.testing.assert_allclose(held.std(0, correction=0), 1, atol=1e-4)
        assert (inputs[~data.present[row]] == 0).all()
    assert cohort_data(data).splits["train"].num_examples.tolist() == [
        int((there & (data.split == 0)).sum()) for there in data.present
    ]


def test_without_an_overlap_key_every_sample_is_shared():
    assert Toy().load_owners(["north", "south"]).shared.all()


@pytest.mark.parametrize("overlap", [0.0, 1.5, -0.1, float("nan")])
def test_an_overlap_that_cannot_be(overlap):
    with pytest.raises(ExperimentError, match="overlap"):
        parse_data({"set": "image-patches", "overlap": overlap})


def test_an_overlap_of_data_that_are_a_nodes_own_is_refused():
    source = Toy(overlap=0.5)
    source.own = object()
    source.client_names = lambda: ["north"]
    with pytest.raises(DataError, match="leave out overlap"):
        source.load_owners(["north"])


def test_values_that_a_client_lacks_do_not_count_in_its_scale():
    source = Toy()
    for_comparison = source.load_owners(["north"]).inputs[0]
    source.values["north"][~source.there["north"]] = 1e6
    data = source.load_owners(["north", "south"])
    assert torch.equal(data.inputs[0][data.present[0]], for_comparison)
    assert (data.inputs[0][~data.present[0]] == 0).all()


def test_chosen_clients_their_graph_and_description():
    source = Toy(clients=("west", "north"))
    assert source.client_names() == ["west", "north"]
    assert source.given_graph().names == ("west", "north")
    assert source.describe() == "toy, 2 of 3 clients, 400 samples of 3 classes"
    assert source.load(["north"]).names == ("north",)
    with pytest.raises(DataError, match="'south'; .*west, north"):
        source.load_owners(["south"])
    with pytest.raises(DataError, match="key .*'east'"):
        Toy(clients=("east",)).client_names()


def test_clients_can_be_left_out():
    every = Toy().client_names()
    assert Toy(without=(every[1],)).client_names() == [every[0], *every[2:]]
    assert Toy(clients=("west", "north"), without=("west",)).client_names() == ["north"]
    with pytest.raises(DataError, match="key .*'east'"):
        Toy(without=("east",)).client_names()
    with pytest.raises(DataError, match="leaves no clients"):
        Toy(without=tuple(every)).client_names()


def test_two_samples_of_one_key_are_refused():
    with pytest.raises(DataError, match="'twice' occurs"):
        Toy(keys=("twice", "once", "twice", "d", "e", "f")).load_owners(["north"])


def test_who_cannot_be_scaled_for_lack_of_training_samples_is_said():
    toy = Toy()
    toy.there["south"] &= (sample_splits(toy.keys, toy.settings) != 0).numpy()
    assert toy.load_owners(["south", "west"]).unscaled == ("south",)
    for change in ({"scaling": "none"}, {"scaled": [False, False]}):
        other = Toy(**change)
        other.there = toy.there
        assert other.load_owners(["south", "west"]).unscaled == ()
    partly = Toy(scaled=[False, True])
    partly.there = toy.there
    assert partly.load_owners(["south", "west"]).unscaled == ("south",)
