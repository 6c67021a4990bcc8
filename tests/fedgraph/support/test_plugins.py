import importlib
import os
import sys

import pytest

from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object


def test_an_object_by_its_path():
    from fractions import Fraction

    assert load_object("fractions:Fraction", "key") is Fraction


@pytest.mark.parametrize("path", ["fractions", "fractions:", ":Fraction", ""])
def test_no_dotted_path(path):
    with pytest.raises(ExperimentError, match=r"key = '.*' .*'package\.module:Class'"):
        load_object(path, "key")


def test_missing_module_and_missing_attribute():
    with pytest.raises(ExperimentError, match="'no_such_module'.*PYTHONPATH"):
        load_object("no_such_module:X", "key")
    with pytest.raises(ExperimentError, match="'fractions:Fractoin': .*'Fractoin'$"):
        load_object("fractions:Fractoin", "key")
    with pytest.raises(ExperimentError, match=r"notebook.*fedgraph\.resume"):
        load_object("__main__:NotHere", "key")


def test_an_import_that_fails_inside_the_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "plugin_with_gap.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match="'plugin_with_gap'.*not_installed_here"):
        load_object("plugin_with_gap:X", "key")


def test_what_fedgraph_had_before_is_looked_up_in_the_list_of_changes(tmp_path, monkeypatch):
    (tmp_path / "plugin_of_old.py").write_text("from fedgraph.strategies.engine.base import CohortStrategy\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match=r"engine\.base'\).*CHANGELOG\.md"):
        load_object("plugin_of_old:X", "key")


def test_our_own_modules_do_not_hide_each_other():
    with pytest.raises(ExperimentError) as raised:
        load_object("fedgraph.strategies.sfl:Nothing", "key")
    assert "hides" not in str(raised.value)


def test_a_syntax_error_and_an_import_that_lacks_are_named_with_their_place(tmp_path, monkeypatch):
    (tmp_path / "their_typo.py").write_text("x = 1\nclass Net(:\n    pass\n")
    (tmp_path / "their_need.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match=r"\[model\] name = .*syntax error in .*their_typo\.py, line 2: "):
        load_object("their_typo:Net", "[model] name")
    with pytest.raises(ExperimentError, match="It imports 'not_there_at_all': install that") as error:
        load_object("their_need:Net", "[model] name")
    assert "must be on PYTHONPATH" not in str(error.value)


def test_a_module_that_has_changed_since_it_was_imported_is_warned_of_once(tmp_path, monkeypatch, caplog):
    file = tmp_path / "their_edited.py"
    file.write_text("class Net:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_object("their_edited:Net", "[model] name")
    load_object("their_edited:Net", "[model] name")
    assert not caplog.records
    file.write_text("class Net:\n    size = 2\n")
    os.utime(file, (1, 1))
    for _ in range(2):
        load_object("their_edited:Net", "[model] name")
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"{file} has changed since it was imported, and Python goes on with the old code")
    caplog.clear()
    file.write_text("class Net:\n    size = 33\n")
    importlib.reload(sys.modules["their_edited"])
    assert load_object("their_edited:Net", "[model] name").size == 33
    assert not caplog.records
