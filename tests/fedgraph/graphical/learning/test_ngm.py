import pytest
import torch
from torch.nn import functional

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.settings import NGMSettings

QUICK = NGMSettings(epochs=12, learning_rate=0.01)


def explained_by_neighbours(rows, graph):
    """R^2 of each feature's linear regression on its neighbours, which is the true conditional of a Gaussian."""
    found = []
    for feature in range(rows.shape[1]):
        inputs = torch.cat([rows[:, graph[feature]], torch.ones(len(rows), 1)], 1)
        fit = inputs @ torch.linalg.lstsq(inputs, rows[:, [feature]]).solution
        found.append(1 - (rows[:, feature] - fit[:, 0]).var() / rows[:, feature].var())
    return torch.stack(found)


def test_a_chain_is_fitted_as_well_as_can_be_and_its_graph_holds(chain, numbers, chain_graph):
    rows, held_out = chain(5000), chain(1000, seed=1)
    found = fit_ngm(numbers(10), chain_graph(10), [rows], [held_out], ["a"], QUICK, seed=0)
    possible = explained_by_neighbours(held_out, chain_graph(10))
    assert possible.min() > 0.4
    assert (found.r_squared[0] - possible).abs().max() < 0.05
    assert found.violation.tolist() == [0]


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
def test_mixed_features_are_predicted_as_their_neighbours_say(mixed, loss):
    """Against Bayes' rule: P(place | ill, age) ~ P(place | ill) P(age | place)."""
    schema, rows = mixed(4000)
    held_out = mixed(1000, seed=1)[1]
    graph = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()
    settings = NGMSettings(epochs=12, learning_rate=0.01, loss=loss)
    found = fit_ngm(schema, graph, [rows], [held_out], ["a"], settings, seed=0)
    predictions = found.network.forward(found.parameters, held_out[None])[0]
    ill, age = held_out[:, 1].long(), held_out[:, [5]]
    of_ill = torch.tensor([[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]])[ill]
    # Ages below 0 are cut off; what is left of their density does not matter between places.
    wanted = of_ill * torch.exp(-0.5 * ((age - 0.3 * torch.arange(3)) / 0.1) ** 2)
    wanted /= wanted.sum(1, keepdim=True)
    assert (found.network.probabilities(predictions, "place") - wanted).abs().mean() < 0.03
    for place in range(3):
        of_place = held_out[:, 2 + place] == 1
        assert predictions[of_place, 5].mean() == pytest.approx(float(held_out[of_place, 5].mean()), abs=0.02)
    assert found.violation.tolist() == [0]


def test_binary_chances_are_those_that_the_table_was_drawn_with(mixed):
    """P(ill | size) = 0.1 + 0.8 size."""
    schema, rows = mixed(4000)
    schema, both = schema.select(["size", "ill"]), torch.ones(2, 2).bool()
    found = fit_ngm(schema, both, [rows[:3000, :2]], [rows[3000:, :2]], ["a"], QUICK, seed=0)
    size = torch.tensor([[0.1, 0], [0.5, 0], [0.9, 0]])
    chances = found.network.probabilities(found.network.forward(found.parameters, size[None]), "ill")[0, :, 1]
    assert chances.tolist() == pytest.approx([0.18, 0.5, 0.82], abs=0.07)


def test_missing_values_are_neither_learned_nor_in_the_way(chain, numbers, chain_graph):
    rows, held_out = chain(3000, 4), chain(1000, 4, seed=1)
    gaps = torch.rand(rows.shape, generator=torch.Generator().manual_seed(2)) < 0.3
    found = fit_ngm(numbers(4), chain_graph(4), [rows.masked_fill(gaps, torch.nan)], [held_out], ["a"], QUICK, seed=0)
    assert (found.r_squared[0] - explained_by_neighbours(held_out, chain_graph(4))).abs().max() < 0.05
    # Best for the feature 1 without the feature 0 is what the feature 2 alone says: R^2 = 0.7^2.
    asked = held_out.index_fill(1, torch.tensor([0]), torch.nan)
    error = (found.network.forward(found.parameters, asked[None])[0] - held_out)[:, 1].square().mean()
    assert 1 - error / held_out[:, 1].var() == pytest.approx(0.49, abs=0.05)


def test_features_alone_are_predicted_by_their_means(chain, numbers):
    rows = torch.cat([chain(200, 2), torch.rand(200, 1, generator=torch.Generator().manual_seed(0))], 1)
    graph = torch.tensor([[0, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    found = fit_ngm(numbers(3), graph, [rows[:150]], [rows[150:]], ["a"], QUICK, seed=0)
    predictions = found.network.forward(found.parameters, rows[None])[0, :, 2]
    assert torch.allclose(predictions, rows[:150, 2].mean().expand(200), atol=1e-6)


def test_clients_of_a_fit_keep_how_far_off_they_are(chain, numbers, chain_graph):
    rows = [chain(200, 3, seed=seed) for seed in (0, 1)]
    held_out = [chain(size, 3, seed=2) for size in (50, 80)]
    found = fit_ngm(numbers(3), chain_graph(3), rows, held_out, ["a", "b"], NGMSettings(epochs=2), seed=0)
    residual = found.network.layout.unflatten(found.parameters)["residual"]
    for client, own in enumerate(held_out):
        errors = found.network.forward(found.parameters[[client]], own[None])[0] - own
        assert torch.allclose(residual[client], errors.square().mean(0), rtol=1e-4)
        r_squared = 1 - errors.square().sum(0) / (own - own.mean(0)).square().sum(0)
        assert torch.allclose(found.r_squared[client], r_squared, atol=1e-4)
    again = fit_ngm(numbers(3), chain_graph(3), rows, held_out, ["a", "b"], NGMSettings(epochs=2), seed=0)
    assert torch.equal(again.parameters, found.parameters)


def test_what_does_not_vary_has_no_r_squared(numbers):
    rows = functional.pad(torch.rand(60, 1, generator=torch.Generator().manual_seed(0)), (0, 1), value=0.5)
    found = fit_ngm(numbers(2), torch.ones(2, 2).bool(), [rows], [rows], ["a"], NGMSettings(epochs=2), seed=0)
    assert found.r_squared.isnan().tolist() == [[False, True]]
    assert found.parameters.isfinite().all()


def test_the_papers_network_only_leans_to_the_graph(chain, numbers, chain_graph):
    """Its forbidden derivatives become smaller by the penalty, but not zero."""
    rows, held_out = chain(1000, 4), chain(300, 4, seed=1)
    table = {"architecture": "path-norm", "loss": "squared", "hidden": 20, "epochs": 15, "learning-rate": 0.02}

    def violation(**more):
        settings = NGMSettings.model_validate({**table, **more})
        return float(fit_ngm(numbers(4), chain_graph(4), [rows], [held_out], ["a"], settings, seed=0).violation)

    free = violation(**{"path-weight": 0.0, "path-tolerance": 1e9})
    held = violation(**{"path-weight": 1.0, "path-tolerance": 0.5})
    assert 0 < held < 0.6 * free


def test_a_schema_of_one_feature_has_a_model_too():
    schema = Schema((Feature("place", "categorical", ("a", "b", "c")),))
    rows = functional.one_hot(torch.tensor([0, 0, 0, 1, 2, 0] * 10), 3).float()
    found = fit_ngm(schema, torch.zeros(1, 1).bool(), [rows], [rows], ["a"], NGMSettings(epochs=2), seed=0)
    assert isinstance(found.network, Network)
    predictions = found.network.forward(found.parameters, rows[None])[0]
    assert torch.allclose(predictions, torch.tensor([4, 1, 1]) / 6, atol=1e-5)
