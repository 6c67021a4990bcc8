"""Fitted scikit-learn models in skops files, and ONNX models."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import VotingClassifier
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, KBinsDiscretizer
from sklearn.tree import DecisionTreeClassifier

from fedgraph.fusion.owner_models.brought import load_local_model
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import ExperimentError

TASK = TaskSpec("classification", (4,), (3,), features=("a", "b", "c", "d"), classes=("low", "mid", "top"))
INPUTS = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long() + (INPUTS[:, 1] > 0.5).long()
NAMED = pd.DataFrame(INPUTS.numpy(), columns=["a", "b", "c", "d"])


@pytest.fixture
def saved(tmp_path):
    """``saved(pipeline)``: the path of its skops file."""
    io = pytest.importorskip("skops.io")

    def save(pipeline):
        io.dump(pipeline, tmp_path / "model.skops")
        return str(tmp_path / "model.skops")

    return save


def pipeline(classifier=None):
    return make_pipeline(PCA(2, random_state=0), classifier or LogisticRegression())


@pytest.mark.parametrize("names", [np.array(TASK.classes), np.arange(3), np.arange(3.0)])
def test_a_fitted_pipeline_predicts_and_embeds_as_it_does(saved, names):
    fitted = pipeline().fit(NAMED, names[LABELS.numpy()])
    model = load_local_model(saved(fitted), TASK)
    found = model.represent(INPUTS[:7])
    np.testing.assert_allclose(found.embeddings, fitted[:-1].transform(NAMED[:7]), rtol=1e-5, atol=1e-6)
    order = [list(fitted.classes_).index(name) for name in names]
    np.testing.assert_allclose(found.probabilities, fitted.predict_proba(NAMED[:7])[:, order], rtol=1e-4, atol=1e-6)
    assert len(model.fingerprint) == 32


@pytest.mark.parametrize(
    "make",
    [
        lambda: pipeline(MLPClassifier((4,), max_iter=5, random_state=0)),
        lambda: pipeline(CalibratedClassifierCV(LogisticRegression(), cv=2)),
        lambda: pipeline(VotingClassifier([("linear", LogisticRegression()), ("normal", GaussianNB())], voting="soft")),
        lambda: make_pipeline(
            make_column_transformer((KBinsDiscretizer(3), ["d", "a"]), ("passthrough", ["b"])), LogisticRegression()
        ),
        lambda: make_pipeline(
            PCA(3), make_column_transformer(("passthrough", ["pca1", "pca0"])), LogisticRegression()
        ).set_output(transform="pandas"),
    ],
)
@pytest.mark.filterwarnings("ignore:Stochastic Optimizer", "ignore:Quantiles are", "ignore:The current default")
def test_fitted_parts_and_columns_by_name(saved, make):
    fitted = make().fit(NAMED, LABELS)
    found = load_local_model(saved(fitted), TASK).represent(INPUTS[:7])
    transformed = fitted[:-1].transform(NAMED[:7])
    dense = np.asarray(transformed.toarray() if hasattr(transformed, "toarray") else transformed)
    np.testing.assert_allclose(found.embeddings, dense, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.probabilities, fitted.predict_proba(NAMED[:7]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pipeline().fit(NAMED[["b", "a", "c", "d"]], LABELS), "was fitted to the features b, a, c, d"),
        (lambda: pipeline().fit(NAMED[["a", "b"]], LABELS), "2 features, .*4"),
        (lambda: pipeline().fit(NAMED, np.array(["x", "y", "z"])[LABELS]), "predicts the classes x, y, z, but"),
        (lambda: pipeline(RidgeClassifier()).fit(NAMED, LABELS), "predict_proba"),
        (lambda: pipeline(DecisionTreeClassifier()).fit(NAMED, LABELS), "Tree.* crash .*ONNX"),
        (
            lambda: pipeline(MultiOutputClassifier(LogisticRegression())).fit(NAMED, np.stack([LABELS, LABELS], 1)),
            "several targets",
        ),
        (lambda: LogisticRegression().fit(NAMED, LABELS), "so its embedding would be the sample"),
        (lambda: make_pipeline(FunctionTransformer(replace), PCA(2), LogisticRegression()), "replace.*execute code"),
    ],
)
def test_pipelines_that_are_refused(saved, make, message):
    with pytest.raises(ExperimentError, match=message):
        load_local_model(saved(make()), TASK)


def test_files_that_are_no_models(tmp_path, monkeypatch):
    pytest.importorskip("skops")
    pytest.importorskip("onnxruntime")
    for name in ("model.skops", "model.onnx"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ExperimentError, match="cannot be read by skops|is not an ONNX model"):
            load_local_model(str(tmp_path / name), TASK)
        with pytest.raises(ExperimentError, match="cannot be read"):
            load_local_model(str(tmp_path / f"no-{name}"), TASK)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(pipeline()))
    with pytest.raises(ExperimentError, match="is a pickle"):
        load_local_model(str(tmp_path / "model.pkl"), TASK)
    for package, name in (("skops", "model.skops"), ("onnxruntime", "model.onnx")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(ExperimentError, match="owner-models"):
            load_local_model(str(tmp_path / name), TASK)


def onnx_model(path, last="Gemm", outputs=3, domain="", softmax=False, transposed=False, weights=None):
    """A perceptron with a hidden layer of 5 units; returns its weights."""
    onnx = pytest.importorskip("onnx")
    random = np.random.default_rng(0)
    weights = weights or {"w0": random.normal(size=(4, 5)), "w1": random.normal(size=(5, outputs))}
    stored = weights | ({"w1": weights["w1"].T} if transposed else {})
    tensors = [onnx.numpy_helper.from_array(value.astype(np.float32), name) for name, value in stored.items()]
    float_ = onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w0"], ["h"], name="first"),
        onnx.helper.make_node("Relu", ["h"], ["r"], name="relu"),
        onnx.helper.make_node(last, ["r", "t" if transposed else "w1"], ["y"], name="last", domain=domain),
    ]
    if transposed:
        nodes.insert(2, onnx.helper.make_node("Transpose", ["w1"], ["t"], perm=[1, 0]))
    if softmax:
        nodes.append(onnx.helper.make_node("Softmax", ["y"], ["p"], axis=1))
    graph = onnx.helper.make_graph(
        nodes, "net",
        [onnx.helper.make_tensor_value_info("x", float_, ["n", 4])],
        [onnx.helper.make_tensor_value_info("p" if softmax else "y", float_, ["n", outputs])],
        tensors,
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17), *([onnx.helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path))
    return weights


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize(("last", "transposed"), [("Gemm", False), ("MatMul", False), ("MatMul", True)])
def test_an_onnx_model_predicts_and_embeds(tmp_path, last, transposed, softmax):
    pytest.importorskip("onnxruntime")
    weights = onnx_model(tmp_path / "net.onnx", last, softmax=softmax, transposed=transposed)
    model = load_local_model(str(tmp_path / "net.onnx"), TASK)
    hidden = np.maximum(INPUTS.numpy() @ weights["w0"], 0)
    found = model.represent(INPUTS)
    np.testing.assert_allclose(found.embeddings, hidden, rtol=1e-4, atol=1e-5)
    expected = torch.softmax(torch.from_numpy(hidden @ weights["w1"]), 1)
    np.testing.assert_allclose(found.probabilities, expected, rtol=1e-3, atol=1e-5)
    before = load_local_model(f"{tmp_path / 'net.onnx'}#relu", TASK).represent(INPUTS)
    np.testing.assert_allclose(before.embeddings, INPUTS.numpy() @ weights["w0"], rtol=1e-4, atol=1e-5)


def test_logits_that_add_up_to_1_by_chance_are_logits(tmp_path):
    pytest.importorskip("onnxruntime")
    onnx_model(tmp_path / "net.onnx", weights={"w0": np.eye(4, 5), "w1": np.eye(5, 3)})
    logits = torch.tensor([[0.5, 0.3, 0.2]])
    found = load_local_model(str(tmp_path / "net.onnx"), TASK).represent(torch.cat([logits, torch.ones(1, 1)], 1))
    torch.testing.assert_close(found.probabilities, logits.softmax(1))


@pytest.mark.parametrize(
    ("options", "layer", "message"),
    [
        ({"outputs": 2}, "", r"\[3, 2\] .*3 classes"),
        ({"domain": "com.example"}, "", "has operations of com.example"),
        ({}, "#elsewhere", "'elsewhere' .*first, relu, last"),
    ],
)
def test_onnx_models_that_are_refused(tmp_path, options, layer, message):
    pytest.importorskip("onnxruntime")
    onnx_model(tmp_path / "net.onnx", **options)
    with pytest.raises(ExperimentError, match=message):
        load_local_model(f"{tmp_path / 'net.onnx'}{layer}", TASK)
