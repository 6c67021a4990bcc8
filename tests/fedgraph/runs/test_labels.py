from fedgraph.runs.labels import labels


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
