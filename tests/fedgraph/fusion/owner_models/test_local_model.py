"""Embeddings that contain the samples are refused; those that are made of them are not."""

import pytest
import torch

from fedgraph.fusion.owner_models.local_model import ModelStore, check_not_raw
from fedgraph.support.errors import ExperimentError, RunError

SAMPLES = torch.randn(40, 2, 3, generator=torch.Generator().manual_seed(0))
ROWS = SAMPLES.flatten(1)
CONSTANT = torch.cat([ROWS, torch.full((40, 1), 7.0)], 1)


@pytest.mark.parametrize(
    ("inputs", "embeddings"),
    [
        (SAMPLES, ROWS),
        (SAMPLES, SAMPLES),
        (SAMPLES, ROWS[:, [3, 1, 0, 2, 5, 4]]),
        (SAMPLES, torch.cat([ROWS.tanh(), ROWS], 1)),
        (CONSTANT, ROWS),
        (ROWS.relu(), torch.where(ROWS > 0, ROWS, -0.0)),
        (ROWS[:1], ROWS[:1]),
        (SAMPLES, 3 * ROWS + torch.arange(6)),
        (CONSTANT, torch.cat([ROWS.relu(), (5 - ROWS[:, [3, 1, 0, 2, 5, 4]]).round(decimals=5)], 1)),
        (torch.cat([ROWS, (ROWS[:, :1] > 0).float()], 1), ROWS / 10 - 4),
    ],
    ids=["rows", "shape", "order", "more", "constant", "negative-zero", "one", "scaled", "and-more", "but-a-category"],
)
def test_the_sample_itself(inputs, embeddings):
    with pytest.raises(ExperimentError, match="owner a, b: .*must not leave"):
        check_not_raw(inputs, embeddings, ["a", "b"], "do this")


@pytest.mark.parametrize(
    ("inputs", "embeddings"),
    [
        (SAMPLES, ROWS.tanh()),
        (SAMPLES, ROWS.relu()),
        (SAMPLES, ROWS[:, :5].tanh()),
        (SAMPLES, ROWS.flip(0)),
        (SAMPLES, torch.zeros(40, 6)),
        (ROWS[:0], ROWS[:0]),
        (ROWS[:1], 2 * ROWS[:1]),
        (SAMPLES, 2 * ROWS[:, :5]),
        (SAMPLES, 2 * ROWS + ROWS.roll(1, 1) / 1000),
        (ROWS[:, :1], 2 * ROWS[:, :1]),
        ((ROWS > 0).float(), 1 - (ROWS > 0).float() * 3),
    ],
    ids=[
        "tanh",
        "relu",
        "fewer",
        "other-samples",
        "nothing",
        "no-samples",
        "one",
        "fewer-scaled",
        "mixed",
        "one-feature",
        "categories",
    ],
)
def test_what_is_made_of_it(inputs, embeddings):
    check_not_raw(inputs, embeddings, ["a"], "do this")


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
    with pytest.raises(RunError, match=r"abc\.safetensors.*remove"):
        store.load("abc")


@pytest.mark.parametrize("text", ["../up", "a/b", "", "a.b", ".", "a\0b"])
def test_no_name_leads_out_of_the_folder(tmp_path, text):
    with pytest.raises(RunError, match="is not the fingerprint of a model"):
        ModelStore(tmp_path / "inside").load(text)
    with pytest.raises(RunError, match="is not the fingerprint of a model"):
        ModelStore(tmp_path / "inside").save(text, torch.zeros(1))
    assert list(tmp_path.iterdir()) == []
