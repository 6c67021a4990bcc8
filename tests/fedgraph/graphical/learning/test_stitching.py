import numpy as np
import pytest
import torch

from fedgraph.data.encoding.encoding import Encoding
from fedgraph.data.encoding.scaling import Scaling
from fedgraph.data.encoding.values import as_table
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.dependence import derivatives, forbidden_pairs, violation
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.learning.stitching import ClientRows, GlobalModel, stitch_ngm, stitch_ngr
from fedgraph.graphical.model import GraphicalModel
from fedgraph.graphical.network.penalties import paths
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.support.randomness import generator

QUICK = {"epochs": 12, "learning-rate": 0.01, "hidden": 8}
BOUNDED = {"path-norm": "l1", "path-rows": "plain", "path-log": False}
PAPER = {**QUICK, **BOUNDED, "architecture": "path-norm", "hidden": 20}
COMMON = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
PRIVATE = (Feature("dose", "real"), Feature("clinic", "categorical", tuple("abcde")))


def edges(*pairs):
    graph = torch.zeros(6, 6).bool()
    for first, second in pairs:
        graph[first, second] = graph[second, first] = True
    return graph


#: The edge between size and place is not in the global graph, and touches no private feature.
OWN = edges((1, 2), (0, 2), (3, 4), (1, 4), (2, 5), (4, 5))


@pytest.fixture(scope="module")
def client(mixed):
    """``client(rows)`` -> a schema with two private features, and its rows: the dose depends on age and illness, the
    clinic on the place and the dose."""

    def rows(count, seed=0):
        schema, common = mixed(count, seed)
        random = generator(seed, "private")
        dose = 0.4 * common[:, 5] + 0.3 * common[:, 1] + 0.08 * torch.randn(count, generator=random)
        place = common[:, 2:5].argmax(1)
        clinic = (place + (dose > 0.3) + (torch.rand(count, generator=random) < 0.2)).long()
        private = torch.nn.functional.one_hot(clinic, 5).float()
        return Schema(schema.features + PRIVATE), torch.cat([common, dose[:, None], private], 1)

    return rows


@pytest.fixture(scope="module", params=["masked", "path-norm"])
def stitched(request, mixed, client):
    """The global model, a client's schema, its rows held out, and what was stitched; and the settings of both."""
    settings = NGMSettings.model_validate(QUICK if request.param == "masked" else PAPER)
    schema, rows = mixed(2500, seed=5)
    found = fit_ngm(schema, COMMON, [rows[:2000]], [rows[2000:]], ["server"], settings, 0)
    model = GlobalModel(found.network, found.parameters)
    own, rows = client(2500)
    parts = ClientRows("north", rows[:2000], rows[2000:])
    return model, own, rows[2000:], stitch_ngm(model, own, OWN, parts, settings, 0), settings


def test_what_was_stitched_can_be_saved(stitched, tmp_path):
    _, schema, rows, fit, _ = stitched
    encoding = Encoding(schema, Scaling(dict.fromkeys(("size", "age", "dose"), (0.0, 10.0))))
    model = GraphicalModel.of_one(fit.network, fit.parameters, encoding)
    model.save(tmp_path / "it")
    again = GraphicalModel.load(tmp_path / "it")
    asked = as_table(encoding.decode(rows[:50]), schema)
    for target in ("age", "place", "dose", "clinic"):
        np.testing.assert_array_equal(again.predict(asked, target), model.predict(asked, target))
    assert again.graph == model.graph
    assert again.sample(20).column("dose").equals(model.sample(20).column("dose"))


@pytest.mark.parametrize("stitched", ["masked"], indirect=True)
def test_where_no_private_feature_is_known_a_personal_model_answers_as_the_global_one(stitched):
    model, schema, rows, fit, _ = stitched
    ranges = dict.fromkeys(("size", "age", "dose"), (0.0, 10.0))
    own = GraphicalModel.of_one(fit.network, fit.parameters, Encoding(schema, Scaling(ranges)))
    common = model.network.schema
    given = GraphicalModel.of_one(
        model.network, model.parameters, Encoding(common, Scaling({name: ranges[name] for name in ("size", "age")}))
    )
    values = own.encoding.decode(rows[:40])
    values[::3, 0], values[1::3, 1], values[::2, 4:] = np.nan, np.nan, np.nan
    for target in common.names:
        found, alone = own.predict(values, target), given.predict(values[:, :4], target)
        np.testing.assert_array_equal(found[::2], alone[::2])
        np.testing.assert_array_equal(found[1::2], own.predict(values[1::2], target))
    chances, alone = own.predict_proba(values, "ill"), given.predict_proba(values[:, :4], "ill")
    assert np.abs(chances - alone)[1::2].max() > 0.05
    quantiles = own.conditional(values, ["age", "ill"])["age"].quantiles[0.5]
    assert np.isfinite(quantiles).all()
    np.testing.assert_array_equal(own.predict(values[::2], "dose") > 0, True)


def losses(network, predictions, rows):
    """Mean squared errors of numbers and mean log losses of categories."""
    found = []
    for feature in network.schema.features:
        units = network.schema.slices[feature.name]
        if feature.is_number:
            found.append((predictions[:, units] - rows[:, units]).square().mean())
        else:
            chances = network.probabilities(predictions, feature.name).clamp(min=1e-6)
            wanted = rows[:, units] if feature.width > 1 else torch.cat([1 - rows[:, units], rows[:, units]], 1)
            found.append(-(wanted * chances.log()).sum(1).mean())
    return torch.stack(found)


def test_a_client_keeps_what_is_common_and_learns_what_is_its_own(stitched):
    model, _, rows, fit, settings = stitched
    common = model.network.forward(model.parameters, rows[None, :, :6])[0]
    before = losses(model.network, common, rows[:, :6])
    predictions = fit.network.forward(fit.parameters, rows[None])[0]
    after = losses(fit.network, predictions, rows)
    assert (after[:4] <= 1.02 * before).all()
    # What can be said without any other feature: the mean and the shares.
    assert after[4] < 0.6 * rows[:, 6].var(correction=0)
    shares = rows[:, 7:].mean(0)
    assert after[5] < 0.8 * -(shares * shares.log()).sum()
    if settings.architecture == "path-norm":
        return
    # And without common ones: what the other private feature says, told its relation in these very rows.
    of_clinic = rows[:, 7:] @ ((rows[:, 7:].T @ rows[:, 6]) / rows[:, 7:].sum(0))
    assert after[4] < 0.8 * (of_clinic - rows[:, 6]).square().mean()
    bins = torch.bucketize(rows[:, 6].contiguous(), rows[:, 6].quantile(torch.linspace(0.1, 0.9, 9)))
    table = torch.stack([rows[bins == each, 7:].mean(0) for each in range(10)])[bins].clamp(min=1e-6)
    assert after[5] < 0.8 * -(rows[:, 7:] * table.log()).sum(1).mean()


def test_no_bit_of_the_global_weights_changes(stitched):
    model, _, _, fit, settings = stitched
    state, wanted = fit.network.state(fit.parameters), model.network.state(model.parameters)
    for name, values in wanted.items():
        if name == "residual":
            continue
        if settings.architecture == "masked":
            found = state[f"global.{name}"]
        else:
            found = state[name][tuple(slice(size) for size in values.shape)]
        assert torch.equal(found.view(torch.int32), values.view(torch.int32)), name


def excess_of_new_paths(model, fit, settings):
    """How far what was added to forbidden paths is beyond the tolerance."""
    new = paths(fit.network, fit.network.state(fit.parameters))[0]
    known = paths(model.network, model.network.state(model.parameters))[0]
    new[: len(known), : len(known)] -= known
    assert (known[forbidden_pairs(model.network)] > 0).any()
    return float((new[forbidden_pairs(fit.network)].max() - settings.path_tolerance).clamp(min=0))


@pytest.mark.parametrize("stitched", ["path-norm"], indirect=True)
def test_what_the_global_model_does_against_the_graph_is_not_the_clients_affair(stitched):
    model, _, _, fit, settings = stitched
    assert fit.trained.excess.tolist() == pytest.approx([excess_of_new_paths(model, fit, settings)], rel=1e-4)


def test_the_graph_is_the_global_one_with_what_touches_private_features(stitched):
    assert torch.equal(stitched[3].network.adjacency, edges((0, 1), (1, 2), (2, 3), (3, 4), (1, 4), (2, 5), (4, 5)))


def test_what_the_graph_forbids_has_no_influence(stitched):
    _, _, rows, fit, settings = stitched
    found = derivatives(fit.network, fit.parameters, rows[None, :100])
    if settings.architecture == "masked":
        assert (violation(fit.network, found) == 0).all()
        assert (fit.violation == 0).all()
        unit = fit.network.schema.unit_feature
        assert (found.largest[:, fit.network.adjacency[unit][:, unit]] > 0).all()


def test_before_training_common_features_are_predicted_as_by_the_global_model(stitched, client):
    model, schema, rows, _, settings = stitched
    idle = settings.model_copy(update={"learning_rate": 1e-30, "epochs": 1})
    fit = stitch_ngm(model, schema, OWN, ClientRows("north", rows, rows), idle, 0)
    found = fit.network.forward(fit.parameters, rows[None])[:, :, :6]
    wanted = model.network.forward(model.parameters, rows[None, :, :6])
    if settings.architecture == "masked":
        assert torch.equal(found, wanted)
    else:
        assert torch.allclose(found, wanted, atol=1e-6)


def revealed(chain, numbers, chain_graph, **table):
    """A chain of which the last two features are private: the global model, and what is stitched to it."""
    settings = NGRSettings.model_validate({"epochs": 15, "learning-rate": 0.01, **table})
    rows = chain(2500, 5)
    known = fit_ngm(numbers(3), chain_graph(3), [rows[:2000, :3]], [rows[2000:, :3]], ["server"], settings, 0)
    model = GlobalModel(known.network, known.parameters)
    return model, stitch_ngr(model, numbers(5), ClientRows("north", rows[:2000], rows[2000:]), settings, 0), settings


def test_a_revealer_finds_what_private_features_depend_on(chain, numbers, chain_graph):
    model, found, _ = revealed(chain, numbers, chain_graph, hidden=8)
    assert torch.equal(found.adjacency[0], chain_graph(5))
    assert torch.equal(found.fit.network.adjacency, chain_graph(5))
    assert found.fit.violation.tolist() == [0]
    assert found.fit.r_squared.min() > 0.4
    assert torch.equal(found.fit.parameters[:, found.fit.network.frozen], model.parameters)


def test_sparsity_is_asked_of_new_weights_only(chain, numbers, chain_graph):
    table = {"architecture": "path-norm", "loss": "squared", "hidden": 20, "path-rows": "plain", "path-norm": "l1"}
    (model, sparse, settings), (_, free, _) = (
        revealed(chain, numbers, chain_graph, sparsity=weight, **{"path-weight": 0}, **table) for weight in (3, 0)
    )
    assert sparse.dependencies[0, 3:].sum() < 0.5 * free.dependencies[0, 3:].sum()
    state, wanted = sparse.fit.network.state(sparse.fit.parameters), model.network.state(model.parameters)
    assert torch.equal(state["head.weight"][:, :3, :20], wanted["head.weight"])
    assert torch.equal(state["mean"][:, :3], wanted["mean"])
    wanted = excess_of_new_paths(model, sparse.fit, settings)
    assert sparse.fit.trained.excess.tolist() == pytest.approx([wanted], rel=1e-4)
    assert not sparse.dependencies[0, :3, :3].allclose(torch.zeros(3, 3), atol=0.1)


@pytest.mark.parametrize("stitched", ["masked"], indirect=True)
def test_clients_without_private_features_have_the_global_model(stitched):
    model, _, rows, _, settings = stitched
    rows = rows[:, :6]
    fit = stitch_ngm(model, model.network.schema, COMMON, ClientRows("south", rows, rows), settings, 0)
    wanted = model.network.forward(model.parameters, rows[None])
    assert torch.equal(fit.network.forward(fit.parameters, rows[None]), wanted)
