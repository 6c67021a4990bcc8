"""What goes wrong with new data in silence elsewhere: columns, words, units, strangers, too little of it."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import fedgraph
from fedgraph.commands.cli import app
from fedgraph.support.errors import DataError, ExperimentError, RunError


def rows(seed=0, count=120):
    random = np.random.default_rng(seed)
    age = random.normal(50, 10, count)
    ward = random.choice(["east", "icu", "west"], count)
    stay = 3 + 0.1 * age + (ward == "icu") * 2 + random.normal(0, 0.3, count)
    hospital = random.choice(["mercy", "county"], count)
    return pd.DataFrame({"age": age, "ward": ward, "hospital": hospital, "stay": stay})


def tables_of(path, method="fedavg", **data):
    return {
        "experiment": {"name": "stays", "method": method, "rounds": 2},
        "data": {"set": "table", "path": str(path), "label": "stay", "task": "regression",
                 "client-column": "hospital", **data},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"learning-rate": 0.05},
        "graph": {"source": "complete"},
    }  # fmt: skip


@pytest.fixture
def trained(tmp_path, run_experiment):
    def train(method="fedavg", **named):
        rows().to_csv(tmp_path / "stays.csv", index=False)
        nodes = named.pop("node_configs", None)
        return run_experiment(tables_of(tmp_path / "stays.csv", method, **named), node_configs=nodes)

    return train


def test_what_is_not_as_in_training_is_refused_or_told(trained):
    run = fedgraph.load_run(trained().path)
    new = rows(1, 30)
    with pytest.raises(DataError, match="has no column 'age', from which the models predict; its columns: 'ward'"):
        run.predict(new.drop(columns="age"))
    with pytest.raises(DataError, match=r"'ward' of .* holds 'ICU', unknown in training \('east', 'icu'"):
        run.predict(new.replace({"ward": {"icu": "ICU"}}))
    with pytest.raises(DataError, match="column 'age' holds words in the data frame and numbers in those of training"):
        run.predict(new.assign(age=[f"{value:.0f} years" for value in new.age]))
    gaps = new.assign(age=[np.nan, *new.age[1:]], ward=[None, *new.ward[1:]])
    found = run.predict(gaps)
    assert any("numbers are missing in 1 row, and replaced by the mean" in note for note in found.attrs["notes"])
    # A missing number is the client's mean, and not zero years.
    mean = run._predictor.preprocessing[new.hospital[0]].of(new.hospital[0])["centre"][0].item()
    assert found["predicted"][0] == pytest.approx(run.predict(gaps.fillna({"age": mean}))["predicted"][0])
    assert run.predict(new[["ward", "hospital", "age"]])["predicted"].tolist() == run.predict(new)["predicted"].tolist()


def test_a_client_that_the_run_does_not_know(trained):
    new = rows(2, 40).assign(hospital="north")
    found = fedgraph.load_run(trained().path).predict(new)
    assert any("'north' was not in the run: the global model predicts" in note for note in found.attrs["notes"])
    # On its own scale: its stays and ages.
    assert np.abs(found["predicted"] - new["stay"]).mean() < 2 * new["stay"].std()
    run = fedgraph.load_run(trained().path)
    with pytest.raises(
        DataError, match=r"'north' was not in the run, and .* the scale of 'stay' cannot be measured.* one of county"
    ):
        run.predict(new.drop(columns="stay"))
    with pytest.raises(DataError, match=r"5 rows are too few to measure a scale, which needs 20.*one of county"):
        run.predict(new[:5])
    local = fedgraph.load_run(trained("local").path)
    with pytest.raises(
        RunError, match="'north' was not in the run, and there is no global model: correct the name.* one of county"
    ):
        local.predict(new)
    nobody = new.drop(columns="hospital")
    advice = r"name a client \(client=\.\.\., or --client\), one of county, mercy"
    with pytest.raises(RunError, match=f"no client is named, .* {advice}"):
        local.predict(nobody)
    assert (local.predict(nobody, client="mercy")["client"] == "mercy").all()
    with pytest.raises(RunError, match=r"'1' was not in the run"):
        local.predict(nobody, client=1)
    with pytest.raises(DataError, match="has no row of 'mercy' in its column 'hospital'; it has 'north'"):
        local.predict(new, client="mercy")


def test_a_name_that_lost_its_zeros_or_its_case(tmp_path, run_experiment):
    known = rows().assign(hospital=[("007", "Mercy")[row % 2] for row in range(120)])
    known.to_csv(tmp_path / "stays.csv", index=False)
    run = fedgraph.load_run(run_experiment(tables_of(tmp_path / "stays.csv")).path)
    new = rows(2, 40)
    with pytest.raises(DataError, match=r"'7' was not in the run, and '007' was: the name has lost its leading zeros"):
        run.predict(new.assign(hospital=7))
    (note,) = run.predict(new.assign(hospital="MERCY")).attrs["notes"]
    assert "did you mean 'Mercy' for 'MERCY'" in note


def test_rows_as_arrays_and_dicts(trained):
    run = fedgraph.load_run(trained().path)
    new = rows(3, 6)
    wanted = run.predict(new[["age", "ward"]], client="mercy")["predicted"].tolist()
    array = new[["age", "ward"]].to_numpy()
    assert run.predict(array.astype(str), client="mercy")["predicted"].tolist() == pytest.approx(wanted)
    records = new.assign(hospital="mercy").to_dict("records")
    assert run.predict(records)["predicted"].tolist() == pytest.approx(wanted)
    with pytest.raises(DataError, match=r"the data is an array of shape \[6, 4\]: it needs \[rows, 2\].*age, ward"):
        run.predict(new.to_numpy().astype(str), client="mercy")
    with pytest.raises(DataError, match="holds objects"):
        run.predict(array, client="mercy")
    with pytest.raises(DataError, match="is a Series, a single column or row: give a data frame"):
        run.predict(new.iloc[0], client="mercy")
    with pytest.raises(DataError, match="the input is of type list, and cannot be read: give a data frame"):
        run.predict([[50, "icu"]], client="mercy")


@pytest.mark.parametrize(
    ("method", "kept"),
    [("fedavg", "the preprocessing of 'county' is at their nodes"),
     ("fedper", "the final model of 'county' is at its node, .* or work on the node, with a copy")],
)  # fmt: skip
def test_scales_stay_with_the_nodes_and_are_found_there(method, kept, trained, tmp_path, monkeypatch):
    """A run folder as the server has it, with nothing of the nodes; then on the node."""
    places = {name: tmp_path / f"at-{name}" for name in ("county", "mercy")}
    configs = [{"clients": name, "state-dir": str(place)} for name, place in places.items()]
    folder = trained(method, node_configs=configs)
    run = fedgraph.load_run(folder.path)
    monkeypatch.setenv("FEDGRAPH_STATE", str(tmp_path / "nothing"))
    new = rows(3, 25).assign(hospital="mercy")
    for ask in (lambda: run.predict(new), lambda: fedgraph.load_run(folder.path).score(new)):
        with pytest.raises(
            RunError, match=r"at their nodes, since scales are private: copy the folder .*preprocessing"
        ):
            ask()
    assert not list(folder.path.rglob("preprocessing"))
    monkeypatch.setenv("FEDGRAPH_STATE", str(places["mercy"]))
    here = fedgraph.load_run(folder.path)
    assert len(here.predict(new)) == 25
    assert here.module("mercy")(torch.tensor([[50.0, 0.0, 1.0, 0.0]])).shape == (1, 1)
    with pytest.raises(RunError, match=kept):
        here.predict(new.assign(hospital="county"))
    shutil.copytree(places["county"] / "runs", folder.path / "nodes" / "runs")
    shutil.copytree(places["mercy"] / "runs", folder.path / "nodes" / "runs", dirs_exist_ok=True)
    copied = folder.path.rename(tmp_path / "elsewhere")
    assert len(fedgraph.load_run(copied).predict(new.assign(hospital="county"))) == 25


def test_a_module_takes_what_people_have(trained):
    run = fedgraph.load_run(trained("local").path)
    assert run.summary["task"]["features"] == ["age", "ward=east", "ward=icu", "ward=west"]
    new = rows(4, 30).assign(hospital="county")
    values = torch.tensor([[row.age, row.ward == "east", row.ward == "icu", row.ward == "west"]
                           for row in new.itertuples()], dtype=torch.float32)  # fmt: skip
    with torch.no_grad():
        found = run.module("county")(values)[:, 0].tolist()
        assert found == pytest.approx(run.predict(new)["predicted"].tolist(), rel=1e-4)
        missing = run.module("county")(torch.tensor([[torch.nan, 1.0, 0.0, 0.0]]))
        mean = run._predictor.preprocessing["county"].of("county")["centre"][0].item()
        assert missing.item() == pytest.approx(run.module("county")(torch.tensor([[mean, 1.0, 0.0, 0.0]])).item())
    own = fedgraph.load_run(trained().path)
    with pytest.raises(RunError, match=r"the global model has no scale, as each client scales its own inputs"):
        own.module()
    assert own.module(raw=False)(torch.zeros(1, 4)).shape == (1, 1)
    assert fedgraph.load_run(trained(scaling="none").path).module()(torch.zeros(1, 4)).shape == (1, 1)


@pytest.mark.usefixtures("leave_no_trace")
def test_the_commands(trained, tmp_path):
    folder = trained("local")
    new = rows(5, 30)
    new.to_csv(tmp_path / "new.csv", index=False)
    run = fedgraph.load_run(folder.path)

    def told(*words):
        result = CliRunner().invoke(app, [*words])
        return " ".join(result.output.split())

    output = told("predict", str(folder.path), "--data", str(tmp_path / "new.csv"))
    assert "30 predictions, of 2 clients mae: " in output
    assert output.endswith(str(folder.path / "predictions" / "new.csv"))
    written = pd.read_csv(folder.path / "predictions" / "new.csv")
    assert written["predicted"].tolist() == pytest.approx(run.predict(new)["predicted"].tolist())
    options = ["--out", str(tmp_path / "out.parquet")]
    new[:3].drop(columns=["hospital", "stay"]).to_csv(tmp_path / "few.csv", index=False)
    told("predict", str(folder.path), "--data", str(tmp_path / "few.csv"), "--client", "mercy", *options)
    assert pd.read_parquet(tmp_path / "out.parquet")["client"].tolist() == ["mercy"] * 3
    assert "--samples only applies to runs of f3" in told(
        "predict", str(folder.path), "--data", str(tmp_path / "new.csv"), "--samples", "test"
    )
    assert "is a run of local: name the data that it shall predict (--data new.csv" in told("predict", str(folder.path))
    assert "the suffix must be .onnx or .safetensors" in told(
        "export", str(folder.path), str(tmp_path / "model.pt"), "--client", "mercy"
    )
    assert "Model:" in told("export", str(folder.path), str(tmp_path / "mercy.safetensors"), "--client", "mercy")
    assert (tmp_path / "mercy.safetensors").exists()
    with pytest.raises(ExperimentError, match="samples only applies to runs of f3"):
        fedgraph.predict(folder.path, new, samples="test")
    assert len(fedgraph.predict(folder.path, new)) == 30


def test_files_of_a_model_compute_what_the_run_predicts(trained, tmp_path):
    import json

    onnxruntime = pytest.importorskip("onnxruntime")
    from safetensors import safe_open

    run = fedgraph.load_run(trained("local").path)
    new = rows(6, 30).assign(hospital="county")
    new.loc[0, "age"] = np.nan
    values = np.array([[row.age, row.ward == "east", row.ward == "icu", row.ward == "west"]
                       for row in new.itertuples()], dtype=np.float32)  # fmt: skip
    expected = run.predict(new)["predicted"].tolist()
    session = onnxruntime.InferenceSession(str(run.export(tmp_path / "county.onnx", "county")))
    (answers,) = session.run(None, {"values": values})
    assert answers[:, 0].tolist() == pytest.approx(expected, rel=1e-4)
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["task"])["features"] == ["age", "ward=east", "ward=icu", "ward=west"]
    assert metadata["client"] == "county"
    with safe_open(str(run.export(tmp_path / "county.safetensors", "county")), framework="pt") as stream:
        found = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
        assert json.loads(stream.metadata()["task"])["features"][0] == "age"
    scaled = np.nan_to_num((values - found["centre"].numpy()) / found["spread"].numpy())
    module = run.module("county", raw=False)
    module.load_state_dict({name[6:]: value for name, value in found.items() if name.startswith("model.")})
    with torch.no_grad():
        outputs = module(torch.from_numpy(scaled.astype(np.float32)))[:, 0] * found["std"] + found["mean"]
    assert outputs.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("model", [{"name": "gru", "hidden": 5}, {"name": "lstm", "hidden": 5}, {"name": "mlp"}])
def test_a_forecaster_as_onnx(model, tmp_path, road_tables, run_experiment):
    onnxruntime = pytest.importorskip("onnxruntime")
    road_tables["experiment"] = {"name": "road", "method": "local", "rounds": 1}
    road_tables["model"] = model
    run = fedgraph.load_run(run_experiment(road_tables).path)
    session = onnxruntime.InferenceSession(str(run.export(tmp_path / "middle.onnx", "middle")))
    values = np.random.default_rng(0).normal(50, 5, (7, *run.summary["task"]["input_shape"])).astype(np.float32)
    values[0, 2] = np.nan
    (answers,) = session.run(None, {"values": values})
    with torch.no_grad():
        assert np.allclose(answers, run.module("middle")(torch.from_numpy(values)).numpy(), atol=1e-4)
    assert 30 < answers.mean() < 70


def test_a_sensor_that_the_run_does_not_know_is_on_the_scale_of_all_where_all_have_one(tmp_path, run_experiment):
    random = np.random.default_rng(0)
    index = pd.date_range("2024-01-01", periods=300, freq="h", name="time")
    frame = pd.DataFrame({name: random.normal(50, 5, 300) for name in "abc"}, index=index)
    frame.to_csv(tmp_path / "series.csv")
    tables = tables_of(tmp_path / "series.csv")
    for scaling in ("pooled", "client"):
        tables["data"] = {"set": "series", "path": str(tmp_path / "series.csv"), "input-steps": 4, "output-steps": 2,
                          "scaling": scaling}  # fmt: skip
        run = fedgraph.load_run(run_experiment(tables).path)
        # Two constants: around the mean of all, by a model that has hardly trained, or around their own.
        stranger = pd.DataFrame({"low": [20.0] * 12, "high": [80.0] * 12}, index=index[:12])
        found = run.predict(stranger)
        mean = found.groupby("client")["forecast"].mean()
        assert any("'low' was not in the run" in note for note in found.attrs["notes"])
        expected, within = ([50, 50], 12) if scaling == "pooled" else ([80, 20], 2)
        assert np.allclose(mean, expected, atol=within), scaling
    with pytest.raises(DataError, match=r"'low' has 5 readings, too few to measure a scale, which needs 6"):
        run.predict(stranger.iloc[:5])
    with pytest.raises(DataError, match=r"the data frame: has 3 time steps, and a forecast needs 4"):
        run.predict(stranger.iloc[:3])
    apart = stranger.set_axis(pd.date_range("2024-01-01", periods=12, freq="5min", name="time"))
    with pytest.raises(DataError, match=r"its steps are 5 minutes apart, and those of training were 60"):
        run.predict(apart)


@pytest.mark.parametrize("kind", ["table", "mixed-table"])
def test_new_rows_are_read_as_those_of_training(kind, tmp_path, run_experiment):
    """Thousands, marks of missing values and names of clients are those that the settings say."""
    frame = rows(count=200).assign(hospital=lambda each: each["hospital"].map({"mercy": "007", "county": "7"}))
    frame["bill"] = (1000 + 20 * frame["age"]).round()
    written = frame.assign(bill=frame["bill"].map("{:,.0f}".format), age=frame["age"].where(frame["age"] < 60, -9.0))
    written.to_csv(tmp_path / "stays.csv", index=False)
    tables = tables_of(tmp_path / "stays.csv", thousands=",", missing=["", "-9"])
    tables["data"] |= {"set": kind}
    if kind == "mixed-table":
        tables["data"] |= {"public-share": 0.3}
        del tables["data"]["task"]
    run = fedgraph.load_run(run_experiment(tables).path)
    found = run.predict(tmp_path / "stays.csv")
    assert set(found["client"]) == {"007", "7"}
    # What was -9 is missing, and predicted as such, not as an age below zero.
    plain = written.assign(age=frame["age"].where(frame["age"] < 60), bill=written["bill"])
    plain.to_csv(tmp_path / "empty.csv", index=False)
    again = run.predict(tmp_path / "empty.csv")
    assert np.allclose(found["predicted"], again["predicted"])
    assert found["predicted"].max() < 30


def test_new_series_are_read_as_those_of_training(tmp_path, run_experiment):
    """The column of readings, that of clients and that of times are those that the settings say."""
    random = np.random.default_rng(0)
    times = pd.date_range("2024-01-01", periods=200, freq="h")
    frame = pd.concat(
        [
            pd.DataFrame({
                "row": np.arange(200), "depot": depot, "seen": times.strftime("%Y%m%d%H"),
                "humidity": random.normal(900, 5, 200), "load": level + random.normal(0, 1, 200),
            })
            for depot, level in (("01", 20.0), ("1", 60.0))
        ]
    )  # fmt: skip
    frame.loc[::17, "load"] = -99
    frame.to_csv(tmp_path / "loads.csv", index=False)
    tables = tables_of(tmp_path / "loads.csv")
    tables["data"] = {
        "set": "series", "path": str(tmp_path / "loads.csv"), "input-steps": 4, "output-steps": 2, "target": "load",
        "client-column": "depot", "time-column": "seen", "missing": -99, "features": ["load"],
    }  # fmt: skip
    run = fedgraph.load_run(run_experiment(tables).path)
    frame[frame["seen"] >= "2024010500"].to_csv(tmp_path / "later.csv", index=False)
    mean = run.predict(tmp_path / "later.csv").groupby("client")["forecast"].mean()
    assert mean.index.tolist() == ["01", "1"]
    assert np.allclose(mean, [20, 60], atol=3)


def test_images_in_a_folder_with_classes_and_without(tmp_path, run_experiment):
    from PIL import Image

    random = np.random.default_rng(0)
    for place in range(40):
        kind = ("dark", "light")[place % 2]
        (tmp_path / "scans" / kind).mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 100, (6, 6)) + 150 * (place % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "scans" / kind / f"{place:02d}.png")
    tables = tables_of(tmp_path)
    tables["data"] = {"set": "images", "path": str(tmp_path / "scans"), "classes": ["dark", "light"], "size": 6,
                      "channels": 1, "clients": 2, "layout": "flat"}  # fmt: skip
    tables["experiment"]["rounds"] = 20
    tables["train"]["learning-rate"] = 0.3
    run = fedgraph.load_run(run_experiment(tables).path)
    new = tmp_path / "new"
    new.mkdir()
    Image.fromarray(np.full((6, 6), 240, np.uint8)).save(new / "b.png")
    Image.fromarray(np.full((12, 12), 20, np.uint8)).save(new / "a.png")
    found = run.predict(new, client="client-0")
    assert found[["image", "predicted"]].values.tolist() == [["a.png", "dark"], ["b.png", "light"]]
    assert "label" not in found
    assert found.attrs["notes"] == []
    Image.fromarray(np.full((6, 6), 240 * 16, np.uint16)).save(new / "c.png")
    (new / "d.dcm").write_bytes(b"x")
    assert [note.partition(":")[0] for note in run.predict(new, client="client-0").attrs["notes"]] == [
        "1 file is no image and was left out",
        "1 image with 16 bits per channel; the upper 8 are used",
        "the largest value of those with 16 bits is then 15 of 255",
    ]
    (new / "c.png").unlink()
    labelled = run.predict(tmp_path / "scans", client="client-1")
    assert set(labelled["label"]) == {"dark", "light"}
    assert run.score(tmp_path / "scans", client="client-1").loc["client-1", "accuracy"] == pytest.approx(
        (labelled["label"] == labelled["predicted"]).mean()
    )
    # Pixels as they are in files, and by nobody's model in particular.
    values = torch.tensor([[240.0] * 36, [20.0] * 36])
    assert run.module("client-0")(values).argmax(1).tolist() == run.module()(values).argmax(1).tolist() == [1, 0]
    assert any("no client is named" in note for note in run.predict(new).attrs["notes"])


def test_pixels_on_another_scale_than_those_of_training(digits_tables, run_experiment, tmp_path):
    run = fedgraph.load_run(run_experiment(digits_tables).path)
    with pytest.raises(DataError, match=r"pixels up to 255, and training used 0 to 16"):
        run.predict(np.full((2, 8, 8), 255, dtype=np.uint8), client="client-0")
    with pytest.raises(DataError, match=r"windows applies only to time series"):
        run.predict(np.zeros((2, 8, 8), dtype=np.uint8), client="client-0", windows=3)
