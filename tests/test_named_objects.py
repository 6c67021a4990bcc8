"""Objects that an experiment names by path: those of another kind than the key demands are refused, never called."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import fedgraph
from fedgraph.fusion.owner_models.brought import load_local_model
from fedgraph.models import TaskSpec
from fedgraph.reproduce.figures import draw
from fedgraph.support.errors import FedgraphError

MINE = """
from subprocess import Popen, run
from os import system

called = []


class Wrong:
    def __init__(self, *given, **named):
        called.append("Wrong")

    def handle(self, *given):
        called.append("handle")


class Callable:
    def __call__(self, *given, **named):
        called.append("Callable")


ready = Callable()
"""
PATHS = [
    *("subprocess:Popen", "os:system", "builtins:eval", "builtins:exec", "shutil:rmtree", "importlib:import_module"),
    *("mine:Wrong", "mine:ready", "mine:Popen", "mine:run", "mine:system"),
    *("fedgraph.support.files:write_atomically", "fedgraph.support.errors:ReplyError"),
]
REFUSED = "is a module of Python itself|is not a|has no function"
TABLES = {
    "experiment": {"name": "x", "method": "fedavg", "rounds": 1},
    "data": {"set": "digits", "clients": 2, "limit": 60},
    "model": {"name": "mlp", "hidden": [4]},
    "train": {"optimizer": "sgd", "learning-rate": 0.1, "batch-size": 32, "local-epochs": 1},
}
OWNERS = {
    "experiment": {"name": "x", "method": "f3", "rounds": 1},
    "data": {"set": "image-patches", "images": "digits", "grid": [2, 2]},
    "model": {"name": "scikit-learn", "transformer": "sklearn.decomposition:PCA"},
}
ARGUMENTS = {"args": "touch called", "shell": True}


def running(place, tables=TABLES, options=None):
    """Run an experiment that names a path at ``place``, with options for what it names."""
    table, _, key = place.partition(".")

    def run(path):
        changed = {name: dict(values) for name, values in tables.items()}
        changed.setdefault(table, {})[key] = [path] if key == "track" else path
        if options:
            changed["model"][options] = ARGUMENTS
        if "method" in changed["experiment"] and key == "strategy":
            del changed["experiment"]["method"]
            changed[path.rpartition(":")[2]] = ARGUMENTS
        fedgraph.run(changed, out="runs", progress=False)

    return run


def wrapped(path):
    name = "DifferentialPrivacyServerSideFixedClipping"
    own = {"strategy": {"name": path, **ARGUMENTS}, "noise-multiplier": 0.1, "clipping-norm": 1.0}
    head = {"name": "x", "strategy": f"flwr.serverapp.strategy:{name}", "rounds": 1}
    fedgraph.run({**TABLES, "experiment": head, name: {**own, "num-sampled-clients": 2}}, out="runs", progress=False)


def figure(path):
    table = SimpleNamespace(table=SimpleNamespace(figure=path))
    draw(SimpleNamespace(table=table), Path("figure.png"))


KEYS = {
    "[experiment] client": running("experiment.client"),
    "[experiment] strategy": running("experiment.strategy"),
    "strategy of a strategy": wrapped,
    "[data] set": running("data.set"),
    "[model] name": running("model.name", TABLES | {"model": {}}, "options"),
    "[train] function": running("train.function"),
    "[output] track": running("output.track"),
    "[model] estimator": running("model.estimator", OWNERS, "estimator-options"),
    "[model] transformer": running("model.transformer", OWNERS, "transformer-options"),
    "[table] figure": figure,
    "a model of an owner": lambda path: load_local_model(path, TaskSpec("classification", (2,), (2,))),
}


@pytest.mark.parametrize("key", KEYS)
def test_what_is_of_another_kind_is_never_called(key, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for path in PATHS:
        with pytest.raises(FedgraphError, match=REFUSED) as error:
            KEYS[key](path)
        assert path in str(error.value)
    assert not sys.modules.pop("mine").called
    assert not (tmp_path / "called").exists()
