import pytest

from fedgraph.runs.reports.words import extreme_clients, labels, sentence


def summary(method, metrics, **changes):
    base = {"method": method, "data": "Digits", "clients": 2, "rounds": 3, "exchanges": 5, "seconds": 1.25,
            "bytes_down": 2_345_678, "bytes_up": 49_999, "nodes": 2, "bytes_down_per_client": 1_172_839.0,
            "bytes_up_per_client": 24_999.5, "models_per_round": 4.04}  # fmt: skip
    return {**base, "metrics": metrics, **changes}


def spread(mean, **changes):
    return {"mean": mean, "std": 0.25, "best5": 0.9, "worst5": 0.1, **changes}


def test_what_nodes_of_several_clients_save_is_told():
    packed = summary("fedavg", {}, bytes_down=500_000, bytes_up=100_000)
    told = sentence([summary("sfl", {}), packed])
    assert "here clients of a node share downloads (0.60 instead of 2.40 MB for fedavg)." in told
    assert "for sfl" not in told
    assert "share downloads" not in sentence([summary("sfl", {})])


@pytest.mark.parametrize(
    ("moved", "alone", "said"),
    [
        (14_000, 18_000, "14.00 instead of 18.00 kB"),
        (1_004_000, 1_060_000, "1.00 instead of 1.06 MB"),
        (600, 700, "0.60 instead of 0.70 kB"),
        (12, 14, "12 instead of 14 bytes"),
    ],
)
def test_what_is_saved_is_told_in_a_unit_in_which_it_shows(moved, alone, said):
    each = {"bytes_down_per_client": alone / 4, "bytes_up_per_client": alone / 4}
    packed = summary("fedavg", {}, bytes_down=moved - 2, bytes_up=2, **each)
    assert f"share downloads ({said} for fedavg)" in sentence([packed])


def test_a_single_client_is_one_client():
    measured = {"test": {"accuracy": spread(1.0)}}
    assert sentence([summary("a", measured, clients=1)]).startswith("1 client, each measured on its own test data")
    assert extreme_clients([summary("a", measured, clients=count) for count in (30, 60)], "test", "accuracy") == (
        "1 or 3 clients"
    )


def test_the_sentence_says_what_was_measured_on_what():
    measured = {"train": {"loss": spread(1.0)}, "validation": {"loss": spread(1.0)}}
    said = sentence([summary("a", measured), summary("b", measured), summary("c", measured, data="Other")])
    assert said == (
        "2 clients, each measured on its own validation data with the model it holds at the end. Data: Digits / Other. "
        "MB per client assumes one client per node."
    )


def test_f1_auc_and_units_are_explained():
    task = {"classes": ["no", "yes"], "output_shape": [2], "unit": ""}
    metrics = {"test": {"f1": spread(0.5), "auc": spread(0.5), "accuracy": spread(0.5)}}
    two = sentence([summary("f3", metrics, task=task)])
    assert " f1 is that of the class 'yes', 0 for clients without it; auc is the area under the ROC curve." in two
    many = sentence([summary("f3", metrics, task={**task, "classes": ["a", "b", "c"], "output_shape": [3]})])
    assert (
        " f1 is the mean over the classes; auc is the area under the ROC curve, the mean over pairs of classes." in many
    )
    forecast = {"test": {"mae-60min": spread(0.5), "rmse-60min": spread(0.5), "mape-60min": spread(0.5)}}
    miles = {"classes": [], "output_shape": [12], "unit": "mph"}
    assert " mae and rmse are in mph." in sentence([summary("sfl", forecast, task=miles)])
    assert "mae and rmse" not in sentence([summary("sfl", forecast, task={**miles, "unit": ""})])
    assert "f1 is" not in sentence([summary("f3", metrics, task=task), summary("sfl", metrics, task=miles)])


# ---- names of runs


def tables(method, graph=None, **more):
    return {"experiment": {"method": method, "name": "x", "seed": 0}, "graph": graph or {}, **more}


def test_methods_are_names_enough_where_none_repeats():
    assert labels(["sfl", "local"], [tables("sfl"), tables("local")]) == ["sfl", "local"]


def test_keys_that_differ_tell_runs_of_one_method_apart():
    runs = [
        tables("sfl"),
        tables("local"),
        tables("sfl", {"permute-seed": 0}),
        tables("simple-forecast", **{"simple-forecast": {"forecaster": "ridge"}, "output": {"dir": "a"}}),
        tables("simple-forecast", **{"simple-forecast": {"forecaster": "trees"}, "output": {"dir": "b"}}),
    ]
    assert labels([each["experiment"]["method"] for each in runs], runs) == [
        "sfl", "local", "sfl (permute-seed=0)", "simple-forecast (ridge)", "simple-forecast (trees)",
    ]  # fmt: skip


def test_numbers_where_keys_do_not_tell_apart():
    same = [tables("sfl"), tables("local"), tables("sfl")]
    assert labels(["sfl", "local", "sfl"], same) == ["sfl #1", "local", "sfl #3"]
    many = [tables("sfl", {"a": n, "b": n, "c": n, "d": n}) for n in (1, 2)]
    assert labels(["sfl", "sfl"], many) == ["sfl #1", "sfl #2"]
    inner = [tables("sfl", {"a": {"b": n}}) for n in (1, 2)]
    assert labels(["sfl", "sfl"], inner) == ["sfl (b=1)", "sfl (b=2)"]


def test_runs_that_differ_in_their_code_alone_are_told_apart_by_it():
    same = [tables("Mine"), tables("Mine"), tables("sfl")]
    assert labels(["Mine", "Mine", "sfl"], same, ["3f2a1c", "77aa00", ""]) == [
        "Mine (code 3f2a1c)", "Mine (code 77aa00)", "sfl",
    ]  # fmt: skip
    assert labels(["Mine", "Mine"], same[:2], ["3f2a1c", "3f2a1c"]) == ["Mine #1", "Mine #2"]


def test_of_some_that_are_the_same_the_others_keep_their_names():
    ridge, last = ({"simple-forecast": {"forecaster": name}} for name in ("ridge", "last-reading"))
    assert labels(["simple-forecast"] * 3, [ridge, last, ridge]) == [
        "simple-forecast (ridge) #1", "simple-forecast (last-reading)", "simple-forecast (ridge) #3",
    ]  # fmt: skip
