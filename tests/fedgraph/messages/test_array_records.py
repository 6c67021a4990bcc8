import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.messages.array_records import checked_arrays, from_record, to_record
from fedgraph.support.errors import ReplyError


@settings(max_examples=25, derandomize=True)
@given(st.lists(st.integers(0, 4), max_size=3), st.integers(0, 1000))
def test_tensors_survive_the_record(shape, seed):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(from_record(to_record({"x": tensor}))["x"], tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool, torch.uint8])
def test_what_is_read_is_a_tensor_of_its_own(dtype):
    tensor = torch.tensor([[0, 1], [1, 1]]).to(dtype)
    tensors = {"x": tensor, "column": tensor.T, "none": tensor[:0], "scalar": tensor[0, 1]}
    record = to_record(tensors)
    read = from_record(record)
    assert all(torch.equal(read[name], value) for name, value in tensors.items())
    read["x"].zero_()
    assert torch.equal(from_record(record)["x"], tensor)


def test_encoding_is_that_of_flower():
    tensor = torch.randn(3, 4).T
    assert to_record({"x": tensor})["x"].data == Array(tensor.contiguous().numpy()).data


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (1, 4), (4, 1), (5,)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
def test_arrays_in_fortran_order_are_read_as_any_other(shape, dtype):
    """Such as ``coef_`` of scikit-learn, or a transposed array."""
    values = np.asfortranarray(np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype))
    record = ArrayRecord({"fortran": Array(values), "transposed": Array(values.T)})
    read = from_record(record)
    for name, wanted in (("fortran", values), ("transposed", values.T)):
        np.testing.assert_array_equal(read[name].numpy(), wanted)
        assert read[name].is_contiguous()
    checked = checked_arrays(record, {"fortran": shape, "transposed": shape[::-1]}, dict.fromkeys(record, dtype))
    np.testing.assert_array_equal(checked["fortran"].numpy(), values)


def test_what_is_cut_off_is_refused_in_either_order():
    for values in (np.ones((3, 4)), np.asfortranarray(np.ones((3, 4)))):
        whole = Array(values)
        with pytest.raises(ReplyError, match="array 'w' cannot be decoded"):
            from_record(ArrayRecord({"w": Array(whole.dtype, whole.shape, whole.stype, whole.data[:-8])}))
