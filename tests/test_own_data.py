"""Nodes with files of their own: the same runs as over one file, and nothing of the files' names at the server."""

import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from fedgraph.support.errors import ExperimentError, FedgraphError

SECRET = "jane-doe"
"""Part of the name of every file that is a node's own, and of the folder that it is in."""

CLIENTS = ("east", "north", "west")


@pytest.fixture
def own_files(tmp_path):
    """``own_files(texts by client, suffix)``: node configs with a file for each client."""
    folder = tmp_path / f"of {SECRET}"
    folder.mkdir()

    def write(texts, suffix=".csv"):
        configs = []
        for client, text in texts.items():
            path = folder / f"{client}-{SECRET}{suffix}"
            path.write_text(text)
            configs.append({"clients": client, "data": str(path), "full-errors": False})
        return configs

    return write


def models_of(folder, name="models.safetensors"):
    """The tensors of a file, as bytes: entries of its metadata come in any order."""
    return {key: (value.shape, value.tobytes()) for key, value in load_file(folder.path / name).items()}


def summary_of(folder):
    return json.loads((folder.path / "summary.json").read_text())


def assert_tells_nothing(folder):
    """No file of the run folder has the name of a node's own file."""
    for path in folder.path.rglob("*"):
        if path.is_file() and "nodes" not in path.relative_to(folder.path).parts:
            assert SECRET.encode() not in path.read_bytes(), path


def refused(run_experiment, tables, configs):
    """What the server gets to know of an error at a node."""
    with pytest.raises(FedgraphError) as caught:
        run_experiment(tables, node_configs=configs)
    message = str(caught.value)
    assert SECRET not in message
    assert "/" not in message.replace("and/or", "")
    return message


# ---- series


@pytest.fixture
def series():
    values = np.random.default_rng(0).uniform(1, 9, (80, 3)).round(2)
    return {client: values[:, place].tolist() for place, client in enumerate(CLIENTS)}


def as_series(columns):
    rows = zip(*columns.values(), strict=True)
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n"


@pytest.fixture
def series_tables():
    return {
        "experiment": {"method": "sfl", "rounds": 2, "min-clients": 3},
        "data": {"set": "series", "input-steps": 3, "output-steps": 2},
        "model": {"name": "gru", "hidden": 4},
        "train": {"local-steps": 2},
        "graph": {"source": "complete"},
    }


def test_series_of_ones_own_are_as_those_of_one_file(series_tables, series, own_files, run_experiment, tmp_path):
    (tmp_path / "all.csv").write_text(as_series(series))
    data = series_tables["data"]
    whole = run_experiment({**series_tables, "data": {**data, "path": str(tmp_path / "all.csv")}}, nodes=3)
    configs = own_files({client: as_series({client: series[client]}) for client in CLIENTS})
    own = run_experiment(series_tables, node_configs=configs)
    assert models_of(own) == models_of(whole)
    assert_tells_nothing(own)
    assert summary_of(own)["data"] == "3 nodes, each with own data, 1 client, 80 steps"
    # A path that other nodes have does not matter to one with a file of its own.
    mixed = {**series_tables, "data": {**data, "path": str(tmp_path / "all.csv")}}
    assert models_of(run_experiment(mixed, node_configs=[*configs[:2], {"clients": "west"}])) == models_of(whole)


def test_the_columns_of_a_file_are_the_clients_of_a_node_that_names_nobody(
    series_tables, series, own_files, run_experiment
):
    west, others = {"west": series["west"]}, {name: series[name] for name in ("north", "east")}
    configs = own_files({"a": as_series(others), "b": as_series(west)})
    for config in configs:
        del config["clients"]
    summary = summary_of(run_experiment(series_tables, node_configs=configs))
    assert set(summary["per_client"]["test"]["mae"]) == set(CLIENTS)
    assert summary["data"] == "own data, 1 client, 80 steps; own data, 2 clients, 80 steps", "notes stay on the nodes"


def test_keys_about_clients_may_name_those_of_other_nodes(series_tables, series, own_files, run_experiment, tmp_path):
    (tmp_path / "all.csv").write_text(as_series(series))
    (tmp_path / "graph.csv").write_text("from,to,weight\neast,north,1\nnorth,east,1\nwest,north,0.5\nnorth,west,0.5\n")
    series_tables["graph"] = {"source": "data"}
    keys = {
        "clients": list(CLIENTS),
        "cold-clients": ["north"],
        "cold-steps": 20,
        "scales": {"west": [4.0, 2.0]},
        "graph": str(tmp_path / "graph.csv"),
        "groups": {"coast": ["east", "west"], "hills": ["north"]},
    }
    data = {**series_tables["data"], **keys}
    whole = run_experiment({**series_tables, "data": {**data, "path": str(tmp_path / "all.csv")}}, nodes=3)
    configs = own_files({client: as_series({client: series[client]}) for client in CLIENTS})
    own = run_experiment({**series_tables, "data": data}, node_configs=configs)
    assert models_of(own) == models_of(whole)
    assert summary_of(own)["metrics"] == summary_of(whole)["metrics"]
    assert summary_of(own)["weights_sha256"] == summary_of(whole)["weights_sha256"]
    assert summary_of(own)["groups"] == {"east": "warm", "north": "cold", "west": "warm"}


@pytest.mark.parametrize("key", [{"names": ["x"]}, {"cold-share": 0.5}])
def test_keys_about_all_clients_are_refused(series_tables, series, own_files, run_experiment, key):
    series_tables["data"] |= key
    said = refused(run_experiment, series_tables, own_files({"east": as_series({"east": series["east"]})}))
    assert f"`{next(iter(key))}` needs all clients" in said


# ---- tables


@pytest.fixture
def patients():
    """Rows by client, and a header; the ward and the label are words."""
    draws = np.random.default_rng(1)
    rows = {client: [] for client in CLIENTS}
    for number in range(240):
        age, ward = draws.integers(20, 90), draws.choice(["a", "b", "c"])
        ill = "yes" if draws.random() < age / 90 else "no"
        client = CLIENTS[number % 3]
        rows[client].append(f"{age},{ward},{'no' if number < 2 else ill},{client}")
    return rows


@pytest.fixture
def patient_tables():
    return {
        "experiment": {"method": "fedavg", "rounds": 2, "min-clients": 3},
        "data": {"set": "table", "label": "ill", "categories": {"ward": ["a", "b", "c"], "ill": ["no", "yes"]}},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"local-epochs": 1, "batch-size": 16},
    }


HEADER = "age,ward,ill,site\n"


def without_site(rows):
    return "age,ward,ill\n" + "\n".join(row.rpartition(",")[0] for row in rows) + "\n"


def whole_file(path, rows):
    """One file with the rows of all clients, mixed."""
    lines = [line for one in zip(*rows.values(), strict=True) for line in one]
    path.write_text(HEADER + "\n".join(lines) + "\n")
    return str(path)


def test_tables_of_ones_own_are_as_those_of_one_file(patient_tables, patients, own_files, run_experiment, tmp_path):
    whole_keys = {"path": whole_file(tmp_path / "all.csv", patients), "client-column": "site"}
    whole = run_experiment({**patient_tables, "data": {**patient_tables["data"], **whole_keys}}, nodes=3)
    configs = own_files({client: without_site(rows) for client, rows in patients.items()})
    own = run_experiment(patient_tables, node_configs=configs)
    assert models_of(own) == models_of(whole)
    assert_tells_nothing(own)
    assert summary_of(own)["data"] == "3 nodes, each with own data, 80 rows, 4 features, 1 client"


def test_a_table_of_ones_own_may_have_a_column_of_clients(
    patient_tables, patients, own_files, run_experiment, tmp_path
):
    patient_tables["data"]["client-column"] = "site"
    whole_keys = {"path": whole_file(tmp_path / "all.csv", patients)}
    whole = run_experiment({**patient_tables, "data": {**patient_tables["data"], **whole_keys}}, nodes=2)
    east, north, west = patients.values()
    configs = own_files({"a": HEADER + "\n".join(east + north), "b": HEADER + "\n".join(west)})
    configs[0]["clients"] = "east,north"
    del configs[1]["clients"]
    own = run_experiment(patient_tables, node_configs=configs)
    assert models_of(own) == models_of(whole)
    assert "own data, 160 rows, 4 features, 2 clients by column 'site'" in summary_of(own)["data"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"categories": {}}, r"must agree .* not list those of 'ward', 'ill' of <data>: .*\[data.categories\] ward ="),
        ({"categories": {"ward": ["a", "b", "c"]}}, "not list those of 'ill' of <data>"),
        ({"categories": {"ward": ["a"], "ill": ["no", "yes"]}}, "column 'ward' of <data> holds 'b', 'c'"),
        ({"label": "dead"}, "<data> has no column 'dead'"),
        ({"client-column": "site"}, "<data> has no column 'site'"),
    ],
)
def test_tables_of_ones_own_that_do_not_fit(patient_tables, patients, own_files, run_experiment, change, message):
    patient_tables["data"] |= change
    configs = own_files({client: without_site(rows) for client, rows in patients.items()})
    assert re.search(message, refused(run_experiment, patient_tables, configs))


def test_classes_and_columns_that_others_do_not_have(patient_tables, patients, own_files, run_experiment):
    texts = {client: without_site(rows) for client, rows in patients.items()}
    other = own_files({**texts, "west": texts["west"].replace("age", "years")})
    assert "hold different data (features: " in refused(run_experiment, patient_tables, other)
    other = own_files({**texts, "west": texts["west"].replace("yes", "maybe")}, ".again.csv")
    said = refused(run_experiment, patient_tables, other)
    assert "column 'ill' of <data> holds 'maybe', which its list of categories does not" in said


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": "east,north"}, "'clients' must name; it names 2, east, north"),
        ({"clients": None}, "'clients' must name; it names none"),
        ({"clients": None, "partition-id": 0, "num-partitions": 3}, "name its clients by 'clients' instead of"),
        ({"data": f"{SECRET}.csv"}, "there is no <data>, which the node config key 'data' names"),
        ({"data": None}, "needs its own data, and this node has none: give it the node config key 'data'"),
    ],
)
def test_node_configs_that_do_not_fit(patient_tables, patients, own_files, run_experiment, change, message):
    configs = own_files({client: without_site(rows) for client, rows in patients.items()})
    configs[0] = {key: value for key, value in {**configs[0], **change}.items() if value is not None}
    assert message in refused(run_experiment, patient_tables, configs)


def test_sets_that_everybody_has_are_no_nodes_own(digits_tables, own_files, run_experiment):
    said = refused(run_experiment, digits_tables, own_files({"client-0": "a\n1\n"}))
    assert "set 'digits' is the same for all nodes" in said
    assert "use one of the sets series, table, mixed-table, " in said


# ---- tables for models of all features


def mixed(tables, **data):
    """A short run of the experiment, with other keys of ``[data]``."""
    rest = {key: value for key, value in tables["data"].items() if key not in ("path", "clients", "public-share")}
    short = {"ngm": {"epochs": 5, "hidden": 4, "batch-size": 128, "learning-rate": 0.02}}
    return {**tables, "data": {**rest, **data}, "fedngm": {**tables["fedngm"], **short}}


@pytest.fixture
def wards(table_tables, tmp_path):
    """Every client's rows of one file, and a public part."""
    header, *rows = (tmp_path / "patients.csv").read_text().splitlines()
    public = tmp_path / "public"
    public.mkdir()
    (public / "public.csv").write_text("\n".join([header, *rows[:100]]) + "\n")
    parts = {client: rows[100 + place :: 3] for place, client in enumerate(sorted(CLIENTS))}
    return {client: "\n".join([header, *own]) + "\n" for client, own in parts.items()}


@pytest.mark.slow
def test_mixed_tables_of_ones_own_are_as_those_in_one_folder(table_tables, wards, own_files, run_experiment, tmp_path):
    for client, text in wards.items():
        (tmp_path / f"ward-{client}.csv").write_text(text)
    public = {"public": str(tmp_path / "public/public.csv")}
    paths = {"path": str(tmp_path / "ward-{client}.csv"), "clients": list(CLIENTS)}
    whole = run_experiment(mixed(table_tables, **public, **paths), nodes=3)
    configs = own_files(wards)
    own = run_experiment(mixed(table_tables, **public), node_configs=configs)
    assert graphical_model(own) == graphical_model(whole)
    assert_tells_nothing(own)
    assert summary_of(own)["data"] == "own data, 266 rows, 1 client; 2 nodes, each with own data, 267 rows, 1 client"
    # Several clients on a node: a file each.
    at_two = [
        {**configs[0], "clients": "east,north", "data": configs[0]["data"].replace("east", "{client}")},
        configs[2],
    ]
    together = run_experiment(mixed(table_tables, **public), node_configs=at_two)
    assert "own data, 2 clients with a file each" in summary_of(together)["data"]
    assert summary_of(together)["metrics"].keys() == summary_of(own)["metrics"].keys()
    assert_tells_nothing(together)


def graphical_model(folder):
    return models_of(folder, "graphical-model.safetensors")


def test_mixed_tables_of_ones_own_that_do_not_fit(table_tables, wards, own_files, run_experiment, tmp_path):
    configs = own_files(wards)
    tables = mixed(table_tables, public=str(tmp_path / "public/public.csv"))
    two = {**configs[0], "clients": "east,north"}
    assert "'clients' must name; it names 2" in refused(run_experiment, tables, [two, configs[2]])
    each = {**configs[0], "data": configs[0]["data"].replace("east", "{client}")}
    nobody = {key: value for key, value in each.items() if key != "clients"}
    assert "to the names it stands for" in refused(run_experiment, tables, [nobody, *configs[1:]])
    absent = {**each, "clients": "south"}
    assert "there is no table <data>: put" in refused(run_experiment, tables, [absent, *configs[1:]])
    tables["data"]["private"] = {"east": ["height of heels"]}
    assert "<data> has no column 'height of heels'" in refused(run_experiment, tables, configs)
    shared = mixed(table_tables, **{"path": "all.csv", "clients": 3, "public-share": 0.1})
    assert "give public rows as a file in the data folders" in refused(run_experiment, shared, configs)


# ---- other features of the same samples


@pytest.fixture
def features():
    """The lines of each client: key, label and its own columns, in an order of its own."""
    draws = np.random.default_rng(2)
    keys = [f"p{number:03d}" for number in range(150)]
    ill = {key: draws.choice(["no", "yes"]) for key in keys}
    texts = {}
    for client, columns in OWNERS.items():
        lines = [",".join(["id", "ill", *columns])]
        for key in draws.permutation(keys):
            values = draws.normal(size=len(columns)) + (ill[key] == "yes")
            lines.append(",".join([key, ill[key], *(f"{value:.2f}" for value in values)]))
        texts[client] = "\n".join(lines) + "\n"
    return texts


OWNERS = {"east": ("age", "weight"), "north": ("glucose",), "west": ("pulse", "pressure")}


@pytest.fixture
def feature_tables(patches_tables):
    return {
        **patches_tables,
        "data": {"set": "table-columns", "label": "ill", "key-column": "id", "categories": {"ill": ["no", "yes"]}},
    }


@pytest.mark.parametrize("method", ["f3", "vfl"])
def test_columns_of_ones_own_are_as_those_of_one_table(
    feature_tables, features, own_files, run_experiment, tmp_path, method
):
    by_key = {client: {line[:4]: line.split(",") for line in text.splitlines()} for client, text in features.items()}
    keys = sorted(by_key["east"])[1:]  # without the header
    lines = ["id,ill,age,weight,glucose,pulse,pressure"]
    for key in keys:
        east, north, west = (by_key[client][key] for client in OWNERS)
        lines.append(",".join([*east, *north[2:], *west[2:]]))
    (tmp_path / "all.csv").write_text("\n".join(lines) + "\n")
    feature_tables["experiment"]["method"] = method
    if method == "vfl":
        del feature_tables["f3"]
        feature_tables["vfl"] = {"epochs": 2}
    owners = {"owners": {client: list(columns) for client, columns in OWNERS.items()}}
    whole_keys = {"path": str(tmp_path / "all.csv"), **owners}
    whole = run_experiment({**feature_tables, "data": {**feature_tables["data"], **whole_keys}}, nodes=3)
    configs = own_files(features)
    for keys in ({}, owners):
        own = run_experiment({**feature_tables, "data": {**feature_tables["data"], **keys}}, node_configs=configs)
        assert summary_of(own)["metrics"] == summary_of(whole)["metrics"]
        assert summary_of(own)["weights_sha256"] == summary_of(whole)["weights_sha256"]
        assert_tells_nothing(own)
        assert summary_of(own)["data"] == "3 nodes, each with own data by columns, 1 client, 150 samples of 2 classes"


def test_columns_of_ones_own_that_do_not_fit(feature_tables, features, own_files, run_experiment):
    configs = own_files(features)
    data = feature_tables["data"]

    def said(**changes):
        keys = {key: value for key, value in {**data, **changes}.items() if value is not None}
        return refused(run_experiment, {**feature_tables, "data": keys}, configs)

    assert "not list those of 'ill' of <data>" in said(categories={})
    assert "<data> has no column 'height'" in said(owners={"east": ["height"], "north": ["glucose"], "west": ["pulse"]})
    assert "names east, which this node's data does not have; it has west, south" in said(
        owners={"west": ["pulse"], "south": ["age"]}
    )
    assert "cannot use a bundled table" in said(
        bundled="wine", owners={"east": ["alcohol"]}, label="label", categories={}
    )
    with pytest.raises(ExperimentError, match="key-column"):
        run_experiment({**feature_tables, "data": {"set": "table-columns", "label": "ill"}})
    other = own_files({**features, "west": features["west"].replace("yes", "maybe")}, ".again.csv")
    assert "holds 'maybe', which its list" in refused(run_experiment, feature_tables, other)
    last = features["west"].splitlines()[-1]
    twice = own_files({**features, "west": f"{features['west'].rstrip()}\n{last}\n"}, ".twice.csv")
    told = refused(run_experiment, feature_tables, twice)
    assert "of west: the sample key (its node's log says which) occurs more than once" in told


@pytest.fixture
def windows():
    draws = np.random.default_rng(3)
    labels = draws.integers(2, size=80)
    values = (draws.normal(size=(80, 3, 4, 1)) + labels[:, None, None, None]).astype(np.float32)
    keys = np.array([f"event-{number:02d}" for number in range(80)])
    return {"values": values, "labels": labels, "keys": keys, "owners": np.array(CLIENTS)}


def part_of(windows, client, *without):
    own = [CLIENTS.index(client)]
    part = {**windows, "values": windows["values"][:, own], "owners": windows["owners"][own]}
    return {name: array for name, array in part.items() if name not in without}


def test_panels_of_ones_own_are_as_those_of_one_file(patches_tables, windows, own_files, run_experiment, tmp_path):
    np.savez(tmp_path / "all.npz", **windows)
    (tmp_path / "graph.csv").write_text("from,to,weight\neast,north,1\nnorth,east,1\nwest,north,0.5\nnorth,west,0.5\n")
    data = {"set": "panel", "graph": str(tmp_path / "graph.csv"), "clients": list(CLIENTS)}
    tables = {**patches_tables, "graph": {"source": "data"}}
    whole = run_experiment({**tables, "data": {**data, "path": str(tmp_path / "all.npz")}}, nodes=3)
    configs = own_files(dict.fromkeys(CLIENTS, ""), ".npz")
    for config in configs:
        np.savez(config["data"], **part_of(windows, config["clients"]))
    own = run_experiment({**tables, "data": data}, node_configs=configs)
    assert summary_of(own)["metrics"] == summary_of(whole)["metrics"]
    assert summary_of(own)["weights_sha256"] == summary_of(whole)["weights_sha256"]
    assert_tells_nothing(own)
    np.savez(configs[0]["data"], **part_of(windows, "east", "keys"))
    assert "has no array 'keys'" in refused(run_experiment, {**tables, "data": data}, configs)
    np.savez(configs[0]["data"], **part_of(windows, "east"), classes=np.array(["a", "b", "c"]))
    said = refused(run_experiment, {**tables, "data": data}, configs)
    assert "owners 'east' and 'north' have different classes: a, b, c against 0, 1" in said


# ---- images


CLASSES = ("cat", "dog", "owl")
IMAGE_OWNERS = {"client-0": ("cat",), "client-1": ("dog",), "client-2": ("owl",)}


@pytest.fixture
def image_tables():
    return {
        "experiment": {"method": "fedavg", "rounds": 2, "min-clients": 3},
        "data": {"set": "images", "classes": list(CLASSES), "size": [6, 5], "channels": 1, "layout": "flat"},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"local-epochs": 1, "batch-size": 4},
    }


def write_images(folder, classes):
    for name in classes:
        draws = np.random.default_rng(CLASSES.index(name))
        (folder / name).mkdir(parents=True)
        for number in range(12):
            pixels = draws.integers(0, 256, (6, 5), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{SECRET} {number:02d}.png")


@pytest.fixture
def image_configs(tmp_path):
    configs = []
    for client, classes in IMAGE_OWNERS.items():
        write_images(tmp_path / f"of {SECRET}" / client, classes)
        configs.append({"clients": client, "data": str(tmp_path / f"of {SECRET}" / client), "full-errors": False})
    return configs


def test_images_of_ones_own_are_as_those_of_one_folder(image_tables, image_configs, run_experiment, tmp_path):
    write_images(tmp_path / "all", CLASSES)
    whole_keys = {"path": str(tmp_path / "all"), "partition": "classes", "clients": 3}
    whole = run_experiment({**image_tables, "data": {**image_tables["data"], **whole_keys}}, nodes=3)
    own = run_experiment(image_tables, node_configs=image_configs)
    assert models_of(own) == models_of(whole)
    assert_tells_nothing(own)
    assert summary_of(own)["data"] == "3 nodes, each with own data, 12 images 6x5 of 3 classes, 1 client"
    assert summary_of(whole)["data"] == "all, 36 images 6x5 of 3 classes, 3 clients, disjoint classes in equal parts"


def test_images_of_ones_own_that_do_not_fit(image_tables, image_configs, run_experiment, tmp_path):
    several = [{**image_configs[0], "clients": "client-0,client-1"}, image_configs[2]]
    assert "'clients' must name; it names 2" in refused(run_experiment, image_tables, several)
    unlisted = {**image_tables, "data": {**image_tables["data"], "classes": ["cat", "dog"]}}
    said = refused(run_experiment, unlisted, image_configs)
    assert "<data> has the sub-folders 'owl', which [data] classes does not list; it lists cat, dog" in said
    other = {**image_tables, "data": {**image_tables["data"], "classes": ["dog", "owl", "cat"]}}
    run_experiment(other, node_configs=image_configs)
    broken = tmp_path / f"of {SECRET}" / "client-1/dog" / f"{SECRET} of 1.2.1990.png"
    broken.write_bytes(b"no image")
    said = refused(run_experiment, image_tables, image_configs)
    assert "<data> cannot be read as an image (cannot identify image file '<data>')" in said


TOWNS = ("mercy", "county", "north")


@pytest.fixture
def town_tables():
    return {
        "experiment": {"name": "towns", "method": "sfl", "rounds": 2},
        "data": {"set": "graphs", "classes": 2},
        "model": {"name": "gcn", "hidden": 4, "dropout": 0.5},
        "train": {"local-epochs": 2, "batch-size": 8},
        "graph": {"source": "complete"},
    }


@pytest.fixture
def town_configs(tmp_path):
    configs = []
    (tmp_path / "all").mkdir()
    for place, name in enumerate(TOWNS):
        draws = torch.Generator().manual_seed(place)
        y = torch.randint(2, (30 + place,), generator=draws)
        x = torch.randn(len(y), 5, generator=draws) + y[:, None]
        graph = {"x": x, "edge_index": torch.randint(len(y), (2, 90), generator=draws), "y": y}
        (tmp_path / f"of {SECRET}").mkdir(exist_ok=True)
        own = tmp_path / f"of {SECRET}" / f"{SECRET} {place}.pt"
        for file in (own, tmp_path / "all" / f"{name}.pt"):
            torch.save(graph, file)
        configs.append({"clients": name, "data": str(own), "full-errors": False})
    return configs


def test_graphs_of_ones_own_are_as_those_of_one_folder(town_tables, town_configs, run_experiment, tmp_path):
    folder = {**town_tables["data"], "path": str(tmp_path / "all")}
    whole = run_experiment({**town_tables, "data": folder}, nodes=1)
    own = run_experiment(town_tables, node_configs=town_configs)
    assert models_of(own) == models_of(whole)
    assert_tells_nothing(own)
    assert summary_of(own)["per_client"] == summary_of(whole)["per_client"]
    assert "auc" in summary_of(own)["metrics"]["test"]
    assert summary_of(own)["data"].startswith("own data, 1 client with a graph of 30 nodes, classes of nodes; own data")


def test_graphs_of_ones_own_that_do_not_fit(town_tables, town_configs, run_experiment, tmp_path):
    file = tmp_path / f"of {SECRET}" / f"{SECRET} 1.pt"
    graph = torch.load(file)
    torch.save({**graph, "edge_index": graph["edge_index"] + 10}, file)
    said = refused(run_experiment, town_tables, town_configs)
    assert "client 'county' (<data>): an edge has the node 40, and there are 31 nodes" in said
    torch.save({**graph, "x": graph["x"][:, :4]}, file)
    said = refused(run_experiment, town_tables, town_configs)
    assert "clients 'mercy' and 'county' hold different data (input_shape: (5,) against (4,))" in said
    unnamed = {**town_tables, "data": {"set": "graphs"}}
    assert "[data] classes is required where each node has its own file" in refused(
        run_experiment, unnamed, town_configs
    )


def hourly(values, late=0):
    times = (
        np.datetime64("2021-03-01T00:00:00")
        + np.arange(len(values)) * np.timedelta64(3600, "s")
        + np.timedelta64(late, "s")
    )
    return times, values


@pytest.mark.parametrize("late", [0, -60, 1800])
def test_the_result_says_how_many_windows_the_clients_of_sites_share(series_tables, own_files, run_experiment, late):
    values = np.random.default_rng(2).uniform(1, 9, 120).round(2)
    texts = {
        name: f"time,{name}\n" + "".join(f"{time},{value}\n" for time, value in zip(*hourly(own, of), strict=True))
        for name, own, of in (("east", values, 0), ("west", values[::-1], late))
    }
    tables = {**series_tables, "experiment": {"method": "f3-forecast"}, "f3-forecast": {"steps": 2, "local-rounds": 1}}
    del tables["graph"]
    configs = own_files(texts)
    if late == 1800:
        said = refused(run_experiment, tables, configs)
        assert "the windows of 'east', 'west' share no start" in said
    else:
        told = json.dumps(summary_of(run_experiment(tables, node_configs=configs)))
        assert "all 80 training windows are shared by all clients" in told
