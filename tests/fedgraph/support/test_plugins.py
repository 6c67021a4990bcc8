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
