"""A bit of a kept file that flips changes no result silently: what is read is the same, or an error says the file."""

import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import safe_open

import fedgraph
from fedgraph.data import Preprocessing
from fedgraph.fusion.forecasting.fusion import FittedForecasts
from fedgraph.fusion.model_file import FittedFusion
from fedgraph.fusion.owner_models.local_model import ModelStore
from fedgraph.graph import ClientGraph, read_graph
from fedgraph.graphical import GraphicalModel
from fedgraph.privacy.ledger import ONCE, Ledger
from fedgraph.privacy.secret import ShareSettings
from fedgraph.privacy.secret.aggregator_files import AppliedMaps, own_keys
from fedgraph.runs import Run, RunFolder
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import FedgraphError
from fedgraph.support.files import load_state, read_arrays
from fedgraph.training.row_file import read_clients, read_rows

FLIPS = 200
BINARY = {".safetensors", ".npz", ".parquet", ".key"}


def rows_of(file):
    with safe_open(str(file), framework="pt") as stream:
        like = {name: stream.get_tensor(name)[0] for name in stream.keys()}  # noqa: SIM118
    clients = read_clients(file)
    return partial(read_rows, file, clients, range(len(clients)), like)


def reader(file, run):
    """How the product reads a file."""
    if file.name == "fusion.safetensors":
        kind = FittedFusion if run.method == "f3" else FittedForecasts
        return lambda: (kind.read(file).network.state_dict(), kind.read(file).owners)
    if "graphical" in f"{file.parent} {file.name}":
        return lambda: (vars(GraphicalModel.load(file))["parameters"], str(GraphicalModel.load(file).encoding.schema))
    if file.name == "alignment.npz":
        return lambda: read_arrays(file)
    if file.suffix == ".npz":
        return lambda: (read_graph(file).names, read_graph(file).edge_index, read_graph(file).weights)
    if file.suffix == ".parquet":
        return lambda: Run(run.folder).forecasts
    if file.name == "checkpoint.safetensors":
        return lambda: RunFolder(run.path).kept()
    if file.name == "models.safetensors":
        return lambda: load_models(file)
    if file.parent.name == "preprocessing":
        return lambda: vars(Preprocessing.read(file))
    if file.parent.name == "local-models":
        return lambda: ModelStore(file.parent).load(file.stem)
    return rows_of(file)


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.numpy().tobytes() == other.numpy().tobytes()
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, pd.DataFrame):
        return one.equals(other)
    assert not isinstance(one, ClientGraph)
    return one == other


def flipped(file, place):
    content = bytearray(file.read_bytes())
    content[place // 8] ^= 1 << (place % 8)
    file.write_bytes(content)


def test_two_hundred_flips(digits_tables, patches_tables, table_tables, road_tables, run_experiment, tmp_path):
    digits_tables["experiment"]["method"] = "fedper"
    del digits_tables["sfl"], digits_tables["graph"]
    digits_tables["train"] |= {"momentum": 0.5}
    table_tables["fedngm"]["ngm"]["epochs"] = table_tables["fedngm"]["ngr"]["epochs"] = 2
    with_graph = {**digits_tables, "experiment": {**digits_tables["experiment"], "method": "sfl-star"}}
    road = {**road_tables, "evaluation": {"forecasts": "parquet"}}
    readers = {}
    for tables in (digits_tables, with_graph, patches_tables, table_tables, road):
        run = Run(run_experiment(tables))
        kept = [file for file in run.path.rglob("*") if file.suffix in BINARY]
        assert kept
        readers |= {file: reader(file, run) for file in kept}
    released = Ledger(tmp_path / "node", "owner", "embeddings")
    draw = lambda positions: torch.rand(len(positions), 3)  # noqa: E731
    readers[released.path] = lambda: released.rows(torch.tensor([1, 2]), ["purpose"], ONCE, draw)
    applied, projection = AppliedMaps(tmp_path / "node", "owner", "f", 8), torch.ones(2, 8, dtype=torch.int64)
    applied.allow(["a"], projection, ShareSettings())
    readers[applied.path] = lambda: (applied.allow(["a"], projection, ShareSettings()), load_state(applied.path))
    readers[tmp_path / "node" / "private.key"] = lambda: own_keys(tmp_path / "node").public
    expected = {file: read() for file, read in readers.items()}

    chosen, silent, errors = random.Random(0), [], []
    for number in range(FLIPS):
        file = sorted(readers)[number % len(readers)]
        content, place = file.read_bytes(), chosen.randrange(file.stat().st_size * 8)
        flipped(file, place)
        try:
            if not same(readers[file](), expected[file]):
                silent.append((str(file.relative_to(tmp_path)), place))
        except FedgraphError as error:
            errors.append((file.name, str(error)))
        file.write_bytes(content)
    assert not silent
    assert all(name in error for name, error in errors)
    assert len(errors) > FLIPS * 0.8


@pytest.mark.parametrize("where", ["checkpoint.safetensors", "personal-layers/*/round-2-*.safetensors"])
def test_a_run_is_not_resumed_to_other_weights(digits_tables, run_experiment, tmp_path, where):
    digits_tables["experiment"]["method"] = "fedper"
    del digits_tables["sfl"], digits_tables["graph"]
    whole = run_experiment(digits_tables)
    begun = shutil.copytree(whole.path, tmp_path / "begun")
    for name in ("summary.json", "models.safetensors"):
        (begun / name).unlink()
    text = (begun / "experiment.toml").read_text().replace("rounds = 2", "rounds = 3")
    (begun / "experiment.toml").write_text(text)

    def resumed(name, place=None):
        folder = Path(shutil.copytree(begun, tmp_path / name))
        if place is not None:
            files = sorted(folder.rglob(where))
            flipped(files[0], int(place * files[0].stat().st_size * 8))
        run = fedgraph.resume(folder, data_dir=tmp_path, progress=False)
        return {client: run.models[client] for client in run.models}

    right, chosen, errors = resumed("right"), random.Random(1), []
    for number in range(8):
        try:
            assert same(resumed(f"flipped-{number}", chosen.random()), right)
        except FedgraphError as error:
            errors.append(str(error))
    assert len(errors) >= 6
    assert all("cannot read the saved state" in error for error in errors)
