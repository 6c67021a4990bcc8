"""Embeddings of any PyTorch model, and the reply that has them."""

import doctest
import importlib
import time

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from torch import nn

from fedgraph.clients import embeddings, penultimate
from fedgraph.messages import check_content
from fedgraph.messages.queries import OwnEmbeddings, WantedEmbeddings

X = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))


class Branches(nn.Module):
    """Two heads on one trunk; the second may go through the first."""

    def __init__(self, chained=False):
        super().__init__()
        self.trunk, self.age, self.sex = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.chained = chained

    def forward(self, x):
        hidden = self.trunk(x).relu()
        age = self.age(hidden)
        return age, self.sex(age if self.chained else hidden)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(0.5))
        self.unused, self.head = nn.Linear(2, 2), nn.Linear(3, 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.head(self.features(x).mean((2, 3)))


def perceptron():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def test_the_input_of_the_last_linear_layer_whatever_the_batches():
    model = perceptron()
    found = penultimate(model, X)
    torch.testing.assert_close(found, model[:2](X).detach())
    torch.testing.assert_close(penultimate(model, X, batch_size=7), found)
    torch.testing.assert_close(penultimate(model, X.double().numpy()), found)
    assert (found.requires_grad, found.dtype) == (False, torch.float32)
    torch.testing.assert_close(penultimate(model.bfloat16(), X), found, atol=0.03, rtol=0.03)


def test_inputs_may_have_gradients_and_exported_programs_are_refused():
    model = perceptron()
    torch.testing.assert_close(penultimate(model, X.clone().requires_grad_()), penultimate(model, X))
    with pytest.raises(ValueError, match="evaluation mode, .*pass the module that was exported"):
        penultimate(torch.export.export(model, (X,)).module(), X)


def test_the_model_is_left_as_it_was():
    model = Convolution()
    model.features[3].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = torch.randn(50, 1, 6, 6)
    with torch.no_grad():
        want = model.eval().features(images).mean((2, 3))
        model.calls.zero_()
    model.train()
    model.features[3].eval()
    torch.testing.assert_close(penultimate(model, images, batch_size=16), want)
    assert (model.training, model.features[1].training, model.features[3].training) == (True, True, False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_frozen_models_models_of_several_inputs_and_named_layers():
    model = Branches(chained=True).requires_grad_(False)
    torch.testing.assert_close(penultimate(model, X), model(X)[0])
    both = Branches()
    torch.testing.assert_close(penultimate(both, X), both.trunk(X).relu().detach())
    torch.testing.assert_close(penultimate(both, X, layer="age"), penultimate(both, X))

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.numbers, self.head = nn.EmbeddingBag(10, 5), nn.Linear(4, 4), nn.Linear(9, 2)

        def forward(self, words, numbers=None):
            return self.head(torch.cat([self.words(words), self.numbers(numbers).relu()], 1))

    words = torch.randint(10, (300, 6))
    both = Both()
    told = penultimate(both, {"numbers": X, "words": words}, batch_size=100)
    torch.testing.assert_close(told, penultimate(both, (words, X)))
    assert told.shape == (300, 9)


def test_what_a_layer_gets_is_flattened():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.head(self.inner(x).relu()).mean(1)

    assert penultimate(Tokens(), X.view(30, 10, 4)).shape == (30, 60)


def test_a_transformer_whose_fast_path_passes_layers_by():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.head = nn.Linear(8, 2)

        def forward(self, x):
            return self.head(self.encoder(x)[:, 0])

    assert penultimate(Encoder(), torch.randn(20, 5, 8)).shape == (20, 8)


def test_a_layer_that_is_not_called():
    model = Convolution()
    with pytest.raises(ValueError, match="'unused' .*not called"):
        penultimate(model, torch.randn(20, 1, 6, 6), layer="unused")


@pytest.mark.parametrize(
    ("model", "options", "problem"),
    [
        (nn.Sequential(nn.Conv1d(4, 2, 1)), {}, r"torch.nn.Linear.*\(layer=...\), .*'0'"),
        (perceptron(), {"layer": "head"}, "no layer 'head'; it has '0', '1', '2'"),
        (nn.Sequential(nn.Linear(4, 2)), {}, "contain the samples"),
        (perceptron(), {"layer": "0"}, "contain the samples"),
        (perceptron(), {"batch_size": 0}, "batch_size must be at least 1"),
    ],
)
def test_models_that_have_no_such_layer(model, options, problem):
    inputs = X[..., None] if isinstance(next(iter(model.children())), nn.Conv1d) else X
    with pytest.raises(ValueError, match=problem):
        penultimate(model, inputs, **options)


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ([], r"got the shapes \[\[0\]\]"),
        ((X, X[:5]), r"\[\[300, 4\], \[5, 4\]\]"),
        (torch.utils.data.DataLoader(X), "got DataLoader .*join the batches"),
        (np.array(["word"]), "inputs are numbers"),
        (X.masked_fill(X > 2, torch.nan), "NaN or infinite for some samples"),
    ],
)
def test_inputs_that_cannot_be_used(inputs, problem):
    with pytest.raises(ValueError, match=problem):
        penultimate(perceptron(), inputs)


def asked(**config):
    content = WantedEmbeddings(**config).pack() if config else RecordDict({"config": ConfigRecord({"lr": 0.1})})
    return Message(content, 1, "query")


def told(message):
    return OwnEmbeddings.unpack(check_content(message.content))


def test_a_reply_has_what_was_asked_for():
    ids, values = [10, 9, 2, 30], torch.arange(8.0).view(4, 2)
    split = ["train", "test", "new", "validation"]
    found = told(embeddings(asked(), ids, values, ["b", "a", None, "c"], split))
    assert (found.keys, found.id_kind, found.classes) == (("10", "30", "9"), "int", ("a", "b", "c"))
    assert found.embeddings.tolist() == [[0, 1], [6, 7], [2, 3]]
    assert (found.split.tolist(), found.labels.tolist()) == ([0, 1, 2], [1, 2, 0])
    assert told(embeddings(asked(splits=("new",)), ids, values, None, split)).keys == ("2",)
    assert told(embeddings(asked(ids=("2", "9", "other")), ids, values, None, split)).keys == ("2", "9")
    nothing = told(embeddings(asked(splits=("new",)), ids, values, None, "train"))
    assert (nothing.keys, nothing.classes, nothing.embeddings.shape) == ((), (), (0, 2))


def test_samples_of_no_split_are_new_where_nobody_has_a_label():
    ids, values, labels = ["a", "b"], np.eye(2), [True, None]
    assert told(embeddings(asked(), ids, values, labels)).keys == ("a",)
    assert told(embeddings(asked(splits=("new",)), ids, values, labels)).keys == ("b",)
    for splits in (("train", "test"), ("new",)):
        assert told(embeddings(asked(splits=splits), ids, values)).keys == ("a", "b")
    assert told(embeddings(asked(), ids, values, labels)).class_kind == "bool"


def test_labels_of_minus_one_are_none_and_told(caplog):
    reply = embeddings(asked(), ["a", "b", "c"], np.eye(3), np.array([1, -1, 0]))
    assert (told(reply).keys, told(reply).classes) == (("a", "c"), ("0", "1"))
    assert "1 of 3 labels are -1, which means no label" in caplog.text
    caplog.clear()
    assert told(embeddings(asked(), ["a", "b"], np.eye(2), ["1", "-1"])).classes == ("-1", "1")
    assert told(embeddings(asked(), ["a", "b"], np.eye(2), [1.0, np.nan])).keys == ("a",)
    assert not caplog.text


def test_many_samples_are_found_by_id():
    ids = [str(number) for number in range(20_000)]
    start = time.process_time()
    assert len(told(embeddings(asked(ids=tuple(ids)), ids, np.zeros((20_000, 1)), ids)).keys) == 20_000
    with pytest.raises(ValueError, match="'19999' is there twice"):
        embeddings(asked(), [*ids, "19999"], np.zeros((20_001, 1)))
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"ids": ["a", "a"]}, "the sample 'a' is there twice"),
        ({"ids": ["a", 1]}, "ids of samples .*got 1"),
        ({"ids": ["a", None]}, "ids of samples .*got None"),
        ({"ids": ["a", "\n"]}, "letters that can be shown"),
        ({"values": np.zeros(2)}, r"\[samples, size\]; .*\[2\]"),
        ({"values": np.full((2, 1), np.nan)}, "NaN or infinite"),
        ({"labels": [1]}, "2 samples and 1 labels"),
        ({"labels": [0.5, 1.0]}, "got 0.5"),
        ({"labels": np.eye(2)}, "one class for each sample"),
        ({"split": "training"}, "splits .*got training"),
        ({"split": ["train"]}, "2 samples and 1 splits"),
    ],
)
def test_what_an_owner_cannot_send(given, problem):
    with pytest.raises(ValueError, match=problem):
        embeddings(asked(), **({"ids": ["a", "b"], "values": np.ones((2, 3))} | given))


def test_the_example_runs():
    assert doctest.testmod(importlib.import_module("fedgraph.clients.owner_app")).failed == 0
