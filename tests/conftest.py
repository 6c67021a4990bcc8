"""Fixtures shared by all tests."""

import gc
import logging
import os
import re
import sys
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Array, Context, RecordDict
from hypothesis import settings

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.runs.folder import RunFolder

REPOSITORY = Path(__file__).resolve().parent.parent

# How long an example takes says more about who else is on the machine.
settings.register_profile("fedgraph", deadline=None)
settings.load_profile("fedgraph")


LONG = Path(__file__).with_name("long.txt")
"""Test functions that take half a second and more, all their parameters together, by ``pytest --durations 0``; some
that show a method or a contract as a whole are not among them."""


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items):
    """Long tests are of the tier ``process``, and those that one worker takes one after the other come first.

    Begun late, they would keep the other worker waiting. Those that need a GPU are skipped where there is none.
    """
    long, no_gpu = set(LONG.read_text().split()), not torch.cuda.is_available()
    for item in items:
        if no_gpu and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        if item.nodeid.partition("[")[0] in long:
            item.add_marker(pytest.mark.process)
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


def pytest_collection_finish():
    """Thousands of collected tests need not be looked through at each garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def blocks_tables():
    """SFL on graphs of clients, with draws in the forward pass."""
    return {
        "experiment": {"name": "blocks", "method": "sfl", "rounds": 2},
        "data": {"set": "stochastic-blocks", "clients": 3, "regions": 2},
        "model": {"name": "gcn", "hidden": 8, "dropout": 0.5},
        "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 8},
        "graph": {"source": "data"},
    }


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with real data; tests that need a file of it skip when it is not there."""
    return Path(os.environ.get("FEDGRAPH_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(autouse=True, scope="session")
def process_of_a_run():
    """Flower builds messages only in a process that belongs to a run, which a grid sees to."""
    LocalGrid(lambda message, context: message, [])


@pytest.fixture(autouse=True, scope="session")
def nothing_flushed():
    """No test cuts the power, and waiting for the disk after every file takes a tenth of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def leave_no_trace(monkeypatch, tmp_path):
    """The command changes the search path and the log levels of its process."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FEDGRAPH_DATA", str(tmp_path / "no-data"))
    monkeypatch.chdir(tmp_path)
    levels = {name: logging.getLogger(name).level for name in ("flwr", "fedgraph")}
    yield
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


# As short as can be.
SHORT_TOUR = {
    "forecasting/synthetic-traffic.toml": {
        "data.days": 7, "data.sensors": 4, "train.local-steps": 2, "f3-forecast.steps": 4,
    },
    "sfl/digits-groups.toml": {"experiment.rounds": 1},
    "f3/grid-stability.toml": {
        "data.samples": 200, "train.local-epochs": 1, "f3.epochs": 2, "f3.learning-rates": [0.01],
    },
    "ipa/digits.toml": {"experiment.rounds": 1},
    "fedngm/asia.toml": {
        "fedngm.ngm.epochs": 5, "fedngm.distillation.samples": 500, "fedngm.sampling.sweeps": 2,
        "fedngm.sample-quality": False,
    },
}  # fmt: skip


@pytest.fixture(scope="session")
def short_tour():
    """``with short_tour():`` cuts the experiments of the tour short: what is shown is looked at, not what comes out."""
    from fedgraph.starting.running import run

    def shortened(experiment, *, set=(), **others):
        return run(experiment, set={**dict(set), **SHORT_TOUR[experiment], "output.report": False}, **others)

    return lambda: mock.patch("fedgraph.starting.running.run", shortened)


@pytest.fixture(scope="session")
def write_key():
    """``write_key(path)``: a private key as ``ssh-keygen -t ecdsa`` writes it, and beside it the public one."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    def write(path):
        key = ec.generate_private_key(ec.SECP256R1())
        path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        path.with_name(f"{path.name}.pub").write_bytes(public)

    return write


@pytest.fixture(scope="session")
def in_bytes():
    """``in_bytes(content)``: all that a message says, as bytes to search: names, text, numbers and arrays.

    Arrays and bytes are as Flower sends them; numbers are in the eight bytes that computers have for them.
    """

    def written(value):
        if isinstance(value, Mapping):
            return b"".join(written(key) + written(each) for key, each in value.items())
        if isinstance(value, list):
            return b"".join(map(written, value))
        if isinstance(value, Array):
            return written([value.dtype, *value.shape, value.data])
        if isinstance(value, int | float):
            return np.array(value, "<i8" if isinstance(value, int) else "<f8").tobytes()
        return value if isinstance(value, bytes) else value.encode()

    return written


@pytest.fixture(scope="session")
def told_config():
    """``told_config(text)``: the values of a ``--node-config``, which is TOML with blanks between its lines."""

    def read(text):
        entries = re.findall(r"""([\w-]+=(?:"[^"]*"|'[^']*'|[^\s"']+))(?: +|$)""", text)
        assert " ".join(entries) == text, "something in it is no key=value"
        return tomllib.loads("\n".join(entries))

    return read


@pytest.fixture(scope="session")
def lets_through():
    """``lets_through(method, path)``: whether docker/nginx.conf passes on a request as it came, read from the file."""
    text = (REPOSITORY / "docker" / "nginx.conf").read_text()
    source, body = re.search(r"map (\S+) \$passes \{(.*?)\}", text, re.DOTALL).groups()
    assert source == "$request_method:$request_uri"
    default, *rules = [entry.split() for entry in body.strip().removesuffix(";").split(";")]
    assert default == ["default", "0"]
    assert re.search(r"if \(\$passes = 0\) \{\s*return 403;\s*\}\s*proxy_pass ", text)
    assert text.count("proxy_pass ") == 1
    assert all(verdict == "1" and pattern.startswith('"~') for pattern, verdict in rules)
    patterns = [re.compile(pattern.strip('"').removeprefix("~")) for pattern, _ in rules]
    return lambda method, path: any(pattern.search(f"{method}:{path}") for pattern in patterns)


@pytest.fixture
def digits_tables():
    """A small experiment that every method can run: 6 clients, 2 classes each."""
    return {
        "experiment": {"name": "small", "method": "sfl", "rounds": 2},
        "data": {"set": "digits", "clients": 6, "partition": "shards", "shards": 2},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"optimizer": "sgd", "learning-rate": 0.1, "batch-size": 32, "local-epochs": 1},
        "graph": {"source": "labels"},
        "sfl": {"hops": 1},
    }


@pytest.fixture
def patches_tables():
    """A small experiment over owners of different features: digits in four patches, hardly trained."""
    return {
        "experiment": {"name": "patches", "method": "f3"},
        "data": {"set": "image-patches", "images": "digits", "grid": [2, 2]},
        "model": {"name": "mlp", "hidden": [12, 6]},
        "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 200, "local-epochs": 1, "workers": 1},
        "f3": {"epochs": 2, "learning-rates": [0.01], "draws": 2, "batch-size": 200, "workers": 1, "device": "cpu"},
    }


FLOWER_APP = """
[project]
name = "{name}"
version = "1.0.0"
[tool.flwr.app]
publisher = "tests"
[tool.flwr.app.components]
serverapp = "server_app:app"
clientapp = "client_app:app"
[tool.flwr.app.config]
{config}
"""


@pytest.fixture
def write_flower_app():
    """``write_flower_app(folder, {"client_app.py": "..."}, config)``: write a Flower app, and return its folder."""

    def write(folder, files, config):
        files = {"pyproject.toml": FLOWER_APP.format(name=folder.name, config=config), **files}
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(textwrap.dedent(text))
        return folder

    return write


@pytest.fixture(scope="session")
def write_patients():
    """``write_patients(path, rows)``: write a table of patients with what nobody is to learn, and return it."""

    def write(path, rows):
        random = np.random.default_rng(3)
        table = pd.DataFrame(
            {
                "patient": [f"P{number:04d}" for number in range(rows)],
                "age": random.uniform(20, 90, rows).round(1),
                "salary": random.integers(1000, 99999, rows),
                "hiv": np.where(random.random(rows) < 0.1, "positive", "negative"),
                "long": np.where(random.random(rows) < 0.5, "yes", "no"),
            }
        )
        table.to_csv(path, index=False)
        return table

    return write


@pytest.fixture
def table_tables(tmp_path):
    """A small experiment over clients with tables of their own: a chain of five features, and one private to each."""
    random = np.random.default_rng(0)
    rows = 900
    height = random.normal(170, 10, rows)
    weight = 0.9 * (height - 170) + random.normal(70, 5, rows)
    ill = random.random(rows) < 1 / (1 + np.exp(-(weight - 70) / 5))
    ward = np.where(random.random(rows) < 0.8, np.where(ill, "b", "a"), random.choice(["a", "b", "c"], rows))
    stay = np.where(ward == "a", 2, 5) + random.integers(0, 3, rows)
    ecg, dose = weight / 10 + random.normal(0, 0.5, rows), stay * 2.0 + random.normal(0, 1, rows)
    lines = ["height,weight,ill,ward,stay,ecg,dose"]
    columns = (height.round(1), weight.round(1), np.where(ill, "y", "n"), ward, stay, ecg.round(2), dose.round(2))
    lines += [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    (tmp_path / "patients.csv").write_text("\n".join(lines) + "\n")
    return {
        "experiment": {"name": "tables", "method": "fedngm", "min-clients": 3},
        "data": {
            "set": "mixed-table",
            "path": str(tmp_path / "patients.csv"),
            "clients": ["east", "north", "west"],
            "private": {"east": ["ecg"], "west": ["dose"]},
            "public-share": 0.2,
        },
        "fedngm": {
            "targets": ["weight", "ill", "ward"],
            "scaling": {"source": "public"},
            # Given: to search for it takes longer than all else.
            "recovery": {"penalty": 0.02},
            "ngm": {"epochs": 100, "hidden": 8, "batch-size": 128, "learning-rate": 0.02, "patience": 10},
            "ngr": {"epochs": 30, "hidden": 8, "batch-size": 128, "learning-rate": 0.02},
            "distillation": {"samples": 600},
            "sampling": {"sweeps": 5},
        },
    }


@pytest.fixture
def no_gpu(monkeypatch):
    """From its call on, what goes to a GPU stays where it is; returns the shapes of what should have gone there."""

    def watch():
        moved, to = [], torch.Tensor.to

        def kept(self, *arguments, **named):
            if arguments and isinstance(arguments[0], torch.device) and arguments[0].type == "cuda":
                moved.append(tuple(self.shape))
                arguments = (torch.device("cpu"), *arguments[1:])
            return to(self, *arguments, **named)

        monkeypatch.setattr(torch.Tensor, "to", kept)
        return moved

    return watch


@pytest.fixture
def run_experiment(tmp_path, data_dir):
    """Run experiment tables on the in-process grid as ``fedgraph run`` does; returns the run folder."""
    from fedgraph.clients.app import app as client_app
    from fedgraph.strategies.app import app as server_app

    def run(tables, nodes=2, node_configs=None, folder=None, client=client_app, report=False, grid=LocalGrid):
        if folder is None:
            output = {"report": report, **tables.get("output", {})}
            folder = RunFolder.create(parse_experiment({**tables, "output": output}), tmp_path / "runs")
        state = {"state-dir": str(folder.path / "nodes"), "data-dir": str(data_dir), "full-errors": True}
        configs = node_configs or [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
        run_config = {
            "experiment": str(folder.path / "experiment.toml"),
            "set": f"'output.resume={folder.path}'",
            "data-dir": str(data_dir),
        }
        nodes_there = grid(client, [{**state, **config} for config in configs], run_config)
        server_app(nodes_there, Context(1, 1, {}, RecordDict(), run_config))
        return folder

    return run


ROAD = ("upstream", "middle", "downstream", "far")
LAG = 3


def write_road(path, steps=900):
    """A road: what one sensor reads, the next reads three steps later. Nobody can tell what the first will read."""
    random = np.random.default_rng(0)
    source = random.standard_normal(steps + LAG * len(ROAD)).astype(np.float32)
    series = np.stack([source[LAG * (4 - place) : LAG * (4 - place) + steps] for place in range(4)], axis=1)
    series = 50 + np.array([10, 5, 8, 4], dtype=np.float32) * series
    series[100:110, 1] = np.nan
    np.savez(path, data=series, names=np.array(ROAD))


@pytest.fixture
def rewrite_road(tmp_path):
    """Writes the file of ``road_tables`` anew, with as many steps as asked for."""
    return lambda steps: write_road(tmp_path / "road.npz", steps)


@pytest.fixture
def road_tables(tmp_path):
    """Experiment tables of F3 for forecasts on a road of four sensors and 900 steps, each a client."""
    path = tmp_path / "road.npz"
    write_road(path)
    (tmp_path / "edges.csv").write_text("from,to,weight\nupstream,middle,1\nmiddle,downstream,1\ndownstream,far,1\n")
    return {
        "experiment": {"name": "road", "method": "f3-forecast", "rounds": 1},
        "data": {
            "set": "series", "path": str(path), "names": list(ROAD), "input-steps": 6, "output-steps": LAG,
            "start": "2024-05-06T00:00", "step-minutes": 5,
        },
        "model": {"name": "rnn", "hidden": 12},
        "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 32, "local-steps": 30},
        "f3-forecast": {
            "local-rounds": 2, "aligned-size": 8, "hidden": 16, "steps": 400, "evaluate-every": 100,
            "learning-rate": 0.01,
        },
        "evaluation": {"splits": ["validation", "test"]},
    }  # fmt: skip
