from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedgraph.data.series.series import SeriesSettings, SeriesSource
from fedgraph.support.errors import DataError, GraphError
from fedgraph.support.settings import parse

NAMES = ("north", "south", "east", "west")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).uniform(1.0, 9.0, (240, 4))
    np.savez(tmp_path / "toy.npz", speed=values, names=np.array(NAMES))
    (tmp_path / "roads.csv").write_text("from,to,weight\nsouth,west,0.5\nwest,south,0.5\nnorth,east,2\neast,north,2\n")
    return tmp_path


def source(folder: Path, **keys: object) -> SeriesSource:
    return SeriesSource(parse(SeriesSettings, {"path": "toy.npz", **keys}, "[data]"), folder)


def test_a_file_becomes_a_data_set(folder: Path) -> None:
    toy = source(folder, **{"step-minutes": 60, "unit": "m/s"})
    assert toy.client_names() == list(NAMES)
    assert toy.describe() == "toy.npz, 4 clients, 240 hourly steps"
    cohort = toy.load(["west", "north"])
    assert cohort.names == ("west", "north")
    assert cohort.task.features == ("speed",)
    assert toy.given_graph() is None
    values = np.load(folder / "toy.npz")["speed"]
    batch = cohort.splits["train"].batch(torch.tensor([[5], [0]]))
    readings = batch.targets * cohort.std[:, None, None] + cohort.mean[:, None, None]
    np.testing.assert_allclose(readings[0, 0], values[17:29, 3], rtol=1e-5)
    np.testing.assert_allclose(readings[1, 0], values[12:24, 0], rtol=1e-5)


def test_absolute_paths_work_too(folder: Path) -> None:
    toy = SeriesSource(SeriesSettings(path=str(folder / "toy.npz")), Path("elsewhere"))
    assert toy.describe() == "toy.npz, 4 clients, 240 steps"


def test_a_subset_of_clients_and_steps(folder: Path) -> None:
    toy = source(folder, clients=["west", "south"], graph="roads.csv", **{"first-steps": 80})
    assert toy.client_names() == ["west", "south"]
    assert toy.describe() == "toy.npz, 2 of 4 clients, the first 80 of 240 steps"
    graph = toy.given_graph()
    assert graph is not None
    assert graph.names == ("west", "south")
    torch.testing.assert_close(graph.dense(), torch.tensor([[0.0, 0.5], [0.5, 0.0]]))


def test_names_of_the_settings_replace_those_of_the_file(folder: Path) -> None:
    assert source(folder, names=["a", "b", "c", "d"]).client_names() == ["a", "b", "c", "d"]


def test_messages_name_the_file_and_the_client(folder: Path) -> None:
    with pytest.raises(DataError, match=r"toy\.npz, .*`clients`"):
        source(folder, clients=["up"]).client_names()
    with pytest.raises(DataError, match=r"toy\.npz: .*named"):
        source(folder).load(["up"])
    with pytest.raises(DataError, match=r"none\.npz: cannot be read"):
        source(folder, path="none.npz").client_names()
    (folder / "less.csv").write_text("from,to,weight\nsouth,west,0.5\n")
    with pytest.raises(GraphError, match="north"):
        source(folder, graph="less.csv").given_graph()
    with pytest.raises(DataError, match="config .*'data'"):
        source(folder, path=None).client_names()


def test_settings_survive_the_way_through_a_table() -> None:
    keys = {"path": "a.csv", "start": "2024-01-01", "shares": [0.5, 0.25, 0.25], "clients": ["a"], "missing": 0.0}
    settings = parse(SeriesSettings, keys, "[data]")
    assert parse(SeriesSettings, settings.as_table(), "[data]") == settings


def test_groups_of_the_settings_reach_the_clients(folder: Path) -> None:
    groups = {"cold lands": ["north"], "others": ["west", "south", "east"]}
    assert source(folder, groups=groups).load(["west", "north"]).groups == ("others", "cold lands")
    assert source(folder).load(["west"]).groups is None
    # A cold start is what its clients are told apart by.
    chilled = source(folder, groups=groups, **{"cold-clients": ["west"], "cold-steps": 30})
    assert chilled.load(["west", "north"]).groups == ("cold", "warm")
    assert (
        chilled.describe()
        == "toy.npz, 4 clients, of them 1 cold with the last 30 steps of training readings, 240 steps"
    )


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": ["north", "south"], "b": ["east"]}, "client 'west' is in no group"),
        ({"a": ["north", "south", "east", "west"], "b": ["west"]}, "client 'west' is in 'a' and in 'b'"),
        ({"a": ["north", "south", "east", "west", "up"]}, "there is no client 'up'"),
    ],
)
def test_groups_that_do_not_fit(groups: dict[str, list[str]], message: str, folder: Path) -> None:
    with pytest.raises(DataError, match=f"toy.npz, key `groups`: {message}"):
        source(folder, groups=groups).load(["north"])


@pytest.mark.parametrize(
    ("shares", "split", "needed"), [([0.8, 0.15, 0.05], "test", 480), ([0.85, 0.05, 0.1], "validation", 480)]
)
def test_a_part_too_short_for_one_window_is_refused(shares: list[float], split: str, needed: int, folder: Path) -> None:
    message = rf"toy\.npz: the {split} part has 12 of 240 time steps, too few .* need {needed} time steps"
    with pytest.raises(DataError, match=message):
        source(folder, shares=shares).load(["north"])
    values = np.tile(np.load(folder / "toy.npz")["speed"], (2, 1))
    np.savez(folder / "toy.npz", speed=values, names=np.array(NAMES))
    assert int(source(folder, shares=shares).load(["north"]).splits[split].num_examples[0]) == 1


def test_a_part_without_a_share_may_be_empty(folder: Path) -> None:
    cohort = source(folder, shares=[0.8, 0.2, 0.0]).load(["north"])
    assert cohort.splits["test"].num_examples.tolist() == [0]
