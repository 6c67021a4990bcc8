import pytest

from fedgraph.errors import ExperimentError
from fedgraph.experiment import parse_experiment
from strategies.chosen import ChosenMethod, mixes_models
from strategies.local import LocalOnly
from strategies.sfl import SFL


@pytest.fixture
def tables(digits_tables):
    digits_tables["model"]["variants"] = [{"clients": ["client-1"], "name": "mlp", "hidden": [3]}]
    return digits_tables


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ({"method": "sfl"}, "sfl"),
        ({"method": "fedavg"}, "fedavg"),
        ({"strategy": "flwr.serverapp.strategy:FedAdam"}, "FedAdam"),
    ],
)
def test_a_method_that_mixes_models_refuses_different_architectures(tables, head, name):
    experiment = parse_experiment({**tables, "experiment": head})
    with pytest.raises(ExperimentError) as raised:
        ChosenMethod(experiment)
    text = str(raised.value)
    assert f"method '{name}'" in text
    assert "[[model.variants]]" in text
    assert "different architectures: local, and strategies of your own that declare mixes_models = False" in text
    tables["model"]["variants"][0]["hidden"] = tables["model"]["hidden"]
    ChosenMethod(parse_experiment({**tables, "experiment": head}))


def test_a_method_that_does_not_mix_models_takes_them(tables, tmp_path, monkeypatch):
    ChosenMethod(parse_experiment({**tables, "experiment": {"method": "local"}}))
    code = (
        "from strategies.base import CohortStrategy\n\n"
        "class Apart(CohortStrategy):\n"
        "    mixes_models = False\n"
        "    def aggregate(self, server_round, replies):\n"
        "        return replies.parameters\n"
    )
    (tmp_path / "keeps_models_apart.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    ChosenMethod(parse_experiment({**tables, "experiment": {"strategy": "keeps_models_apart:Apart"}}))


def test_who_mixes():
    from flwr.serverapp.strategy import FedAvg

    assert [mixes_models(kind) for kind in (SFL, FedAvg, LocalOnly)] == [True, True, False]
