from fedgraph.runs.reports.results import Results


def spread(mean, std=0.25):
    return {"mean": mean, "std": std, "best5": 0.9, "worst5": 0.1}


def summary(method, *metrics, **changes):
    return {"method": method, "metrics": {"test": {metric: spread(0.5) for metric in metrics}}, **changes}


def test_models_are_columns_and_horizons_are_rows_of_their_measure():
    names = [f"{name}{ahead}" for ahead in ("", "-15min", "-1.5hours") for name in ("mae", "rmse")]
    results = Results([summary("f3-forecast", *names, *(f"{name}-no-graph" for name in names), "mae-local")])
    assert results.rows == ("mae", "mae-15min", "mae-1.5hours", "rmse", "rmse-15min", "rmse-1.5hours")
    assert [column.name for column in results.columns] == ["f3-forecast", "no graph", "own model"]
    assert [values is not None for values in results.row("rmse")] == [True, True, False]
    assert results.of_longest(3) == ["mae-1.5hours", "rmse-1.5hours"]


def test_columns_of_several_runs_name_the_run():
    results = Results([summary("f3", "f1", "f1-local"), summary("vfl", "f1")])
    assert [column.name for column in results.columns] == ["f3", "f3: own model", "vfl"]
    assert results.by_run({"seconds": ["1.0", "2.0"]}) == {"seconds": ["1.0", "", "2.0"]}
    assert [column.name for column in Results(results.summaries, further=False).columns] == ["f3", "vfl"]


def test_a_metric_of_ones_own_is_a_row_whatever_its_name_ends_with():
    results = Results([summary("mine", "gap-mean", "top-local", "accuracy-top5")])
    assert results.rows == ("gap-mean", "top-local", "accuracy-top5")
    assert len(results.columns) == 1


def test_rows_of_single_features_stand_apart():
    results = Results([summary("fedngm", "mean-recall", "mean-macro-recall", "age-macro-recall", "told-apart")])
    assert results.features == {"age-macro-recall": ("age", "macro-recall")}
    assert results.overall == ["mean-recall", "mean-macro-recall", "told-apart"]


def test_the_telling_metric_is_one_in_which_clients_differ():
    alike = {"test": {"accuracy": spread(0.5, std=0.0), "loss": spread(0.5), "f1": spread(None, std=None)}}
    assert Results([{"method": "f3", "metrics": alike}]).telling == "loss"
    assert Results([{"method": "f3", "metrics": {}}]).telling is None


def test_records_are_the_numbers_of_a_run_and_its_models():
    results = Results([summary("f3", "f1", "f1-local"), summary("vfl", "f1")])
    numbers = {"split": "test", **spread(0.5)}
    assert results.records(0) == [
        {"metric": "f1", "model": "f3", **numbers}, {"metric": "f1", "model": "own model", **numbers},
    ]  # fmt: skip
    assert [each["model"] for each in results.records(1)] == ["vfl"]


def test_a_metric_of_no_client_is_none():
    results = Results([{"method": "f3", "metrics": {"test": {"f1": spread(None, std=None)}}}])
    assert results.row("f1") == [None]


def test_clients_without_a_value_are_left_out():
    per_client = {"test": {"f1": {"a": 0.5, "b": None}}}
    results = Results([summary("sfl", "f1", per_client=per_client)])
    assert results.clients("f1", results.columns[0]) == {"a": 0.5}
