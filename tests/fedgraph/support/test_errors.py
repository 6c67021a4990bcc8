"""Parts of messages: counts with their nouns, and lists that may be empty."""

import pytest

from fedgraph.starting.flower_app import FlowerApp
from fedgraph.support.errors import AppError, ExperimentError, counted, if_any
from fedgraph.support.settings import Settings, from_keywords, parse


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((1, "row"), "1 row"),
        ((0, "row"), "0 rows"),
        ((1200, "row"), "1,200 rows"),
        ((1, "class", "classes"), "1 class"),
        ((2, "class", "classes"), "2 classes"),
    ],
)
def test_a_count_has_its_noun(given, words):
    assert counted(*given) == words


def test_a_list_is_only_told_if_it_has_entries():
    assert if_any("; known: ", "a, b") == "; known: a, b"
    assert if_any("; known: ", "") == ""


def test_settings_without_keys_end_no_message_with_an_empty_list():
    with pytest.raises(ExperimentError, match=r"^\[local\] has no key 'x'$"):
        parse(Settings, {"x": 1}, "[local]")
    with pytest.raises(TypeError, match="^Local has no parameter 'x'$"):
        from_keywords(Settings, {"x": 1}, "Local")


def test_an_app_without_a_run_config_knows_no_keys(tmp_path):
    app = FlowerApp(tmp_path, {}, {})
    with pytest.raises(AppError, match=r"has no key 'rounds'$"):
        app.run_config("rounds=3")
