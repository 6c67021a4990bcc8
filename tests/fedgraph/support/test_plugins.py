import importlib
import os
import sys

import pytest
import torch

from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import (
    a_class,
    a_client,
    a_function,
    check_options,
    derived,
    dotted_path,
    is_importable,
    load_object,
)


def test_an_object_by_its_path():
    assert load_object("torch.nn:Linear", "key", derived(torch.nn.Module)) is torch.nn.Linear


@pytest.mark.parametrize("path", ["subprocess:Popen", "os:system", "builtins:eval", "os.path:join", "antigravity:x"])
def test_modules_of_python_itself_are_not_even_imported(path):
    sys.modules.pop("antigravity", None)
    with pytest.raises(ExperimentError, match=f"^key = '{path}': '.*' is a module of Python itself"):
        load_object(path, "key", a_class())
    assert "antigravity" not in sys.modules
    assert not is_importable(path)


@pytest.mark.parametrize(
    ("path", "demand", "problem"),
    [
        ("torch.nn:Linear", derived(torch.optim.Optimizer), "is not a class derived from torch.optim.optimizer.Optim"),
        (
            "torch.nn.functional:relu",
            derived(torch.nn.Module, named="a module"),
            "is not a class derived from a module",
        ),
        ("torch:float32", a_class(), "is not a class of a package, or of your own"),
        ("torch.nn:Linear", a_class("forward", "handle"), "has no function handle"),
        ("fedgraph.support.files:Path", a_class(), "is not a class of a package, or of your own"),
        ("torch.nn:Module", a_client, "is not a client class: it has no classmethod `handle`"),
        ("fedgraph.support.files:shutil", a_client, "is not a client class"),
        ("torch.nn:Linear", a_function, "is not a function"),
        ("torch:save", a_function, ""),
        ("fedgraph.support.files:write_atomically", a_function, "is not a function of a package, or of your own"),
        ("fedgraph.support.files:contextmanager", a_function, "is not a function of a package, or of your own"),
    ],
)
def test_an_object_of_another_kind_than_demanded(path, demand, problem):
    if not problem:
        assert load_object(path, "key", demand)
        return
    with pytest.raises(ExperimentError) as error:
        load_object(path, "key", demand)
    assert str(error.value).startswith(f"key = '{path}' {problem}")


@pytest.mark.parametrize("nested", [lambda text: text, lambda text: [{"a": [1, text]}], lambda text: {text: 1}])
def test_options_are_plain(nested):
    check_options({"kernel": nested("rbf"), "size": 3}, "[model] options")
    with pytest.raises(ExperimentError, match=r"^\[model\] options has a text with a parenthesis"):
        check_options({"signature": nested("x: print(1)")}, "[model] options")
    with pytest.raises(ExperimentError, match="'memory', a folder with pickles"):
        check_options({"final": {"memory": nested("x")}}, "[model] options")


def test_what_was_handed_over_in_python_is_checked_too():
    class Handed:
        pass

    path = dotted_path(Handed)
    assert load_object(path, "key", a_class()) is Handed
    with pytest.raises(ExperimentError, match=r"Handed' is not a class derived from"):
        load_object(path, "key", derived(torch.nn.Module))


@pytest.mark.parametrize("path", ["torch", "torch:", ":Tensor", ""])
def test_no_dotted_path(path):
    with pytest.raises(ExperimentError, match=r"key = '.*' .*'package\.module:Class'"):
        load_object(path, "key", a_class())


def test_missing_module_and_missing_attribute():
    with pytest.raises(ExperimentError, match="'no_such_module'.*PYTHONPATH"):
        load_object("no_such_module:X", "key", a_class())
    with pytest.raises(ExperimentError, match="'torch:Tensoor': .*'Tensoor'$"):
        load_object("torch:Tensoor", "key", a_class())
    with pytest.raises(ExperimentError, match=r"notebook.*fedgraph\.resume"):
        load_object("__main__:NotHere", "key", a_class())


def test_an_import_that_fails_inside_the_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "plugin_with_gap.py").write_text("import not_installed_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match="'plugin_with_gap'.*not_installed_here"):
        load_object("plugin_with_gap:X", "key", a_class())


def test_what_fedgraph_had_before_is_looked_up_in_the_list_of_changes(tmp_path, monkeypatch):
    (tmp_path / "plugin_of_old.py").write_text("from fedgraph.strategies.engine.base import CohortStrategy\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match=r"engine\.base'\).*CHANGELOG\.md"):
        load_object("plugin_of_old:X", "key", a_class())


def test_our_own_modules_do_not_hide_each_other():
    with pytest.raises(ExperimentError) as raised:
        load_object("fedgraph.strategies.sfl:Nothing", "key", a_class())
    assert "hides" not in str(raised.value)


def test_a_syntax_error_and_an_import_that_lacks_are_named_with_their_place(tmp_path, monkeypatch):
    (tmp_path / "their_typo.py").write_text("x = 1\nclass Net(:\n    pass\n")
    (tmp_path / "their_need.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ExperimentError, match=r"\[model\] name = .*syntax error in .*their_typo\.py, line 2: "):
        load_object("their_typo:Net", "[model] name", a_class())
    with pytest.raises(ExperimentError, match="It imports 'not_there_at_all': install that") as error:
        load_object("their_need:Net", "[model] name", a_class())
    assert "must be on PYTHONPATH" not in str(error.value)


def test_a_module_that_has_changed_since_it_was_imported_is_warned_of_once(tmp_path, monkeypatch, caplog):
    file = tmp_path / "their_edited.py"
    file.write_text("class Net:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    load_object("their_edited:Net", "[model] name", a_class())
    load_object("their_edited:Net", "[model] name", a_class())
    assert not caplog.records
    file.write_text("class Net:\n    size = 2\n")
    os.utime(file, (1, 1))
    for _ in range(2):
        load_object("their_edited:Net", "[model] name", a_class())
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"{file} has changed since it was imported, and Python goes on with the old code")
    caplog.clear()
    file.write_text("class Net:\n    size = 33\n")
    importlib.reload(sys.modules["their_edited"])
    assert load_object("their_edited:Net", "[model] name", a_class()).size == 33
    assert not caplog.records
