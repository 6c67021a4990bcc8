import pytest
import torch

from fedgraph.fusion import FusionSettings, build_network, predict
from fedgraph.fusion import prediction as prediction_module

OWNERS, SIZE = 6, 4


def network(**changed):
    return build_network(FusionSettings(workers=1, **changed), torch.full((OWNERS,), SIZE), 3)


def samples(number=8):
    random = torch.Generator().manual_seed(1)
    return 5 * torch.randn(number, OWNERS, SIZE, generator=random), torch.rand(number, OWNERS, generator=random) > 0.2


def test_mean_and_deviation_are_over_draws():
    graphs = network()
    embeddings, present = samples()
    several = predict(graphs, embeddings, present, draws=3, seed=5)
    longer = predict(graphs, embeddings, present, draws=4, seed=5)
    one, two = (predict(graphs, embeddings, present, draws=number, seed=5).probabilities for number in (1, 2))
    each = torch.stack([one, 2 * two - one, 3 * several.probabilities - 2 * two])
    torch.testing.assert_close(several.deviation, each.std(0, correction=0), atol=1e-5, rtol=1e-3)
    assert several.deviation.max() > 1e-3
    assert several.probabilities.shape == several.deviation.shape == (8, 3)
    torch.testing.assert_close(longer.probabilities.sum(1), torch.ones(8))


def test_logits_may_be_averaged_instead():
    graphs = network()
    embeddings, present = samples()
    with torch.no_grad():
        graphs.eval()
        logits = graphs.draws(embeddings * present[..., None], present, prediction_module.graph_draws(3, 5))
    found = predict(graphs, embeddings, present, 3, 5, average="logits")
    torch.testing.assert_close(found.probabilities, logits.mean(0).softmax(-1))
    usual = predict(graphs, embeddings, present, 3, 5)
    assert torch.equal(found.deviation, usual.deviation)
    assert (found.probabilities - usual.probabilities).abs().max() > 1e-4


@pytest.mark.parametrize("changed", [{}, {"graph": "gumbel"}, {"graph": "none"}, {"fusion": "transformer"}], ids=str)
def test_a_prediction_depends_on_nobody_else(changed, monkeypatch):
    found = network(**changed).train()
    embeddings, present = samples()
    crowd = predict(found, embeddings, present)
    assert found.training, "as it was"
    alone = predict(found, embeddings[3:4], present[3:4])
    torch.testing.assert_close(crowd.probabilities[3:4], alone.probabilities)
    torch.testing.assert_close(crowd.deviation[3:4], alone.deviation)
    monkeypatch.setattr(prediction_module, "_BLOCK_SAMPLES", 3)
    torch.testing.assert_close(predict(found, embeddings, present).probabilities, crowd.probabilities)


def test_without_draws_there_is_no_deviation():
    found = predict(network(graph="none"), *samples())
    assert torch.equal(found.deviation, torch.zeros(8, 3))


def test_no_samples_no_predictions():
    embeddings, present = samples()
    assert predict(network(), embeddings[:0], present[:0]).probabilities.shape == (0, 3)


def test_many_owners_lacking_change_the_prediction():
    embeddings, present = samples()
    everybody = predict(network(), embeddings, torch.ones_like(present)).probabilities
    assert not torch.allclose(everybody, predict(network(), embeddings, present).probabilities, atol=1e-3)
