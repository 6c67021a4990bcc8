import sys
import textwrap
import types

import numpy as np
import pytest
import tomli_w
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fedgraph.starting.flower_app import FlowerApp, read_run_config
from fedgraph.support.errors import AppError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("num-server-rounds=3 lr=0.1", {"num-server-rounds": 3, "lr": 0.1}),
        ("name=\"two words\" other='single one' yes=true", {"name": "two words", "other": "single one", "yes": True}),
        ("model.width=4 model.name='mlp'", {"model.width": 4, "model.name": "mlp"}),
        (["lr=1", "model.width=2", "model.depth=3"], {"lr": 1, "model.width": 2, "model.depth": 3}),
        ("", {}),
        (
            {"model": {"width": 4, "last": {"bias": False}}, "lr": 0.5},
            {"model.width": 4, "model.last.bias": False, "lr": 0.5},
        ),
    ],
)
def test_a_run_config_is_read_as_flower_reads_it(text, wanted):
    found = read_run_config(text)
    assert found == wanted
    assert [type(value) for value in found.values()] == [type(value) for value in wanted.values()]


def test_a_run_config_may_be_a_file(tmp_path):
    (tmp_path / "config.toml").write_text(tomli_w.dumps({"lr": 0.2, "model": {"width": 3}}))
    assert read_run_config(tmp_path / "config.toml") == {"lr": 0.2, "model.width": 3}
    assert read_run_config([str(tmp_path / "config.toml")]) == {"lr": 0.2, "model.width": 3}
    plain = read_run_config({"lr": np.float32(0.5), "rounds": np.int64(3), "fast": np.bool_(True)})
    assert plain == {"lr": 0.5, "rounds": 3, "fast": True}
    assert [type(value) for value in plain.values()] == [float, int, bool]
    with pytest.raises(AppError, match="not both"):
        read_run_config([str(tmp_path / "config.toml"), "lr=1"])
    with pytest.raises(AppError, match=r"cannot read .*other\.toml"):
        read_run_config("other.toml")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("name=mlp", "text in quotes"),
        ("lr 0.1", "'lr 0.1' of the run config is not a key=value pair"),
        ("lr=0.1 oops", "'oops' of the run config"),
        ("sizes=[1,2]", "sizes of the run config is list; Flower sends bool, int, float and str"),
        ({"data": object()}, "data of the run config is object"),
    ],
)
def test_what_is_no_run_config_is_refused(given, message):
    with pytest.raises(AppError) as error:
        read_run_config(given)
    assert message in str(error.value)


def test_defaults_of_nested_tables_have_dots_and_unknown_keys_are_refused(write_app):
    app = FlowerApp.open(write_app())
    assert app.defaults["model.width"] == 4
    assert app.run_config("model.width=9 lr=1")["model.width"] == 9
    assert type(app.run_config("lr=1")["lr"]) is int
    assert app.defaults["lr"] == 0.1
    with pytest.raises(AppError, match=r"'model\.widht'; .*'model\.width'"):
        app.run_config({"model": {"widht": 1}})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "app: .*pyproject.toml"),
        ("[project]\nname = 'x'\n", r"has no table \[tool.flwr.app\]"),
        ("[tool.flwr.app.components]\nserverapp = 'a:app'\n", "needs clientapp = "),
        ("[tool.flwr.app.components]\nserverapp = 'a.py'\nclientapp = 'b:app'", "needs serverapp = "),
        ("[tool", "is not valid TOML"),
        (
            "[tool.flwr.app.components]\nserverapp = 'a:app'\nclientapp = 'b:app'\n[tool.flwr.app.config]\nx = [1]\n",
            r"x of \[tool\.flwr\.app\.config\] .*list",
        ),
    ],
)
def test_a_folder_that_is_no_app_is_said_to_be_that(tmp_path, text, message):
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(AppError, match=message):
        FlowerApp.open(tmp_path)
    with pytest.raises(AppError, match="no folder .*nowhere"):
        FlowerApp.open(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"client_app": "import not_installed_anywhere\n"}, r"'not_installed_anywhere' in .*client_app\.py, line 1$"),
        ({"client_app": "from task import nothing_of_that\n"}, "cannot import name 'nothing_of_that'"),
        ({"client_app": "application = 1\n"}, "module 'client_app' has no 'app'"),
        ({"client_app": "app = 1\n"}, "is int, not a ClientApp"),
        ({"client_app": "from server_app import app\n"}, "is ServerApp, not a ClientApp"),
    ],
)
def test_a_component_that_cannot_be_imported_is_named(write_app, changes, message):
    with pytest.raises(AppError, match=message), FlowerApp.open(write_app(**changes)).imported():
        pass


def test_a_component_that_is_missing_is_named(write_app):
    folder = write_app()
    (folder / "client_app.py").unlink()
    with (
        pytest.raises(AppError, match="No module named 'client_app'$"),
        FlowerApp.open(folder).imported(),
    ):
        pass


def test_a_mistake_in_a_module_keeps_its_traceback_and_says_whose_it_is(write_app):
    app = FlowerApp.open(write_app(task="x = 1\ny = 1 / 0\n"))
    with pytest.raises(ZeroDivisionError) as raised, app.imported():
        pass
    assert raised.traceback[-1].path.name == "task.py"
    assert "Raised while importing serverapp" in raised.value.__notes__[0] or "clientapp" in raised.value.__notes__[0]


def test_modules_of_two_apps_do_not_mix_and_leave_no_trace(write_app, tmp_path, monkeypatch):
    mine = types.ModuleType("task")
    monkeypatch.setitem(sys.modules, "task", mine)
    before, path = set(sys.modules), list(sys.path)
    for name in ("one", "two"):
        app = FlowerApp.open(write_app(name, task=f"step, NAME = None, '{name}'\n"))
        with app.imported() as (server, client):
            assert isinstance(server, ServerApp)
            assert isinstance(client, ClientApp)
            assert sys.path[0] == str(tmp_path / name)
            assert name == sys.modules["task"].NAME
    assert sys.modules["task"] is mine
    assert sys.path == path
    assert {name for name in set(sys.modules) - before if name in ("client_app", "server_app", "task")} == set()


def test_the_packages_of_an_app_come_before_installed_ones_but_never_replace_ours(write_app):
    folder = write_app(task="from typer import WHOSE\n\nstep = None\n")
    for package in ("typer", "fedgraph", "json"):
        (folder / package).mkdir()
        (folder / package / "__init__.py").write_text("WHOSE = 'the app'\n")
    import typer

    import fedgraph

    with FlowerApp.open(folder).imported():
        assert sys.modules["task"].WHOSE == "the app"
        assert sys.modules["fedgraph"] is fedgraph
        import json

        assert json.dumps({}) == "{}"
    assert sys.modules["typer"] is typer
    import typer.main

    assert not hasattr(typer, "WHOSE")


def test_a_file_that_was_edited_is_read_again(write_app):
    folder = write_app()
    for number in (1, 22, 333):
        (folder / "task.py").write_text(textwrap.dedent(f"step = None\nNUMBER = {number}\n"))
        with FlowerApp.open(folder).imported():
            assert number == sys.modules["task"].NUMBER


def test_a_component_may_be_an_attribute_of_an_attribute(write_app):
    pyproject = (write_app() / "pyproject.toml").read_text().replace("client_app:app", "client_app:Holder.inner.app")
    client = "from flwr.clientapp import ClientApp\nclass Holder:\n    class inner:\n        app = ClientApp()\n"
    with FlowerApp.open(write_app(pyproject=pyproject, client_app=client)).imported() as (_, client_app):
        assert isinstance(client_app, ClientApp)
