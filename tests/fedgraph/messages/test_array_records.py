import pytest
import torch
from flwr.app import Array
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.messages.array_records import from_record, to_record


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
