import io
import json
import logging

import pytest
from rich.console import Console

from fedgraph.support.status import (
    ONCE,
    STATUS_FILE,
    Line,
    StatusFile,
    report_status,
    report_warnings,
    show,
    warnings_on,
)

log = logging.getLogger("fedgraph")


@pytest.fixture
def told(tmp_path, monkeypatch):
    monkeypatch.setenv(STATUS_FILE, str(tmp_path / "told.jsonl"))
    before = log.handlers[:]
    report_warnings()
    report_warnings()
    yield StatusFile(tmp_path / "told.jsonl")
    log.handlers[:] = before


def texts(told):
    return [line.text for line in told.new_lines()]


def test_what_is_told_is_read_once_with_warnings_and_tracebacks(told):
    assert texts(told) == []
    report_status("trained round 2 on 210 rows")
    log.warning("a client is %s", "late")
    first, second = told.new_lines()
    assert first == Line("trained round 2 on 210 rows", logging.INFO)
    assert second == Line("a client is late", logging.WARNING)
    assert texts(told) == []
    try:
        raise ValueError("no such row")
    except ValueError:
        log.exception("not answered")
    (error,) = told.new_lines()
    assert error.level == logging.ERROR
    assert error.text.startswith("not answered\nTraceback")
    assert error.text.endswith("ValueError: no such row")


def test_a_line_that_is_being_written_waits_for_its_end(told):
    whole = json.dumps({"text": "first", "level": 20, "once": ""}) + "\n"
    told.path.write_text(whole + whole[:10])
    assert texts(told) == ["first"]
    with told.path.open("a") as stream:
        stream.write(whole[10:])
    assert texts(told) == ["first"]


def test_of_warnings_for_want_of_a_compiler_one_is_shown(told):
    log.warning("the recurrent layer cannot be compiled", extra=ONCE)
    log.warning("the alignment cannot be compiled", extra=ONCE)
    log.warning("a client is late")
    log.warning("a client is late")
    assert texts(told) == ["the recurrent layer cannot be compiled", "a client is late", "a client is late"]


def test_nothing_is_written_where_nobody_asks(tmp_path, monkeypatch):
    monkeypatch.delenv(STATUS_FILE, raising=False)
    before = log.handlers[:]
    report_status("done")
    report_warnings()
    assert log.handlers == before


def test_a_file_that_cannot_be_written_ends_nothing_and_warnings_go_to_the_standard_error(told, monkeypatch, capsys):
    monkeypatch.setenv(STATUS_FILE, "/nowhere/told.jsonl")
    report_status("done")
    log.error("refused")
    said = capsys.readouterr().err
    assert "cannot write 'done' to the status file" in said
    assert "refused" in said


def test_warnings_of_this_process_are_on_its_screen_and_those_for_want_of_a_compiler_once():
    screen = io.StringIO()
    with warnings_on(Console(file=screen)):
        for text in ("no compiler for this", "nor for that"):
            log.warning(text, extra=ONCE)
        log.warning("late: [a]")
        log.info("done")
        log.error("the run stopped")
    log.warning("afterwards")
    assert screen.getvalue().splitlines() == ["no compiler for this", "late: [a]"]


def test_what_a_server_may_have_written_does_not_move_the_cursor():
    screen = io.StringIO()
    show(Line("\x1b[2Jrefused: \x07[bold]x"), Console(file=screen))
    assert screen.getvalue() == "[2Jrefused: [bold]x\n"
