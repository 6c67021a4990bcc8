"""Answers of graphical models against the truth, small enough for a test."""

from __future__ import annotations

import pytest
import torch

from fedgraph.data.encoding import Encoding, Scaling
from fedgraph.graphical.inference import SamplingSettings, draw, posterior
from fedgraph.graphical.learning import fit_ngm
from fedgraph.graphical.network import NGMSettings
from fedgraph.simulations.fedngm.answers import Sizes, answers, insurance_like
from fedgraph.support.randomness import generator


@pytest.mark.slow
def test_errors_of_one_network(data_dir):
    if not (data_dir / "graph-truth").is_dir():
        pytest.skip("no graph-truth in the data folder")
    found = answers(data_dir, ["asia"], known=[1, 0], sizes=Sizes(rows=3000, queries=12, joint=30_000))
    for table in found.tables.values():
        assert table["known"].tolist() == ["1", "half"]
        assert (table["mean"] < 0.03).all()
        assert (table["worst"] < 0.12).all()
        assert table["mean"][0] < table["plug-in, mean"][0]
    assert "## Errors against the network that rows are from" in found.text


def test_the_made_network_is_large_and_half_near_deterministic():
    network = insurance_like(0)
    assert len(network.variables) == 27
    assert sum(len(variable.parents) for variable in network.variables.values()) == 52
    likeliest = [float(variable.probabilities.amax(-1).median()) for variable in network.variables.values()]
    assert 9 <= sum(share > 0.98 for share in likeliest) <= 14
    again = insurance_like(0)
    assert all(
        torch.equal(again.variables[name].probabilities, of.probabilities) for name, of in network.variables.items()
    )
    rows = network.sample(100_000, generator(0, "test"))
    names = list(network.variables)
    given = {"v3": 0, "v20": 1}
    fits = (rows[:, [names.index(name) for name in given]] == torch.tensor(list(given.values()))).all(1)
    shares = rows[fits, names.index("v12")].bincount(minlength=len(network.variables["v12"].categories)) / fits.sum()
    assert fits.sum() > 1000
    assert torch.allclose(shares.double(), posterior(network, "v12", given), atol=0.05)


@pytest.mark.process
def test_rows_of_a_model_of_near_deterministic_relations_have_the_means_of_its_training_rows():
    network = insurance_like(0)
    encoding = Encoding(network.schema, Scaling())
    rows = encoding.encode(network.sample(3000, generator(0, "test")).double().numpy())
    adjacency, settings = network.moral_graph.adjacency, NGMSettings(epochs=40)
    fit = fit_ngm(network.schema, adjacency, [rows[300:]], [rows[:300]], ["a"], settings, 0)
    off = {}
    for centred in (True, False):
        drawn = draw(fit.network, fit.parameters, 16_000, ["a"], 0, settings=SamplingSettings(centred=centred))
        off[centred] = float((drawn[0].mean(0) - rows[300:].mean(0)).abs().mean())
    assert off[True] < 0.009
    assert off[True] < 0.6 * off[False]
