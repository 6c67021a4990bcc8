import pytest
import torch
from torch.nn import functional

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.dependence import derivatives, violation
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.learning.ngr import fit_ngr
from fedgraph.graphical.network.network import PROJECTION, Network
from fedgraph.graphical.network.projections import Projections
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.graphical.network.stitched import enlarged, global_part, without_new_influence
from fedgraph.graphical.network.training import train
from fedgraph.support.randomness import generator

WARDS = 40
SCHEMA = Schema(
    (
        Feature("age", "real"),
        Feature("ward", "categorical", tuple(f"ward {place}" for place in range(WARDS))),
        Feature("ill", "binary", ("no", "yes")),
        Feature("cost", "real"),
    )
)
#: Age has no neighbour; cost and illness depend on the ward.
GRAPH = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 0], [0, 1, 0, 0]]).bool()
PROJECTED = NGMSettings(hidden=8, projected_above=30, projection=3, epochs=60, learning_rate=0.01, batch_size=64)


def rows(count, seed=0):
    """Cost and illness both follow from one number that every ward has."""
    draw = torch.Generator().manual_seed(seed)
    level = torch.rand(WARDS, generator=torch.Generator().manual_seed(99))
    ward = torch.randint(WARDS, (count,), generator=draw)
    ill = (torch.rand(count, generator=draw) < 0.1 + 0.8 * (level[ward] > 0.5)).float()
    cost = level[ward] + 0.05 * torch.randn(count, generator=draw)
    age = torch.rand(count, generator=draw)
    return torch.cat([age[:, None], functional.one_hot(ward, WARDS).float(), ill[:, None], cost[:, None]], 1)


@pytest.mark.parametrize("architecture", ["masked", "path-norm"])
def test_wide_features_are_seen_through_a_vector_for_each_category(architecture):
    """By hand, for the hidden units that the cost is read from."""
    settings = PROJECTED.model_copy(update={"architecture": architecture})
    network, some = Network(SCHEMA, GRAPH, settings), rows(20)
    row = network.initial(generator(1))
    parameters = network.with_moments(row[None] + 0.1 * torch.randn(row.shape, generator=generator(2)), some[None])
    state = network.layout.row_state(parameters[0])
    assert state[PROJECTION].shape == (WARDS, 3)
    group = 3 if architecture == "masked" else 0
    assert state["hidden.0.weight"].shape == (network.groups, 8, 1 + 3 + 1 + 1)
    shift, scale = (
        (state["mean"], state["deviation"]) if architecture == "masked" else (torch.zeros(43), torch.ones(43))
    )
    scaled = (some - shift) / scale
    seen = torch.cat([scaled[:, :1], scaled[:, 1:41] @ state[PROJECTION], scaled[:, 41:]], 1)
    if architecture == "masked":
        seen[:, [0, 4, 5]] = 0
    hidden = (seen @ state["hidden.0.weight"][group].T + state["hidden.0.bias"][group]).relu()
    hidden = (hidden @ state["hidden.1.weight"][group].T + state["hidden.1.bias"][group]).relu()
    wanted = shift[42] + scale[42] * (hidden @ state["head.weight"][42] + state["head.bias"][42])
    assert torch.allclose(network.forward(parameters, some[None])[0, :, 42], wanted, atol=1e-5)
    assert 0.1 < (scaled[:, 1:41] @ state[PROJECTION]).std() < 2, "about as large as other inputs from the start"


def test_each_feature_has_a_projection_of_its_own():
    wide = [Feature(name, "categorical", tuple("abcde"[:count])) for name, count in (("x", 4), ("y", 5))]
    schema = Schema((wide[0], Feature("age", "real"), wide[1], Feature("scan", "embedding", size=3)))
    settings = NGMSettings(projected_above=3, projection=2)
    projections = Projections(schema, settings)
    assert projections.shape == (9, 2)
    assert projections.input_feature.tolist() == [0, 0, 1, 2, 2, 3, 3, 3]
    weight, projection = torch.randn(2, 3, 4, 8), torch.randn(2, 9, 2)
    for client in range(2):
        vectors = projection[client]
        matrix = torch.block_diag(vectors[:4].T, torch.eye(1), vectors[4:].T, torch.eye(3))
        found = projections.applied(weight, projection)[client]
        assert torch.allclose(found, weight[client] @ matrix, atol=1e-6)


def test_without_wide_features_nothing_changes():
    plain = Network(SCHEMA, GRAPH, PROJECTED.model_copy(update={"projected_above": WARDS}))
    assert PROJECTION not in plain.layout.names
    assert (plain.choices, plain.feature_choice.tolist()) == (4, [0, 1, 2, 3])
    assert not Network(SCHEMA, GRAPH, PROJECTED.model_copy(update={"projected_above": None})).projections


@pytest.mark.slow
def test_what_a_wide_feature_tells_gets_through():
    fit = fit_ngm(SCHEMA, GRAPH, [rows(2000)], [rows(500, 1)], ["one"], PROJECTED, 0)
    assert fit.violation == 0
    assert float(fit.r_squared[0, 3]) > 0.9, "of the cost; with the level known it would be 0.97"
    asked = rows(2000, 2)
    chances = fit.network.predict(fit.parameters, asked[None])[0, :, 41].clamp(1e-4, 1 - 1e-4)
    entropy = float(functional.binary_cross_entropy(chances, asked[:, 41]))
    assert entropy < 0.45, "0.33 with the level known, 0.69 without"
    direct = Network(SCHEMA, GRAPH, PROJECTED.model_copy(update={"projected_above": None}))
    assert fit.network.layout.num_parameters < 0.75 * direct.layout.num_parameters


def test_a_model_is_that_of_one_epoch():
    network = Network(SCHEMA, GRAPH, PROJECTED)
    start = torch.stack([network.initial(generator(0, name)) for name in "ab"])
    found = train(network, start, [rows(300), rows(200, 1)], [rows(100, 2)] * 2, ["a", "b"], PROJECTED, 0)
    assert found.epochs.shape == (2, 1)
    shorter = PROJECTED.model_copy(update={"epochs": int(found.epochs[0])})
    again = train(network, start[:1], [rows(300)], [rows(100, 2)], ["a"], shorter, 0)
    assert torch.allclose(again.parameters[0], found.parameters[0], atol=1e-4)


def test_a_revealer_finds_what_depends_on_a_wide_feature():
    settings = NGRSettings(hidden=8, projected_above=30, projection=3, epochs=40, learning_rate=0.01)
    found = fit_ngr(SCHEMA, [rows(1500)], [rows(500, 1)], ["one"], settings, 0)
    assert not found.adjacency[0, 0].any()
    assert found.adjacency[0, 1, 3]
    assert violation(found.fit.network, derivatives(found.fit.network, found.fit.parameters, rows(20, 2)[None])) == 0


def test_a_perceptron_is_enlarged_around_its_projections():
    settings = PROJECTED.model_copy(update={"architecture": "path-norm"})
    common = Network(SCHEMA, GRAPH, settings)
    whole = Schema((*SCHEMA.features, Feature("dose", "categorical", tuple(map(str, range(35))))))
    network = enlarged(common, whole, torch.ones(5, 5).bool(), settings)
    known = common.initial(generator(1))[None]
    start = without_new_influence(network, common, network.initial(generator(2))[None])
    start[:, global_part(network, common)] = known
    some = rows(10)[None]
    more = torch.cat([some, functional.one_hot(torch.arange(10) % 35, 35)[None].float()], 2)
    assert torch.allclose(network.forward(start, more)[..., :43], common.forward(known, some), atol=1e-6)
