"""Frozen models that owners have already, in every form in which they can be handed over."""

from __future__ import annotations

import io
import pickle
import sys
import types
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedgraph.fusion.owner_models.brought import load_local_model
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError

TASK = TaskSpec("classification", (2, 3), (4,))
INPUTS = torch.randn(11, 2, 3, generator=torch.Generator().manual_seed(0))
FORMS = ("exported", "factory")


class Net(nn.Module):
    """The layer that is called last is the first one to be made."""

    def __init__(self, outputs=4):
        super().__init__()
        self.last = nn.Linear(5, outputs)
        self.body = nn.Sequential(nn.Linear(6, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 5), nn.Tanh())

    def forward(self, inputs):
        return self.last(self.body(inputs.flatten(1)))


class Normalised(Net):
    """Puts out probabilities."""

    def forward(self, inputs):
        return torch.softmax(super().forward(inputs), 1)


class WithoutLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(2, 4, 3)

    def forward(self, inputs):
        return self.convolution(inputs).squeeze(2)


class Similar(Net):
    """Ends on a product of two computed matrices, which is no layer."""

    def forward(self, inputs):
        outputs = super().forward(inputs)
        return torch.mm(outputs, torch.softmax(torch.mm(outputs.T, outputs), dim=1).round())


class Unscaled(Net):
    def forward(self, inputs):
        return super().forward(inputs) / inputs.sum((1, 2)).clamp(min=0)[:, None]


class Sequence(nn.Module):
    """A recurrent layer, and a last layer without a bias."""

    def __init__(self):
        super().__init__()
        self.recurrent = nn.LSTM(3, 5, batch_first=True)
        self.head = nn.Linear(5, 4, bias=False)

    def forward(self, inputs):
        return self.head(self.recurrent(inputs)[0][:, -1])


def made(kind=Net, **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return kind(**options).eval()


@pytest.fixture
def hand_over(tmp_path, monkeypatch):
    """``hand_over(module, form)`` writes a module and returns the text that names it."""

    def write(module, form, batch=2, dynamic=True):
        inputs = torch.zeros(batch, 2, 3)
        if form == "exported":
            sizes = ({0: torch.export.Dim("batch")},) if dynamic else None
            torch.export.save(torch.export.export(module, (inputs,), dynamic_shapes=sizes), tmp_path / "model.pt2")
            return str(tmp_path / "model.pt2")
        package = types.ModuleType("their_factory")
        package.make = lambda: type(module)()
        monkeypatch.setitem(sys.modules, "their_factory", package)
        save_file(module.state_dict(), tmp_path / "model.safetensors")
        return f"their_factory:make@{tmp_path / 'model.safetensors'}"

    return write


def expected(module, layer="last"):
    seen = []
    hook = module.get_submodule(layer).register_forward_pre_hook(lambda layer, given: seen.append(given[0]))
    with torch.no_grad():
        outputs = module(INPUTS)
    hook.remove()
    return seen[-1].flatten(1), torch.softmax(outputs, dim=1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("layer", "seen"), [(None, "last"), ("body.3", "body.3"), ("body.0", "body.0")])
def test_equals_the_module_itself(hand_over, form, layer, seen, monkeypatch):
    module = made()
    model = load_local_model(hand_over(module, form) + (f"#{layer}" if layer else ""), TASK)
    for batch in (256, 4):
        monkeypatch.setattr("fedgraph.fusion.owner_models.local_model.BATCH", batch)
        found = model.represent(INPUTS)
        embeddings, probabilities = expected(module, seen)
        torch.testing.assert_close(found.embeddings, embeddings, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.probabilities, probabilities, atol=1e-6, rtol=1e-5)
    assert not found.embeddings.requires_grad


@pytest.mark.parametrize("form", FORMS)
def test_a_recurrent_model(hand_over, form):
    module = made(Sequence)
    found = load_local_model(hand_over(module, form), TASK).represent(INPUTS)
    embeddings, probabilities = expected(module, "head")
    torch.testing.assert_close(found.embeddings, embeddings, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(found.probabilities, probabilities, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_are_taken_as_they_are(hand_over, form):
    module = made(Normalised)
    found = load_local_model(hand_over(module, form), TASK).represent(INPUTS)
    torch.testing.assert_close(found.probabilities, module(INPUTS).detach())


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_program_of_a_fixed_batch_size_is_evaluated_by_it(hand_over, size):
    module = made()
    model = load_local_model(hand_over(module, "exported", size, dynamic=False), TASK)
    assert (model.smallest, model.largest) == (size, size)
    found = model.represent(INPUTS)
    embeddings, probabilities = expected(module)
    torch.testing.assert_close(found.embeddings, embeddings)
    torch.testing.assert_close(found.probabilities, probabilities)


def test_batch_sizes_stay_within_what_was_exported(tmp_path):
    sizes = ({0: torch.export.Dim("batch", min=4, max=6)},)
    torch.export.save(torch.export.export(made(), (torch.zeros(5, 2, 3),), dynamic_shapes=sizes), tmp_path / "m.pt2")
    model = load_local_model(str(tmp_path / "m.pt2"), TASK)
    assert (model.smallest, model.largest) == (4, 6)
    torch.testing.assert_close(model.represent(INPUTS).probabilities, expected(made())[1])


def test_a_decomposed_program_still_shows_its_last_layer(tmp_path):
    program = torch.export.export(made(), (torch.zeros(2, 2, 3),)).run_decompositions()
    torch.export.save(program, tmp_path / "m.pt2")
    assert not any("linear" in str(node.target) for node in program.graph.nodes)
    found = load_local_model(str(tmp_path / "m.pt2"), TASK).represent(INPUTS)
    torch.testing.assert_close(found.embeddings, expected(made())[0])


def test_a_factory_may_have_its_weights_already(hand_over):
    module = made()
    text = hand_over(module, "factory").partition("@")[0]
    sys.modules["their_factory"].make = lambda: module.train()
    before = torch.get_rng_state()
    model = load_local_model(text, TASK)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(model.represent(INPUTS).probabilities, expected(module)[1])


def test_fingerprints_tell_models_and_layers_apart(hand_over):
    known = set()
    for form in FORMS:
        for module in (made(), Net().eval()):
            text = hand_over(module, form)
            assert load_local_model(text, TASK).fingerprint == load_local_model(text, TASK).fingerprint
            known |= {load_local_model(text + layer, TASK).fingerprint for layer in ("", "#body.3")}
    assert len(known) == 8
    assert all(each.isalnum() for each in known)


@pytest.mark.parametrize("form", FORMS)
def test_messages_about_what_a_model_puts_out(hand_over, form):
    text = hand_over(made(), form)
    model = load_local_model(text, TASK)
    with pytest.raises(ExperimentError, match=r"\[3, 4\] .*\[3, 5\]"):
        load_local_model(text, TaskSpec("classification", (2, 3), (5,)))
    with pytest.raises(ExperimentError, match=r"local model .*(fails on two inputs|cannot be evaluated on 3 samples)"):
        load_local_model(text, TaskSpec("classification", (2, 9), (4,)))
    with pytest.raises(ExperimentError, match="embeddings .*NaN"):
        model.represent(INPUTS.index_fill(0, torch.tensor([4]), torch.nan))
    with pytest.raises(ExperimentError, match=r"local model .* layer 'hidden'.*body\.3"):
        load_local_model(f"{text}#hidden", TASK)


@pytest.mark.parametrize("form", FORMS)
def test_a_model_without_a_linear_layer_needs_a_named_one(hand_over, form):
    module = made(WithoutLinear)
    text = hand_over(module, form)
    with pytest.raises(ExperimentError, match=r"local model .*linear"):
        load_local_model(text, TASK)
    found = load_local_model(f"{text}#convolution", TASK).represent(INPUTS)
    assert torch.equal(found.embeddings, INPUTS.flatten(1))


def test_outputs_that_are_not_finite_are_refused(hand_over):
    model = load_local_model(hand_over(made(Unscaled), "exported"), TASK)
    with pytest.raises(ExperimentError, match="outputs .*NaN"):
        model.represent(INPUTS)


def test_programs_in_training_mode_are_refused(hand_over):
    with pytest.raises(ExperimentError, match=r"model\.pt2 .*aten\.dropout"):
        load_local_model(hand_over(made().train(), "exported"), TASK)


class Evil:
    """Whoever unpickles it calls ``touched``."""

    calls = 0

    def __reduce__(self):
        return touched, ()


def touched():
    Evil.calls += 1
    return {}


@pytest.mark.parametrize("what", ["state", "module", "pickle"])
def test_pickles_are_refused_and_not_read(tmp_path, what):
    path = tmp_path / "model.pt"
    if what == "pickle":
        path.write_bytes(pickle.dumps(Evil()))
    else:
        torch.save({"weights": Evil()} if what == "state" else made(), path)
    with pytest.raises(ExperimentError, match=r"model\.pt' is a pickle.*torch\.export"):
        load_local_model(str(path), TASK)
    with pytest.raises(ExperimentError, match=r"\.safetensors files only"):
        load_local_model(f"torch.nn:Identity@{path}", TASK)
    assert Evil.calls == 0


@pytest.mark.parametrize("part", ["data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/model.pt"])
def test_an_archive_with_a_pickled_part_is_refused_and_not_read(hand_over, tmp_path, part):
    text = hand_over(made(), "exported")
    evil = io.BytesIO()
    torch.save((Evil(),), evil)
    with zipfile.ZipFile(text) as source, zipfile.ZipFile(tmp_path / "other.pt2", "w") as target:
        for name in source.namelist():
            if not name.endswith(part):
                target.writestr(name, source.read(name))
        target.writestr(f"model/{part}", evil.getvalue())
    with pytest.raises(ExperimentError, match=rf"other\.pt2: its part {part} contains more than plain tensors"):
        load_local_model(str(tmp_path / "other.pt2"), TASK)
    assert Evil.calls == 0


def test_pickled_weights_of_an_archive_are_refused(hand_over, tmp_path):
    text = hand_over(made(), "exported")
    with zipfile.ZipFile(text) as source, zipfile.ZipFile(tmp_path / "other.pt2", "w") as target:
        if not any(name.endswith("weights_config.json") for name in source.namelist()):
            pytest.skip("archives of PyTorch 2.8 have all weights in one part, as in the test above")
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("weights_config.json"):
                content = content.replace(b'"use_pickle": false', b'"use_pickle": true', 1)
            target.writestr(name, content)
    with pytest.raises(ExperimentError, match=r"model_weights_config\.json"):
        load_local_model(str(tmp_path / "other.pt2"), TASK)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.tflite", r"'model\.tflite' .*\.pt2"),
        ("no-such.pt2", r"no-such\.pt2 .*No such file"),
        ("no_such_package:make", "model = 'no_such_package:make'"),
        ("builtins:dict", "'builtins' is a module of Python itself"),
        ("torch:save", r"torch:save\(\) failed: .*"),
        ("torch.nn:Identity@absent.safetensors", r"absent\.safetensors"),
    ],
)
def test_messages_about_names(text, message):
    with pytest.raises(ExperimentError, match=message):
        load_local_model(text, TASK)


def test_a_file_that_is_no_program_and_weights_that_do_not_fit(hand_over, tmp_path):
    (tmp_path / "text.pt2").write_text("not a program")
    with pytest.raises(ExperimentError, match=r"text\.pt2 .*torch\.export"):
        load_local_model(str(tmp_path / "text.pt2"), TASK)
    text = hand_over(made(), "factory")
    save_file({"last.weight": torch.zeros(4, 5)}, tmp_path / "model.safetensors")
    with pytest.raises(ExperimentError, match=r"(?s)model\.safetensors cannot be used: .*Missing key"):
        load_local_model(text, TASK)


def test_a_product_of_computed_matrices_is_no_layer(hand_over):
    module = made(Similar)
    model = load_local_model(hand_over(module, "exported"), TASK)
    torch.testing.assert_close(model.represent(INPUTS).embeddings, expected(module)[0])
