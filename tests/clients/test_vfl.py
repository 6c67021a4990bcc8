"""One node of vertical federated learning: its owners' models learn from gradients of their embeddings."""

from dataclasses import replace

import pytest
import tomli_w
import torch
from flwr.app import Context, Message, RecordDict

from fedgraph.algorithms.vfl_messages import StepReply, StepRequest
from fedgraph.clients.engine.node import Node, forget_cohorts
from fedgraph.clients.vfl import VerticalClient
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.messages.embeddings import EmbedReply, EmbedRequest
from fedgraph.support.errors import ExperimentError, IdentityError, ReplyError
from fedgraph.training.client_state import ClientState

NAMES = ("patch-0-0", "patch-0-1")
PIXELS, HIDDEN = 16, 5
RATE = 0.01


class VerticalNode:
    """Two owners with a layer of ReLUs each, whose models are as they are drawn unless said otherwise."""

    def __init__(self, tables, folder, data_dir, config, method, **train):
        tables = {
            **tables,
            "model": {"name": "mlp", "hidden": [HIDDEN]} if config.pop("same", True) else tables["model"],
            "train": {**tables["train"], "learning-rate": RATE, **train},
        }
        self.part = parse_experiment(tables).client_part({"pre-trained": False, **method})
        self.folder = folder
        config = {"clients": ",".join(NAMES), "state-dir": str(folder), "data-dir": str(data_dir), **config}
        self.node = Node.of(Context(1, 1, config, RecordDict(), {}))

    def open(self, run="run"):
        request = EmbedRequest(client="fedgraph.clients.vfl:VerticalClient", experiment=self.part, run=run)
        self.data = VerticalClient(self.node, request).source.load_owners(NAMES)
        return EmbedReply.unpack(
            VerticalClient.handle(Message(request.pack(), 1, EmbedRequest.message_type), self.node)
        )

    def step(self, step, update, gradient, embed, training=True, run="run", keep_from=0):
        size = gradient.shape[2]
        request = StepRequest(
            NAMES, step, tuple(update), gradient, tuple(embed), training, keep_from,
            client="c", experiment=self.part, run=run,
        )  # fmt: skip
        content = VerticalClient.handle(Message(request.pack(), 1, "train"), self.node)
        return StepReply.unpack(content, NAMES, (2, len(embed), size)).embeddings

    def models(self, run="run"):
        """Their parameters as kept, ``[owners, parameters]``; the embedding's weight and bias come first."""
        empty = {"parameters": torch.zeros(HIDDEN * (PIXELS + 1) + 10 * (HIDDEN + 1))}
        return ClientState(self.folder, run, "vertical-0").load(NAMES, 10**6, empty)["parameters"]

    def inputs(self, owner, keys):
        rows = [self.data.keys.index(key) for key in keys]
        return self.data.inputs[owner][rows].flatten(1)


@pytest.fixture
def make(patches_tables, tmp_path, data_dir):
    def make(method=None, config=None, **train):
        return VerticalNode(patches_tables, tmp_path / "state", data_dir, dict(config or {}), method or {}, **train)

    return make


def layers(model):
    """Weight and bias of the embedding by name, as every owner has them."""
    from fedgraph.models import build
    from fedgraph.models.base import TaskSpec

    task = TaskSpec("classification", (1, 4, 4), (10,))
    tensors = build({"name": "mlp", "hidden": [HIDDEN]}, task).layout.unflatten(model[None])
    return {name: values[0].clone() for name, values in tensors.items()}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_owners_learn_as_in_torch(make, optimizer):
    node = make(optimizer=optimizer)
    opening = node.open()
    start = node.models()
    assert opening.sizes.tolist() == [HIDDEN] * 2
    draw = torch.Generator().manual_seed(0)
    batches = [node.data.keys[:7], node.data.keys[3:9]]
    gradients = [torch.randn(2, len(keys), HIDDEN, generator=draw) for keys in batches]
    # First step: nothing to learn from yet.
    first = node.step(1, (), torch.zeros(2, 0, HIDDEN), batches[0])
    assert torch.equal(node.models(), start)
    rows = [opening.keys.index(key) for key in batches[0]]
    torch.testing.assert_close(first, opening.embeddings[:, rows])
    second = node.step(2, batches[0], gradients[0], batches[1])
    third = node.step(3, batches[1], gradients[1], batches[0], training=False)
    after = node.models()
    for owner in range(2):
        own = {name: value.requires_grad_() for name, value in layers(start[owner]).items()}
        weight, bias = own["hidden.0.weight"], own["hidden.0.bias"]
        kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
        steps = kind([weight, bias], lr=RATE)
        for keys, gradient, got in zip(batches, gradients, (second, third), strict=True):
            embeddings = (node.inputs(owner, keys) @ weight.T + bias).relu()
            steps.zero_grad()
            (embeddings * gradient[owner]).sum().backward()
            steps.step()
            other = batches[1] if keys is batches[0] else batches[0]
            wanted = (node.inputs(owner, other) @ weight.T + bias).relu()
            torch.testing.assert_close(got[owner], wanted, rtol=1e-4, atol=1e-6)
        found = layers(after[owner])
        torch.testing.assert_close(found["hidden.0.weight"], weight.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found["hidden.0.bias"], bias.detach(), rtol=1e-4, atol=1e-6)
        assert torch.equal(found["head.weight"], own["head.weight"]), "the last layer takes no part"
        assert not torch.equal(found["hidden.0.weight"], layers(start[owner])["hidden.0.weight"])


def test_samples_that_not_all_hold_are_neither_embedded_nor_learned_from(make, patches_tables):
    patches_tables["data"]["overlap"] = 0.3
    node = make()
    node.open()
    own = [key for key, shared in zip(node.data.keys, node.data.shared.tolist(), strict=True) if not shared][:5]
    shared = [node.data.keys[row] for row in node.data.shared.nonzero().flatten()[:5].tolist()]
    assert bool(node.data.present[:, [node.data.keys.index(key) for key in own]].any(0).all())
    found = node.step(1, (), torch.zeros(2, 0, HIDDEN), own + shared)
    assert not found[:, :5].any()
    assert bool(found[:, 5:].any(2).any(0).all())
    start = node.models()
    node.step(2, own, torch.ones(2, 5, HIDDEN), shared)
    assert torch.equal(node.models(), start)
    node.step(3, shared, torch.ones(2, 5, HIDDEN), shared)
    assert not torch.equal(node.models(), start)


def test_a_gradient_is_clipped_for_each_owner(make):
    node = make(optimizer="sgd", **{"clip-norm": 0.1, "learning-rate": 1.0})
    node.open()
    keys = node.data.keys[:5]
    gradient = torch.stack([torch.full((5, HIDDEN), 100.0), torch.full((5, HIDDEN), 1e-6)])
    start = node.models()
    node.step(1, (), torch.zeros(2, 0, HIDDEN), keys)
    node.step(2, keys, gradient, keys)
    moved = torch.linalg.vector_norm(node.models() - start, dim=1)
    assert float(moved[0]) == pytest.approx(0.1, rel=1e-3)
    assert 0 < float(moved[1]) < 1e-3


def test_the_start_is_the_models_as_drawn_or_as_trained(make):
    drawn, trained = make(), make(method={"pre-trained": True})
    drawn.open("drawn")
    trained.open("trained")
    stage = VerticalClient(drawn.node, EmbedRequest(client="c", experiment=drawn.part, run="x")).stage(drawn.data)
    assert torch.equal(drawn.models("drawn"), stage.stacked()[0].parameters)
    assert not torch.equal(drawn.models("drawn"), trained.models("trained"))
    stage = VerticalClient(trained.node, EmbedRequest(client="c", experiment=trained.part, run="x")).stage(drawn.data)
    assert torch.equal(trained.models("trained"), stage.stacked()[0].parameters)


def test_learning_leaves_the_frozen_models_as_they_are(make):
    node = make(method={"pre-trained": True})
    before = node.open().embeddings
    keys = node.data.keys[:50]
    node.step(1, (), torch.zeros(2, 0, HIDDEN), keys)
    node.step(2, keys, torch.ones(2, 50, HIDDEN), keys)
    assert torch.equal(node.open("other").embeddings, before)
    assert not torch.equal(node.models(), node.models("other"))


def test_a_run_begun_anew_starts_from_the_beginning(make):
    node = make()
    node.open()
    start, keys = node.models(), node.data.keys[:9]
    for step in (1, 2, 3):
        node.step(step, keys if step > 1 else (), torch.ones(2, 9 if step > 1 else 0, HIDDEN), keys)
    assert not torch.equal(node.models(), start)
    node.open()
    first, again = (node.step(1, (), torch.zeros(2, 0, HIDDEN), keys) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(node.models(), start)


@pytest.mark.parametrize("brought", ["scikit-learn", "own"])
def test_owners_whose_models_cannot_be_updated_are_refused(make, patches_tables, exported, brought):
    config = {"same": False}
    if brought == "own":
        config["models"] = f"patch-0-1={exported}"
    else:
        patches_tables["model"] |= {"variants": [{"clients": ["patch-0-1"], "name": "scikit-learn"}]}
    with pytest.raises(ExperimentError, match="only 1 of 2 owners"):
        make(config=config).open()


def test_a_node_that_lost_its_state_says_so(make):
    node = make()
    node.open()
    with pytest.raises(ExperimentError, match="'patch-0-0' .*diverged"):
        node.step(1, (), torch.zeros(2, 0, HIDDEN), node.data.keys[:5], run="unknown")


def test_a_gradient_of_nan_is_told_with_the_next_step(make):
    node = make()
    node.open()
    keys = node.data.keys[:5]
    node.step(1, (), torch.zeros(2, 0, HIDDEN), keys)
    with pytest.raises(ReplyError, match="NaN, infinite or huge values"):
        node.step(2, keys, torch.full((2, 5, HIDDEN), torch.nan), keys)
    with pytest.raises(ExperimentError, match="or its training diverged"):
        node.step(3, keys, torch.zeros(2, 5, HIDDEN), keys)


def test_a_resumed_run_finds_the_models_as_they_were_after_the_step_it_goes_on_from(make):
    node = make()
    node.open()
    keys = node.data.keys[:9]
    gradient = torch.ones(2, 9, HIDDEN)
    node.step(1, (), gradient[:, :0], keys, keep_from=1)
    node.step(2, keys, gradient, keys, keep_from=1)
    third = node.step(3, keys, gradient, keys, keep_from=3)
    models = node.models()
    node.step(4, keys, gradient, keys, keep_from=3)
    node.step(5, keys, -gradient, keys, keep_from=3)
    assert not torch.equal(node.models(), models)
    assert torch.equal(node.step(3, keys, gradient, keys, keep_from=3), third)
    assert torch.equal(node.models(), models)
    node.step(4, keys, gradient, keys, keep_from=4)
    files = list((node.folder / "runs" / "run" / "vertical-0").rglob("round-*"))
    assert sorted(file.name.split("-")[1] for file in files) == ["3", "4"], "no more is kept than may be asked for"


def test_the_owners_models_follow_the_device_of_training(make, monkeypatch, no_gpu):
    def learn(node):
        node.open()
        keys = node.data.keys[:9]
        node.step(1, (), torch.zeros(2, 0, HIDDEN), keys)
        return node.step(2, keys, torch.ones(2, 9, HIDDEN), node.data.keys[:7])

    wanted = learn(make())
    forget_cohorts()
    moved = no_gpu()
    monkeypatch.setattr("fedgraph.training.settings.TrainSettings.torch_device", lambda self: torch.device("cuda"))
    assert torch.equal(learn(make()), wanted)
    parameters = HIDDEN * (PIXELS + 1) + 10 * (HIDDEN + 1)
    assert moved.count((2, parameters)) >= 2 * (1 + 2), "the models and two moments, in each step"
    inputs = {(2, samples, 1, 4, 4) for samples in (9, 7)}
    assert inputs | {(2, 9, HIDDEN)} <= set(moved), "what they see, and what they learn from"


def test_a_step_for_owners_of_other_nodes_is_refused(make):
    node = make()
    node.open()
    request = StepRequest(
        ("patch-0-1", "patch-1-1"), 1, (), torch.zeros(2, 0, HIDDEN), node.data.keys[:5], True, 0,
        client="c", experiment=node.part, run="run",
    )  # fmt: skip
    with pytest.raises(IdentityError, match="does not host owner patch-1-1"):
        VerticalClient.handle(Message(request.pack(), 1, "train"), node.node)


def test_a_step_that_is_agreed_to_is_taken_with_one_gradient(make, tmp_path):
    node = make()
    agreed = tmp_path / "agreed.toml"
    tables = {
        "experiment": {"name": "x", "method": "vfl"},
        "data": {"set": "image-patches", "images": "digits", "grid": [2, 2]},
        "model": {"name": "mlp"},
    }
    agreed.write_text(tomli_w.dumps(tables))
    node.node = replace(node.node, config={**node.node.config, "agreement": str(agreed)})
    node.open()
    keys = node.data.keys[:9]
    gradient = torch.ones(2, 9, HIDDEN)
    node.step(1, (), gradient[:, :0], keys)
    second = node.step(2, keys, gradient, keys)
    assert torch.equal(node.step(2, keys, gradient, keys, keep_from=1), second)
    with pytest.raises(ExperimentError, match="a request for step 2 once in a run"):
        node.step(2, keys, -gradient, keys)
