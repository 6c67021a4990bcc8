"""The first layer apart from the rest: in floats the network itself, on shares the network within its stated error."""

import pytest
import torch

from fedgraph.fusion import FusionSettings, build_network, predict
from fedgraph.fusion import secret as module
from fedgraph.fusion.prediction import graph_draws
from fedgraph.fusion.secret import SecretFusion
from fedgraph.privacy.secret.first_stage import on_shares
from fedgraph.privacy.secret.shamir import ShareSettings, encode, split
from fedgraph.support.errors import ExperimentError, RunError

SIZES, CLASSES, DRAWS, SEED = torch.tensor([6, 4, 6, 5]), 3, 3, 7
NAMES = ("a", "b", "c", "d")
GIVEN = torch.tensor([[0.0, 2, 0, 0.5], [0, 0, 1, 0], [3, 0, 0, 0], [0, 0.2, 1, 0]])
NETWORKS = [
    {},
    {"absent": "zeros"},
    {"graph": "gumbel", "aligned_size": 5},
    {"graph": "given"},
    {"graph": "given", "absent": "zeros"},
    {"graph": "neighbours", "neighbours": 2},
    {"fusion": "mean-pooling", "alignment": "none"},
    {"scaling": "owner"},
    {"scaling": "owner", "graph": "given"},
    {"alignment_affine": True, "absent": "zeros"},
    {"scaling": "owner", "alignment_affine": True, "head": (6,), "draw_per": "never"},
]


def network(hidden=2, **changed):
    found = build_network(FusionSettings(workers=1, hidden=hidden, **changed), SIZES, CLASSES, GIVEN, seed=1)
    random = torch.Generator().manual_seed(3)
    biases = [each for name, each in found.named_parameters() if "bias" in name or name.endswith("offset")]
    for bias in biases:
        torch.nn.init.uniform_(bias, -1, 1, generator=random)
    embeddings, present = samples(40)
    if found.scaling is not None:
        found.scaling.fit(embeddings, present)
    scaled = found.scaled(embeddings, present)
    assert torch.equal(scaled, embeddings) == ("scaling" not in changed)
    found.settle(scaled, present)
    return found


def samples(number=30):
    random = torch.Generator().manual_seed(2)
    embeddings = torch.randn(number, len(SIZES), 6, generator=random).clamp(-2, 2)
    embeddings *= torch.arange(6) < SIZES[:, None]
    present = torch.rand(number, len(SIZES), generator=random) > 0.3
    present[:, 0] = True
    return embeddings * present[..., None], present


@pytest.mark.parametrize("changed", NETWORKS, ids=str)
def test_the_two_linear_maps_and_the_rest_are_the_network(changed):
    found = network(**changed).eval()
    embeddings, present = samples()
    with torch.no_grad():
        expected = found.draws(found.scaled(embeddings, present), present, graph_draws(DRAWS, SEED))
        mixing, projections = found.mixing(present, graph_draws(DRAWS, SEED)), found.projections()
        projected = torch.einsum("ohs,nos->noh", projections, embeddings) + found.offsets(projections)
        first = torch.einsum("dnij,njh->dnih", mixing.first, projected)
        whole = found.finish(first, mixing.second, present)
    assert len(mixing.first) == (DRAWS if found.stochastic else 1)
    torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)
    assert not mixing.first[:, ~present].any(), "an absent owner has no row"
    assert not mixing.first.mT[:, ~present].any(), "and no column"


def on_some_shares(secret, embeddings, present, points=(1, 3)):
    """What aggregators at some points answer; three have shares."""
    stages = secret.stages(present)
    random = torch.Generator().manual_seed(4)
    encoded = encode(embeddings.transpose(0, 1), secret.settings, random)
    encoded *= present.T[..., None] & (torch.arange(6) < SIZES[:, None])[:, None]
    answers = torch.zeros(3, *stages.shape, dtype=torch.int64)
    for answer, share in zip(answers, split(encoded, 3, 2, random), strict=True):
        answer[:] = on_shares(stages.stage.mixing, stages.stage.projections, stages.patterns, share)
    return stages, answers[[point - 1 for point in points]], points


@pytest.mark.parametrize("changed", NETWORKS, ids=str)
def test_on_shares_it_is_the_prediction_within_its_bound(changed):
    found, (embeddings, present) = network(**changed), samples()
    secret = SecretFusion(found, SIZES, NAMES, ShareSettings(largest=2.0, map_bits=12), DRAWS, SEED)
    stages, shares, points = on_some_shares(secret, embeddings, present)
    assert 1 < len(stages.stage.mixing) < len(embeddings), "several samples of one pattern, and several patterns"
    prediction = secret.prediction(stages, shares, points)
    expected = predict(found, embeddings, present, DRAWS, SEED)
    error = float((prediction.probabilities - expected.probabilities).abs().max())
    assert error <= secret.error_bound(stages) + 1e-6 < 0.1
    assert error > 1e-6, "the bound is of something"
    assert float((prediction.deviation - expected.deviation).abs().max()) < 0.02
    assert float(expected.probabilities.std()) > 0.05


def test_logits_are_averaged_on_shares_too():
    found, (embeddings, present) = network(), samples()
    secret = SecretFusion(found, SIZES, NAMES, ShareSettings(largest=2.0, map_bits=12), DRAWS, SEED, "logits")
    prediction = secret.prediction(*on_some_shares(secret, embeddings, present))
    expected, other = (predict(found, embeddings, present, DRAWS, SEED, each) for each in ("logits", "probabilities"))
    error = float((prediction.probabilities - expected.probabilities).abs().max())
    assert error < 0.2 * float((prediction.probabilities - other.probabilities).abs().max())


def test_too_few_and_wrong_shares():
    secret = SecretFusion(network(), SIZES, NAMES, ShareSettings(), DRAWS, SEED)
    stages, shares, points = on_some_shares(secret, *samples(), points=(1, 2, 3))
    with pytest.raises(RunError, match="2 shares are needed, but only 1"):
        secret.prediction(stages, shares[:1], points[:1])
    shares[2, 0, 0, 0, 0] ^= 1
    with pytest.raises(RunError, match="contradict"):
        secret.prediction(stages, shares, points)


def test_what_cannot_be_or_should_not_be_computed_on_shares_is_refused():
    for other in ("transformer", "concatenation", "ensemble"):
        with pytest.raises(ExperimentError, match="fusion = 'graph' .*'mean-pooling'"):
            SecretFusion(network_of(other), SIZES, NAMES, ShareSettings(), DRAWS, SEED)
    settings = ShareSettings(largest=2.0, random_bits=24)
    wide = SecretFusion(network(hidden=4), SIZES, NAMES, settings, DRAWS, SEED)
    with pytest.raises(ExperimentError, match="whole embedding of owner 'b'"):
        wide.stages(samples()[1])


def network_of(fusion):
    return build_network(FusionSettings(workers=1, fusion=fusion), SIZES, CLASSES)


def test_graphs_that_take_too_much_room_are_refused_before_they_are_drawn(monkeypatch):
    present = torch.tensor([[True, True, True, True], [True, False, True, True], [True] * 4])
    for room, changed in ((2 * 10 * 4**2, {}), (2 * 4**2, {"graph": "none"})):
        secret = SecretFusion(network(**changed), SIZES, NAMES, ShareSettings(), 10, SEED)
        monkeypatch.setattr(module, "_MOST_GRAPH_ENTRIES", room)
        secret.stages(present)
        monkeypatch.setattr(module, "_MOST_GRAPH_ENTRIES", room - 1)
        monkeypatch.setattr(secret.network, "mixing", None)
        with pytest.raises(ExperimentError, match="10? draws and 4 owners"):
            secret.stages(present)
