from fedgraph.runs.reports.words import sentence


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
    assert " f1 is that of the class 'yes'; auc is the area under the ROC curve." in two
    many = sentence([summary("f3", metrics, task={**task, "classes": ["a", "b", "c"], "output_shape": [3]})])
    assert (
        " f1 is the mean over the classes; auc is the area under the ROC curve, the mean over pairs of classes." in many
    )
    forecast = {"test": {"mae-60min": spread(0.5), "rmse-60min": spread(0.5), "mape-60min": spread(0.5)}}
    miles = {"classes": [], "output_shape": [12], "unit": "mph"}
    assert " mae and rmse are in mph." in sentence([summary("sfl", forecast, task=miles)])
    assert "mae and rmse" not in sentence([summary("sfl", forecast, task={**miles, "unit": ""})])
    assert "f1 is" not in sentence([summary("f3", metrics, task=task), summary("sfl", metrics, task=miles)])
