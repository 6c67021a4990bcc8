from __future__ import annotations

import hashlib
import struct

import torch

from fedgraph.models.parameters import Layout, finite_rows, weights_sha256

STATE = {"mean": torch.zeros(2), "weight": torch.zeros(2, 3), "scale": torch.zeros(())}
LAYOUT = Layout.of(STATE, buffers=["mean"])


def test_buffers_lie_behind_what_is_trained():
    assert LAYOUT.names == ("weight", "scale", "mean")
    assert LAYOUT.shapes == ((2, 3), (), (2,))
    assert (LAYOUT.num_trainable, LAYOUT.num_parameters) == (7, 9)


def test_flatten_and_unflatten_are_inverse_and_views():
    matrix = torch.arange(18.0).reshape(2, 9)
    stacked = LAYOUT.unflatten(matrix)
    assert {name: tuple(value.shape) for name, value in stacked.items()} == {
        "weight": (2, 2, 3),
        "scale": (2,),
        "mean": (2, 2),
    }
    assert torch.equal(LAYOUT.flatten(stacked), matrix)
    stacked["weight"][1, 0, 0] = -1
    assert matrix[1, 0] == -1
    row = LAYOUT.row_state(matrix[1])
    assert row["mean"].tolist() == [16.0, 17.0]
    row["mean"][0] = 5
    assert matrix[1, 7] == 16


def test_hash_does_not_depend_on_the_order_of_clients():
    matrix = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    expected = hashlib.sha256(b"a\0" + struct.pack("<2f", 0.5, 3.0) + b"b\0" + struct.pack("<2f", 1.0, -2.0))
    assert weights_sha256(["b", "a"], matrix) == expected.hexdigest()
    assert weights_sha256(["a", "b"], matrix.flip(0)) == expected.hexdigest()
    assert weights_sha256(["a", "b"], matrix) != expected.hexdigest()


def test_a_row_and_its_state_are_inverse():
    from fedgraph.models.parameters import Layout

    state = {"running": torch.rand(3), "weight": torch.rand(2, 3), "scale": torch.tensor(4.0)}
    layout = Layout.of(state, buffers=["running"])
    row = layout.row(state)
    assert row.shape == (layout.num_parameters,)
    back = layout.row_state(row)
    assert list(back) == ["weight", "scale", "running"]
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_finite_rows_are_told_from_those_with_nan_or_infinity_even_where_a_sum_overflows():
    largest = torch.finfo(torch.float32).max
    rows = torch.tensor(
        [
            [1.0, 2.0, 3.0],
            [largest, largest, 1.0],
            [1.0, float("nan"), 0.0],
            [float("inf"), 0.0, -float("inf")],
            [float("inf"), 0.0, 0.0],
        ]
    )
    assert finite_rows(rows).tolist() == [True, True, False, False, False]
    assert finite_rows(rows[:, None].expand(-1, 2, -1)).tolist() == [True, True, False, False, False]
    assert finite_rows(rows[:0]).tolist() == []
