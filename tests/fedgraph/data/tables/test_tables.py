from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from fedgraph.data.base import SPLITS
from fedgraph.data.columns.table_files import read_table
from fedgraph.data.own import OwnData
from fedgraph.data.tables.options import BundledTableSettings, TableSettings
from fedgraph.data.tables.tables import TABLES, TableSource
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.settings import parse

DATA = Path(os.environ.get("FEDGRAPH_DATA", Path(__file__).parents[4].parent / "shared" / "data"))

CSV = "site,age, colour ,code,weight,sick\n" + "\n".join(
    f"{'north' if row % 3 else 'south'},{20 + row if row % 5 else '?'}, {('red', 'blue', 'green')[row % 3]},"
    f"{row % 12},{50 + 2 * row + row % 7},{'yes' if row % 2 else 'no'}"
    for row in range(60)
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "people.csv").write_text(CSV)
    return tmp_path


def source(folder, **table):
    table = {"path": "people.csv", "label": "sick", "clients": 4, **table}
    return TableSource(TableSettings(**table), folder)


def load_all(opened):
    return opened.load(opened.client_names())


def everything(cohort, kind):
    split = cohort.splits[kind]
    return split.batch(torch.arange(int(split.num_examples.max())).expand(len(cohort.names), -1))


def test_columns_become_features(folder):
    cohort = source(folder, client_column="site", scaling="none").load(["south"])
    task = cohort.task
    assert task.features == ("age", "colour=blue", "colour=green", "colour=red", "code", "weight")
    assert (task.kind, task.input_shape, task.output_shape) == ("classification", (6,), (2,))
    assert task.classes == ("no", "yes")
    seen = {}
    for kind in SPLITS:
        batch = everything(cohort, kind)
        for inputs, target in zip(batch.inputs[0].tolist(), batch.targets[0].tolist(), strict=True):
            seen[inputs[5]] = (inputs, target)
    assert len(seen) == 20  # every third row is in the south
    for row in range(0, 60, 3):
        weight = 50 + 2 * row + row % 7
        assert seen[weight] == ([20 + row if row % 5 else 0, 0, 0, 1, row % 12, weight], row % 2)


def test_numbers_are_scaled_with_the_clients_own_training_rows(folder):
    raw = source(folder, scaling="none", missing=("?", "")).load(["client-2"])
    scaled = source(folder).load(["client-2"])
    train = everything(raw, "train").inputs[0].numpy()
    for kind in SPLITS:
        plain, ours = everything(raw, kind).inputs[0].numpy(), everything(scaled, kind).inputs[0].numpy()
        for column in (6, 7):  # site, age, colour, then code and weight
            values = train[:, column]
            assert np.allclose(ours[:, column], (plain[:, column] - values.mean()) / values.std(), atol=1e-5)
        known = train[:, 2][train[:, 2] > 0]
        wanted = np.where(plain[:, 2] > 0, (plain[:, 2] - known.mean()) / known.std(), 0)  # missing is 0 after scaling
        assert np.allclose(ours[:, 2], wanted, atol=1e-5)
        assert set(np.unique(ours[:, 3:6])) <= {0.0, 1.0}


def test_constant_and_empty_numbers_are_zero(tmp_path):
    (tmp_path / "people.csv").write_text("a,b,c,sick\n" + "\n".join(f"7,,{row},{row % 2}" for row in range(20)))
    cohort = source(tmp_path, clients=1).load(["client-0"])
    inputs = everything(cohort, "train").inputs[0]
    assert inputs[:, :2].abs().sum() == 0
    assert inputs[:, 2].std() > 0.9


def test_regression_targets_are_scaled_and_can_be_turned_back(folder):
    table = {"label": "weight", "task": "regression", "partition": "iid", "clients": 3}
    raw, scaled = source(folder, scaling="none", **table), source(folder, **table)
    plain, cohort = raw.load(raw.client_names()), scaled.load(scaled.client_names())
    assert (cohort.task.kind, cohort.task.output_shape, cohort.task.classes) == ("regression", (1,), ())
    assert cohort.label_counts is None
    assert plain.mean.tolist() == [0, 0, 0]
    for kind in SPLITS:
        ours, wanted = everything(cohort, kind), everything(plain, kind)
        assert ours.targets.shape == ours.weights.shape == (*ours.inputs.shape[:2], 1)
        back = ours.targets * cohort.std[:, None, None] + cohort.mean[:, None, None]
        assert torch.allclose(back * ours.weights, wanted.targets, atol=1e-3)
    train = everything(cohort, "train")
    assert torch.allclose((train.targets * train.weights).sum((1, 2)), torch.zeros(3), atol=1e-4)
    assert torch.allclose((train.targets**2 * train.weights).sum((1, 2)) / train.weights.sum((1, 2)), torch.ones(3))


@pytest.mark.parametrize("table", [{}, {"client_column": "site"}, {"partition": "dirichlet", "clients": 3}])
def test_splits_of_all_clients_are_disjoint_and_complete(folder, table):
    opened = source(folder, scaling="none", features=("weight",), **table)
    cohort = opened.load(opened.client_names())
    seen = []
    for kind in SPLITS:
        batch = everything(cohort, kind)
        seen += batch.inputs[batch.weights > 0].flatten().tolist()
    assert sorted(seen) == sorted(50 + 2 * row + row % 7 for row in range(60))
    total = sum(cohort.splits[kind].num_examples for kind in SPLITS)
    assert (cohort.splits["test"].num_examples.float() / total - 0.2).abs().max() < 0.05


def test_a_part_of_the_clients_is_the_same_as_in_the_whole(folder):
    opened = source(folder)
    whole, part = opened.load(opened.client_names()), source(folder).load(["client-3", "client-1"])
    for kind in SPLITS:
        ours, theirs = everything(part, kind), everything(whole, kind)
        size = ours.inputs.shape[1]
        assert torch.equal(ours.inputs, theirs.inputs[[3, 1], :size])
        assert torch.equal(ours.targets, theirs.targets[[3, 1], :size])
    assert torch.equal(part.label_counts, whole.label_counts[[3, 1]])
    batch = everything(part, "train")
    assert torch.equal(part.label_counts[0], torch.bincount(batch.targets[0][batch.weights[0] > 0], minlength=2))


def test_clients_of_a_column_are_in_the_order_of_numbers(folder):
    opened = source(folder, client_column="code")
    assert opened.client_names() == [str(number) for number in range(12)]
    assert opened.describe() == "people.csv, 60 rows, 7 features, 12 clients by column 'code'"
    assert opened.given_graph() is None


def test_categories_may_be_given_so_that_files_agree(folder):
    colours = ("blue", "green", "red", "violet")
    listed = {"colour": colours, "code": tuple(map(str, range(12))), "sick": ("yes", "no", "perhaps")}
    cohort = source(folder, categories=listed, features=("colour", "code")).load(["client-0"])
    assert cohort.task.features[:4] == tuple(f"colour={colour}" for colour in colours)
    assert len(cohort.task.features) == 16
    assert cohort.task.classes == ("yes", "no", "perhaps")
    assert cohort.label_counts.shape == (1, 3)
    assert everything(cohort, "train").inputs.sum(2).unique().tolist() == [2]


def test_missing_categories_are_all_zeros_and_rows_without_label_are_left_out(tmp_path):
    lines = [f"{('x', 'y', 'NA')[row % 3]},{row},{('no', 'yes', '?')[row % 4 % 3]}" for row in range(40)]
    (tmp_path / "people.csv").write_text("kind,size,sick\n" + "\n".join(lines))
    opened = source(tmp_path, clients=1, scaling="none")
    cohort = opened.load(["client-0"])
    assert opened.describe().startswith("people.csv, 30 rows, 10 more without label or client left out, 3 features")
    inputs = torch.cat([everything(cohort, kind).inputs[0] for kind in SPLITS])
    assert len(inputs) == 30
    assert torch.equal(inputs[:, :2].sum(1), (inputs[:, 2] % 3 != 2).float())


def test_parquet_gz_and_headerless_files_hold_the_same_table(folder):
    wanted = source(folder).load(["client-1"])
    (folder / "people.csv.gz").write_bytes(gzip.compress(CSV.encode()))
    header, rest = CSV.split("\n", 1)
    (folder / "bare.csv").write_text(rest.replace(",", ";"))
    table = read_table(folder / "people.csv", missing=("?",))
    typed = {"age": pa.int32(), "code": pa.int64(), "weight": pa.float32()}
    columns = {
        name: column.cast(typed[name]) if name in typed else column.dictionary_encode()
        for name, column in table.columns.items()
    }
    pyarrow.parquet.write_table(pa.table(columns), folder / "people.parquet")
    names = tuple(name.strip() for name in header.split(","))
    for other in (
        {"path": "people.csv.gz"},
        {"path": "people.parquet"},
        {"path": str(folder / "bare.csv"), "columns": names, "delimiter": ";"},
    ):
        cohort = source(folder, **other).load(["client-1"])
        assert cohort.task == wanted.task, other
        assert torch.equal(everything(cohort, "train").inputs, everything(wanted, "train").inputs), other


@pytest.mark.parametrize(
    ("name", "rows", "features", "classes"),
    [("iris", 150, 4, 3), ("wine", 178, 13, 3), ("breast-cancer", 569, 30, 2), ("diabetes", 442, 10, 0)],
)
def test_bundled_tables(name, rows, features, classes, tmp_path):
    opened = TableSource(BundledTableSettings(set=name, clients=5, partition_seed=3), tmp_path)
    cohort = opened.load(opened.client_names())
    assert sum(int(cohort.splits[kind].num_examples.sum()) for kind in SPLITS) == rows
    assert cohort.task.input_shape == (features,)
    assert len(cohort.task.classes) == classes
    assert opened.describe().startswith(f"{name} (scikit-learn), {rows} rows, {features} features, 5 clients")
    assert name in {entry.name for entry in TABLES}


def test_a_bundled_table_can_be_learned(tmp_path):
    cohort = TableSource(BundledTableSettings(set="wine", clients=1), tmp_path).load(["client-0"])
    train, test = everything(cohort, "train"), everything(cohort, "test")
    centres = torch.stack([train.inputs[0][train.targets[0] == label].mean(0) for label in range(3)])
    assert (torch.cdist(test.inputs[0], centres).argmin(1) == test.targets[0]).float().mean() > 0.9


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"label": "ill"}, r"people\.csv .*'ill'; .*sick"),
        ({"features": ("age", "size")}, "has no column 'size'; its columns"),
        ({"client_column": "clinic"}, "has no column 'clinic'"),
        ({"categories": {"color": ("red",)}}, "has no column 'color'"),
        ({"categories": {"colour": ("red", "blue")}}, "column 'colour' .* holds 'green', which its list"),
        ({"features": ("age", "sick")}, "features .*label"),
        ({"task": "regression", "partition": "iid"}, "column 'sick' .* holds more than numbers"),
        ({"task": "regression", "label": "weight", "partition": "shards"}, "a regression has none"),
        ({"max_categories": 2}, "'colour' .*3 .*one-hot"),
        ({"max_categories": 11, "label": "code"}, "'code' .*12 different values"),
        ({"path": "nobody.csv"}, r"nobody\.csv"),
        ({"columns": ("a", "b")}, "6 columns, .*2$"),
        ({"clients": 40}, r"'client-00' .*\(2\)"),
        ({"clients": 70}, "client-60, client-61, .*5 more"),
    ],
)
def test_errors_say_what_to_change(folder, table, message):
    with pytest.raises(DataError, match=message):
        load_all(source(folder, **table))


def test_numbers_with_fractions_are_classes_only_where_they_are_listed(folder):
    (folder / "people.csv").write_text("size,mark\n" + "\n".join(f"{row},{(1, 1.5, 2)[row % 3]}" for row in range(60)))
    with pytest.raises(DataError, match=r"'mark' .*task = \"regression\""):
        load_all(source(folder, label="mark"))
    listed = source(folder, label="mark", categories={"mark": ("1", "1.5", "2")})
    assert load_all(listed).task.classes == ("1", "1.5", "2")


def test_unknown_clients_are_refused(folder):
    with pytest.raises(DataError, match="'anna'; .*client-0"):
        source(folder).load(["anna"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("people.csv", b"", "people.csv cannot be read as a table"),
        ("people.csv", b"a,sick\n", "people.csv has no rows"),
        ("people.csv", b"a,sick\n1,2,3\n4,5\n", "people.csv cannot be read as a table"),
        ("people.csv", b"a,a,sick\n1,2,3\n", "people.csv has two columns named a"),
        ("people.csv", b"a,sick\n\x81\xff,1\n", "people.csv cannot be read as a table"),
        ("people.csv", b"a,sick\n1,yes\n2,yes\n", "'sick' .*two classes"),
        ("people.csv.gz", b"not packed", "people.csv.gz .*read"),
        ("people.parquet", b"not parquet", "people.parquet cannot be read as a table"),
    ],
)
def test_unusable_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        source(tmp_path, path=name).client_names()


def test_parquet_columns_of_other_types_are_refused(tmp_path):
    table = pa.table({"when": pa.array([[1], [2]]), "sick": ["yes", "no"]})
    pyarrow.parquet.write_table(table, tmp_path / "people.parquet")
    with pytest.raises(DataError, match="column 'when'"):
        source(tmp_path, path="people.parquet").client_names()
    with pytest.raises(DataError, match=r"names its columns itself"):
        source(tmp_path, path="people.parquet", columns=("a", "b")).client_names()


def test_a_changed_file_is_read_again(folder):
    assert len(source(folder, client_column="code").client_names()) == 12
    (folder / "people.csv").write_text("\n".join(CSV.split("\n")[:7]))
    os.utime(folder / "people.csv", ns=(1, 1))
    assert len(source(folder, client_column="code").client_names()) == 6


@pytest.mark.parametrize(
    ("settings", "keys", "message"),
    [
        (BundledTableSettings, {"set": "iris", "shares": [0.5, 0.1, 0.1]}, "shares: .*add up to 1"),
        (BundledTableSettings, {"set": "iris", "shares": [0, 0.5, 0.5]}, "shares: .*add up to 1"),
        (TableSettings, {"label": "sick", "test-path": "test.csv"}, 'test-path needs test = "shared"'),
        (TableSettings, {"label": "sick", "test": "shared", "shares": [0.8, 0.2, 0]}, "third of shares"),
    ],
)
def test_settings_that_cannot_be(settings, keys, message):
    with pytest.raises(ExperimentError, match=message):
        parse(settings, keys, "[data]")


@pytest.mark.skipif(not (DATA / "mixed-tables").is_dir(), reason="no mixed-tables in the data folder")
def test_real_tables():
    names = "age work fnlwgt school years married job family race sex gain loss hours country income".split()  # noqa: SIM905
    path = "mixed-tables/adult-train.csv.gz"
    opened = TableSource(
        TableSettings(path=path, columns=tuple(names), label="income", client_column="family", scaling="client"), DATA
    )
    assert opened.client_names() == ["Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife"]
    cohort = opened.load(["Wife", "Own-child"])
    assert cohort.task.classes == ("<=50K", ">50K")
    assert cohort.label_counts[0, 1] / cohort.label_counts[0].sum() > 0.4
    assert cohort.label_counts[1, 1] / cohort.label_counts[1].sum() < 0.05
    assert len(cohort.task.features) == 6 + 8 + 16 + 7 + 14 + 5 + 2 + 41
    survey = TableSource(
        TableSettings(path="mixed-tables/survey_lung_cancer.csv", label="LUNG_CANCER", clients=3), DATA
    )
    assert "FATIGUE" in survey.load(["client-0"]).task.features  # its header says "FATIGUE "


def test_a_word_among_numbers_is_refused_unless_it_is_named(folder):
    (folder / "people.csv").write_text(CSV.replace("\nnorth,21,", "\nnorth,unknown,", 1))
    message = r"column 'age' of .* holds 'unknown' \(the first in row 2\), and all other values are numbers: add marks"
    with pytest.raises(DataError, match=message) as caught:
        load_all(source(folder))
    assert "unknown" not in caught.value.without_values
    assert "age" in load_all(source(folder, missing=("?", "unknown"))).task.features
    listed = (*map(str, range(20, 80)), "unknown")
    assert "age=unknown" in load_all(source(folder, categories={"age": listed})).task.features


def test_marks_of_missing_values_are_added_to_the_usual_ones(folder):
    (folder / "people.csv").write_text(
        CSV.replace("\nnorth,21, blue,", "\nnorth,-999,,", 1).replace(", blue,", ", NA,", 1)
    )
    for missing in ((), (-999,)):
        features = load_all(source(folder, missing=missing)).task.features
        assert [name for name in features if name.startswith("colour")] == ["colour=blue", "colour=green", "colour=red"]
    literal = load_all(source(folder, missing=("?", -999), default_missing=False)).task.features
    colours = [name.removeprefix("colour=") for name in literal if name.startswith("colour")]
    assert colours == ["NA", "blue", "green", "red"]  # an empty cell is missing all the same


def test_an_infinite_number_is_not_missing(folder):
    (folder / "people.csv").write_text(CSV.replace("\nnorth,21,", "\nnorth,inf,", 1))
    with pytest.raises(DataError, match=r"'age' .*people\.csv .*inf in row 2"):
        load_all(source(folder))
    assert load_all(source(folder, missing=("?", "inf"))).task.features[2] == "age"


def test_a_word_in_the_target_of_a_regression(folder):
    (folder / "people.csv").write_text(CSV.replace(",50,", ",heavy,", 1))
    with pytest.raises(DataError, match="'weight' .*'heavy' .*regression"):
        load_all(source(folder, label="weight", task="regression"))


def test_words_and_decimal_commas_are_categories(folder):
    (folder / "words.csv").write_text("x;sick\n" + "1,5;a\nx;b\n" * 30)
    assert load_all(source(folder, path="words.csv")).task.features == ("x=1,5", "x=x")


def test_a_shared_test_set_is_put_aside_before_the_rows_are_divided(folder):
    opened = source(folder, partition="classes", clients=2, test="shared", shares=(0.6, 0.2, 0.2), scaling="none")
    cohort = load_all(opened)
    assert opened.describe() == (
        "people.csv, 60 rows, 8 features, 2 clients, disjoint classes in equal parts, tested on the same 12 rows"
    )
    assert cohort.splits["test"].num_examples.tolist() == [12, 12]
    batch = everything(cohort, "test")
    assert torch.equal(batch.inputs[0], batch.inputs[1])
    assert torch.bincount(batch.targets[0]).tolist() == [6, 6]
    weights = batch.inputs[0, :, -1].tolist()
    for kind, counts in (("train", [18, 18]), ("validation", [6, 6])):
        split = cohort.splits[kind]
        assert split.num_examples.tolist() == counts
        own = everything(cohort, kind)
        assert [set(targets.tolist()) for targets in own.targets] == [{0}, {1}]
        assert not set(own.inputs[:, :, -1].flatten().tolist()) & set(weights)
    # Each client sees the same rows as it scales them.
    scaled = load_all(source(folder, client_column="site", test="shared"))
    first, second = everything(scaled, "test").inputs
    assert first.shape == second.shape
    assert not torch.equal(first, second)
    torch.testing.assert_close(
        (first[:, -1] - first[0, -1]) / (first[1, -1] - first[0, -1]),
        (second[:, -1] - second[0, -1]) / (second[1, -1] - second[0, -1]),
        rtol=1e-3,
        atol=1e-4,
    )


def test_a_test_file_is_encoded_as_the_table_is(folder):
    (folder / "test.csv").write_text("weight,age,sick,colour,code\n51,20,no,red,3\n55,?,yes,green,1\n60,40,,blue,2\n")
    table = {"client_column": "site", "test": "shared", "test_path": "test.csv", "scaling": "none"}
    opened = source(folder, **table)
    cohort = load_all(opened)
    assert opened.describe().endswith("60 rows, 6 features, 2 clients by column 'site', tested on the same 2 rows")
    batch = everything(cohort, "test")
    assert batch.inputs[0].tolist() == [[20, 0, 0, 1, 3, 51], [0, 0, 1, 0, 1, 55]]
    assert batch.targets.tolist() == [[0, 1], [0, 1]]
    assert (cohort.splits["train"].num_examples + cohort.splits["validation"].num_examples).tolist() == [40, 20]
    listed = {"sick": ("no", "yes"), "colour": ("blue", "green", "red")}
    alike = {"client_column": None, "categories": listed, "features": ("age", "colour", "code", "weight")}
    node = TableSource(opened.settings.model_copy(update=alike), folder, OwnData(folder / "people.csv", ("mercy",)))
    assert torch.equal(everything(node.load(["mercy"]), "test").inputs[0], batch.inputs[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("weight,age,sick,colour\n51,20,no,red\n", "test.csv has no column 'code'"),
        ("weight,age,sick,colour,code\n51,20,perhaps,red,3\n", "column 'sick' of .*test.csv holds 'perhaps'"),
        ("weight,age,sick,colour,code\n51,20,no,pink,3\n", "column 'colour' of .*test.csv holds 'pink'"),
        ("weight,age,sick,colour,code\n51,20,,red,3\n", "test.csv has no row with a label"),
        ("weight,age,sick,colour,code\nold,20,no,red,3\n", r"'weight' .*words .*test\.csv"),
    ],
)
def test_a_test_file_that_does_not_fit(folder, content, message):
    (folder / "test.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        load_all(source(folder, client_column="site", test="shared", test_path="test.csv"))


def test_a_shared_test_set_of_own_data_needs_a_path(folder):
    settings = TableSettings(label="sick", test="shared", categories={"sick": ("no", "yes"), "colour": ("red",)})
    with pytest.raises(DataError, match="needs test-path"):
        TableSource(settings, folder, OwnData(folder / "people.csv", ("mercy",))).load(["mercy"])
