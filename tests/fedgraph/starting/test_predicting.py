"""``fedgraph.predict`` of new data, for methods whose models are not those of single clients."""

import numpy as np
import pandas as pd
import pytest

import fedgraph
from fedgraph.graphical import GraphicalModel
from fedgraph.support.errors import ExperimentError, FedgraphError, RunError


@pytest.fixture
def people(tmp_path):
    """A table of four columns, of which two are each owner's, and the experiment over it."""
    random = np.random.default_rng(0)
    kind, numbers = random.choice(["a", "b", "c"], 300), random.normal(50, 10, (300, 3))
    frame = pd.DataFrame(numbers, columns=["age", "weight", "income"]).assign(kind=kind)
    frame["label"] = np.where(frame.age + 10 * (kind == "a") > 53, "yes", "no")
    frame.insert(0, "id", [f"p{row:03d}" for row in range(300)])
    frame.to_csv(tmp_path / "people.csv", index=False)
    return frame, {
        "experiment": {"method": "f3"},
        "data": {
            "set": "table-columns", "path": str(tmp_path / "people.csv"), "label": "label", "key-column": "id",
            "owners": {"bank": ["income", "kind"], "clinic": ["age", "weight"]},
        },
        "model": {"name": "mlp", "hidden": [6]},
        "train": {"local-epochs": 20, "learning-rate": 0.05, "batch-size": 16},
        "f3": {"epochs": 3, "hidden": 4, "draws": 2},
    }  # fmt: skip


def test_samples_of_f3_are_as_far_off_as_its_own(people, tmp_path):
    """The run's test samples under new keys, with their labels, which are not looked at."""
    frame, tables = people
    run = fedgraph.run(tables, out=tmp_path / "runs", progress=False)
    own = run.predictions.query("split == 'test'").set_index("key")
    new = frame.set_index("id").loc[own.index].rename_axis("id").reset_index().sample(frac=1, random_state=1)
    found = fedgraph.predict(run, new.assign(id="n" + new.id)[["weight", "label", "kind", "age", "income", "id"]],
                             progress=False).set_index("key")  # fmt: skip
    assert len(found) == len(own) > 30
    found = found.loc["n" + own.index]
    for name in ("probability no", "probability yes"):
        assert np.allclose(found[name], own[name], atol=2e-6)
    accuracy = (found["predicted"].to_numpy() == own["label"].to_numpy()).mean()
    assert accuracy == pytest.approx(run.summary["metrics"]["test"]["accuracy"]["mean"])
    with pytest.raises(RunError, match=r"fedgraph\.predict\(run, data\)"):
        run.predict(new)
    with pytest.raises(ExperimentError, match="client only applies"):
        fedgraph.predict(run, new, client="bank")


def test_windows_of_owners_need_no_labels_and_classes_but_the_steps_of_training(tmp_path):
    draws = np.random.default_rng(0)
    labels, owners = draws.integers(3, size=120), np.array(["a", "b", "c"])
    values = (draws.normal(size=(120, 3, 6, 1)) + 2 * labels[:, None, None, None]).astype(np.float32)
    texts = {"owners": owners, "classes": np.array(["low", "some", "high"])}
    np.savez(tmp_path / "panel.npz", values=values, labels=labels, **texts)
    tables = {
        "experiment": {"method": "f3"},
        "data": {"set": "panel", "path": str(tmp_path / "panel.npz")},
        "model": {"name": "gru", "hidden": 6},
        "train": {"local-epochs": 1, "batch-size": 64},
        "f3": {"epochs": 2, "draws": 2},
    }
    run = fedgraph.run(tables, out=tmp_path / "runs", progress=False)

    def predicted(**arrays):
        np.savez(tmp_path / "new.npz", **arrays)
        return fedgraph.predict(run, tmp_path / "new.npz", progress=False).set_index("key").filter(like="probability")

    known = predicted(values=values[:9], labels=np.full(9, -1), **texts)
    assert known.columns.tolist() == ["probability low", "probability some", "probability high"]
    assert predicted(values=values[:9], owners=owners).equals(known)
    assert predicted(values=values[:9], labels=labels[:9], owners=owners).equals(known)
    more = np.concatenate([values[:9], values[:9, :1]], 1)
    assert predicted(values=more, owners=np.array(["a", "b", "c", "new"])).equals(known)
    with pytest.raises(FedgraphError, match="a sample has the size 5, .* had 6 "):
        predicted(values=values[:9, :, :5], owners=owners)


def test_windows_of_sites_are_in_a_file_for_each(tmp_path):
    draws = np.random.default_rng(0)
    labels, sites = draws.integers(2, size=60), {}
    keys = np.array([f"event-{number:02d}" for number in range(60)])
    for name in ("a", "b"):
        values = (draws.normal(size=(60, 1, 4, 1)) + labels[:, None, None, None]).astype(np.float32)
        sites[name] = tmp_path / f"{name}.npz"
        np.savez(sites[name], values=values, labels=labels, keys=keys, owners=np.array([name]))
    tables = {
        "experiment": {"method": "f3"},
        "data": {"set": "panel"},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"local-epochs": 1, "batch-size": 64},
        "f3": {"epochs": 2, "draws": 2},
    }
    run = fedgraph.run(tables, sites=sites, out=tmp_path / "runs", progress=False)
    assert len(fedgraph.predict(run, str(tmp_path / "{client}.npz"), progress=False)) == 60
    with pytest.raises(ExperimentError, match=r"name a file for each, --data 'new/\{client\}\.npz'"):
        fedgraph.predict(run, sites["a"], progress=False)


@pytest.mark.parametrize("label", ["left out", "empty"])
def test_samples_without_labels_are_predicted_on_secret_shares_as_in_the_clear(label, people, tmp_path):
    frame, tables = people
    tables["f3"]["hidden"] = 1
    run = fedgraph.run(tables, out=tmp_path / "runs", progress=False)
    new = frame.drop(columns="label").head(40)
    new = new if label == "left out" else new.assign(label=None)
    clear, secret = (
        fedgraph.predict(run, new, secret=secret, progress=False).set_index("key").sort_index()
        for secret in (None, "2-of-3")
    )
    assert len(clear) == len(secret) == 40
    assert np.allclose(clear["probability yes"], secret["probability yes"], atol=0.01)


@pytest.mark.parametrize("targets", ["shared", "private"])
def test_windows_of_f3_forecast_are_as_far_off_as_its_own(targets, road_tables, tmp_path):
    """The test part alone, in another order of clients: what the run has measured there."""
    road_tables["f3-forecast"]["targets"] = targets
    road_tables["f3-forecast"]["precision"] = "float32"
    run = fedgraph.run(road_tables, out=tmp_path / "runs", progress=False)
    with np.load(road_tables["data"]["path"]) as file:
        series, names = file["data"], file["names"]
    first, order = int(0.9 * len(series) + 1e-6), [2, 0, 3, 1]
    np.savez(tmp_path / "new.npz", data=series[first:, order], names=names[order])
    found = fedgraph.predict(run, tmp_path / "new.npz", progress=False)
    assert set(found["client"]) == set(names)
    windows = len(series) - first - 6 - 3 + 1
    known = found[found["window"] < windows].dropna(subset="reading")
    errors = (known["forecast"] - known["reading"]).abs().groupby(known["client"]).mean()
    # Embeddings of other windows in a batch are rounded otherwise.
    assert errors.to_dict() == pytest.approx(run.clients["test/mae"].to_dict(), rel=1e-4)
    np.savez(tmp_path / "some.npz", data=series[first:, :2], names=names[:2])
    without = []
    for nodes in (1, 3, 4):
        with pytest.raises(FedgraphError, match=r"downstream.*some\.npz"):
            fedgraph.predict(run, tmp_path / "some.npz", nodes=nodes, progress=False)
        some = fedgraph.predict(
            run, tmp_path / "some.npz", set="experiment.on-missing=skip", nodes=nodes, progress=False
        )
        without.append(some.sort_values(["client", "window", "time"], ignore_index=True))
    assert set(without[0]["client"]) == set(names[:2])
    for other in without[1:]:
        assert np.allclose(without[0]["forecast"], other["forecast"], rtol=1e-4)


def test_later_windows_behind_those_of_training(road_tables, rewrite_road, tmp_path):
    rewrite_road(900)
    run = fedgraph.run(road_tables, out=tmp_path / "runs", progress=False)
    rewrite_road(960)
    of_run = fedgraph.predict(run, windows=50, progress=False).forecasts
    found = fedgraph.predict(run, road_tables["data"]["path"], windows=50, progress=False)
    assert np.allclose(found["forecast"], of_run["forecast"], atol=1e-3)


def test_any_feature_by_a_graphical_model(table_tables, run_experiment, tmp_path, monkeypatch):
    run, read, load = fedgraph.load_run(run_experiment(table_tables).path), [], GraphicalModel.load
    monkeypatch.setattr(GraphicalModel, "load", lambda file: read.append(file) or load(file))
    new = pd.read_csv(tmp_path / "patients.csv").sample(60, random_state=2)
    found = fedgraph.predict(run, new[["ward", "height", "stay", "ecg", "dose", "ill"]], target="weight")
    assert np.abs(found["predicted"].to_numpy() - new["weight"].to_numpy()).mean() < 0.6 * new["weight"].std()
    ill = fedgraph.predict(run, new.drop(columns="ill"), target="ill")
    assert np.allclose(ill[["probability n", "probability y"]].sum(axis=1), 1)
    assert (ill["predicted"].to_numpy() == new["ill"].to_numpy()).mean() > 0.6
    with pytest.raises(RunError, match="one of .*height"):
        fedgraph.predict(run, new)
    east = run.predict(new, client="east", target="weight")["predicted"].to_numpy() - new["weight"].to_numpy()
    scores = run.score(new, client="east", target="weight")
    assert scores.loc["east", "weight-mae"] == pytest.approx(np.abs(east).mean(), rel=1e-5)
    with pytest.raises(RunError, match="of 'fedngm' have no option windows"):
        run.predict(new, windows=3, target="ill")
    assert len(read) == len(set(read)) > 1, "models of a run are read once"


def test_rows_for_a_graphical_model_are_read_as_in_training(table_tables, run_experiment, tmp_path):
    patients = pd.read_csv(tmp_path / "patients.csv")
    table_tables["data"] |= {"missing": [-1], "table-schema": {"missing-codes": {"stay": [99]}}}
    table_tables["fedngm"]["ngm"]["epochs"] = 2
    run = fedgraph.load_run(run_experiment(table_tables, nodes=1).path)
    new = patients[["height", "stay", "ward"]].head(20).assign(ward="a")
    for gap in (np.nan, 99, -1):
        new.assign(stay=gap).to_csv(tmp_path / f"{gap}.csv", index=False)
    new.assign(stay=np.nan, ward="NA").to_csv(tmp_path / "no-ward.csv", index=False)
    new[["height"]].to_csv(tmp_path / "height.csv", index=False)
    unknown, *coded, no_ward, height = (
        run.predict(tmp_path / f"{name}.csv", target="weight")["predicted"].to_numpy()
        for name in ("nan", "99", "-1", "no-ward", "height")
    )
    assert all(np.array_equal(each, unknown) for each in coded)
    assert np.array_equal(no_ward, height)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("simple-forecast", "fitted for comparison and not kept"),
        ("fedgraph.simulations.forecasting.joint_forecast:JointForecast", "not kept; .*forecasts = .csv."),
    ],
)
def test_methods_that_leave_nothing_to_predict_with_say_so(method, why, road_tables, run_experiment, tmp_path):
    del road_tables["experiment"]["method"], road_tables["f3-forecast"]
    road_tables["experiment"] |= {"strategy" if ":" in method else "method": method}
    road_tables["graph"] = {"source": "complete"}
    if ":" in method:
        road_tables["JointForecast"] = {"steps": 20, "evaluate-every": 10}
    run = fedgraph.load_run(run_experiment(road_tables, nodes=1).path)
    with pytest.raises(RunError, match=why):
        fedgraph.predict(run, road_tables["data"]["path"])


def test_a_set_without_files_has_no_other_file_to_predict(patches_tables, run_experiment, tmp_path):
    folder = run_experiment(patches_tables)
    with pytest.raises(ExperimentError, match="'image-patches' .*--samples new"):
        fedgraph.predict(folder, tmp_path / "new.npz", progress=False)


def test_owners_whose_models_go_on_changing(people, tmp_path):
    frame, tables = people
    tables = {**tables, "experiment": {"method": "vfl"}, "vfl": {"epochs": 1, "hidden": 4}}
    del tables["f3"]
    run = fedgraph.run(tables, out=tmp_path / "runs", progress=False)
    with pytest.raises(RunError, match='method = "f3"'):
        fedgraph.predict(run, frame)


def run_at_sites(people, tmp_path):
    """A run over two sites, each with a file of its own columns and the label; and the rows to predict."""
    frame, tables = people
    owners = tables["data"].pop("owners")
    del tables["data"]["path"]
    tables["data"]["categories"] = {"kind": ["a", "b", "c"], "label": ["no", "yes"]}
    sites = {name: frame[["id", *columns, "label"]] for name, columns in owners.items()}
    run = fedgraph.run(tables, sites=sites, out=tmp_path / "runs", progress=False)
    return run, frame.head(40).assign(id=[f"n{row}" for row in range(40)]), owners


@pytest.fixture
def people_at_sites(people, tmp_path):
    return run_at_sites(people, tmp_path)


def test_new_samples_of_sites_are_in_one_file_or_in_one_each(people_at_sites, tmp_path):
    run, new, owners = people_at_sites
    found = fedgraph.predict(run, new[["weight", "label", "kind", "id", "income", "age"]], progress=False)
    assert sorted(found["key"]) == sorted(new["id"])
    for name, columns in owners.items():
        new[["id", *columns]].to_csv(tmp_path / f"{name}-new.csv", index=False)
    each = fedgraph.predict(run, tmp_path / "{client}-new.csv", progress=False)
    pd.testing.assert_frame_equal(each, found)
    rows = {name: new[["label", *columns, "id"]] for name, columns in owners.items()}
    pd.testing.assert_frame_equal(fedgraph.predict(run, rows, progress=False), found)
    assert run.summary["metrics"]["test"]["accuracy"]["mean"] > 0.6
    assert (found.set_index("key").loc[new["id"], "predicted"].to_numpy() == new["label"].to_numpy()).mean() > 0.6


@pytest.mark.parametrize("given", ["without labels", "empty labels", "a file each"])
def test_sites_predict_on_secret_shares_as_in_the_clear(given, people, tmp_path):
    """Two sites, and nodes without data as the three aggregators."""
    people[1]["f3"]["hidden"] = 1
    run, new, owners = run_at_sites(people, tmp_path)
    rows = {
        "without labels": new.drop(columns="label"),
        "empty labels": new.assign(label=None),
        "a file each": {name: new[["id", *columns]] for name, columns in owners.items()},
    }[given]
    clear, secret = (
        fedgraph.predict(run, rows, secret=secret, progress=False).set_index("key").sort_index()
        for secret in (None, "2-of-3")
    )
    assert sorted(clear.index) == sorted(secret.index) == sorted(new["id"])
    assert np.allclose(clear["probability yes"], secret["probability yes"], atol=0.01)


def test_sites_predict_new_samples_also_without_one_of_them(people_at_sites):
    run, new, owners = people_at_sites
    alone = {"bank": new[["id", *owners["bank"]]]}
    with pytest.raises(FedgraphError, match="clinic"):
        fedgraph.predict(run, alone, progress=False)
    found = fedgraph.predict(run, alone, set="experiment.on-missing=skip", progress=False)
    assert len(found) == len(new)


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"bnak": "x.csv"}, {}, "unknown sites: bnak; the sites of the run are bank, clinic"),
        (None, {"set": {"data.path": "x.csv"}}, "data.path is not read: name new data by --data"),
        (None, {"grid": "flower"}, "sites are rehearsed in this process"),
    ],
)
def test_what_new_samples_of_sites_cannot_be(people_at_sites, data, options, message):
    with pytest.raises(ExperimentError, match=message):
        fedgraph.predict(people_at_sites[0], data, progress=False, **options)


def test_new_samples_may_have_further_columns_in_any_order(people, tmp_path):
    """Also where the owners' columns follow from their order, and where the name of one contains an equals sign."""
    frame, tables = people
    frame = frame.rename(columns={"weight": "weight=kg", "kind": "kind=of"})
    tables["data"] |= {"path": str(tmp_path / "renamed.csv"), "num-owners": 2}
    del tables["data"]["owners"]
    frame.to_csv(tmp_path / "renamed.csv", index=False)
    run = fedgraph.run(tables, out=tmp_path / "runs", progress=False)
    new = frame.drop(columns="label").assign(id=[f"n{row}" for row in range(300)])
    found = fedgraph.predict(run, new, progress=False)
    more = new.assign(note=[f"words {row}" for row in range(300)])[
        ["note", "kind=of", "income", "weight=kg", "age", "id"]
    ]
    pd.testing.assert_frame_equal(fedgraph.predict(run, more, progress=False), found)
    with pytest.raises(FedgraphError, match="income"):
        fedgraph.predict(run, new.drop(columns="income"), progress=False)
