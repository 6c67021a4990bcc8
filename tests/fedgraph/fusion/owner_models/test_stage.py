"""How owners come to their frozen models, and what they make of samples."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import softmax

from fedgraph.data.owners import OwnerData, Preparation, sample_folds
from fedgraph.fusion.owner_models import single
from fedgraph.fusion.owner_models import stage as module
from fedgraph.fusion.owner_models.local_model import BatchedModel, ModelStore
from fedgraph.fusion.owner_models.stage import LocalModelSettings, LocalStage
from fedgraph.models.base import TaskSpec
from fedgraph.models.choice import ModelChoice
from fedgraph.support.errors import DataError, ExperimentError, RunError
from fedgraph.training.settings import TrainSettings

SHAPES = {"a": (2, 3), "b": (6,), "c": (2, 3), "d": (4,)}
SAMPLES = 60
MLP = {"name": "mlp", "hidden": [5]}
MIXED = {
    **MLP,
    "variants": [
        {"clients": ["b"], "name": "mlp", "hidden": [7]},
        {
            "clients": ["d"],
            "name": "scikit-learn",
            "transformer": "sklearn.decomposition:PCA",
            "transformer-options": {"n_components": 2},
        },
    ],
}


def owner_data(owners="abcd", seed=0):
    present = torch.rand(4, SAMPLES, generator=torch.Generator().manual_seed(seed)) < 0.8
    present[0] |= ~present.any(0)
    labels = torch.arange(SAMPLES) % 3
    split = torch.tensor([0, 0, 0, 1, 2])[torch.arange(SAMPLES) % 5].to(torch.int8)
    split[::20], labels[::20] = 3, -1
    rows = ["abcd".index(name) for name in owners]
    inputs = []
    for row, name in zip(rows, owners, strict=True):
        values = torch.randn(SAMPLES, *SHAPES[name], generator=torch.Generator().manual_seed(seed + row))
        values.flatten(1)[:, 0] += labels
        inputs.append(values * present[row].view(-1, *[1] * len(SHAPES[name])))
    tasks = (TaskSpec("classification", SHAPES[name], (3,), classes=("x", "y", "z")) for name in owners)
    keys = tuple(f"k{number:02d}" for number in range(SAMPLES))
    return OwnerData(
        tuple(owners),
        keys,
        split,
        labels,
        tuple(inputs),
        present[rows],
        torch.ones(len(keys), dtype=torch.bool),
        tuple(tasks),
        tuple(Preparation((), ("x", "y", "z"), torch.zeros(1), torch.ones(1)) for _ in owners),
    )


def resplit(data):
    """Training and validation samples have changed places."""
    return replace(data, split=torch.tensor([1, 0, 2, 3], dtype=torch.int8)[data.split.long()])


def relabelled(data):
    return replace(data, labels=torch.where(data.labels < 0, -1, (data.labels + 1) % 3))


@pytest.fixture
def make(tmp_path):
    """``make(owners, ...)`` is a stage; all share one store."""

    def make(owners="abcd", data=None, model=None, train=None, settings=None, **changes):
        table = {"optimizer": "adam", "learning_rate": 0.01, "local_epochs": 3, "workers": 1, **(train or {})}
        whole = LocalStage(
            data=owner_data(owners) if data is None else data,
            description="made up",
            choice=ModelChoice.of(MIXED if model is None else model),
            train=TrainSettings(**table),
            settings=LocalModelSettings(**(settings or {})),
            seed=0,
            store=ModelStore(tmp_path / "models"),
            brought={},
            wanted={},
        )
        return replace(whole, **changes)

    return make


@pytest.fixture
def trained(monkeypatch):
    """Names of the owners whose models are trained, in the order of training."""
    names, pretrain = [], module.pretrain

    def counted(cohort, *arguments):
        names.extend(cohort.data.names)
        return pretrain(cohort, *arguments)

    monkeypatch.setattr(module, "pretrain", counted)
    return names


def test_every_owner_gets_what_its_own_model_makes_of_its_samples(make, trained):
    stage = make()
    embedded = stage.embed()
    assert sorted(trained) == ["a", "b", "c"], "scikit-learn's model is not trained here"
    assert embedded.sizes.tolist() == [5, 7, 5, 2]
    assert embedded.embeddings.shape == (4, SAMPLES, 7)
    assert len(set(embedded.fingerprints)) == 4
    for group in stage.stacked():
        state = group.cohort.model.layout.unflatten(group.parameters)
        for place, row in enumerate(group.rows.tolist()):
            own = {name: values[place] for name, values in state.items()}
            inputs, there = stage.data.inputs[row].flatten(1), stage.data.present[row][:, None]
            hidden = (inputs @ own["hidden.0.weight"].T + own["hidden.0.bias"]).relu()
            outputs = softmax(hidden @ own["head.weight"].T + own["head.bias"], 1)
            torch.testing.assert_close(embedded.embeddings[row, :, : hidden.shape[1]], hidden * there)
            torch.testing.assert_close(embedded.predictions[row], outputs * there)
            assert not embedded.embeddings[row, :, hidden.shape[1] :].any()
    there = stage.data.present[3]
    assert embedded.embeddings[3, there, :2].abs().sum() > 0
    assert not embedded.embeddings[3, :, 2:].any()
    assert not embedded.embeddings[3, ~there].any()
    torch.testing.assert_close(embedded.predictions[3, there].sum(1), torch.ones(int(there.sum())))
    assert not embedded.predictions[3, ~there].any()


def test_a_model_is_trained_once_and_then_frozen(make, trained):
    first = make().embed()
    trained.clear()
    second = make().embed()
    assert trained == []
    assert torch.equal(first.embeddings, second.embeddings)
    assert torch.equal(first.predictions, second.predictions)
    assert first.fingerprints == second.fingerprints


def test_other_company_changes_nothing(make, trained, tmp_path):
    whole = make(store=ModelStore(tmp_path / "other")).embed()
    trained.clear()
    part = make("ca").embed()
    assert sorted(trained) == ["a", "c"]
    assert part.fingerprints == (whole.fingerprints[2], whole.fingerprints[0])
    torch.testing.assert_close(part.embeddings, whole.embeddings[[2, 0], :, :5], rtol=1e-4, atol=1e-5)
    trained.clear()
    make("ac").embed()
    assert trained == []
    make("bc").embed()
    assert trained == ["b"], "only models that the store lacks are trained"


def test_training_samples_are_embedded_out_of_fold(make, trained):
    whole, data = make().embed(), make().data
    trained.clear()
    found = make(folds=3).embed()
    assert sorted(trained) == sorted(3 * "abc"), "the model of all is there already"
    assert found.fingerprints == whole.fingerprints
    training, fold = data.split == 0, sample_folds(data.keys, 3, 0)
    assert torch.equal(found.embeddings[:, ~training], whole.embeddings[:, ~training])
    for number in range(3):
        held = training & (fold == number)
        assert held.sum() > 3
        without = make(data=replace(data, split=data.split.masked_fill(held, 3))).embed()
        for name in ("embeddings", "predictions"):
            assert torch.equal(getattr(found, name)[:, held], getattr(without, name)[:, held])
            assert not torch.allclose(getattr(found, name)[:, held], getattr(whole, name)[:, held])


def test_inference_takes_the_model_of_all_samples(make):
    whole = make().embed()
    wanted = dict(zip("abcd", whole.fingerprints, strict=True))
    assert torch.equal(make(folds=3, wanted=wanted).embed().embeddings, whole.embeddings)


def test_a_model_that_is_brought_along_cannot_be_trained_without_a_fold(make, own_model):
    with pytest.raises(ExperimentError, match="folds = 2: .*'a'"):
        make(folds=2, brought={"a": own_model[1]}).embed()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"description": "something else"},
        {"model": {"name": "mlp", "hidden": [6]}},
        {"train": {"learning_rate": 0.02}},
        {"train": {"local_epochs": 4}},
        {"settings": {"local_patience": 2}},
        {"settings": {"tied_output": True}},
        {"data": owner_data("ac", seed=1)},
        {"data": resplit(owner_data("ac"))},
        {"data": relabelled(owner_data("ac"))},
    ],
    ids=lambda change: "-".join(change),
)
def test_another_model_for_other_settings_or_samples(make, trained, change):
    before = make("ac", model=MLP).embed()
    trained.clear()
    after = make(**{"owners": "ac", "model": MLP, **change}).embed()
    assert sorted(trained) == ["a", "c"]
    assert not set(before.fingerprints) & set(after.fingerprints)
    if "seed" in change or "data" in change:
        assert not torch.equal(before.embeddings, after.embeddings)


@pytest.mark.parametrize("train", [{"workers": 2}, {"block_size": 1}, {"device": "auto"}, {"threads": 2}])
def test_the_same_model_however_fast_it_is_trained(make, train):
    assert make("ac", model=MLP).embed().fingerprints == make("ac", model=MLP, train=train).embed().fingerprints


def test_samples_that_no_model_has_seen_do_not_matter_to_it(make, trained):
    data = owner_data("ac")
    before = make("ac", data=data, model=MLP).embed()
    seen = data.split < 2
    fewer = replace(
        data,
        keys=tuple(key for key, kept in zip(data.keys, seen.tolist(), strict=True) if kept),
        split=data.split[seen],
        labels=data.labels[seen],
        inputs=tuple(values[seen] for values in data.inputs),
        present=data.present[:, seen],
    )
    trained.clear()
    after = make("ac", data=fewer, model=MLP).embed()
    assert trained == []
    assert after.fingerprints == before.fingerprints
    torch.testing.assert_close(after.embeddings, before.embeddings[:, seen])


def test_models_that_are_asked_for_are_used_and_never_trained(make, trained):
    first = make("abd").embed()
    wanted = dict(zip("abd", first.fingerprints, strict=True))
    trained.clear()
    other = make("abd", train={"local_epochs": 9}, wanted=wanted).embed()
    assert trained == []
    assert other.fingerprints == first.fingerprints
    assert torch.equal(other.embeddings, first.embeddings)


def test_a_model_that_is_asked_for_and_gone_is_an_error(make, tmp_path):
    with pytest.raises(RunError, match="'a' .*frozen model 0a1b"):
        make("ac", wanted={"a": "0a1b"}).embed()
    with pytest.raises(RunError, match="'../../x' is not the fingerprint"):
        make("ac", wanted={"a": "../../x"}).embed()
    with pytest.raises(RunError, match="'d': .*no longer"):
        make("d", wanted={"d": "0a1b"}).embed()


def test_a_kept_model_of_another_architecture_is_an_error(make):
    (fingerprint,) = make("a", model=MLP).embed().fingerprints
    with pytest.raises(RunError, match="'a': .*parameters"):
        make("a", model={"name": "mlp", "hidden": [6]}, wanted={"a": fingerprint}).embed()


class Own(nn.Module):
    """A model that an owner brings along, with embeddings of 4 numbers."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        return self.last(self.body(inputs.flatten(1)).tanh())


@pytest.fixture
def own_model(tmp_path):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        own = Own().eval()
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(own, (torch.zeros(5, 2, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "own.pt2")
    return own, str(tmp_path / "own.pt2")


def test_a_model_that_an_owner_brings_along_is_used_as_it_is(make, trained, own_model):
    own, path = own_model
    stage = make(brought={"c": path})
    embedded = stage.embed()
    assert sorted(trained) == ["a", "b"]
    inputs, there = stage.data.inputs[2].flatten(1), stage.data.present[2][:, None]
    with torch.no_grad():
        torch.testing.assert_close(embedded.embeddings[2, :, :4], own.body(inputs).tanh() * there)
        torch.testing.assert_close(embedded.predictions[2], softmax(own(inputs), 1) * there)
    assert embedded.sizes.tolist() == [5, 7, 4, 2]
    again = make(brought={"c": path}, wanted={"c": embedded.fingerprints[2]})
    assert torch.equal(again.embed().embeddings, embedded.embeddings)
    with pytest.raises(
        RunError,
        match=r"'c': .*own\.pt2",
    ):
        make(brought={"c": path}, wanted={"c": "0a1b"}).embed()


def test_models_as_they_are_drawn(make, trained):
    group = make("ac", model=MLP, pre_trained=False).stacked()[0]
    assert trained == []
    assert not torch.equal(group.parameters[0], group.parameters[1])
    alone = make("c", model=MLP, pre_trained=False).stacked()[0]
    assert torch.equal(alone.parameters[0], group.parameters[1])
    assert not torch.equal(make("c", model=MLP).stacked()[0].parameters, alone.parameters)


def test_a_tied_output_layer_is_the_same_for_all_and_stays(make):
    def heads(**settings):
        group = make("ac", model=MLP, settings=settings).stacked()[0]
        tensors = group.cohort.model.layout.unflatten(group.parameters)
        return tensors["head.weight"], tensors["hidden.0.weight"]

    head, hidden = heads(tied_output=True)
    assert torch.equal(head[0], head[1])
    assert not torch.equal(hidden[0], hidden[1])
    free, _ = heads()
    assert not torch.equal(free[0], free[1])


def test_steps_are_no_measure_of_training_here(make):
    with pytest.raises(ExperimentError, match="local-steps: "):
        make("ac", train={"local_epochs": None, "local_steps": 3}).embed()


LINEAR = {"name": "mlp", "hidden": []}


@pytest.mark.parametrize("pre_trained", [True, False])
def test_a_model_without_a_hidden_layer_is_refused_before_it_is_trained(make, trained, pre_trained):
    stage = make("ac", model=LINEAR, pre_trained=pre_trained)
    with pytest.raises(ExperimentError, match="owner a, c: .*a hidden layer"):
        stage.stacked()
    with pytest.raises(ExperimentError, match="must not leave"):
        make("ac", model=LINEAR, settings={"tied_output": True}).embed()
    assert trained == []


def test_only_the_owners_of_such_a_model_are_named(make):
    mixed = {**MLP, "variants": [{"clients": ["c"], **LINEAR}]}
    with pytest.raises(ExperimentError, match="owner c: "):
        make("ac", model=mixed).embed()


@pytest.mark.parametrize(
    "features",
    [{}, {"transformer": "sklearn.preprocessing:FunctionTransformer"}],
    ids=["no-transformer", "identity"],
)
def test_scikit_learn_without_a_transformer_is_refused(make, features):
    with pytest.raises(ExperimentError, match="owner d: .*transformer"):
        make("d", model={"name": "scikit-learn", **features}).embed()


def identity_then_linear():
    return nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(6, 3))


@pytest.mark.parametrize("kind", ["pt2", "factory"])
def test_a_program_that_puts_out_the_sample_is_refused(make, tmp_path, kind):
    program, some = identity_then_linear().eval(), torch.zeros(5, 2, 3)
    text = f"{__name__}:identity_then_linear"
    if kind == "pt2":
        text, batch = str(tmp_path / "own.pt2"), torch.export.Dim("batch", min=1, max=4096)
        torch.export.save(torch.export.export(program, (some,), dynamic_shapes=({0: batch},)), text)
    with pytest.raises(ExperimentError, match="owner c: .*must not leave"):
        make(brought={"c": text}).embed()


def only_new(data, **changes):
    split = torch.full_like(data.split, 3)
    return replace(data, split=split, labels=torch.full_like(data.labels, -1), **changes)


def test_owners_that_have_their_models_need_no_training_samples(make, trained, own_model):
    _, path = own_model
    stage = make("abc", brought={"c": path})
    before = stage.embed()
    wanted = dict(zip("abc", before.fingerprints, strict=True))
    trained.clear()
    after = replace(stage, data=only_new(stage.data), wanted=wanted).embed()
    assert trained == []
    assert after.fingerprints == before.fingerprints
    torch.testing.assert_close(after.embeddings, before.embeddings)
    # Of two owners of one architecture one has still to train, and cannot.
    with pytest.raises(DataError, match="client 'a' has no training sample"):
        replace(stage, data=only_new(stage.data), wanted={"b": wanted["b"]}).embed()


def test_a_model_that_is_gone_is_told_before_what_else_is_lacking(make):
    with pytest.raises(RunError, match="'a' .*frozen model"):
        make("a", data=only_new(owner_data("a")), wanted={"a": "0a1b"}).embed()


def in_their_units():
    """The class by the first feature, which is about 100, 110 or 120."""
    first, last = nn.Linear(6, 2), nn.Linear(2, 3)
    with torch.no_grad():
        first.weight.zero_()[0, 0], first.bias[:] = 1.0, 0.0
        middle = torch.tensor([100.0, 110.0, 120.0])
        last.weight.zero_()[:, 0], last.bias[:] = 2 * middle, -middle.square()
    return nn.Sequential(nn.Flatten(), first, last)


@pytest.mark.parametrize(("centre", "spread", "warned"), [(100.0, 10.0, True), (0.0, 1.0, False)])
def test_a_model_that_was_fitted_to_other_units_is_warned_of(make, caplog, centre, spread, warned):
    data = owner_data("c")
    kept = Preparation((), ("x", "y", "z"), torch.tensor([centre]), torch.tensor([spread]))
    inputs = data.inputs[0] if warned else 100.0 + 10.0 * data.inputs[0]
    stage = make("c", data=replace(data, inputs=(inputs,), preparations=(kept,)))
    replace(stage, brought={"c": f"{__name__}:in_their_units"}).embed()
    assert ('with [data] scaling = "none": was it fitted to features in their units?' in caplog.text) == warned
    assert ("its model" in caplog.text) == warned


def test_features_that_are_not_scaled_as_in_training_are_refused(make, own_model, caplog):
    stage = make("ac", model=MLP)
    wanted = dict(zip("ac", stage.embed().fingerprints, strict=True))
    with pytest.raises(DataError, match=r"'c' .*scaling = \"none\""):
        replace(stage, data=only_new(stage.data, unscaled=("c",)), wanted=wanted).embed()
    replace(stage, data=replace(stage.data, unscaled=("c",)), brought={"c": own_model[1]}).embed()
    assert "owner 'c' has no training samples to scale its features by" in caplog.text


def test_a_model_is_not_asked_about_samples_that_its_owner_lacks(make, monkeypatch):
    """A row of zeros, which stands for such a sample, has no direction: this model would put out NaN."""
    hidden, last = (torch.randn(*shape, generator=torch.Generator().manual_seed(3)) for shape in ((6, 2), (2, 3)))

    def run(inputs):
        rows = inputs.flatten(1)
        embeddings = rows / rows.norm(dim=1, keepdim=True) @ hidden
        return embeddings, embeddings @ last

    monkeypatch.setattr(single, "load_local_model", lambda text, task: BatchedModel(run, task, text, "f"))
    stage = make("ac", brought={"a": "a model"})
    embedded = stage.embed()
    there, rows = stage.data.present[0], stage.data.inputs[0].flatten(1)
    assert not there.all()
    wanted = torch.where(there[:, None], run(rows)[0], 0.0)
    torch.testing.assert_close(embedded.embeddings[0, :, :2], wanted)
    torch.testing.assert_close(embedded.predictions[0].sum(1), there.float())
