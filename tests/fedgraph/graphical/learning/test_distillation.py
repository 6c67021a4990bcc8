import pytest
import torch

from fedgraph.graphical.inference.sampling import draw
from fedgraph.graphical.learning.distillation import (
    DistillationSettings,
    distil_ngm,
    distil_ngr,
    pool,
    with_ensemble,
)
from fedgraph.graphical.learning.ngm import fit_ngm
from fedgraph.graphical.network.settings import NGMSettings, NGRSettings
from fedgraph.support.errors import DataError


def test_all_models_contribute_the_same_number_of_samples():
    assert DistillationSettings(samples=10).counts([5, 10, 30]) == [4, 3, 3]
    # By default as many as the clients' rows can tell.
    assert [sum(DistillationSettings().counts([rows, rows])) for rows in (30, 100, 5000)] == [10_000, 20_000, 100_000]


def numbered(*counts):
    """Samples that tell their client and place."""
    return [torch.stack([torch.full((count,), client), torch.arange(count)], 1) for client, count in enumerate(counts)]


def test_samples_of_all_clients_are_pooled_and_parted():
    settings = DistillationSettings(samples=41, held_out=0.25)
    training, held_out = pool(numbered(30, 30), [100, 300], settings, 0)
    assert (len(training), len(held_out)) == (31, 10)
    both = torch.cat([training, held_out]).tolist()
    assert sorted(map(tuple, both)) == [(0, place) for place in range(21)] + [(1, place) for place in range(20)]
    assert both != sorted(both)
    assert torch.equal(training, pool(torch.stack(numbered(30, 30)), [100, 300], settings, 0)[0])
    assert not torch.equal(training, pool(numbered(30, 30), [100, 300], settings, 1)[0])


@pytest.mark.parametrize("weight", [0, 0.5, 1, 2.25])
def test_public_rows_count_by_their_weight(weight):
    settings = DistillationSettings(samples=20, public_weight=weight, held_out=0.2)
    public = torch.stack([torch.full((40,), 9), torch.arange(40)], 1)
    parts = pool(numbered(10, 10), [1, 1], settings, 0, public)
    seen = []
    for part, samples, rows in zip(parts, (16, 4), (32, 8), strict=True):
        added = part[samples:]
        assert (part[:samples, 0] < 9).all()
        assert (added[:, 0] == 9).all()
        assert len(added) == round(weight * rows)
        times = torch.bincount(added[:, 1], minlength=40)
        assert set(times[times > 0].tolist()) <= {int(weight), int(weight) + 1}
        seen.append(times > 0)
    assert not (seen[0] & seen[1]).any()


def test_too_few_samples_are_refused():
    with pytest.raises(DataError, match="10 samples .*9 were drawn"):
        pool(numbered(10, 9), [5, 5], DistillationSettings(samples=20), 0)
    with pytest.raises(DataError, match=r"2 samples .*0\.1"):
        pool(numbered(10, 9), [5, 5], DistillationSettings(samples=2), 0)


def test_the_global_model_knows_what_each_client_knows_a_part_of(chain, numbers, chain_graph):
    """Samples of two clients, each from one half of the values of the first feature."""
    rows, held_out = chain(6000, 3), chain(1000, 3, seed=1)
    order = rows[:, 0].argsort()
    halves = [rows[order[:3000]], rows[order[3000:]]]
    settings = NGMSettings(hidden=8, epochs=10, learning_rate=0.01)
    training, kept = pool(halves, [3000, 3000], DistillationSettings(samples=4000), 0)
    found = distil_ngm(numbers(3), chain_graph(3), training, kept, settings, 0)
    again = fit_ngm(numbers(3), chain_graph(3), [training], [kept], ["server"], settings, 0)
    assert torch.equal(found.parameters, again.parameters)
    errors = (found.network.forward(found.parameters, held_out[None])[0] - held_out)[:, 0]
    # The law of the chain leaves 1 - 0.7^2 of the variance.
    assert errors.square().mean() / held_out[:, 0].var() == pytest.approx(0.51, abs=0.06)
    ngr = distil_ngr(numbers(3), training, kept, NGRSettings(hidden=8, epochs=10, learning_rate=0.01), 0)
    assert torch.equal(ngr.adjacency[0], chain_graph(3))


def test_an_ensemble_tells_of_each_sample_what_all_clients_models_do_by_their_shares(
    chain, numbers, chain_graph, monkeypatch
):
    schema, graph, settings = numbers(3), chain_graph(3), NGMSettings(hidden=4, epochs=2)
    parts = [chain(100, 3, seed) for seed in (1, 2, 3)]
    fit = fit_ngm(schema, graph, parts, parts, ["a", "b", "c"], settings, 0)
    samples = draw(fit.network, fit.parameters, 7, ["a", "b", "c"], 0)
    told = [[fit.network.predict(fit.parameters[[m]], samples[[c]])[0] for m in range(3)] for c in range(3)]
    wanted = torch.stack([0.5 * own[0] + 0.3 * own[1] + 0.2 * own[2] for own in told])
    for at_once in (2**16, 12):
        monkeypatch.setattr("fedgraph.graphical.learning.distillation.AT_ONCE", at_once)
        found = with_ensemble(fit.network, fit.parameters, samples, [5, 3, 2])
        assert torch.equal(found[..., :3], samples)
        assert torch.allclose(found[..., 3:], wanted, atol=1e-6)


def test_by_few_samples_an_ensemble_of_models_teaches_more_than_each_of_them_alone(chain, numbers, chain_graph):
    schema, graph = numbers(3), chain_graph(3)
    settings = NGMSettings(hidden=8, epochs=60, learning_rate=0.02)
    parts, names = [chain(25, 3, seed) for seed in range(6)], list("abcdef")
    fit = fit_ngm(schema, graph, parts, parts, names, settings, 0)
    samples = draw(fit.network, fit.parameters, 20, names, 0)
    fresh = chain(4000, 3, 9)[None]
    # What rows without number would teach: the noise about it is the same for all models.
    wanted = fit_ngm(schema, graph, [chain(4000, 3, 10)], [fresh[0]], ["all"], settings, 0).parameters
    errors = []
    alone = torch.cat([samples, fit.network.predict(fit.parameters, samples)], 2)
    for tables in (alone, with_ensemble(fit.network, fit.parameters, samples, [1] * 6)):
        pooled = pool(tables, [1] * 6, DistillationSettings(samples=120), 0)
        found = distil_ngm(schema, graph, *pooled, settings, 0)
        told, best = (found.network.forward(each, fresh) for each in (found.parameters, wanted))
        errors.append((told - best).square().mean())
    assert errors[1] < 0.7 * errors[0]
