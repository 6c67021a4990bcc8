import math
from dataclasses import replace

import pytest
import torch

from fedgraph.data.owners.samples import SAMPLE_SPLITS
from fedgraph.fusion import FusionData, FusionSettings, build_network, predict, scores
from fedgraph.fusion.ensemble import mixture_weights
from fedgraph.fusion.training import _Passes, fit
from fedgraph.support.errors import DataError, RunError
from fedgraph.support.randomness import generator

OWNERS, SIZE = 5, 3


def settings(**changed):
    return FusionSettings(**{"epochs": 6, "learning_rates": (0.03,), "batch_size": 20, "device": "cpu", **changed})


def data(number=240, **changed):
    """Each owner's first entry tells something of the label, with a sign of its own: alignment is needed."""
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (number,), generator=random)
    embeddings = torch.randn(number, OWNERS, SIZE, generator=random)
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    embeddings[..., 0] += signs * (2.0 * labels[:, None] - 1)
    split = torch.arange(number) % 4
    values = {
        "embeddings": embeddings,
        "present": torch.ones(number, OWNERS, dtype=torch.bool),
        "labels": torch.where(split == SAMPLE_SPLITS.index("new"), -1, labels),
        "split": split.to(torch.int8),
        "sizes": torch.full((OWNERS,), SIZE),
        "classes": 2,
    }
    return FusionData(**{**values, **changed})


EVERY = [
    {},
    {"draw_per": "batch"},
    {"graph": "gumbel"},
    {"graph": "neighbours", "neighbours": 2},
    {"graph": "none"},
    {"fusion": "transformer", "epochs": 15},
    {"fusion": "concatenation"},
    {"scaling": "owner"},
    {"fusion": "concatenation", "scaling": "owner"},
    {"draw_per": "never", "alignment_affine": True, "head": (4,), "owner_dropout": 0.2},
    {"fusion": "concatenation", "owner_dropout": 0.4},
    {"fusion": "ensemble", "members": {"graph": 2, "concatenation": 1}, "scaling": "owner"},
]


def accuracy(found, samples):
    embeddings, present, labels = samples.of_split("test")
    return scores(predict(found.network, embeddings, present).probabilities, labels)["accuracy"]


@pytest.mark.parametrize("changed", EVERY, ids=str)
def test_every_network_learns(changed):
    samples = data()
    found = fit(settings(**changed), samples, 0)
    assert accuracy(found, samples) > 0.9
    assert found.history[-1].training_loss < found.history[0].training_loss


def test_alignment_matters_where_owners_disagree_in_their_coordinates():
    samples = data()
    without = fit(settings(graph="none", alignment="none"), samples, 0)
    frozen = fit(settings(graph="none", alignment_trained=False), samples, 0)
    assert accuracy(without, samples) < 0.75 < 0.9 < accuracy(fit(settings(graph="none"), samples, 0), samples)
    start = fit(settings(graph="none", alignment_trained=False, epochs=1), samples, 0).network.alignment.matrix
    assert torch.equal(frozen.network.alignment.matrix, start)


@pytest.mark.parametrize("rates", [(0.001, 0.3), (0.3, 0.001)])
def test_weights_are_those_of_the_best_epoch_and_rate(rates):
    samples = data()
    seen = []
    found = fit(settings(learning_rates=rates, epochs=8), samples, 0, seen.append)
    assert found.history == tuple(seen)
    best = min(found.history, key=lambda each: each.validation_loss)
    assert (found.learning_rate, found.epoch) == (best.learning_rate, best.epoch)
    assert found.validation_loss == best.validation_loss
    assert best is not found.history[-1], "else the test shows nothing"
    embeddings, present, labels = samples.of_split("validation")
    probabilities = predict(found.network, embeddings, present, draws=10, seed=0).probabilities
    assert scores(probabilities, labels)["loss"] == pytest.approx(best.validation_loss, rel=1e-5)
    assert not found.network.training


def test_the_best_epoch_can_be_that_of_the_largest_area():
    samples, rates = data(), (0.3, 0.001)
    found = fit(settings(learning_rates=rates, epochs=8, monitor="auc"), samples, 0)
    embeddings, present, labels = samples.of_split("validation")
    area = scores(predict(found.network, embeddings, present, draws=10, seed=0).probabilities, labels)["auc"]
    assert found.quality == pytest.approx(area)
    alone = [fit(settings(learning_rates=(rate,), epochs=8, monitor="auc"), samples, 0).quality for rate in rates]
    assert found.quality == max(alone)
    by_loss = fit(settings(learning_rates=rates, epochs=8), samples, 0)
    assert found.validation_loss > by_loss.validation_loss, "else the test shows nothing"
    (epoch,) = (
        each for each in found.history if (each.learning_rate, each.epoch) == (found.learning_rate, found.epoch)
    )
    assert epoch.validation_loss == found.validation_loss


def test_an_area_needs_two_classes():
    samples = data()
    with pytest.raises(DataError, match="at least two classes"):
        fit(settings(monitor="auc"), replace(samples, labels=torch.where(samples.split == 1, 0, samples.labels)), 0)


def test_scaling_takes_in_what_owners_measure_in_other_units():
    samples = data()
    units = torch.tensor([1e-3, 1e3, 1.0, 50.0, 1e-2])[:, None]
    changed = replace(samples, embeddings=samples.embeddings * units + 3 * units)
    assert accuracy(fit(settings(), changed, 0), changed) < 0.9
    assert accuracy(fit(settings(scaling="owner"), changed, 0), changed) > 0.95


def test_the_entropy_of_rows_draws_hard_alignment_to_permutations():
    samples = data()

    def largest(weight):
        found = fit(settings(alignment="hard", graph="none", epochs=30, sinkhorn_entropy=weight), samples, 0)
        return float(found.network.alignment.matrices().detach().max(-1).values.mean())

    assert largest(1.0) > 0.95
    assert largest(0.0) < 0.8


def test_what_is_averaged_counts_in_validation_too():
    samples = data()
    found = fit(settings(average="logits", epochs=3), samples, 0)
    embeddings, present, labels = samples.of_split("validation")
    loss = [
        scores(predict(found.network, embeddings, present, 10, 0, average).probabilities, labels)["loss"]
        for average in ("logits", "probabilities")
    ]
    assert found.validation_loss == pytest.approx(loss[0], rel=1e-5)
    assert abs(loss[0] - loss[1]) > 1e-4


@pytest.mark.parametrize("changed", [{}, {"fusion": "concatenation"}, {"fusion": "transformer"}], ids=str)
def test_weights_decay_and_nothing_else_does(changed):
    # Samples of which nothing can be learned: what changes beyond Adam's steps is decay.
    samples = replace(data(), embeddings=torch.zeros(240, OWNERS, SIZE))
    before = fit(settings(epochs=1, learning_rates=(1e-9,), **changed), samples, 0).network.state_dict()
    after = fit(settings(epochs=1, learning_rates=(1e-9,), weight_decay=1e8, **changed), samples, 0)
    steps = 3
    for name, value in after.network.named_parameters():
        decays = value.ndim > 1 and not name.startswith("consensus.")
        expected = before[name] * (0.9**steps if decays else 1.0)
        torch.testing.assert_close(value.data, expected, atol=1e-5, rtol=1e-4, msg=name)


def test_training_stops_without_a_better_epoch_for_so_long():
    found = fit(settings(epochs=300, patience=3, learning_rates=(0.3,)), data(), 0)
    assert len(found.history) == found.epoch + 3 < 300


def test_the_same_seed_gives_the_same_weights_whatever_the_workers_and_global_state(monkeypatch):
    monkeypatch.setattr("fedgraph.fusion.graphs.drawn._BLOCK_ENTRIES", 6 * OWNERS**2)
    states = []
    for seed, workers in ((0, 1), (0, 3), (1, 1)):
        torch.manual_seed(seed + workers)
        states.append(fit(settings(workers=workers, epochs=2), data(), seed).network.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["weights.0"], states[2]["weights.0"])


def test_an_epoch_sees_every_sample_once():
    seen = []

    class Spy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(2))

        def forward(self, embeddings, present, generator):
            seen.append(embeddings[:, 0, 0])
            return embeddings[:, :2, 0] + self.weight

        def constrain(self):
            seen.append("constrained")

        def penalty(self):
            return 0.0

    spy = Spy()
    marked = torch.arange(50.0)[:, None, None].expand(50, OWNERS, SIZE)
    training = (marked, torch.ones(50, OWNERS), torch.zeros(50, dtype=torch.int64))
    loss = _Passes(spy, settings(), 1e-9)(training, generator(0, "x"))
    assert loss == pytest.approx(math.log(2))
    assert seen[1::2] == ["constrained"] * 3
    assert [len(part) for part in seen[::2]] == [20, 20, 10]
    order = torch.cat(seen[::2])
    assert not torch.equal(order, torch.arange(50.0))
    assert torch.equal(order.sort().values, torch.arange(50.0))


DIVERGES = 1e30
"""At this learning rate a network diverges in its first epoch."""


@pytest.mark.parametrize("rates", [(DIVERGES, 0.03), (0.03, DIVERGES)])
def test_a_learning_rate_at_which_training_diverges_is_left_out(rates, caplog):
    samples, seen = data(), []
    found = fit(settings(learning_rates=rates, fusion="mean-pooling", epochs=3), samples, 0, seen.append)
    alone = fit(settings(learning_rates=(0.03,), fusion="mean-pooling", epochs=3), samples, 0)
    assert (found.learning_rate, found.epoch, found.history) == (0.03, alone.epoch, alone.history)
    assert tuple(seen) == found.history
    kept, expected = found.network.state_dict(), alone.network.state_dict()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)
    assert (found.diverged, alone.diverged) == ((DIVERGES,), ())
    (warning,) = caplog.records
    assert "diverged in epoch 1 at the learning rate 1e+30" in warning.getMessage()
    assert "is skipped" in warning.getMessage()


def test_a_rate_that_diverges_later_keeps_its_finite_epochs_in_the_history_alone(monkeypatch):
    losses = iter([0.1, 0.01, math.inf, 0.5, 0.4, 0.3])
    monkeypatch.setattr("fedgraph.fusion.training._validated", lambda *arguments: (loss := next(losses), -loss))
    found = fit(settings(learning_rates=(0.03, 0.01), fusion="mean-pooling", epochs=3), data(), 0)
    assert [(each.learning_rate, each.epoch) for each in found.history] == [(0.03, 1), (0.03, 2), *(
        (0.01, epoch) for epoch in (1, 2, 3)
    )]  # fmt: skip
    assert (found.learning_rate, found.epoch, found.validation_loss) == (0.01, 3, 0.3)


def test_a_training_that_diverges_at_every_learning_rate_says_so():
    message = r"in epoch 1 at the learning rate 1e\+30.*in epoch 1 at the learning rate 1e\+31.*smaller learning-rates"
    with pytest.raises(RunError, match=message):
        fit(settings(learning_rates=(DIVERGES, 10 * DIVERGES), fusion="mean-pooling"), data(), 0)


def broken(name, value, place=None):
    tensor = getattr(data(), name).clone()
    tensor[place if place is not None else slice(None)] = value
    return data(**{name: tensor})


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (broken("split", 2, data().split == 1), "no validation samples"),
        (broken("split", 2, data().split == 0), "no train samples"),
        (broken("labels", -1), "labels outside 0 to 1"),
        (broken("labels", 2), "labels outside 0 to 1"),
        (broken("embeddings", math.nan, (0, 3)), "position 3 .*train"),
    ],
)
def test_samples_that_cannot_be_used_are_refused(samples, message):
    with pytest.raises(DataError, match=message):
        fit(settings(), samples, 0)


def test_what_stands_where_an_owner_lacks_a_sample_does_not_matter():
    present = torch.rand(240, OWNERS, generator=torch.Generator().manual_seed(1)) > 0.3
    clean = data(present=present)
    dirty = data(present=present, embeddings=torch.where(present[..., None], clean.embeddings, math.nan))
    first, second = (fit(settings(epochs=2), each, 0).network.state_dict() for each in (clean, dirty))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_neighbours_that_are_evaluated_are_those_of_the_training_samples():
    samples = data()
    network = fit(settings(graph="neighbours", neighbours=2), samples, 0).network
    embeddings, present, _ = samples.of_split("train")
    kind = network.consensus.graph.train()
    expected = kind(network.alignment(embeddings), present.float()).detach()
    torch.testing.assert_close(network.consensus.expected(), expected)
    assert (expected > 0).any()


def test_a_single_owner_can_be_fused_too():
    samples = data()
    one = data(embeddings=samples.embeddings[:, :1], present=samples.present[:, :1], sizes=torch.tensor([SIZE]))
    for graph in ("icdf", "neighbours"):
        assert accuracy(fit(settings(graph=graph, epochs=3), one, 0), one) > 0.7


def test_owner_dropout_leaves_owners_out_of_a_step_and_keeps_the_mean_of_sums():
    embeddings, present = torch.ones(400, OWNERS, SIZE), torch.ones(400, OWNERS, dtype=torch.bool)
    present[:, 0] = False
    for fusion, scale in (("graph", 1.0), ("concatenation", 1 / 0.7)):
        network = build_network(settings(fusion=fusion), torch.full((OWNERS,), SIZE), 2)
        scaled, kept = network.dropped(embeddings, present, 0.3, generator(0, "drop"))
        assert not kept[:, 0].any(), "who is absent stays absent"
        assert float(kept[:, 1:].float().mean()) == pytest.approx(0.7, abs=0.04)
        assert len(kept.unique(dim=0)) > 10, "every sample loses others"
        torch.testing.assert_close(scaled, scale * embeddings)


def test_owner_dropout_changes_training():
    samples = data()
    without, small = (fit(settings(owner_dropout=share, epochs=1), samples, 0).network for share in (0.0, 0.5))
    assert not torch.equal(without.weights[0], small.weights[0])


def test_of_several_owner_dropouts_the_one_with_the_best_validation_is_kept():
    samples, chosen = data(), settings(owner_dropout=(0.6, 0.0), learning_rates=(0.001, 0.03))
    alone = [fit(settings(owner_dropout=share, learning_rates=(0.001, 0.03)), samples, 0) for share in (0.6, 0.0)]
    found = fit(chosen, samples, 0)
    better = max(alone, key=lambda each: each.quality)
    assert alone[0].quality != alone[1].quality
    assert (found.owner_dropout, found.learning_rate) == (better.owner_dropout, better.learning_rate)
    assert torch.equal(found.network.weights[0], better.network.weights[0])
    assert found.history == alone[0].history + alone[1].history
    assert alone[0].facts()["owner_dropout"] == 0.6
    assert "owner_dropout" not in alone[1].facts()


def test_an_ensemble_is_the_mean_of_networks_that_were_trained_alone():
    samples = data()
    chosen = settings(fusion="ensemble", members={"graph": 2, "concatenation": 1}, scaling="owner", draw_per="never")
    found = fit(chosen, samples, 0)
    embeddings, present, _ = samples.of_split("test")
    kinds = [own.fusion for own, _ in chosen.networks(0)]
    assert kinds == ["graph", "graph", "concatenation"]
    alone = [fit(own, samples, seed) for own, seed in chosen.networks(0)]
    assert [each.epoch for each in found.members] == [each.epoch for each in alone]
    told = torch.stack([predict(each.network, embeddings, present).probabilities for each in alone])
    assert not torch.allclose(told[0], told[1]), "networks of one kind differ"
    whole = predict(found.network, embeddings, present).probabilities
    torch.testing.assert_close(whole, told.mean(0), atol=1e-6, rtol=1e-5)
    assert len(found.history) == sum(len(each.history) for each in alone)
    again = build_network(chosen, samples.sizes, 2)
    again.load_state_dict(found.network.state_dict())
    assert torch.equal(predict(again, embeddings, present).probabilities, whole)


def test_members_are_weighted_by_the_likelihood_of_validation_samples():
    samples = data()
    chosen = settings(fusion="ensemble", members={"mean-pooling": 1, "graph": 1}, alignment="soft", epochs=3)
    equal, weighted = (
        fit(chosen.model_copy(update={"member_weights": how}), samples, 0) for how in ("equal", "validation")
    )
    assert weighted.validation_loss < equal.validation_loss
    assert float(weighted.network.weights.sum()) == pytest.approx(1, abs=1e-6)


def test_mixture_weights_have_the_largest_likelihood():
    probabilities = torch.rand(3, 50, generator=torch.Generator().manual_seed(0)) ** torch.tensor([[1.0], [2.0], [4.0]])
    found = mixture_weights(probabilities)
    best = (found[:, None] * probabilities).sum(0).log().sum()
    others = torch.rand(200, 3, generator=torch.Generator().manual_seed(1))
    for other in others / others.sum(1, keepdim=True):
        assert (other[:, None] * probabilities).sum(0).log().sum() <= best + 1e-4
    assert torch.allclose(mixture_weights(torch.tensor([[0.9, 0.8], [0.1, 0.2]])), torch.tensor([1.0, 0.0]).double())
