import json

import pytest

from fedgraph.support import listing_cache as module
from fedgraph.support.listing_cache import cached_listing


@pytest.fixture
def computed(monkeypatch, tmp_path):
    """``computed()`` remembers a listing and returns it, with how many times it has been computed."""
    monkeypatch.setattr(module, "FOLDER", tmp_path / "cache" / "listings")
    times = []

    def call():
        return cached_listing("toy", lambda: times.append(1) or [["sfl", len(times)]]), len(times)

    return call


def test_a_listing_is_computed_once(computed, tmp_path):
    assert [computed(), computed()] == [([["sfl", 1]], 1), ([["sfl", 1]], 1)]
    assert json.loads((tmp_path / "cache" / "listings" / "toy.json").read_text())["value"] == [["sfl", 1]]


def test_another_program_computes_it_anew(computed, monkeypatch, tmp_path):
    (tmp_path / "package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(module, "_PACKAGES", ("package", "not_installed"))
    source = tmp_path / "package" / "__init__.py"
    source.write_text("")
    assert [computed()[1], computed()[1]] == [1, 1]
    source.write_text("changed = True")
    assert [computed()[1], computed()[1]] == [2, 2]
    monkeypatch.setattr(module, "version", lambda package: "0.0")
    assert computed()[1] == 3


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"program": 1, "value": []}'])
def test_a_file_that_cannot_be_used_is_replaced(content, computed, tmp_path):
    (tmp_path / "cache" / "listings").mkdir(parents=True)
    (tmp_path / "cache" / "listings" / "toy.json").write_bytes(content)
    assert [computed(), computed()] == [([["sfl", 1]], 1), ([["sfl", 1]], 1)]


def test_a_folder_that_cannot_be_written_costs_time_alone(computed, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert [computed()[1], computed()[1]] == [1, 2]
