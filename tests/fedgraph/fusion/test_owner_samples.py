"""Embeddings of owners as users have them."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from fedgraph.fusion.owner_samples import from_columns, from_mapping, owner_columns


def test_arrays_share_their_rows_and_nan_is_a_lacking_sample():
    a, b = np.arange(6.0).reshape(3, 2), [[np.nan], [7], [8]]
    found = from_mapping({"b": b, "a": torch.from_numpy(a).bfloat16()})
    assert (found.owners, found.sizes.tolist(), found.ids, len(found)) == (("a", "b"), [2, 1], None, 3)
    assert found.present.tolist() == [[True, False], [True, True], [True, True]]
    assert found.embeddings.tolist() == [[[0, 1], [0, 0]], [[2, 3], [7, 0]], [[4, 5], [8, 0]]]
    assert found.order == [0, 1, 2]
    assert found.labels([1, 2, 3]).tolist() == [1, 2, 3]


def test_ids_keep_their_type_and_are_sorted_as_text():
    found = from_mapping({"a": ([np.int64(10), 9], [[1.0], [2.0]]), "b": pd.DataFrame({"x": [3.0]}, index=[11])})
    assert found.ids == (10, 9, 11)
    assert found.present.tolist() == [[True, False], [True, False], [False, True]]
    assert [found.ids[place] for place in found.order] == [10, 11, 9]
    assert found.labels({9: "n", 10: "t", 11: "e", 12: "nobody's"}).tolist() == ["t", "n", "e"]
    assert found.labels(pd.Series(["n", "e", "t"], index=[9, 11, 10])).tolist() == ["t", "n", "e"]


def test_owners_are_put_into_the_columns_of_a_model():
    found = from_mapping({"b": [[1.0, 2.0]]}).over(("a", "b", "c"), torch.tensor([3, 2, 1]), {})
    assert found.embeddings.tolist() == [[[0, 0, 0], [1, 2, 0], [0, 0, 0]]]
    assert found.present.tolist() == [[False, True, False]]


def test_columns_of_one_array_are_assigned():
    assert owner_columns(2, 5, None) == {"owner-0": [0, 1, 2], "owner-1": [3, 4]}
    assert list(owner_columns(11, 11, None))[::10] == ["owner-00", "owner-10"]
    names = ["age", "weight", "height"]
    chosen = {"a": "age", "b": ["height", "weight"], "c": [-1], "d": slice(1, None)}
    assert owner_columns(chosen, 3, names) == {"a": [0], "b": [2, 1], "c": [-1], "d": [1, 2]}
    assert owner_columns({"a": [True, False, True]}, 3, names) == {"a": [0, 2]}
    found = from_columns(np.arange(6.0).reshape(2, 3), {"b": [2, 1], "a": [0]})
    assert found.embeddings.tolist() == [[[0, 0], [2, 1]], [[3, 0], [5, 4]]]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        ({}, "no owners: pass"),
        ({1: [[1.0]], "1": [[1.0]]}, "two owners have the same name"),
        ({"a": [[1.0]], "b": ([1], [[1.0]])}, "'b' .*ids .*'a' do not"),
        ({"a": [[1.0]], "b": [[1.0], [2.0]]}, r"\(a: 1, b: 2\): .*ids"),
        ({"a": ([1], [[1.0]]), "b": (["1"], [[1.0]])}, "differ only in type"),
        ({"a": ([1, 1], [[1.0], [2.0]])}, "'a' .*sample 1 "),
        ({"a": ([1, 2], [[1.0]])}, "'a' has 2 ids"),
        ({"a": (1, 2, 3)}, "owner 'a' has a tuple of length 3"),
        ({"a": [1.0, 2.0]}, r"'a' .*\[samples, size\]; .*\(2,\)"),
        ({"a": [["x"]]}, "owner 'a' are not numbers"),
        ({"a": [[1.0, 2.0], [np.nan, 1.0]]}, "'a' .*row 1 .*NaN"),
        ({"a": [[1e300]]}, "too large for float32"),
        ({"a": pa.table({"x": ["word"]})}, "owner 'a' are"),
    ],
)
def test_what_owners_cannot_have(found, problem):
    with pytest.raises(ValueError, match=problem):
        from_mapping(found)


@pytest.mark.parametrize(
    ("owners", "problem"),
    [
        (None, "owners .*columns"),
        (0, "at least 1"),
        (4, r"3 feature\(s\) .* a minimum of 4"),
        ({"a": ["weigth"]}, "'a': 'weigth'"),
        ({"a": [3]}, "'a' .*column 3, .*3 columns"),
        ({"a": slice(3, 5)}, "owner 'a' has none of the 3 columns"),
        ({"a": [False, False, False]}, "owner 'a' has none of the 3 columns"),
        ({"a": [True, False]}, "'a' has a mask of 2 columns, but X has 3"),
        ({"a": [0.5, 1.0]}, r"'a' has the column 0\.5: .*positions, names or a mask"),
    ],
)
def test_columns_that_are_not_there(owners, problem):
    with pytest.raises(ValueError, match=problem):
        owner_columns(owners, 3, None)


def test_weights_go_to_the_samples_of_their_labels():
    keyed = from_mapping({"a": ([1, 2], [[1.0], [2.0]]), "b": ([3], [[1.0]])})
    y = pd.Series(["x", "y", "z", "w"], index=[3, 1, 2, 4])
    for given in (pd.Series([0.3, 0.1, 0.2], index=[3, 1, 2]), {1: 0.1, 2: 0.2, 3: 0.3}, [0.3, 0.1, 0.2, 0.4]):
        assert keyed.weights(given, y).tolist() == [0.1, 0.2, 0.3]
    assert keyed.weights(None, y) is None
    with pytest.raises(ValueError, match="sample_weight has no weight for 1 of 3 samples: '3'"):
        keyed.weights({1: 0.1, 2: 0.2}, y)
    with pytest.raises(ValueError, match="sample_weight has 4 ids but weights of shape"):
        keyed.weights([0.1, 0.2], y)
    numbered = from_mapping({"a": [[1.0], [2.0]]})
    assert numbered.weights(pd.Series([0.1, 0.2], index=[7, 3]), ["x", "y"]).tolist() == [0.1, 0.2]


def test_labels_that_do_not_fit():
    keyed = from_mapping({"a": ([1, 2], [[1.0], [2.0]]), "b": ([2], [[1.0]])})
    for y, problem in (
        ({1: "x"}, r"y has no label for 1 of 2 samples: '2'"),
        (["x", "y"], "samples have ids, but y does not"),
        (pd.Series(["x", "y", "z"], index=[1, 2, 2]), "more than one label for a sample"),
        (([1, 2], ["x"]), "y has 2 ids but labels of shape"),
    ):
        with pytest.raises(ValueError, match=problem):
            keyed.labels(y)
    with pytest.raises(ValueError, match="1 samples, 2 labels"):
        from_mapping({"a": [[1.0]]}).labels([1, 2])
