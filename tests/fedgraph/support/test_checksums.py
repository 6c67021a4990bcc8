import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedgraph.support.checksums import METADATA, verified, with_checksum
from fedgraph.support.files import read_tensors, write_tensors

TENSORS = {
    "weight": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "step": torch.tensor(7),
    "flags": torch.tensor([True, False]),
    "none": torch.zeros(0, 4),
    "expanded": torch.zeros(1).expand(1, 1),
}


@pytest.fixture
def file(tmp_path):
    write_tensors(tmp_path / "x.safetensors", TENSORS, {"clients": '["a"]'})
    return tmp_path / "x.safetensors"


def test_files_are_read_by_safetensors_alone(file):
    assert load_file(file).keys() == TENSORS.keys()
    with safe_open(str(file), framework="pt") as stream:
        assert stream.metadata() == with_checksum(TENSORS, {"clients": '["a"]'})


def test_every_flipped_bit_is_found_or_changes_nothing(file):
    content, (tensors, metadata) = file.read_bytes(), read_tensors(file)
    for place in range(len(content) * 8):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << (place % 8)
        file.write_bytes(changed)
        try:
            found, about = read_tensors(file)
        except (ValueError, OSError):
            continue
        assert {name: value.tolist() for name, value in found.items()} == {
            name: value.tolist() for name, value in tensors.items()
        }
        # With a damaged key of the metadata the file looks as if it had none, which its readers refuse.
        assert about == metadata or "clients" not in about


def test_files_without_a_checksum_are_read(file):
    save_file(TENSORS, file, {"clients": "[]"})
    assert read_tensors(file)[1] == {"clients": "[]"}


@pytest.mark.parametrize(
    "tensors",
    [
        {**TENSORS, "weight": -TENSORS["weight"]},
        {**TENSORS, "weight": TENSORS["weight"].reshape(3, 2)},
        {**TENSORS, "weight": TENSORS["weight"].view(torch.int32)},
        {"other" if name == "weight" else name: value for name, value in TENSORS.items()},
    ],
)
def test_values_shapes_types_and_names_are_covered(tensors):
    stored = with_checksum(TENSORS, {"a": "b"})
    assert verified(TENSORS, stored) == {"a": "b"}
    head = json.loads(stored[METADATA])
    for changed, about in (
        (tensors, head),
        (TENSORS, {**head, "a": "c"}),
        (TENSORS, {**head, "checksum": ""}),
    ):
        with pytest.raises(ValueError, match="damaged"):
            verified(changed, {METADATA: json.dumps(about)})


def test_the_same_content_is_the_same_file(file):
    content = file.read_bytes()
    for _ in range(10):
        write_tensors(file, TENSORS, {"clients": '["a"]'})
        assert file.read_bytes() == content
