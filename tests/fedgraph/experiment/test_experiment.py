import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

from fedgraph.experiment.experiment import find_experiment, load_experiment, parse_experiment
from fedgraph.experiment.overrides import apply_overrides, overrides_by_key
from fedgraph.support.errors import ExperimentError


def test_defaults_are_filled_in_and_read_back(digits_tables):
    experiment = parse_experiment(digits_tables)
    tables = tomllib.loads(experiment.as_toml())
    assert tables["experiment"]["on-missing"] == "fail"
    assert tables["evaluation"]["splits"] == ["validation", "test"]
    assert tables["train"]["threads"] == 1
    assert (tables["sfl"]["hops"], tables["sfl"]["alpha"]) == (1, 1.0)


def test_a_run_folder_to_go_on_with_is_not_part_of_the_resolved_experiment(digits_tables):
    digits_tables["output"] = {"resume": "somewhere", "dir": "there"}
    expected = {"dir": "there", "checkpoint-every": 1, "report": True, "track": []}
    assert parse_experiment(digits_tables).as_dict()["output"] == expected


def test_nodes_see_what_they_need_and_no_more(digits_tables):
    experiment = parse_experiment({**digits_tables, "output": {"dir": "secret-place"}})
    part = json.loads(experiment.client_part({"hops": 1}))
    assert set(part) == {"seed", "data", "model", "train", "method", "horizons", "missing-as"}
    assert part["method"] == {"hops": 1}
    assert "secret-place" not in json.dumps(part)


def test_the_part_of_the_nodes_depends_on_values_not_on_the_order_of_keys(digits_tables):
    turned = {name: dict(reversed(table.items())) for name, table in reversed(digits_tables.items())}
    assert parse_experiment(turned).client_part({}) == parse_experiment(digits_tables).client_part({})


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("a.b=3", 3),
        ("a.b=0.5", 0.5),
        ("a.b=true", True),
        ("a.b=[1, 2]", [1, 2]),
        ('a.b="3"', "3"),
        ("a.b=plain text", "plain text"),
        ("a.b = /some/path=x", "/some/path=x"),
        ("a.b=", ""),
    ],
)
def test_override_values(override, value):
    before = {"a": {"b": "old", "c": 1}}
    assert apply_overrides(before, [override]) == {"a": {"b": value, "c": 1}}
    assert before == {"a": {"b": "old", "c": 1}}


def test_overrides_make_tables_and_the_last_one_counts():
    assert apply_overrides({}, ["x.y.z=1", "x.y.z=2"]) == {"x": {"y": {"z": 2}}}
    assert apply_overrides({}, ["x.y=1", "x={z = 2}", " x.y =3"]) == {"x": {"y": 3, "z": 2}}


def test_overrides_in_any_form_are_one_mapping():
    found = overrides_by_key({"a.b": Path("x"), "a.c": [1]}, "a.d=2", iter(["a.b=3", "a={e = 4}"]))
    assert list(found.items()) == [("a.c", [1]), ("a.d", 2), ("a.b", 3), ("a", {"e": 4})]


def test_another_source_of_the_graph_drops_the_keys_of_the_old_one(digits_tables):
    digits_tables["graph"] = {
        "source": "file",
        "path": "roads.csv",
        "sigma": 2.0,
        "permute-seed": 1,
        "missing": "isolate",
    }
    for source in ("complete", "none", "labels"):
        graph = load_experiment(digits_tables, [f"graph.source={source}"]).graph
        assert (graph.source, graph.path, graph.sigma, graph.missing) == (source, None, None, "isolate")
        assert graph.permute_seed == (1 if source == "labels" else None)
    # What is set beside it stays, and so do all keys where the source does.
    with pytest.raises(ExperimentError, match="take a path"):
        load_experiment(digits_tables, ["graph.source=complete", "graph.path=x.csv"])
    assert load_experiment(digits_tables, {"graph.source": "run", "graph.path": "x"}).graph.path == "x"
    assert load_experiment(digits_tables, ["graph.source=file"]).graph.path == "roads.csv"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a.b", "form table.key=value"),
        ("a=1", "form table.key=value"),
        (".b=1", "form table.key=value"),
        ("a.b.c=1", "'b' is not a table"),
    ],
)
def test_bad_override_is_explained(override, message):
    with pytest.raises(ExperimentError, match=message):
        apply_overrides({"a": {"b": 1}}, [override])


@pytest.mark.parametrize(
    ("table", "content", "message"),
    [
        ("experiment", {"method": "local", "name": "a b"}, r"\[experiment\] name"),
        ("experiment", {"method": "local", "round": 1}, r"\[experiment\] .*'round'; .*rounds"),
        ("experiment", {"method": "slf"}, "'slf' .*fedavg, .*sfl"),
        ("experiment", {"method": "local", "rounds": -1}, r"\[experiment\] rounds: .*\(got -1\)"),
        ("experiment", {"method": "local", "on-missing": "hope"}, "'fail', 'skip' or 'keep-last'"),
        ("experiment", {"rounds": 1}, r"\[experiment\] needs a method .*strategy ="),
        ("evaluation", {"monitor": "validation/loss"}, "monitor and patience go together"),
        ("evaluation", {"patience": 3}, "monitor and patience go together"),
        ("evaluation", {"average-last": 3, "monitor": "test/loss", "patience": 3}, "average-last and monitor both"),
        ("evaluation", {"average-last": 1}, "average-last: .*greater than or equal to 2"),
        ("evaluation", {"monitor": "loss", "patience": 3}, "monitor is '<split>/<metric>'"),
        ("evaluation", {"monitor": "test/loss", "patience": 3, "splits": ["train"]}, "with a split of"),
        ("evaluation", {"stop-at-targets": "mean"}, "stop-at-targets needs targets"),
        ("evaluation", {"targets": {"accuracy": 0.9}}, "targets has '<split>/<metric>'"),
        ("evaluation", {"targets": {"train/accuracy": 0.9}}, "with a split of"),
        ("evaluation", {"splits": ["tset"]}, "splits"),
        ("evaluation", {"yardsticks": True}, "yardsticks .*time series"),
        ("evaluation", {"forecasts": "csv"}, "forecasts is for time series"),
        ("graph", {"source": "file"}, 'source = "file" needs a path'),
        ("graph", {"source": "labels", "kind": 1}, r"\[graph\] .*'kind'; .*source"),
        ("graph", {"source": "complete", "path": "x"}, 'source = "file" and source = "run"'),
        ("fairness", {"metric": "test/loss"}, r"\[fairness\] needs the key 'stand-alone'"),
        ("fairness", {"stand-alone": "x", "metric": "train/loss"}, "measured .*'train/loss'"),
        ("fairness", {"stand-alone": "x", "metric": "test"}, r"metric is '<split>/<metric>'.*not 'test'"),
        ("fairness", {"stand-alone": "x", "stop-below": 101}, r"\[fairness\] stop-below: .*\(got 101\)"),
        ("output", {"checkpoint-every": 0}, "checkpoint-every"),
        ("data", {"set": "digit"}, r"\[data\] set is 'digit'; .*digits"),
        ("data", {"set": "digits", "shard": 1}, r"\(set digits\) .*'shard'; .*shards"),
        ("train", 3, r"'train' .*\[train\]"),
        ("train", {"learning-rat": 1}, r"\[train\] .*did you mean 'learning-rate'"),
        ("train", {"unset": ["clip-norms"]}, r"\[train\] has no key 'clip-norms'"),
        ("train", {"unset": ["momentum"]}, r"\[train\] momentum: .*valid number"),
        ("train", {"unset": "clip-norm"}, r"\[train\]: unset .*'clip-norm'"),
        ("trian", {}, r"\[trian\]; .*'train' .*'trian'"),
        ("clients", {"expect": []}, r"\[clients\] expect"),
        ("clients", {"expect": ["a", "a"]}, r"\[clients\] expect: .*unique"),
        ("clients", {"expects": ["a"]}, r"\[clients\] .*'expects'; .*public-keys"),
    ],
)
def test_unusable_value_is_explained(digits_tables, table, content, message):
    with pytest.raises(ExperimentError, match=message):
        parse_experiment({**digits_tables, table: content})


def test_a_method_and_a_strategy_in_one_file(digits_tables):
    digits_tables["experiment"]["strategy"] = "fedgraph.strategies.fedavg:FedAvg"
    message = "'sfl' and strategy = 'fedgraph.strategies.fedavg:FedAvg': give a method or a strategy, not both"
    with pytest.raises(ExperimentError, match=message):
        parse_experiment(digits_tables)
    assert load_experiment(digits_tables, method="fedgraph.algorithms.bounds:LocalOnly").method.name == "LocalOnly"


def test_a_strategy_that_is_set_takes_the_place_of_the_method_and_the_reverse(digits_tables):
    def method(*overrides):
        experiment = load_experiment(digits_tables, overrides)
        head = experiment.experiment
        assert (head.method is None) != (head.strategy is None)
        return experiment.method.name, experiment.method.client

    assert method("experiment.strategy=fedgraph.algorithms.bounds:LocalOnly") == ("LocalOnly", ""), (
        "the client class is that of the strategy"
    )
    assert method("experiment.strategy=fedgraph.algorithms.bounds:LocalOnly", "experiment.client=mine:Client") == (
        "LocalOnly",
        "mine:Client",
    )
    digits_tables["experiment"] = {"strategy": "fedgraph.algorithms.bounds:LocalOnly", "client": "mine:Client"}
    digits_tables["LocalOnly"] = {"trim": 1}
    assert method("experiment.method=sfl") == ("sfl", "")
    assert method("experiment.strategy=flwr.serverapp.strategy:FedAdam") == ("FedAdam", "")
    assert method("experiment.strategy=fedgraph.algorithms.bounds:LocalOnly") == ("LocalOnly", "mine:Client"), (
        "that of the file, once more"
    )
    with pytest.raises(ExperimentError, match="a method or a strategy"):
        method("experiment.strategy=fedgraph.algorithms.bounds:LocalOnly", "experiment.method=sfl")


@pytest.mark.parametrize("table", ["data", "model"])
def test_needed_tables(digits_tables, table):
    del digits_tables[table]
    with pytest.raises(ExperimentError, match=rf"needs a table \[{table}\]"):
        parse_experiment(digits_tables)


def test_one_of_early_stopping_and_fairness_chooses_the_final_models(digits_tables):
    digits_tables |= {"evaluation": {"monitor": "test/loss", "patience": 2}, "fairness": {"stand-alone": "runs/x"}}
    parse_experiment(digits_tables)
    digits_tables["fairness"]["stop-below"] = 80
    with pytest.raises(ExperimentError, match="both choose the models"):
        parse_experiment(digits_tables)
    digits_tables["evaluation"]["restore-best"] = False
    found = tomllib.loads(parse_experiment(digits_tables).as_toml())["fairness"]
    assert found == {"stand-alone": "runs/x", "metric": "test/accuracy", "stop-below": 80.0}
    digits_tables["evaluation"]["average-last"] = 5
    with pytest.raises(ExperimentError, match="stop-below .*average-last"):
        parse_experiment(digits_tables)


def test_a_stand_alone_run_is_found_beside_the_experiment_and_from_the_current_folder(
    digits_tables, tmp_path, monkeypatch
):
    (tmp_path / "files").mkdir()
    (tmp_path / "here" / "runs" / "alone").mkdir(parents=True)
    (tmp_path / "files" / "mine.toml").write_text(parse_experiment(digits_tables).as_toml())
    monkeypatch.chdir(tmp_path / "here")

    def found():
        experiment = load_experiment(tmp_path / "files" / "mine.toml", ['fairness.stand-alone="runs/alone"'])
        return experiment.as_dict()["fairness"]["stand-alone"]

    assert found() == str(tmp_path / "here" / "runs" / "alone"), "so that it is found from elsewhere too"
    (tmp_path / "files" / "runs" / "alone").mkdir(parents=True)
    assert found() == str(tmp_path / "files" / "runs" / "alone")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "files" / "runs" / "alone").rmdir()
    assert found() == "runs/alone", "it is missed when the run begins"


def test_own_data_is_found_beside_the_experiment_and_from_the_current_folder(digits_tables, tmp_path, monkeypatch):
    for folder in ("files", "here"):
        (tmp_path / folder).mkdir()
    digits_tables["data"] = {"set": "series", "path": "own.csv", "graph": "roads.csv"}
    (tmp_path / "files" / "mine.toml").write_text(parse_experiment(digits_tables).as_toml())
    monkeypatch.chdir(tmp_path / "here")

    def found(**changes):
        overrides = [f"data.{key}={value}" for key, value in changes.items()]
        data = load_experiment(tmp_path / "files" / "mine.toml", overrides).data
        return data.path, getattr(data, "graph", None)

    assert found() == ("own.csv", "roads.csv"), "they may be in the data folder"
    (tmp_path / "here" / "own.csv").write_text("a\n1\n")
    (tmp_path / "files" / "roads.csv").write_text("from,to\n")
    assert found() == (str(tmp_path / "here/own.csv"), str(tmp_path / "files/roads.csv"))
    (tmp_path / "files" / "own.csv").write_text("a\n1\n")
    assert found()[0] == str(tmp_path / "files/own.csv")
    # A file for each client, and names of data sets that are no paths.
    each = {"set": "mixed-table", "path": "w-{client}.csv", "clients": ["a", "b"]}
    digits_tables |= {"data": each, "experiment": {"method": "fedngm"}}
    for table in ("model", "graph", "sfl", "train"):
        del digits_tables[table]
    assert load_experiment(digits_tables).data.path == "w-{client}.csv"
    (tmp_path / "here" / "w-a.csv").write_text("a\n1\n")
    assert load_experiment(digits_tables).data.path == str(tmp_path / "here/w-{client}.csv")
    (tmp_path / "here" / "asia").mkdir()
    digits_tables["data"] = {"set": "bayesian-network", "path": "asia"}
    assert load_experiment(digits_tables).data.path == "asia"


def test_problems_name_the_file(tmp_path):
    (tmp_path / "mine.toml").write_text("[experiment]\nrounds = 1\n")
    with pytest.raises(ExperimentError, match=r"mine\.toml:\n\[experiment\] needs a method"):
        load_experiment(tmp_path / "mine.toml")


def test_shipped_experiments_are_found_from_anywhere_and_are_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = find_experiment("sfl/digits.toml")
    assert found == find_experiment("simulations/sfl/digits.toml")
    shipped = [
        path
        for path in sorted(found.parent.parent.rglob("*.toml"))
        if not {"apps", "benchmarks", "tables"} & {*path.parts}
    ]
    assert len(shipped) >= 3
    for path in shipped:
        load_experiment(path)


def test_a_file_in_the_current_folder_comes_first(tmp_path, monkeypatch):
    (tmp_path / "sfl").mkdir()
    (tmp_path / "sfl" / "digits.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert find_experiment("sfl/digits.toml") == Path(tmp_path / "sfl" / "digits.toml").resolve()


# ---- [clients]


def test_expected_clients_travel_to_nodes_and_their_keys_do_not(digits_tables, tmp_path, write_key):
    for name in ("client-0", "client-1"):
        write_key(tmp_path / name)
    digits_tables["clients"] = {"expect": ["client-0", "client-1"], "public-keys": "."}
    file = tmp_path / "small.toml"
    file.write_text(tomli_w.dumps(digits_tables))
    experiment = load_experiment(file)
    part = json.loads(experiment.client_part({}))
    assert part["expect"] == ["client-0", "client-1"]
    assert "keys" not in json.dumps(part)
    roll_call = experiment.roll_call()
    assert roll_call.expect == ("client-0", "client-1")
    assert set(roll_call.keys) == {"client-0", "client-1"}
    again = load_experiment(write_resolved(experiment, tmp_path / "elsewhere"))
    assert again.clients == experiment.clients, "the folder of the keys is an absolute path in a run folder"


def write_resolved(experiment, folder):
    folder.mkdir()
    (folder / "experiment.toml").write_text(experiment.as_toml())
    return folder / "experiment.toml"


def test_without_the_table_nodes_are_told_nothing_of_it(digits_tables):
    experiment = parse_experiment(digits_tables)
    assert "expect" not in json.loads(experiment.client_part({}))
    assert experiment.as_dict()["clients"] == {}
    assert experiment.roll_call().keys is None


def test_public_keys_that_are_missing_or_none(digits_tables, tmp_path, write_key):
    write_key(tmp_path / "client-0")
    digits_tables["clients"] = {"expect": ["client-0", "client-1"], "public-keys": str(tmp_path)}
    with pytest.raises(ExperimentError, match=r"public .*client-1\.pub"):
        parse_experiment(digits_tables).roll_call()
    (tmp_path / "client-1.pub").write_text("ssh-rsa nonsense")
    with pytest.raises(ExperimentError, match=r"client-1\.pub .*ssh-keygen"):
        parse_experiment(digits_tables).roll_call()
    digits_tables["clients"] = {"public-keys": str(tmp_path / "nowhere")}
    with pytest.raises(ExperimentError, match=r"public key NAME\.pub"):
        parse_experiment(digits_tables).roll_call()
