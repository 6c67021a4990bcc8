import math

import pytest
import torch

from fedgraph.fusion.baselines import ConcatenationFusion
from fedgraph.fusion.build import build_network
from fedgraph.fusion.calibration import better_threshold, calibrate
from fedgraph.fusion.fusion_settings import FusionSettings
from fedgraph.fusion.prediction import predict
from fedgraph.fusion.scores import area_under_roc, decided, log_loss


def samples(classes, count=400, owners=3, size=4):
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(classes, (count,), generator=random)
    embeddings = torch.randn(count, owners, size, generator=random)
    embeddings[:, :, 0] += labels[:, None]
    return embeddings, torch.ones(count, owners, dtype=torch.bool), labels


@pytest.mark.parametrize("fusion", ["graph", "mean-pooling", "transformer", "concatenation"])
@pytest.mark.parametrize(("classes", "head"), [(2, ()), (3, (5,))])
def test_probabilities_become_frequencies_and_keep_their_order(fusion, classes, head):
    embeddings, present, labels = samples(classes)
    settings = FusionSettings(fusion=fusion, head=head, draws=3)
    network = build_network(settings, torch.tensor([4, 4, 4]), classes, None, 1).eval()
    # Some logits that are far off.
    network.rescale(6.0, torch.arange(classes) * 5.0)
    before = predict(network, embeddings, present, 3, 0).probabilities
    found = calibrate(network, (embeddings, present, labels), 3, 0, "probabilities")
    after = predict(network, embeddings, present, 3, 0).probabilities
    assert log_loss(after, labels) < log_loss(before, labels)
    assert log_loss(after, labels) <= math.log(classes) + 1e-3
    torch.testing.assert_close(after.mean(0), labels.bincount().float() / len(labels), atol=0.03, rtol=0)
    assert found.offset[0] == 0.0
    assert len(found.offset) == classes
    if classes == 2 and fusion in ("transformer", "concatenation"):
        # Nothing is drawn, so that the order of samples is that of one logit, whose factor is positive.
        assert area_under_roc(after, labels) == pytest.approx(area_under_roc(before, labels), abs=1e-3)


def test_the_threshold_is_tuned():
    embeddings, present, labels = samples(2)
    network = ConcatenationFusion(3, 4, (), 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        weight, bias = network.output
        weight.zero_()
        weight[::4, 1] = 1.0
        bias.copy_(torch.tensor([0.0, 4.0]))
    before = predict(network, embeddings, present).probabilities
    now, best = better_threshold(before, labels)
    assert now == pytest.approx(float((decided(before) == labels).double().mean()))
    assert best > now + 0.2
    calibrate(network, (embeddings, present, labels), 1, 0, "logits")
    now, best = better_threshold(predict(network, embeddings, present).probabilities, labels)
    assert now > best - 0.02


def test_samples_without_an_error_have_no_endless_factor():
    embeddings, present, labels = samples(2)
    embeddings[:, :, 0] = labels[:, None] * 2.0 - 1
    embeddings[:, :, 1:] = 0
    network = ConcatenationFusion(3, 4, (), 2, torch.Generator().manual_seed(0))
    found = calibrate(network, (embeddings, present, labels), 1, 0, "probabilities")
    assert 0 < found.factor <= math.exp(3) + 1e-6
    assert all(map(math.isfinite, found.offset))
