"""Models whose relations are nearly deterministic, with and without training."""

from itertools import product

import numpy as np
import pytest
import torch

from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.data.tables.bif import BayesianNetwork, Variable
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings

LUNG, TUB = 0.06, 0.03
SEEN = (0.1, 0.9)
"""Probability of an x-ray that shows something, without and with a disease."""
_SURE = 14.0
"""Logit of what is nearly certain."""


def _binary(parents, *yes):
    """A variable of no and yes; the probabilities of yes in the order of its parents' values."""
    table = torch.tensor([[1 - share, share] for share in yes], dtype=torch.float64)
    return Variable(("no", "yes"), tuple(parents), table.reshape(*([2] * len(parents)), 2))


@pytest.fixture(scope="session")
def asia():
    """The network of Lauritzen and Spiegelhalter (1988), in which ``either`` is ``lung`` or ``tub``."""
    return BayesianNetwork(
        {
            "asia": _binary([], 0.01),
            "tub": _binary(["asia"], 0.01, 0.05),
            "smoke": _binary([], 0.5),
            "lung": _binary(["smoke"], 0.01, 0.1),
            "bronc": _binary(["smoke"], 0.3, 0.6),
            "either": _binary(["lung", "tub"], 0, 1, 1, 1),
            "xray": _binary(["either"], 0.05, 0.98),
            "dysp": _binary(["bronc", "either"], 0.1, 0.7, 0.8, 0.9),
        }
    )


@pytest.fixture(scope="session")
def trained(asia):
    """``asia`` as a model learns it from 4,000 rows over the true graph."""
    encoding = Encoding(asia.schema, Scaling())
    rows = encoding.encode(asia.sample(4000, torch.Generator().manual_seed(0)).double().numpy())
    settings = NGMSettings(epochs=40, learning_rate=0.01)
    fit = fit_ngm(asia.schema, asia.moral_graph.adjacency, [rows[400:]], [rows[:400]], ["a"], settings, 0)
    return GraphicalModel.of_one(fit.network, fit.parameters, encoding)


@pytest.fixture(scope="session")
def samples(trained):
    """40,000 rows drawn from that model, by feature: 1 for yes."""
    table = trained.sample(40_000)
    return {name: np.array(table.column(name).to_pylist()) == "yes" for name in table.names}


@pytest.fixture(scope="session")
def disease():
    """A model made by hand: either = lung or tub, and an x-ray that tells of it; its conditionals are the true ones.

    With units 0 and 1 for hidden units: a sum of two features' x and y beyond 0 is 1 if any is, beyond 1 if both are.
    """
    names = ("lung", "tub", "either", "xray")
    schema = Schema(tuple(Feature(name, "binary", ("no", "yes")) for name in names))
    graph = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]]).bool()
    network = Network(schema, graph, NGMSettings(hidden=3, layers=1))
    state = network.layout.unflatten(torch.zeros(1, network.layout.num_parameters))
    any_disease = 1 - (1 - LUNG) * (1 - TUB)
    mean = torch.tensor([LUNG, TUB, any_disease, SEEN[0] + (SEEN[1] - SEEN[0]) * any_disease])
    state["mean"][0], state["deviation"][0] = mean, 1
    seen, unseen = torch.tensor([SEEN[1] / SEEN[0], (1 - SEEN[1]) / (1 - SEEN[0])]).log()
    prior = torch.tensor([LUNG, TUB]).logit()
    first, bias = state["hidden.0.weight"][0], state["hidden.0.bias"][0]

    def hidden(feature, unit, weights, constant):
        """relu(weights * values + constant), of values as they are in the rows."""
        first[feature, unit] = torch.tensor(weights)
        bias[feature, unit] = constant + (torch.tensor(weights) * mean).sum()

    def outputs(feature, constant, *weights):
        # What a network learns is added to what stands for the mean.
        state["head.weight"][0, feature] = torch.tensor(weights)
        state["head.bias"][0, feature] = constant - mean[feature].logit()

    for feature, other in ((0, 1), (1, 0)):
        others = [0.0, 0.0, 1.0, 0.0]
        others[other] = -1.0
        hidden(feature, 0, others, 0.0)
        others[other] = 1.0
        hidden(feature, 1, others, -1.0)
        outputs(feature, -_SURE, 2 * _SURE, _SURE + float(prior[feature]), 0.0)
    hidden(2, 0, [1.0, 1.0, 0.0, 0.0], 0.0)
    hidden(2, 1, [1.0, 1.0, 0.0, 0.0], -1.0)
    hidden(2, 2, [0.0, 0.0, 0.0, 1.0], 0.0)
    outputs(2, -_SURE + float(unseen), 2 * _SURE, -2 * _SURE, float(seen - unseen))
    hidden(3, 0, [0.0, 0.0, 1.0, 0.0], 0.0)
    low, high = torch.tensor(SEEN).logit().tolist()
    outputs(3, low, high - low, 0.0, 0.0)
    return GraphicalModel(network, network.layout.flatten(state)[0], Encoding(schema, Scaling()))


@pytest.fixture(scope="session")
def exactly():
    """``exactly(target, given)`` -> the probability that the target is 1 in the distribution of ``disease``."""

    def share(target, given):
        total = {0: 0.0, 1: 0.0}
        for lung, tub, xray in product((0, 1), repeat=3):
            either = int(lung or tub)
            row = {"lung": lung, "tub": tub, "either": either, "xray": xray}
            chance = (LUNG if lung else 1 - LUNG) * (TUB if tub else 1 - TUB)
            chance *= SEEN[either] if xray else 1 - SEEN[either]
            if all(row[name] == value for name, value in given.items()):
                total[row[target]] += chance
        return total[1] / (total[0] + total[1])

    return share
