import pytest
import torch

from fedgraph.commands.keys import describe
from fedgraph.fusion import FusionSettings, build_network
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse

SIZES = torch.tensor([3, 4])


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        ({"graph": "given"}, None, "requires a client graph"),
        ({"graph": "given"}, torch.zeros(3, 3), r"\[owners, owners\], 2 each"),
        ({"graph": "given"}, torch.tensor([[0.0, -1.0], [0.0, 0.0]]), "negative or not finite"),
        ({"alignment": "none", "aligned-size": 9}, None, "alignment = 'none' keeps the size of embeddings"),
        ({"alignment": "hard", "aligned-size": 4}, None, "alignment = 'hard' keeps the size of embeddings"),
        (
            {"alignment": "none", "alignment-affine": True},
            None,
            "alignment-affine requires free matrices.*alignment = 'soft'",
        ),
        ({"alignment": "hard"}, None, "sizes are 3, 4"),
        ({"reference": "Nothing"}, None, "not in torch.distributions"),
    ],
)
def test_settings_that_do_not_fit_are_refused(table, given, message):
    settings = parse(FusionSettings, table, "[f3]")
    with pytest.raises(ExperimentError, match=message):
        build_network(settings, SIZES, 2, given)


def test_settings_are_a_table_of_kebab_case_keys_that_are_all_explained():
    settings = parse(FusionSettings, {"learning-rates": [0.1], "reference-options": {"scale": 2.0}}, "[f3]")
    assert settings.learning_rates == (0.1,)
    assert settings.as_table()["reference-options"] == {"scale": 2.0}
    text = "\n".join(describe(FusionSettings)[len(FusionSettings.model_fields) :])
    known = FusionSettings.keys()
    assert [key for key in known if key not in text] == []


def test_a_gpu_that_is_not_there_cannot_be_demanded(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert FusionSettings().torch_device().type == "cpu"
    with pytest.raises(ExperimentError, match="no CUDA device"):
        FusionSettings(device="cuda").torch_device()
