import pytest
import torch

from fedgraph.clients.ditto import DittoClient
from fedgraph.training.cohort import TrainResult

METHOD = {"lambda-personal": 0.5}


def own(node):
    width = node.layout.num_parameters
    return node.remembered("personal-model", parameters=torch.zeros(width), trained=torch.tensor(0.0))["parameters"]


def loss(node, models):
    return node.cohort.evaluate(models, "test")["loss"].double()


def test_measured_is_the_own_model_as_it_stands(one_node):
    """Before this round's training in a request to train, after it in one that only measures."""
    node = one_node(DittoClient, METHOD)
    measure = {"evaluate": ("test",)}
    w = [node.model(seed) for seed in range(3)]
    first = node.ask(1, {"parameters": w[0]}, **measure)
    torch.testing.assert_close(first.metrics["test/loss"].double(), loss(node, w[0].expand(2, -1)))
    after_one = own(node)
    second = node.ask(2, {"parameters": w[1]}, **measure)
    torch.testing.assert_close(second.metrics["test/loss"].double(), loss(node, after_one))
    after_two = own(node)
    assert not torch.equal(after_one, after_two)
    repeated = node.ask(2, {"parameters": w[1]}, **measure)
    assert torch.equal(repeated.metrics["test/loss"], second.metrics["test/loss"])
    assert torch.equal(own(node), after_two)
    last = node.ask(2, {"parameters": w[2]}, train=False, **measure)
    torch.testing.assert_close(last.metrics["test/loss"].double(), loss(node, after_two))


def test_the_pull_leaves_running_statistics_alone(one_node):
    node = one_node(DittoClient, METHOD)
    w = node.model()
    v = node.model(1)[None, :-4]  # as if the last four columns were buffers
    torch.testing.assert_close(
        node.served(1, {"parameters": w}).pull()(v, slice(0, 1), torch.ones(1)), 0.5 * (v - w[:-4])
    )


@pytest.mark.parametrize("trouble", ["diverged", "untrained"])
def test_an_own_model_that_diverged_or_did_not_train(one_node, monkeypatch, trouble):
    """What diverged is not kept; who has never trained goes with the global model."""
    node = one_node(DittoClient, METHOD)
    w = [node.model(seed) for seed in range(3)]
    plain = DittoClient.train_personal

    def spoilt(self):
        result = plain(self)
        if trouble == "diverged":
            result.parameters[0, 5] = torch.nan
            return result
        parameters = torch.cat([self.models[:1], result.parameters[1:]])
        return TrainResult(parameters, result.loss, result.steps * torch.tensor([0, 1]), result.num_examples, {})

    if trouble == "diverged":
        node.ask(1, {"parameters": w[0]})
        before = own(node)
    monkeypatch.setattr(DittoClient, "train_personal", spoilt)
    node.ask(2, {"parameters": w[1]})
    standing = node.served(2, {"parameters": w[2]}, train=False).models
    assert torch.equal(standing[0], before[0] if trouble == "diverged" else w[2])
    assert not torch.equal(standing[1], w[2])


def test_the_two_trainings_have_moments_of_their_own(one_node):
    node = one_node(DittoClient, METHOD, {"momentum": 0.9, "keep-optimizer": True, "learning-rate": 0.02})
    w = node.model()
    node.ask(1, {"parameters": w})
    models, start = own(node), torch.zeros(node.layout.num_trainable)
    moments = node.remembered("optimiser", momentum=start), node.remembered("personal-optimiser", momentum=start)
    assert not torch.allclose(moments[0]["momentum"], moments[1]["momentum"], rtol=1e-2)
    reply = node.ask(2, {"parameters": w})
    pull = lambda v, clients, weight: 0.5 * (v - w)  # noqa: E731
    assert torch.equal(reply.stacked["parameters"], node.cohort.train(w.expand(2, -1), 2, None, moments[0]).parameters)
    assert torch.equal(own(node), node.cohort.train(models, 2, pull, moments[1]).parameters)
