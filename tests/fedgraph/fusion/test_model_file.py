import pytest
import torch

from fedgraph.fusion import FusionData, FusionSettings, predict
from fedgraph.fusion.model_file import FittedFusion
from fedgraph.fusion.training import fit
from fedgraph.support.errors import RunError
from fedgraph.support.files import load_state, save_state
from fedgraph.support.settings import parse

SIZES = torch.tensor([4, 2, 3])
NEW = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(9))
THERE = torch.tensor([[True, True, True], [True, False, True], [False, True, True], [True] * 3, [True, False, False]])


def fitted(sizes=SIZES, **table):
    usual = {"epochs": 2, "learning-rates": [0.05], "workers": 1, "device": "cpu"}
    settings = parse(FusionSettings, {**usual, **table}, "")
    draw = torch.Generator().manual_seed(0)
    samples = 30
    inside = torch.arange(4) < sizes[:, None]
    given = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 2.0, 0.0]]) if settings.graph == "given" else None
    data = FusionData(
        embeddings=torch.randn(samples, 3, 4, generator=draw) * inside,
        present=torch.rand(samples, 3, generator=draw) < 0.8,
        labels=torch.arange(samples) % 2,
        split=(torch.arange(samples) % 3).to(torch.int8),
        sizes=sizes,
        classes=2,
        given_graph=given,
    )
    network = fit(settings, data, 3).network
    return FittedFusion(network, settings, ("a", "b", "c"), sizes, ("no", "yes"), ("f1", "f2", "f3"), given, 3)


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"alignment": "hard", "graph": "gumbel", "sizes": torch.tensor([4, 4, 4])},
        {"alignment": "soft", "graph": "neighbours", "neighbours": 1, "aligned-size": 2},
        {"alignment": "none", "graph": "given"},
        {"graph": "icdf", "reference": "Laplace", "reference-options": {"loc": 0.0, "scale": 2.0}},
        {"fusion": "mean-pooling", "graph": "none"},
        {"fusion": "transformer"},
        {"fusion": "concatenation", "concatenation-hidden": [5]},
    ],
    ids=lambda table: "-".join(str(value) for value in table.values() if isinstance(value, str)) or "default",
)
def test_what_is_read_predicts_the_same(tmp_path, table):
    fusion = fitted(**table)
    fusion.write(tmp_path / "fusion.safetensors")
    again = FittedFusion.read(tmp_path / "fusion.safetensors")
    embeddings = NEW * (torch.arange(4) < fusion.sizes[:, None])
    before, after = (predict(each.network, embeddings, THERE, 3, 7) for each in (fusion, again))
    assert torch.equal(before.probabilities, after.probabilities)
    assert torch.equal(before.deviation, after.deviation)
    assert torch.equal(fusion.parameters, again.parameters)
    assert not again.network.training
    for name in ("settings", "owners", "classes", "fingerprints", "seed"):
        assert getattr(again, name) == getattr(fusion, name), name
    assert torch.equal(again.sizes, fusion.sizes)
    assert (again.given_graph is None) == (fusion.given_graph is None)


def test_keys_of_the_method_beside_the_fusion_are_not_kept(tmp_path):
    from fedgraph.algorithms.f3_settings import F3Settings

    fusion = fitted()
    settings = parse(F3Settings, {**fusion.settings.as_table(), "local-patience": 3}, "[f3]")
    fusion = FittedFusion(**{**vars(fusion), "settings": settings})
    fusion.write(tmp_path / "x")
    assert "local-patience" not in load_state(tmp_path / "x")["settings"]
    assert FittedFusion.read(tmp_path / "x").settings == fitted().settings


@pytest.mark.parametrize("spoil", ["missing", "garbage", "other state", "other network"])
def test_a_file_that_is_none_is_refused_with_its_name(tmp_path, spoil):
    path = tmp_path / "fusion.safetensors"
    if spoil == "garbage":
        path.write_bytes(b"\x05" * 100)
    elif spoil == "other state":
        save_state(path, {"round": 3})
    elif spoil == "other network":
        fitted().write(path)
        save_state(path, {**load_state(path), "sizes": torch.tensor([4, 2])})
    with pytest.raises(RunError, match=r"fusion\.safetensors"):
        FittedFusion.read(path)
