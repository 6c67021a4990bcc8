"""Models as ONNX files: the same answers as the model, or an error."""

import numpy as np
import pytest
import torch
from torch import nn

from fedgraph.data.preprocessing import Answering, InputScale
from fedgraph.models import TaskSpec
from fedgraph.runs.exporting import export
from fedgraph.support.errors import RunError

onnxruntime = pytest.importorskip("onnxruntime")


class Branching(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs if inputs.sum() > 0 else -inputs)


class Sized(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.reshape(len(inputs), 3))


class Measured(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) / inputs.shape[0] * float(inputs.detach().abs().max())


class Plain(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.reshape(inputs.shape[0], 3))


def answering(kind, task):
    torch.manual_seed(0)
    scale = InputScale(torch.tensor([5.0, 50.0, 0.0]), torch.tensor([1.0, 10.0, 1.0]), torch.zeros(3))
    return Answering(kind(3, 2), task, scale, 100.0, 20.0).eval()


TASKS = (TaskSpec("regression", (3,), (2,)), TaskSpec("classification", (3,), (2,), classes=("no", "yes")))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
@pytest.mark.parametrize("kind", [Branching, Sized, Measured])
def test_a_file_with_other_answers_than_the_model_is_not_written(tmp_path, kind, task):
    with pytest.raises(RunError, match="other answers than the model"):
        export(answering(kind, task), tmp_path / "model.onnx", {})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_a_file_has_the_answers_of_the_model(tmp_path, task):
    module = answering(Plain, task)
    export(module, tmp_path / "model.onnx", {"run": "here"})
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for size in (1, 5):
        values = torch.randn(size, 3, generator=torch.Generator().manual_seed(size)) * 30
        values[0, 1] = torch.nan
        (answers,) = session.run(None, {"values": values.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(answers, module(values).numpy(), rtol=1e-4, atol=1e-5)
    assert session.get_modelmeta().custom_metadata_map["run"] == "here"
