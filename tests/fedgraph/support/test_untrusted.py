"""Names, words and JSON that come from others."""

import logging

import pytest

from fedgraph.support.errors import ReplyError
from fedgraph.support.untrusted import EntryFormatter, check_name, in_short, read_json


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 41 + "]" * 41])
def test_json_nested_too_deeply_is_refused(text):
    with pytest.raises(ReplyError, match="the graph is (nested too deeply|malformed)"):
        read_json(text, "the graph")


def test_json_as_deep_as_experiments_are_is_read():
    assert read_json('{"a": [[1, {"b": 2}]]}', "x") == {"a": [[1, {"b": 2}]]}
    with pytest.raises(ReplyError, match="x is malformed"):
        read_json("{", "x")
    with pytest.raises(ReplyError, match="x is malformed"):
        read_json(5, "x")


def test_words_are_cut_and_without_control_characters():
    assert in_short("a\n\tb\x1b[2J\r\x85\u2028c") == "a\n    \tb?[2J???c"
    assert len(in_short("x" * 10**6)) < 2_020
    assert in_short("x" * 10**6).endswith("(1,000,000 letters)")


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\ud800", 5, None, b"a"])
def test_names_that_are_none(name):
    with pytest.raises(ReplyError, match="1 to 200"):
        check_name(name, "a client")


def test_names_of_any_language_are_fine():
    check_name("Klinik Süd, Zürich", "a client")


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028", "\x0b", "\x85"])
def test_no_line_of_a_log_is_forged(end):
    words = f"the disk is full{end}2026-01-01 00:00:00,000 INFO finished: accuracy 0.99"
    record = logging.LogRecord("fedgraph", logging.ERROR, "", 1, "node %d: %s", (1, words), None)
    lines = EntryFormatter("%(asctime)s %(levelname)s %(message)s").format(record).splitlines()
    assert "ERROR node 1: the disk is full" in lines[0]
    assert all(line.startswith("    ") for line in lines[1:])
