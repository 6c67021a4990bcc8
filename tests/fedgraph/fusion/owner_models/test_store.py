import pytest
import torch

from fedgraph.fusion.owner_models.store import ModelStore
from fedgraph.support.errors import RunError


def test_what_is_kept_is_found_under_its_fingerprint_alone(tmp_path):
    store = ModelStore(tmp_path / "models")
    assert store.load("abc1") is None
    row = torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    store.save("abc1", row[:, 2])
    store.save("abc2", row[:, 3].requires_grad_())
    assert torch.equal(ModelStore(tmp_path / "models").load("abc1"), row[:, 2])
    assert torch.equal(store.load("abc2"), row[:, 3])
    assert not store.load("abc2").requires_grad
    assert store.load("abc3") is None


def test_a_broken_file_is_named(tmp_path):
    store = ModelStore(tmp_path)
    (tmp_path / "abc.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"abc\.safetensors.*remove it to train it anew"):
        store.load("abc")


@pytest.mark.parametrize("text", ["../up", "a/b", "", "a.b", ".", "a\0b"])
def test_no_name_leads_out_of_the_folder(tmp_path, text):
    with pytest.raises(RunError, match="is no fingerprint of a model"):
        ModelStore(tmp_path / "inside").load(text)
    with pytest.raises(RunError, match="is no fingerprint of a model"):
        ModelStore(tmp_path / "inside").save(text, torch.zeros(1))
    assert list(tmp_path.iterdir()) == []
