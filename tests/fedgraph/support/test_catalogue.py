from __future__ import annotations

from pathlib import Path

import pytest

from fedgraph.support.catalogue import CatalogueEntry, DataFile, downloads, find, missing_message, require
from fedgraph.support.errors import DataError

READINGS = DataFile(Path("toy/toy.h5"), "https://example.org/folder")
GRAPH = DataFile(Path("toy/graph.pkl"), "https://example.org/graph.pkl", download=True, sha256="ab" * 32)
TABLE = DataFile(Path("toy/toy.csv"), "https://example.org/toy.csv", download=True)
SUBSET = DataFile(Path("toy/subset.npz"), "")


def entry(*alternatives: tuple[DataFile, ...]) -> CatalogueEntry:
    return CatalogueEntry("toy", "TOY", "free", "small", alternatives)


def put(folder: Path, *files: DataFile) -> None:
    for file in files:
        (folder / file.path).parent.mkdir(exist_ok=True)
        (folder / file.path).write_bytes(b"x")


def test_find_takes_the_first_complete_alternative(tmp_path: Path) -> None:
    toy = entry((READINGS, GRAPH), (TABLE, GRAPH), (SUBSET,))
    assert find(toy, tmp_path) is None
    put(tmp_path, READINGS)
    assert find(toy, tmp_path) is None
    put(tmp_path, SUBSET)
    assert find(toy, tmp_path) == (tmp_path / "toy/subset.npz",)
    put(tmp_path, GRAPH)
    assert find(toy, tmp_path) == (tmp_path / "toy/toy.h5", tmp_path / "toy/graph.pkl")
    assert require(toy, tmp_path) == find(toy, tmp_path)


def test_an_entry_without_files_is_never_found(tmp_path: Path) -> None:
    assert find(entry(), tmp_path) is None
    assert find(entry(()), tmp_path) is None


def test_the_message_says_what_where_from_and_where_to(tmp_path: Path) -> None:
    toy = entry((READINGS, GRAPH), (TABLE, GRAPH), (SUBSET,))
    put(tmp_path, READINGS)
    with pytest.raises(DataError) as caught:
        require(toy, tmp_path)
    message = str(caught.value)
    assert "toy.h5" not in message  # this one is there
    assert f"graph.pkl: published at {GRAPH.url}" in message
    assert f"put it at {tmp_path / 'toy/graph.pkl'} (its SHA-256 is {'ab' * 32})" in message
    assert f"put it at {tmp_path / 'toy/toy.csv'} (its checksum is not known, so it is not verified)" in message
    assert "fedgraph data --download toy`, which fetches toy.csv and graph.pkl" in message
    assert "Prepared subsets are read too when they are there: toy/subset.npz" in message
    assert "FEDGRAPH_DATA" in message
    assert "data-dir" in message


def test_a_file_published_nowhere_still_gets_its_place(tmp_path: Path) -> None:
    message = missing_message(entry((SUBSET,)), tmp_path)
    assert "subset.npz: not published as a file of its own" in message
    assert str(tmp_path / "toy/subset.npz") in message
    assert "--download" not in message


def test_downloads_prefers_a_whole_alternative() -> None:
    assert downloads(entry((READINGS, GRAPH), (TABLE, GRAPH))) == (TABLE, GRAPH)
    assert downloads(entry((READINGS, GRAPH), (SUBSET,))) == (GRAPH,)
    assert downloads(entry((READINGS,))) == ()
