import torch

from fedgraph.clients.fedper import PersonalLayersClient
from fedgraph.clients.sfl import SFLClient

PRIVATE = {"personal-layers": ["head.*"]}
# The tensors of the hidden layer are 1040 numbers and lie before the 170 of the last one.


def test_without_private_layers_it_is_the_plain_client(one_node):
    node = one_node(PersonalLayersClient)
    w = node.model()
    reply = node.ask(1, {"parameters": w})
    assert torch.equal(reply.stacked["parameters"], node.cohort.train(w.expand(2, -1), 1).parameters)
    assert not (node.node.state_dir / "runs").exists()


def test_what_is_private_is_kept_and_completes_what_comes(one_node):
    node = one_node(PersonalLayersClient, PRIVATE)
    shared = [node.model(seed)[:1040] for seed in range(3)]
    initial = node.served(1, {"parameters": shared[0]}).models
    assert torch.equal(initial[:, :1040], shared[0].expand(2, -1))
    assert torch.equal(initial[0, 1040:], initial[1, 1040:])
    assert initial[0, 1040:].abs().max() > 0

    first = node.ask(1, {"parameters": shared[0]}, evaluate=("test",))
    trained = node.cohort.train(initial, 1).parameters
    assert torch.equal(first.stacked["parameters"], trained[:, :1040])
    assert torch.equal(node.remembered("personal-layers", personal=torch.zeros(170))["personal"], trained[:, 1040:])

    whole = torch.cat([shared[1].expand(2, -1), trained[:, 1040:]], dim=1)
    second = node.ask(2, {"parameters": shared[1]}, evaluate=("test",))
    assert torch.equal(second.metrics["test/loss"], node.cohort.evaluate(whole, "test")["loss"])
    retrained = node.cohort.train(whole, 2).parameters
    assert torch.equal(second.stacked["parameters"], retrained[:, :1040])
    again = node.ask(2, {"parameters": shared[1]})
    assert torch.equal(again.stacked["parameters"], second.stacked["parameters"])

    last = torch.cat([shared[2].expand(2, -1), retrained[:, 1040:]], dim=1)
    third = node.ask(2, {"parameters": shared[2]}, train=False, evaluate=("test",))
    assert torch.equal(third.metrics["test/loss"], node.cohort.evaluate(last, "test")["loss"])


def test_a_client_that_diverges_in_its_own_layers_shares_nothing_and_keeps_what_it_had(one_node, monkeypatch):
    node = one_node(PersonalLayersClient, PRIVATE)
    shared = node.model()[:1040]
    node.ask(1, {"parameters": shared})
    before = node.remembered("personal-layers", personal=torch.zeros(170))["personal"]
    train_from = PersonalLayersClient.train_from

    def diverging(self, *arguments, **options):
        result = train_from(self, *arguments, **options)
        result.parameters[0, 1100] = torch.inf  # in the last layer
        return result

    monkeypatch.setattr(PersonalLayersClient, "train_from", diverging)
    reply = node.ask(2, {"parameters": shared}).stacked["parameters"]
    after = node.remembered("personal-layers", personal=torch.zeros(170))["personal"]
    assert not reply[0].isfinite().any()
    assert reply[1].isfinite().all()
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


def test_clients_that_come_in_other_company_bring_their_own_layers(one_node):
    node = one_node(PersonalLayersClient, PRIVATE)
    shared = {"parameters": node.model()[:1040]}
    node.ask(1, shared)
    kept = node.remembered("personal-layers", personal=torch.zeros(170))["personal"]
    turned = node.served(2, shared, clients=("client-1", "client-0")).models
    assert torch.equal(turned[:, 1040:], kept.flip(0))


def test_private_layers_in_the_middle_of_a_model(one_node):
    node = one_node(PersonalLayersClient, {"personal-layers": ["hidden.0.bias", "head.weight"]})
    names = {name: torch.full((2, *shape), float(i)) for i, (name, shape) in enumerate(
        zip(node.layout.names, node.layout.shapes, strict=True))}  # fmt: skip
    models = node.layout.flatten(names)
    served = node.served(1, {"parameters": node.model()[: 1210 - 16 - 160]})
    shared, personal = served.layers.split(models)
    assert torch.equal(served.layers.join(shared, personal), models)
    kept = served.layers.personal.unflatten(personal)
    assert list(kept) == ["hidden.0.bias", "head.weight"]
    for name, values in kept.items():
        assert torch.equal(values, names[name])


SFL = {"lambda-global": 0.4, "lambda-personal": 0.6, "distance": "squared", "start": "personalised"}


def test_sfl_pulls_shared_layers_only(one_node):
    """SFL+PER: u and w are of the shared layers, and the last layer trains as it does alone."""
    node = one_node(SFLClient, {**SFL, **PRIVATE})
    w, u = node.model(1)[:1040], torch.stack([node.model(seed)[:1040] for seed in (2, 3)])
    served = node.served(1, {"global": w}, {"parameters": u})
    v = torch.stack([node.model(4), node.model(5)])
    term = served.gradient_term()(v, slice(0, 2), torch.ones(2))
    torch.testing.assert_close(term[:, :1040], 0.4 * (v[:, :1040] - w) + 0.6 * (v[:, :1040] - u))
    assert not term[:, 1040:].any()
    reply = served.reply()
    trained = node.cohort.train(served.models, 1, lambda v, clients, weight: term_of(v, w, u[clients])).parameters
    torch.testing.assert_close(reply.stacked["parameters"], trained[:, :1040], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        node.remembered("personal-layers", personal=torch.zeros(170))["personal"], trained[:, 1040:],
        rtol=1e-5, atol=1e-6,
    )  # fmt: skip


def term_of(v, w, u):
    pull = 0.4 * (v[:, :1040] - w) + 0.6 * (v[:, :1040] - u)
    return torch.cat([pull, torch.zeros(len(v), 170)], dim=1)


def test_sfl_from_the_read_out_with_private_layers(one_node):
    node = one_node(SFLClient, {**SFL, **PRIVATE, "start": "read-out"})
    w, u = node.model(1)[:1040], torch.stack([node.model(seed)[:1040] for seed in (2, 3)])
    served = node.served(1, {"global": w}, {"parameters": u})
    assert torch.equal(served.start()[:, :1040], w.expand(2, -1))
    assert torch.equal(served.start()[:, 1040:], served.models[:, 1040:])
    assert torch.equal(served.models[:, :1040], u)
