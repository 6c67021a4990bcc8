from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError

NAN = np.nan
SCHEMA = Schema(
    (
        Feature("colour", "categorical", ("blue", "green", "red")),
        Feature("weight", "real"),
        Feature("size", "ordinal", ("small", "medium", "big")),
        Feature("sick", "binary", ("no", "yes")),
        Feature("age", "integer"),
        Feature("stage", "ordinal"),
    )
)
SCALING = Scaling({"weight": (50.0, 100.0), "age": (20.0, 30.0), "stage": (1.0, 5.0)})
ENCODING = Encoding(SCHEMA, SCALING)


def test_units_of_values():
    units = ENCODING.encode(np.array([[2, 75, 1, 1, 20, 5], [NAN, NAN, NAN, NAN, NAN, NAN], [0, 50, 2, 0, 31, 2]]))
    assert units.dtype == torch.float32
    assert units.is_contiguous()
    expected = [[0, 0, 1, 0.5, 0.5, 1, 0, 1], [NAN] * 8, [1, 0, 0, 0, 1, 0, 1.1, 0.25]]
    np.testing.assert_allclose(units.numpy(), expected, rtol=1e-6)
    assert [SCHEMA.slices[name].start for name in SCHEMA.names] == [0, 3, 4, 5, 6, 7]


def test_values_of_what_a_model_predicts():
    units = torch.tensor(
        [
            [0.2, 0.5, 0.4, 0.123456789, 0.6, 0.5, 0.26, 0.9],
            [0.2, NAN, 0.4, NAN, NAN, NAN, NAN, NAN],
            [-3.0, -2.0, -1.0, 1.5, 7.0, -0.2, -0.31, 3.0],
        ],
        requires_grad=True,
    )
    values = ENCODING.decode(units)
    # 50 + 0.123456789 * 50, to a millionth of 50 or so; 20 + 2.6; 1 + 3.6.
    expected = [[1, 56.17284, 1, 1, 23, 5], [NAN] * 6, [2, 125, 2, 0, 17, 13]]
    np.testing.assert_allclose(values, expected, atol=5e-6)
    assert values[0, 1] == round(values[0, 1], 5)


def test_values_outside_are_kept_or_clipped():
    values = np.array([[0, 40.0, 0, 0, 35, 0]])
    units = ENCODING.encode(values)
    np.testing.assert_allclose(units[0, [3, 6, 7]], [-0.2, 1.5, -0.25])
    np.testing.assert_allclose(ENCODING.decode(units), values)
    clipped = Encoding(SCHEMA, SCALING, outside="clip").encode(values)
    assert clipped[0, [3, 6, 7]].tolist() == [0, 1, 0]


def test_skewed_numbers_there_and_back():
    """Of 1 to 101, the median is 11: log(1 + 80 z) / log(81) is 1/2 at z = 0.1."""
    schema = Schema((Feature("cells", "real"), Feature("age", "integer")))
    encoding = Encoding(schema, Scaling({"cells": (1.0, 11.0, 101.0), "age": (0.0, 10.0)}))
    values = np.array([[1, 0], [11, 5], [101, 10], [NAN, 1], [0.5, 2], [5000, 3], [-500, 4]])
    units = encoding.encode(values)
    shares = (values[:, 0] - 1) / 100
    expected = np.sign(shares) * np.log(1 + 80 * np.abs(shares)) / np.log(81)
    np.testing.assert_allclose(units[:, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(units[:3, 0], [0, 0.5, 1], rtol=1e-6)
    np.testing.assert_allclose(encoding.decode(units), values, rtol=1e-6)
    clipped = Encoding(schema, encoding.scaling, "clip").encode(values)
    assert clipped[4:, 0].tolist() == [0, 1, 0]
    with pytest.raises(DataError, match="'cells' .*200000 .*1 to 101"):
        encoding.encode(np.array([[2e5, 1], [2e4, 1]]))


def test_values_far_outside_are_a_mistake():
    values = np.array([[0, 60.0, 0, 0, 99_999, 1]] * 3)
    with pytest.raises(DataError, match="'age' .*missing-codes"):
        ENCODING.encode(values)
    assert Encoding(SCHEMA, SCALING, outside="clip").encode(values)[0, 6] == 1


def test_matrices_that_do_not_fit():
    with pytest.raises(DataError, match=r"\[2, 5\] .*\[rows, 6\]"):
        ENCODING.encode(np.zeros((2, 5)))
    with pytest.raises(DataError, match=r"\[2, 6\] .*\[rows, 8\]"):
        ENCODING.decode(torch.zeros(2, 6))
    with pytest.raises(DataError, match="no range for weight, stage"):
        Encoding(SCHEMA, Scaling({"age": (0, 1)})).encode(np.zeros((1, 6)))


@st.composite
def encodings(draw):
    """A schema of any kinds, ranges, and rows of values that its features can have."""
    features, ranges, columns = [], {}, []
    for place in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["real", "integer", "ordinal", "binary", "categorical"]))
        count = {"binary": 2, "categorical": draw(st.integers(1, 6))}.get(kind, 0)
        if kind == "ordinal" and draw(st.booleans()):
            count = draw(st.integers(2, 6))
        name = f"f{place}"
        features.append(Feature(name, kind, tuple(f"c{n}" for n in range(count))))
        if count:
            columns.append(st.integers(0, count - 1).map(float))
            continue
        low = draw(st.integers(-1_000, 1_000))
        width = draw(st.integers(1, 10_000))
        share = draw(st.sampled_from([None, 0.0, 0.05, 0.3, 0.5, 0.99]))
        middle = () if share is None else (low + share * width,)
        ranges[name] = (float(low), *middle, float(low + width))
        number = st.integers(low - 2 * width, low + 3 * width).map(float)
        columns.append(st.floats(low - 2 * width, low + 3 * width) if kind == "real" else number)
    row = st.tuples(*(st.one_of(st.just(NAN), column) for column in columns))
    return Schema(tuple(features)), Scaling(ranges), np.array(draw(st.lists(row, min_size=1, max_size=8)))


@settings(max_examples=150)
@given(encodings())
def test_what_was_encoded_is_decoded(drawn):
    schema, scaling, values = drawn
    encoding = Encoding(schema, scaling)
    units = encoding.encode(values)
    assert units.shape == (len(values), len(schema.unit_feature))
    missing = np.isnan(values)[:, schema.unit_feature.numpy()]
    np.testing.assert_array_equal(units.isnan().numpy(), missing)
    back = encoding.decode(units)
    for place, feature in enumerate(schema.features):
        if feature.kind == "real":
            low, *_, high = scaling.ranges[feature.name]
            # Three ranges away a float32 unit is exact to 2^-22 or so, and then rounded to a millionth of a range. On
            # the most logarithmic scale such a value is exact to log(1 + 9,800) = 9 times as many.
            np.testing.assert_allclose(back[:, place], values[:, place], rtol=0, atol=1e-5 * (high - low))
        else:
            np.testing.assert_array_equal(back[:, place], values[:, place])
        if feature.kind == "categorical":
            block = units[:, schema.slices[feature.name]]
            assert torch.equal(block.nansum(1), (~block.isnan().any(1)).float())
