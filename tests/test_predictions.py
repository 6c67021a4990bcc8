"""What a run predicts of rows, images and series that look new is as far off as the run says of its own test data."""

import copy

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch_geometric.data import Data

import fedgraph
from fedgraph.algorithms.phases import has_phases
from fedgraph.data import open_source, parse_data
from fedgraph.data.tables.client_tables import client_table_source
from fedgraph.experiment import built_ins
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.probability_scores import calibration_error

METHODS = sorted(name for name, found in built_ins().items() if not has_phases(found))
SETTINGS = {
    "sfl-cold-start": {"cold-below": 1.0},
    "cgsv": {"update-norm": 5.0},
}
ROWS = 240


def changed(tables, method):
    tables = copy.deepcopy(tables)
    tables["experiment"]["method"] = method
    tables[method] = SETTINGS.get(method, {})
    return tables


def experiment(data, **model):
    return {
        "experiment": {"name": "new", "method": "sfl", "rounds": 2},
        "data": data,
        "model": {"name": "mlp", "hidden": [8], **model},
        "train": {"optimizer": "sgd", "learning-rate": 0.05, "batch-size": 32},
        "graph": {"source": "complete"},
        "evaluation": {"splits": ["test"]},
    }


def patients(path):
    """Three hospitals: numbers on other scales, words, gaps; two things to predict."""
    random = np.random.default_rng(3)
    hospital = random.choice(["mercy", "county", "north"], ROWS)
    age = random.normal(np.where(hospital == "mercy", 70, 40), 8)
    dose = random.gamma(2.0, 100.0, ROWS)
    dose[random.random(ROWS) < 0.1] = np.nan
    ward = random.choice(["east", "west", "icu"], ROWS)
    stay = 3 + 0.05 * age + (ward == "icu") * 4 + random.normal(0, 0.5, ROWS)
    frame = pd.DataFrame({"hospital": hospital, "age": age, "dose": dose, "ward": ward, "stay": stay})
    frame["outcome"] = np.where(stay + random.normal(0, 1, ROWS) > 7.5, "died", "home")
    frame.to_csv(path, index=False)
    return pd.read_csv(path)


def rows_of(tables, data_dir):
    """Rows of the file that each client is tested on: the source's own rows, in the order of its clients."""
    source = open_source(parse_data(tables["data"]), data_dir)
    names = source.client_names()
    splits = source.load(names).splits
    starts = np.cumsum(
        [0, *(sum(int(split.num_examples[at]) for split in splits.values()) for at in range(len(names)))]
    )
    tested = splits["test"].rows
    return {name: tested[at][tested[at] >= 0].numpy() - starts[at] for at, name in enumerate(names)}


def assert_alike(run, scored, metrics, client=None):
    """The metrics of new data are those of the run's own test data, client by client."""
    names = list(run.clients.index) if client is None else [client]
    for metric in metrics:
        for name in names:
            own = run.clients.loc[name, f"test/{metric}"]
            assert scored.loc[name, metric] == pytest.approx(own, rel=2e-5, abs=1e-6), (run.method, metric, name)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_rows_of_a_table(task, method, tmp_path, run_experiment, data_dir):
    frame = patients(tmp_path / "patients.csv")
    label, other = ("outcome", "stay") if task == "classification" else ("stay", "outcome")
    features = [name for name in ("age", "dose", "ward", other) if name not in (label, "outcome")]
    tables = changed(
        experiment(
            {"set": "table", "path": str(tmp_path / "patients.csv"), "label": label, "task": task,
             "client-column": "hospital", "features": features}
        ),
        method,
    )  # fmt: skip
    nodes = 1 if method == "centralised" else 2
    run = fedgraph.load_run(run_experiment(tables, nodes=nodes).path)
    tested = rows_of(tables, data_dir)
    new = pd.concat([frame[frame.hospital == name].iloc[rows] for name, rows in tested.items()])
    # In another order of rows and columns, with one that nobody has asked for.
    new = new.sample(frac=1, random_state=0)[["ward", label, "hospital", "dose", *set(features) - {"ward", "dose"}]]
    new = new.assign(comment="x").reset_index(drop=True)
    scored = run.score(new)
    assert_alike(run, scored, ["accuracy", "loss", "f1"] if task == "classification" else ["mae", "rmse"])
    found = run.predict(new.drop(columns=label))
    assert found["row"].tolist() == list(range(1, len(new) + 1))
    assert found["client"].tolist() == new["hospital"].tolist()
    assert "label" not in found
    assert any("comment" in note for note in found.attrs["notes"])
    if task == "classification":
        probabilities = found[["probability died", "probability home"]].to_numpy()
        assert np.allclose(probabilities.sum(1), 1)
        right = found["predicted"] == new[label]
        for name in run.clients.index:
            own = run.clients.loc[name, "test/accuracy"]
            assert right[found["client"] == name].mean() == pytest.approx(own)
    else:
        # In the unit of the label, and not as a scaled number.
        error = (found["predicted"] - new[label]).abs().groupby(found["client"]).mean()
        assert error.to_dict() == pytest.approx(run.clients["test/mae"].to_dict(), rel=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_images(method, tmp_path, digits_tables, run_experiment, data_dir):
    tables = changed({**digits_tables, "evaluation": {"splits": ["test"]}}, method)
    run = fedgraph.load_run(run_experiment(tables, nodes=1 if method == "centralised" else 2).path)
    split = open_source(parse_data(tables["data"]), data_dir).load(["client-3"]).splits["test"]
    rows = split.rows[0][split.rows[0] >= 0]
    pixels, labels = split.inputs[rows].reshape(-1, 8, 8).numpy(), split.targets[rows].numpy()
    np.savez(tmp_path / "new.npz", images=pixels, labels=labels)
    assert_alike(run, run.score(tmp_path / "new.npz", client="client-3"), ["accuracy", "loss", "f1"], "client-3")
    found = run.predict(pixels, client="client-3")
    assert (found["predicted"].astype(int) == labels).mean() == pytest.approx(
        run.clients.loc["client-3", "test/accuracy"]
    )


def test_images_in_folders_of_sites(tmp_path, run_experiment):
    """Each site's images by its own model: what the run has measured on them."""
    random = np.random.default_rng(0)
    for site, turned in (("north", False), ("south", True)):
        for label, name in enumerate("ab"):
            (tmp_path / "scans" / site / name).mkdir(parents=True)
            for number in range(10 + 5 * turned):
                shade = random.integers(100, 255) if label != turned else random.integers(0, 100)
                Image.fromarray(np.full((4, 4), shade, np.uint8)).save(
                    tmp_path / "scans" / site / name / f"{number}.png"
                )
    data = {"set": "images", "path": str(tmp_path / "scans"), "classes": ["a", "b"], "size": 4, "channels": 1,
            "shares": [0.6, 0.0, 0.4]}  # fmt: skip
    tables = experiment(data, name="mlp") | {"graph": {"source": "none"}, "train": {"local-epochs": 20}}
    tables["experiment"] |= {"method": "local", "rounds": 4}
    run = fedgraph.load_run(run_experiment(tables).path)
    found = run.predict(tmp_path / "scans").assign(right=lambda rows: rows["label"] == rows["predicted"])
    assert found.groupby("client").size().to_dict() == {"north": 20, "south": 30}
    assert all(found["image"].str.partition("/")[0] == found["client"])
    scores = run.score(tmp_path / "scans")["accuracy"]
    assert found.groupby("client")["right"].mean().to_dict() == pytest.approx(scores.to_dict())
    assert scores.min() > 0.8
    south = run.predict(tmp_path / "scans", client="south")
    assert south["predicted"].tolist() == found.query("client == 'south'")["predicted"].tolist()
    for file in (tmp_path / "scans").rglob("*.png"):
        site, name, number = file.relative_to(tmp_path / "scans").parts
        (tmp_path / "new" / site).mkdir(parents=True, exist_ok=True)
        file.rename(tmp_path / "new" / site / f"{name}-{number}")
    new = run.predict(tmp_path / "new").set_index("image")
    assert "label" not in new
    expected = found.set_index(found["image"].str.replace(r"/(.)/", r"/\1-", regex=True))["predicted"]
    assert new["predicted"].to_dict() == expected.to_dict()
    with pytest.raises(DataError, match="none for 'west': name the folder of its images"):
        run.predict(tmp_path / "new", client="west")


@pytest.mark.parametrize("method", METHODS)
def test_nodes_of_graphs(method, tmp_path, run_experiment, data_dir):
    tables = changed(experiment({"set": "stochastic-blocks", "clients": 4, "regions": 2}, name="gcn"), method)
    tables["model"]["hidden"] = 8
    run = fedgraph.load_run(run_experiment(tables, nodes=1 if method == "centralised" else 2).path)
    source = open_source(parse_data(tables["data"]), data_dir)
    splits = source.load(list(run.clients.index)).splits
    graphs, first = {}, 0
    for row, name in enumerate(run.clients.index):
        graph = Data(**{key: torch.as_tensor(value) for key, value in source.graphs(name).items()})
        tested = splits["test"].rows[row]
        others = torch.ones(graph.num_nodes, dtype=torch.bool).index_fill(0, tested[tested >= 0] - first, False)
        graph.y = graph.y.masked_fill(others, -1)
        graphs[name], first = graph, first + graph.num_nodes
    assert_alike(run, run.score(graphs), ["accuracy", "loss", "f1"])
    name = run.clients.index[2]
    del graphs[name].y
    found = run.predict(graphs[name], client=name)
    assert found["node"].tolist() == list(range(graphs[name].num_nodes))
    assert "label" not in found
    probabilities = found[[f"probability {label}" for label in range(4)]].to_numpy()
    module = run.module(name)
    with torch.no_grad():
        assert np.allclose(probabilities, module(graphs[name].x, graphs[name].edge_index), atol=1e-6)


def test_whole_graphs(tmp_path, run_experiment):
    clients = {}
    for place, name in enumerate(("mercy", "county")):
        draws = torch.Generator().manual_seed(place)
        clients[name] = []
        for number in range(30):
            nodes, y = 4 + number % 5, torch.tensor([number % 2])
            edges = torch.randint(nodes, (2, 2 * nodes), generator=draws)
            x = torch.randn(nodes, 3, generator=draws) + y
            clients[name].append(Data(x=x, edge_index=edges, y=y))
    tables = experiment({"set": "graphs", "path": clients, "level": "graph"}, name="gin")
    tables["model"]["hidden"] = 8
    tables["train"] |= {"optimizer": "adam", "learning-rate": 0.02, "local-steps": 40}
    run = fedgraph.run(tables, out=tmp_path, progress=False)
    scored = run.score(clients)
    assert (scored["accuracy"] > 0.8).all()
    found = run.predict({name: graphs[:3] for name, graphs in clients.items()})
    assert found["graph"].tolist() == [0, 1, 2] * 2
    assert found["label"].tolist() == ["0", "1", "0"] * 2
    module, graph = run.module("mercy"), clients["mercy"][1]
    with torch.no_grad():
        answers = module(graph.x, graph.edge_index, batch=torch.zeros(graph.num_nodes, dtype=torch.int64))
    assert np.allclose(found.loc[1, ["probability 0", "probability 1"]].to_numpy(float), answers[0], atol=1e-6)
    assert "model.head.weight" in load_file(run.export(tmp_path / "mercy.safetensors", "mercy"))
    with pytest.raises(RunError, match=r"ONNX: .*\.safetensors"):
        run.export(tmp_path / "mercy.onnx", "mercy")


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_mixed_columns_on_the_scale_of_public_rows(method, tmp_path, run_experiment, data_dir):
    frame = patients(tmp_path / "patients.csv")
    tables = changed(
        experiment(
            {"set": "mixed-table", "path": str(tmp_path / "patients.csv"), "label": "stay",
             "client-column": "hospital", "public-share": 0.4}
        ),
        method,
    )  # fmt: skip
    run = fedgraph.load_run(run_experiment(tables, nodes=1 if method == "centralised" else 2).path)
    source = open_source(parse_data(tables["data"]), data_dir)
    parts = [source.load_table(name).table.part(source.load_table(name).rows("test").numpy()).to_pandas()
             .assign(hospital=name) for name in run.clients.index]  # fmt: skip
    new = pd.concat(parts)[["ward", "stay", "dose", "outcome", "hospital", "age"]]
    assert 0 < len(new) < len(frame)
    assert_alike(run, run.score(new), ["mae", "rmse"])


DAY, INPUT, OUTPUT = 48, 6, 3


def sensors(path, days=20):
    """Four sensors, every half hour, with daily waves of their own size, gaps, and two columns for each time."""
    random = np.random.default_rng(5)
    steps = days * DAY
    wave = np.sin(2 * np.pi * np.arange(steps) / DAY)
    frame = pd.DataFrame({"time": pd.date_range("2024-05-06", periods=steps, freq="30min")})
    for place, size in enumerate((1, 10, 100, 1000)):
        frame[f"s{place}"] = size * (5 + wave + random.normal(0, 0.3, steps))
    frame.loc[random.random(steps) < 0.05, "s1"] = np.nan
    frame.to_csv(path, index=False)
    return frame


SERIES = [(method, "client") for method in METHODS]
SERIES += [(method, scaling) for method in ("sfl", "local") for scaling in ("pooled", "none")]
"""Scales are the same for all methods: two of them are enough for the other kinds."""


@pytest.mark.parametrize(("method", "scaling"), SERIES)
def test_series(method, scaling, tmp_path, run_experiment):
    frame = sensors(tmp_path / "sensors.csv")
    data = {
        "set": "series", "path": str(tmp_path / "sensors.csv"), "input-steps": INPUT, "output-steps": OUTPUT,
        "covariates": ["time-of-day", "weekly-profile"], "scaling": scaling,
    }  # fmt: skip
    tables = experiment(data, name="gru", hidden=6)
    del tables["model"]["hidden"]
    tables["model"]["hidden"] = 6
    tables["train"] |= {"local-steps": 5, "learning-rate": 0.01 if scaling != "none" else 1e-5}
    run = fedgraph.load_run(run_experiment(changed(tables, method), nodes=1 if method == "centralised" else 2).path)
    first = int(0.9 * len(frame) + 1e-6)
    new = frame.iloc[first:][["s3", "time", "s0", "s1", "s2"]]
    assert_alike(run, run.score(new), ["mae", "rmse"])
    # With times as the index of the data frame, as pandas has them.
    found = run.predict(new.set_index("time"))
    windows = len(new) - INPUT + 1
    assert len(found) == 4 * windows * OUTPUT
    last = found[(found["client"] == "s2") & (found["window"] == windows - 1)]
    assert last["reading"].isna().all()
    assert last["time"].tolist()[0] == "2024-05-26T00:00:00"
    known = found.dropna(subset="reading")
    own = known[known["client"] == "s2"]
    assert np.abs(own["forecast"] - own["reading"]).mean() == pytest.approx(run.clients.loc["s2", "test/mae"], rel=0.05)
    assert len(run.predict(new, windows=2)) == 4 * 2 * OUTPUT


def test_series_whose_windows_a_network_at_the_server_sees_together(tmp_path, run_experiment):
    frame = sensors(tmp_path / "sensors.csv")
    data = {"set": "series", "path": str(tmp_path / "sensors.csv"), "input-steps": INPUT, "output-steps": OUTPUT}
    tables = experiment(data, name="gru")
    tables["model"]["hidden"] = 6
    del tables["experiment"]["method"]
    tables["experiment"] |= {"strategy": "fedgraph.simulations.forecasting.cnfgnn:CNFGNN"}
    tables["CNFGNN"] = {"windows": 64, "server-steps": 3, "hidden": 8}
    run = fedgraph.load_run(run_experiment(tables).path)
    first = int(0.9 * len(frame) + 1e-6)
    # In another order of clients than that of the graph network.
    new = frame.iloc[first:][["s3", "time", "s0", "s1", "s2"]]
    found = fedgraph.predict(run, new)
    windows = len(new) - INPUT - OUTPUT + 1
    whole = found[found["window"] < windows].dropna(subset="reading")
    errors = (whole["forecast"] - whole["reading"]).abs().groupby(whole["client"]).mean()
    assert errors.to_dict() == pytest.approx(run.clients["test/mae"].to_dict(), rel=1e-4)
    with pytest.raises(DataError, match="lacks 's1': .*s0, s1, s2, s3"):
        fedgraph.predict(run, new.drop(columns="s1"))
    assert len(fedgraph.predict(run, new, windows=1)) == 4 * OUTPUT


def test_series_in_rows_of_time_and_client_with_the_target_named(tmp_path, run_experiment):
    """A sensor export: clients in a column, several columns of readings, one of them forecast, -9 where nothing was."""
    wide = sensors(tmp_path / "wide.csv")
    random = np.random.default_rng(1)
    long = wide.melt("time", var_name="sensor", value_name="flow").assign(battery=lambda rows: rows.flow * 0 + 3.7)
    long["rain"] = random.gamma(1.0, 2.0, len(long))
    long = long.fillna({"flow": -9.0, "battery": 3.7})[["sensor", "battery", "time", "rain", "flow"]]
    long.to_csv(tmp_path / "long.csv", index=False)
    data = {
        "set": "series", "path": str(tmp_path / "long.csv"), "client-column": "sensor", "target": "flow",
        "features": ["rain", "flow"], "missing": -9, "input-steps": INPUT, "output-steps": OUTPUT,
    }  # fmt: skip
    tables = experiment(data, name="gru")
    tables["model"]["hidden"] = 6
    run = fedgraph.load_run(run_experiment(tables).path)
    first = wide["time"].iloc[int(0.9 * len(wide) + 1e-6)]
    new = long[long["time"] >= first].sample(frac=1, random_state=0)[["time", "flow", "rain", "battery", "sensor"]]
    assert_alike(run, run.score(new.sort_values("time")), ["mae", "rmse"])
    one = new[new["sensor"] == "s2"].sort_values("time")
    assert_alike(run, run.score(one), ["mae", "rmse"], "s2")
    with pytest.raises(DataError, match="rain"):
        run.predict(one.drop(columns="rain"))


def test_a_graphical_model_is_as_far_off_on_new_rows_as_the_run_says(tmp_path):
    """Every target of every client: numbers, and categories with their probabilities."""
    random = np.random.default_rng(0)
    age = random.normal(50, 10, ROWS)
    dose = 2 * age + random.normal(0, 5, ROWS)
    frame = pd.DataFrame({"site": random.choice(["mercy", "county"], ROWS), "age": age, "dose": dose})
    frame["sick"] = np.where(dose + random.normal(0, 10, ROWS) > 100, "yes", "no")
    frame.to_csv(tmp_path / "people.csv", index=False)
    tables = {
        "experiment": {"method": "fedngm"},
        "data": {"set": "mixed-table", "path": str(tmp_path / "people.csv"), "client-column": "site"},
        "fedngm": {
            "targets": ["dose", "sick"], "scaling": {"source": "shared-ranges"},
            "ngm": {"epochs": 30}, "distillation": {"samples": 500},
        },
    }  # fmt: skip
    run = fedgraph.run(tables, out=tmp_path / "runs", progress=False)
    source = client_table_source(open_source(parse_data(tables["data"]), tmp_path), "fedngm")
    own = run.summary["per_client"]["test"]
    for client in ("mercy", "county"):
        rows = frame[frame.site == client].iloc[source.load_table(client).rows("test").numpy()]
        error = fedgraph.predict(run, rows, target="dose")["predicted"].to_numpy() - rows["dose"].to_numpy()
        assert np.abs(error).mean() == pytest.approx(own["dose-mae"][client], rel=1e-5)
        assert np.sqrt((error**2).mean()) == pytest.approx(own["dose-rmse"][client], rel=1e-5)
        chances = fedgraph.predict(run, rows, target="sick")["probability yes"].to_numpy()
        sick = (rows["sick"] == "yes").to_numpy()
        assert roc_auc_score(sick, chances) == pytest.approx(own["sick-auc"][client], rel=1e-5)
        assert calibration_error(chances, sick) == pytest.approx(own["sick-ece"][client], rel=1e-4)


def test_patients_are_predicted_by_the_model_of_their_hospital_whatever_is_missing(tmp_path):
    """Private columns, gaps, and columns that are not there at all."""
    small = {
        "data.limit": 500, "fedngm.ngm.epochs": 8, "fedngm.distillation.samples": 300, "fedngm.sampling.sweeps": 5,
    }  # fmt: skip
    run = fedgraph.run("fedngm/hospitals.toml", set=small, out=tmp_path, progress=False)
    source = client_table_source(open_source(run.experiment.data, tmp_path), "fedngm")
    tables = {name: source.load_table(name) for name in source.client_names()}
    frames = {
        name: each.table.to_pandas().iloc[each.rows("test").numpy()].assign(hospital=name)
        for name, each in tables.items()
        if name in ("cardiac", "rural")
    }
    rows = pd.concat(frames.values(), ignore_index=True).sample(frac=1, random_state=0)
    found = fedgraph.predict(run, rows, target="pressure")
    assert list(found["client"]) == list(rows["hospital"])
    for name in ("cardiac", "rural"):
        own = rows[rows["hospital"] == name]
        mine = found.loc[(found["client"] == name).to_numpy(), "predicted"]
        np.testing.assert_allclose(
            mine, fedgraph.predict(run, own.drop(columns="hospital"), client=name, target="pressure")["predicted"]
        )
        errors = (mine.to_numpy() - own["pressure"])[own["pressure"].notna()]
        told = run.summary["per_client"]["test"]["pressure-rmse-personal"][name]
        assert np.sqrt((errors**2).mean()) == pytest.approx(told, rel=0.02)
    assert {"troponin", "ejection"} <= set(run.personal_models["cardiac"].encoding.schema.names)
    few = rows[["hospital", "age", "sex"]]
    chances = fedgraph.predict(run, few[few["hospital"] == "cardiac"], target="event")["probability yes"]
    assert 0 < chances.min() < chances.max() < 0.6
    with pytest.raises(RunError, match="'rural' .*'troponin'"):
        fedgraph.predict(run, few[few["hospital"] == "rural"], target="troponin")
    with pytest.raises(RunError, match="has no client 'urban'"):
        fedgraph.predict(run, few, client="urban", target="event")
