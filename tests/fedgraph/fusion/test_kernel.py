"""Training of fusion networks in C++ against operations of PyTorch, which tests of their own hold to other code."""

import math

import pytest
import torch

from fedgraph.fusion import FusionData, FusionSettings, build_network, predict, scores
from fedgraph.fusion import kernel as fusion_kernel
from fedgraph.fusion.consensus import DrawnConsensus
from fedgraph.fusion.kernel import CompiledPasses, suits
from fedgraph.fusion.learning import learn, make_optimizer
from fedgraph.fusion.training import fit
from fedgraph.models.native import loader as native
from fedgraph.support.randomness import generator

pytestmark = pytest.mark.skipif(fusion_kernel.library() is None, reason="no C++ compiler")

SAMPLES, BATCH, SIZE, CLASSES = 250, 40, 6, 3
RATE = 1e-3


def settings(**changed):
    return FusionSettings(**{"workers": 1, "device": "cpu", "batch_size": BATCH, "hidden": 5, **changed})


def network(chosen, owners=4, number=0):
    """A network with biases that are not 0, so that they matter."""
    found = build_network(chosen, torch.full((owners,), SIZE), CLASSES, torch.ones(owners, owners), number)
    with torch.no_grad():
        for name, each in found.named_parameters():
            if not name.endswith("theta") and not each.any():
                each.copy_(0.3 * torch.randn(each.shape, generator=generator(number, name)))
    return found


def samples(owners=4, absent=0.3):
    embeddings = torch.randn(SAMPLES, owners, SIZE, generator=generator(0, "embeddings"))
    present = torch.rand(SAMPLES, owners, generator=generator(0, "present")) >= absent
    labels = torch.randint(CLASSES, (SAMPLES,), generator=generator(0, "labels"))
    return embeddings * present[..., None], present, labels


def same_noise(found):
    """Give both ways the same noise, a matrix or a row for each minibatch in turn.

    C++ takes it of many minibatches, ``[minibatches, pairs, batch]`` or, of graphs that a minibatch shares,
    ``[minibatches, pairs]``; PyTorch of one, ``[samples, pairs]`` or ``[1, pairs]``.
    """
    consensus, steps = getattr(found, "consensus", None), iter(range(1000))
    if not isinstance(consensus, DrawnConsensus):
        return
    own = (BATCH,) if consensus.per_sample else ()

    def of_step(pairs):
        return 0.7 * torch.randn(pairs, *own, generator=generator(next(steps), "noise"))

    def noise(out, random):
        if found.training:
            return out.copy_(of_step(out.shape[1]).view(out.shape[1], -1).T[: len(out)])
        return out.copy_(torch.stack([of_step(out.shape[1]) for _ in range(len(out))]))

    consensus.graph.noise = noise


VARIANTS = {
    "as in the paper": {},
    "absent owners count": {"absent": "zeros"},
    "gumbel": {"graph": "gumbel"},
    "a graph per batch": {"draw_per": "batch"},
    "expected edges": {"draw_per": "never"},
    "another normal distribution": {"reference_options": {"loc": 0.2, "scale": 2.0}, "temperature": 0.3},
    "no graph": {"graph": "none"},
    "mean pooling": {"fusion": "mean-pooling"},
    "no alignment": {"alignment": "none"},
    "alignment that is not trained": {"alignment_trained": False},
    "affine alignment": {"alignment_affine": True},
    "another aligned size": {"aligned_size": 9},
    "a head": {"head": (4, 3)},
    "weight decay": {"weight_decay": 0.5, "alignment_affine": True},
    "concatenation": {"fusion": "concatenation", "weight_decay": 0.1},
    "a deep concatenation": {"fusion": "concatenation", "concatenation_hidden": (7, 4)},
}


def passed(chosen, owners, absent, compiled):
    """A network after a pass over the samples, and its loss."""
    embeddings, present, labels = samples(owners, absent)
    found = network(chosen, owners)
    same_noise(found)
    if compiled:
        found.eval()
        return found, CompiledPasses(found, chosen, RATE)((embeddings, present, labels), generator(0, "order"))
    found.train()
    optimizer, total = make_optimizer(found, chosen, RATE), 0.0
    for rows in torch.randperm(SAMPLES, generator=generator(0, "order")).split(BATCH):
        part = embeddings[rows], present[rows], labels[rows]
        total += float(learn(found, optimizer, *part, generator(0, "unused"))) * len(rows)
    return found, total / SAMPLES


@pytest.mark.parametrize(("owners", "absent"), [(4, 0.0), (4, 0.3), (1, 0.2), (9, 0.3)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_pass_equals_that_of_pytorch(variant, owners, absent):
    chosen = settings(**VARIANTS[variant])
    (ours, our_loss), (theirs, loss) = (passed(chosen, owners, absent, compiled) for compiled in (True, False))
    assert our_loss == pytest.approx(loss, rel=1e-5)
    start = network(chosen, owners).state_dict()
    for name, wanted in theirs.named_parameters():
        found = ours.get_parameter(name).detach()
        torch.testing.assert_close(found, wanted.detach(), atol=2e-6, rtol=1e-4)
        moves = wanted.requires_grad and wanted.numel() > 0
        assert torch.equal(found, start[name]) != moves, f"{name}: else the test shows nothing"


def test_owners_are_left_out_at_random_and_sums_over_them_keep_their_mean():
    chosen, (embeddings, present, labels) = settings(owner_dropout=0.4), samples()
    random = generator(0, "order")
    order = torch.randperm(SAMPLES, generator=random)
    kept = torch.empty_like(present)
    kept[order] = torch.rand(present.shape, generator=random) >= 0.4
    for fusion, stretch in (("mean-pooling", 1.0), ("concatenation", 1 / 0.6)):
        states = []
        for share, values, there in ((0.4, embeddings, present), (0.0, stretch * embeddings, present & kept)):
            own = chosen.model_copy(update={"fusion": fusion, "owner_dropout": share})
            found = network(own)
            CompiledPasses(found, own, RATE)((values, there, labels), generator(0, "order"))
            states.append(found.state_dict())
        for name, value in states[0].items():
            torch.testing.assert_close(value, states[1][name], msg=name)


def test_graphs_are_drawn_anew_for_every_sample_and_epoch_from_the_generator_alone():
    data = samples()

    def losses(seed):
        found = network(settings())
        passing = CompiledPasses(found, settings(), 1e-12)
        return [passing(data, generator(seed, "epoch", epoch)) for epoch in range(3)]

    first = losses(0)
    assert first == losses(0) != losses(1)
    assert len(set(first)) == 3


def test_passes_are_cut_into_calls_that_need_little_memory(monkeypatch):
    calls = []
    compiled = fusion_kernel.library()

    class Counting:
        def train_fusion(self, structure):
            calls.append(1)
            return compiled.train_fusion(structure)

    chosen, states = settings(), []
    for entries in (1 << 20, 6 * BATCH * 2):
        monkeypatch.setattr(fusion_kernel, "_NOISE_AT_ONCE", entries)
        monkeypatch.setattr(fusion_kernel, "library", Counting)
        found = network(chosen).eval()
        same_noise(found)
        states.append((CompiledPasses(found, chosen, RATE)(samples(), generator(0, "order")), found.state_dict()))
    assert len(calls) == 1 + math.ceil(SAMPLES / BATCH / 2)
    assert states[0][0] == pytest.approx(states[1][0])
    assert all(torch.equal(value, states[1][1][name]) for name, value in states[0][1].items())


@pytest.mark.parametrize(
    ("changed", "owners", "number", "expected"),
    [
        ({}, 4, 300, True),
        ({}, 4, 299, False),
        ({}, 64, 300, True),
        ({}, 65, 300, False),
        ({"draw_per": "never"}, 65, 300, False),
        ({"graph": "none"}, 65, 300, True),
        ({"compile": False}, 4, 300, False),
        ({"fusion": "concatenation"}, 4, 300, True),
        ({"fusion": "transformer"}, 4, 300, False),
        ({"alignment": "hard"}, 4, 300, False),
        ({"graph": "neighbours"}, 4, 300, False),
        ({"graph": "given"}, 4, 300, False),
        ({"reference": "Laplace"}, 4, 300, False),
    ],
)
def test_it_suits_what_it_knows(changed, owners, number, expected):
    chosen = settings(**changed)
    assert suits(network(chosen, owners), chosen, number) == expected


def test_without_a_compiler_pytorch_trains(monkeypatch):
    monkeypatch.setattr(fusion_kernel, "library", native.OnFirstUse("fusion", "no C++", "nothing"))
    assert not suits(network(settings()), settings(), 300)


def learnable(number=1600):
    """Each owner's first entry tells something of the label, with a sign of its own; every owner lacks some samples."""
    random = generator(0, "learnable")
    labels = torch.randint(2, (number,), generator=random)
    embeddings = torch.randn(number, 5, 3, generator=random)
    embeddings[..., 0] += torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]) * (2.0 * labels[:, None] - 1)
    present = torch.rand(number, 5, generator=random) > 0.1
    split = (torch.arange(number) % 4).to(torch.int8)
    return FusionData(embeddings, present, labels, split, torch.full((5,), 3), 2)


@pytest.mark.parametrize(
    "changed",
    [{}, {"graph": "gumbel"}, {"scaling": "owner", "alignment_affine": True, "head": (4,), "owner_dropout": 0.2},
     {"fusion": "ensemble", "members": {"graph": 2, "concatenation": 1}}],
    ids=str,
)  # fmt: skip
def test_networks_learn_and_one_that_diverges_is_left_out(changed, monkeypatch):
    passes = []
    monkeypatch.setattr(
        "fedgraph.fusion.training.CompiledPasses", lambda *arguments: passes.append(1) or CompiledPasses(*arguments)
    )
    data = learnable()
    found = fit(settings(epochs=8, learning_rates=(0.03, 1e30), **changed), data, 0)
    assert passes
    embeddings, present, labels = data.of_split("test")
    assert scores(predict(found.network, embeddings, present).probabilities, labels)["accuracy"] > 0.9
    assert found.diverged == (1e30,)
    assert found.learning_rate == 0.03
