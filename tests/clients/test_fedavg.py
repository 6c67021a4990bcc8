import torch

from fedgraph.clients.fedavg import FineTuningClient

MEASURE = {"evaluate": ("test", "validation")}


def test_a_request_to_train_measures_what_one_to_evaluate_did(one_node):
    node = one_node(FineTuningClient, {"local-steps": 4})
    shared = {"parameters": node.model()}
    training, only = node.ask(3, shared, **MEASURE), node.ask(2, shared, train=False, **MEASURE)
    for name, values in only.metrics.items():
        assert torch.equal(training.metrics[name], values)
    assert set(only.metrics) == {
        f"{split}/{metric}" for split in MEASURE["evaluate"] for metric in ("accuracy", "loss", "f1")
    }
    plain = node.cohort.evaluate(shared["parameters"].expand(2, -1), "test")["loss"]
    assert (only.metrics["test/loss"] < 0.95 * plain).all()


def test_nothing_is_fine_tuned_where_nothing_is_measured(one_node, monkeypatch):
    node = one_node(FineTuningClient)
    monkeypatch.setattr(FineTuningClient, "evaluated", None)
    assert list(node.ask(1, {"parameters": node.model()}).metrics) == ["loss"]


def test_its_order_of_examples_is_not_that_of_training(one_node):
    node = one_node(FineTuningClient)
    shared = {"parameters": node.model()}
    tuned = node.served(1, shared).evaluated()
    trained = node.ask(1, shared).stacked["parameters"]
    assert not torch.equal(tuned, trained)
    assert (tuned - trained).norm() < 0.3 * (trained - shared["parameters"]).norm()
    assert torch.equal(tuned, node.served(1, shared).evaluated())
    assert not torch.equal(tuned, node.served(2, shared).evaluated())
    alone = node.served(1, shared, clients=("client-1",)).evaluated()
    torch.testing.assert_close(alone[0], tuned[1], rtol=1e-5, atol=1e-6)


def test_moments_are_fresh_and_not_kept(one_node):
    train = {"momentum": 0.9, "learning-rate": 0.02}
    keeps, fresh = (one_node(FineTuningClient, None, {**train, "keep-optimizer": keep}) for keep in (True, False))
    shared = {"parameters": keeps.model()}
    keeps.ask(1, shared)
    before = keeps.remembered("optimiser", momentum=torch.zeros(keeps.layout.num_trainable))
    again = keeps.ask(1, shared, train=False, **MEASURE)
    assert torch.equal(again.metrics["test/loss"], fresh.ask(1, shared, train=False, **MEASURE).metrics["test/loss"])
    after = keeps.remembered("optimiser", momentum=torch.zeros(keeps.layout.num_trainable))
    assert torch.equal(before["momentum"], after["momentum"])
