import torch

from fedgraph.clients.centralised import CentralisedClient


def test_one_model_of_pooled_examples_for_everybody(one_node, monkeypatch):
    """As many minibatches as all clients take, a short last one of each included."""
    node = one_node(CentralisedClient, train={"local-epochs": 3, "batch-size": 50})
    counts = node.cohort.data.splits["train"].num_examples
    results = []
    monkeypatch.setattr("fedgraph.clients.engine.base.train_cohort", _remembering(results))
    w = node.model()
    reply = node.ask(1, {"parameters": w}, evaluate=("test",))
    assert results[0].num_examples.tolist() == [int(counts.sum())]
    assert results[0].steps.tolist() == [3 * sum(-(-count // 50) for count in counts.tolist())]
    assert results[0].steps.item() != 3 * -(-int(counts.sum()) // 50)
    assert torch.equal(reply.stacked["parameters"], results[0].parameters.expand(2, -1))
    assert reply.metrics["loss"].shape == (2,)
    measured = node.cohort.evaluate(w.expand(2, -1), "test")["loss"]
    assert torch.equal(reply.metrics["test/loss"], measured)


def test_moments_are_those_of_the_one_model(one_node):
    node = one_node(CentralisedClient, train={"momentum": 0.9, "keep-optimizer": True, "learning-rate": 0.02})
    w = node.model()
    first = node.ask(1, {"parameters": w})
    second, again = (node.ask(2, {"parameters": w}).stacked["parameters"] for _ in range(2))
    assert torch.equal(second, again)
    assert (second[0] - w).norm() > 1.2 * (first.stacked["parameters"][0] - w).norm()


def _remembering(results):
    from fedgraph.clients.engine.base import train_cohort

    def train(*arguments, **more):
        results.append(train_cohort(*arguments, **more))
        return results[-1]

    return train
