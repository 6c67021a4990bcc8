"""Tables as hospitals export them: codes for missing, labels written in several ways, columns that are no features."""

import numpy as np
import pandas as pd
import pytest

from fedgraph.data import as_file, open_source, parse_data
from fedgraph.data.own import OwnData
from fedgraph.support.errors import DataError, ExperimentError

DRAWS = np.random.default_rng(3)
SITES = ("cleveland", "hungary", "long-beach")


def hearts(site):
    """Rows of a site: Cleveland writes all numbers with decimals, and -9.0 for what is missing."""
    age, cholesterol = DRAWS.integers(30, 80, 40), DRAWS.integers(180, 320, 40)
    ill = (age + DRAWS.normal(0, 5, 40) > 55).astype(int)
    cholesterol = np.where(DRAWS.random(40) < 0.3, -9, cholesterol)
    frame = pd.DataFrame({"age": age, "chol": cholesterol, "num": ill})
    return frame.astype(float).astype(str) if site == "cleveland" else frame.astype(str)


@pytest.fixture
def frames():
    return {site: hearts(site) for site in SITES}


def source(folder, frame, name="t.csv", own=None, **keys):
    path = folder / name
    frame.to_parquet(path) if name.endswith(".parquet") else frame.to_csv(path, index=False)
    table = {"set": "table", "path": name, "label": "num", "missing": ["", "?", "-9"], **keys}
    if own is not None:
        own = OwnData(path, own)
        del table["path"]
    return open_source(parse_data(table), folder, own)


def chol(source, clients):
    """The readings of cholesterol that models are trained on, unscaled."""
    data = source.load(clients)
    place = data.task.features.index("chol")
    return data.splits["train"].inputs[:, place]


def test_labels_and_codes_compare_as_numbers_over_all_sites(tmp_path, frames):
    whole = pd.concat([frame.assign(site=site) for site, frame in frames.items()])
    found = source(tmp_path, whole, **{"client-column": "site", "scaling": "none"})
    data = found.load(SITES)
    assert data.task.classes == ("0", "1")
    ill = {site: int((frame.num.astype(float) == 1).sum()) for site, frame in frames.items()}
    for row, site in enumerate(SITES):
        counts = sum(
            int((split.targets[split.rows[row][split.rows[row] >= 0]] == 1).sum()) for split in data.splits.values()
        )
        assert counts == ill[site]
    assert chol(found, SITES).min() == 0.0  # what is missing is 0, and not -9
    assert float(chol(found, SITES)[chol(found, SITES) != 0].min()) >= 180


def test_a_site_with_decimals_has_the_classes_that_the_experiment_lists(tmp_path, frames):
    for site in SITES:
        found = source(tmp_path, frames[site], f"{site}.csv", own=(site,), categories={"num": ["0", "1"]})
        assert found.load([site]).task.classes == ("0", "1")
        assert int(found.load([site]).label_counts.sum()) == 28
    odd = frames["hungary"].assign(num="yes")
    with pytest.raises(DataError, match="'num' .*'yes'"):
        source(tmp_path, odd, "odd.csv", own=("hungary",), categories={"num": ["0", "1"]}).load(["hungary"])


@pytest.mark.parametrize("missing", [["-9"], ["-9.00"], [-9], [-9.0, ""]])
@pytest.mark.parametrize("kind", ["text", "float", "int", "float32"])
def test_codes_of_parquet_columns_of_all_types(tmp_path, frames, missing, kind):
    frame = frames["hungary"].assign(site=DRAWS.choice(["a", "b"], 40))
    if kind != "text":
        frame["chol"] = frame.chol.astype(float).astype(np.float32 if kind == "float32" else kind)
    found = source(tmp_path, frame, "t.parquet", missing=missing, scaling="none", **{"client-column": "site"})
    assert float(chol(found, ["a", "b"]).min()) == 0.0


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (["dead", "DEAD", "alive"], "'DEAD' and 'dead' of 'num' are two categories"),
        (["yes", "TRUE", "no"], "'TRUE' and 'yes' of 'num' are two categories"),
        (["0", "0.0", "1"], None),
        (["dead", "alive", "unknown"], None),
    ],
)
def test_categories_that_may_be_one_are_told(tmp_path, frames, labels, told):
    frame = frames["hungary"].assign(num=DRAWS.choice(labels, 40), site=DRAWS.choice(["a", "b"], 40))
    described = source(tmp_path, frame, **{"client-column": "site"}).describe()
    assert (told is None) == ("categories" not in described)
    assert told is None or told in described


def test_columns_that_are_left_out(tmp_path, frames):
    more = {"site": DRAWS.choice(["a", "b"], 40), "id": range(1, 41), "name": [f"person {n}" for n in range(40)]}
    frame = frames["hungary"].assign(**more)
    keys = {"client-column": "site"}
    told = source(tmp_path, frame, **keys).describe()
    assert "'id' numbers the rows, and is a feature unless [data] drop leaves it out" in told
    assert "'name' is 40 categories, nearly one for each row" in told
    left = source(tmp_path, frame, drop=["id", "name"], **keys)
    assert left.load(["a"]).task.features == ("age", "chol")
    assert "id" not in left.describe()
    with pytest.raises(DataError, match="drop: .*'names'; .*'name'"):
        source(tmp_path, frame, drop=["names"], **keys).load(["a"])
    with pytest.raises(ExperimentError, match="'num',.*client-column"):
        source(tmp_path, frame, drop=["num"], **keys)


def test_the_index_of_a_data_frame_is_no_feature(tmp_path, frames):
    frame = frames["hungary"].assign(site=DRAWS.choice(["a", "b"], 40)).sample(frac=1, random_state=0)
    assert source(tmp_path, frame, "t.parquet", **{"client-column": "site"}).load(["a"]).task.features == (
        "age",
        "chol",
    )


@pytest.mark.parametrize(
    "index",
    [
        [f"p{row}" for row in range(40)],
        DRAWS.random(40),
        pd.date_range("2024", periods=40),
        pd.MultiIndex.from_product([range(20), ["left", "right"]]),
    ],
    ids=["texts", "numbers", "times", "levels"],
)
def test_an_unnamed_index_of_a_data_frame_in_memory_is_no_feature(tmp_path, frames, index):
    frame = frames["hungary"]
    frame.index = index
    table = {"set": "table", "path": str(as_file(frame, tmp_path)), "label": "num", "clients": 2}
    assert open_source(parse_data(table), tmp_path).load(["client-0"]).task.features == ("age", "chol")


def test_a_named_index_of_a_data_frame_in_memory_is_a_column(tmp_path, frames):
    frame = frames["hungary"].set_index(pd.Index(["a", "b"] * 20, name="site"))
    table = {"set": "table", "path": str(as_file(frame, tmp_path)), "label": "num", "client-column": "site"}
    assert open_source(parse_data(table), tmp_path).client_names() == ["a", "b"]


def test_categories_of_a_data_frame_are_categories_also_where_they_are_numbers(tmp_path, frames):
    frame = frames["hungary"].assign(ward=pd.Categorical([3, 1] * 20), stage=pd.Categorical([2, 1] * 20, ordered=True))
    table = {"set": "table", "path": str(as_file(frame, tmp_path)), "label": "num", "clients": 2}
    data = open_source(parse_data(table), tmp_path).load(["client-0"])
    assert data.task.features == ("age", "chol", "ward=1", "ward=3", "stage")
    # New data are read as the training data were, whatever their types.
    plain = frame.assign(ward=[3, 1] * 20, stage=[2, 1] * 20)
    typed = plain.astype({"ward": "category", "stage": "category"})
    found = [data.preprocessing.form.read(as_file(new, tmp_path, "new"), "me").values for new in (frame, plain, typed)]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    assert found[0][:, 2:].tolist() == [[0, 1, 2], [1, 0, 1]] * 20


def test_names_of_clients_are_texts(tmp_path, frames):
    frame = frames["hungary"].assign(site=DRAWS.choice(["007", "7", "Mercy", "mercy"], 40))
    found = source(tmp_path, frame, **{"client-column": "site"})
    assert found.client_names() == ["007", "7", "Mercy", "mercy"]
    assert "'Mercy' and 'mercy' are two clients" in found.describe()


def test_a_column_that_is_nearly_all_numbers_is_told_or_refused(tmp_path, frames):
    lab = [f"<{n}" if n % 5 == 0 else f"{n / 7:.2f}" for n in range(40)]
    frame = frames["hungary"].assign(site=DRAWS.choice(["a", "b"], 40), lab=lab)
    assert "'lab' is 40 categories" in source(tmp_path, frame, **{"client-column": "site"}).describe()
    frame["lab"] = [*"<abcdef", *map(str, range(13))] * 2
    told = source(tmp_path, frame, **{"client-column": "site"}).describe()
    assert "'lab' is categories, as" in told
    frame["lab"] = ["low" if n == 3 else f"{n / 7:.2f}" for n in range(40)]
    with pytest.raises(DataError, match="'low' .*row 4"):
        source(tmp_path, frame, **{"client-column": "site"}).describe()
