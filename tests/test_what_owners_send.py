"""No model and no feature of an owner is in any byte of any message; embeddings are, so the search is seen to work.

Two neighbouring float32 numbers are searched for, at any place of a message, in the order of rows as of columns, and
single numbers in float64: whatever part of a model or window is sent, it is found.
"""

import contextlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source, parse_data
from fedgraph.fusion.model_file import FittedFusion
from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.support.errors import FedgraphError
from fedgraph.support.files import load_state

OWNERS, SAMPLES, STEPS, FEATURES = 3, 90, 4, 2
NAMES = tuple(f"owner-{number:03d}" for number in range(OWNERS))


def eights(data):
    """All runs of eight bytes in ``data``, as numbers."""
    whole = [np.frombuffer(data[start : start + (len(data) - start) // 8 * 8], dtype="<u8") for start in range(8)]
    return np.unique(np.concatenate(whole))


def traces(*tensors):
    """What a tensor leaves in a message: pairs of its numbers, along the first and the last axis, and doubles."""
    found = []
    for tensor in tensors:
        values = tensor.detach().float().reshape(len(tensor) if tensor.ndim else 1, -1)
        for matrix in (values, values.T):
            pairs = torch.stack([matrix[:, :-1], matrix[:, 1:]], -1).reshape(-1, 2)
            pairs = pairs[(pairs != 0).all(1)].contiguous()
            found.append(pairs.numpy().view("<u8").ravel())
        found.append(values[values != 0].double().numpy().view("<u8"))
    return np.unique(np.concatenate(found))


def seen(data, *tensors):
    """How many traces of the tensors are in the bytes."""
    return int(np.isin(traces(*tensors), eights(data)).sum())


@pytest.fixture
def panel(tmp_path):
    draw = np.random.default_rng(0)
    labels = np.arange(SAMPLES) % 2
    values = draw.normal(size=(SAMPLES, OWNERS, STEPS, FEATURES)).astype(np.float32)
    values[:, :, :, 0] += labels[:, None, None] * 0.7
    np.savez(tmp_path / "panel.npz", values=values, labels=labels)
    return tmp_path / "panel.npz"


@pytest.fixture
def tables(panel):
    return {
        "experiment": {"name": "panel", "method": "f3"},
        "data": {"set": "panel", "path": str(panel)},
        "model": {
            "name": "lstm",
            "hidden": 3,
            "read-out": "steps",
            "variants": [{"clients": ["owner-001"], "name": "mlp", "hidden": [6, 5]}],
        },
        "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 20, "local-epochs": 2, "workers": 1},
    }


FUSION = {"epochs": 2, "learning-rates": [0.01], "draws": 2, "workers": 1, "device": "cpu"}


class Wire:
    """A client app; all content that passes in either direction, as bytes."""

    def __init__(self, in_bytes):
        self.data, self._in_bytes = b"", in_bytes

    def __call__(self, message, context):
        self._keep(message)
        reply = client_app(message, context)
        self._keep(reply)
        return reply

    def _keep(self, message):
        self.data += self._in_bytes(message.content) + bytes(8)


def inputs(tables, data_dir):
    """Windows as they are in the file, and as the models get them."""
    with np.load(tables["data"]["path"]) as file:
        raw = torch.from_numpy(file["values"]).transpose(0, 1)
    scaled = open_source(parse_data(tables["data"]), data_dir).load_owners(NAMES).inputs
    return [*raw, *scaled]


def models(folder):
    """Every tensor of every owner's frozen model, from the files that the nodes keep."""
    task = TaskSpec("classification", (STEPS, FEATURES), (2,))
    lstm = build({"name": "lstm", "hidden": 3, "read-out": "steps"}, task).layout
    mlp = build({"name": "mlp", "hidden": [6, 5]}, task).layout
    layouts = {layout.num_parameters: layout for layout in (lstm, mlp)}
    rows = [load_file(path)["parameters"] for path in folder.path.rglob("local-models/*.safetensors")]
    assert len(rows) == OWNERS
    return [tensor[0] for row in rows for tensor in layouts[len(row)].unflatten(row[None]).values()]


def f3_tables(tables, **more):
    return {**tables, "f3": {**FUSION, **more}}


def vertical_tables(tables):
    head = {**tables["experiment"], "method": "vfl"}
    return {**tables, "experiment": head, "vfl": {**FUSION, "epochs": 1, "batch-size": 30}}


@pytest.mark.parametrize("make", [f3_tables, vertical_tables])
def test_neither_models_nor_features(tables, run_experiment, data_dir, make, in_bytes):
    wire = Wire(in_bytes)
    folder = run_experiment(make(tables), client=wire)
    # Both methods begin with the same embeddings, and only F3 keeps them.
    kept = load_state((folder if make is f3_tables else run_experiment(f3_tables(tables))).checkpoint)["samples"]
    embeddings = [kept["embeddings"][:, owner, :size] for owner, size in enumerate(kept["sizes"].tolist())]
    for owner in embeddings:
        pairs = int(((owner[:, :-1] != 0) & (owner[:, 1:] != 0)).sum())
        assert seen(wire.data, owner) >= pairs > 50, "embeddings are sent, and the search finds them"
    assert seen(wire.data, *inputs(tables, data_dir)) == 0
    assert seen(wire.data, *models(folder)) == 0
    if make is f3_tables:
        fusion = FittedFusion.read(folder.path / "fusion.safetensors").network.state_dict().values()
        assert seen(wire.data, *(value for value in fusion if value.ndim)) == 0, "nothing goes back to the owners"


def test_the_search_finds_a_part_of_a_model_or_window(tables, run_experiment, data_dir, in_bytes):
    wire = Wire(in_bytes)
    folder = run_experiment(f3_tables(tables), client=wire)
    for secret in (*inputs(tables, data_dir), *models(folder)):
        pair = secret.flatten()[:2].contiguous() if secret.numel() > 1 else None
        if pair is not None and bool((pair != 0).all()):
            assert seen(wire.data + b"x" + pair.numpy().tobytes(), secret) > 0
    transposed = models(folder)[0].T.contiguous().numpy().tobytes()
    assert seen(b"abc" + transposed, models(folder)[0]) > 0
    assert seen(b"abc" + models(folder)[0].double().numpy().tobytes(), models(folder)[0]) > 0


@pytest.mark.parametrize("make", [f3_tables, vertical_tables])
def test_a_model_without_a_hidden_layer_would_send_its_inputs_and_is_refused(
    tables, run_experiment, data_dir, monkeypatch, make, in_bytes
):
    """Its last linear layer is its only one, whose input is the sample: were it not refused, the search would find."""
    tables["model"] = {"name": "mlp", "hidden": []}
    scaled = inputs(tables, data_dir)[OWNERS:]
    refused, sent = Wire(in_bytes), Wire(in_bytes)
    with pytest.raises(FedgraphError, match="owner-00.*must not leave its owner"):
        run_experiment(make(tables), client=refused)
    assert seen(refused.data, *scaled) == 0
    monkeypatch.setattr("fedgraph.fusion.owner_models.stage.check_not_raw", lambda *arguments: None)
    with contextlib.suppress(FedgraphError):  # in vertical learning there is nothing to learn for such a model
        run_experiment(make(tables), client=sent)
    assert seen(sent.data, *scaled) > 0.2 * len(traces(*scaled))


def test_with_noise_not_even_embeddings(tables, run_experiment, in_bytes):
    clear, noisy = Wire(in_bytes), Wire(in_bytes)
    folder = run_experiment(f3_tables(tables), client=clear)
    embeddings = load_state(folder.checkpoint)["samples"]["embeddings"]
    predictions = load_state(folder.checkpoint)["samples"]["predictions"]
    run_experiment(f3_tables(tables, noise={"clip-norm": 1.0, "noise-multiplier": 0.5}), client=noisy)
    for values in (embeddings, predictions):
        assert seen(clear.data, values.transpose(0, 1).flatten(1)) > 100
        assert seen(noisy.data, values.transpose(0, 1).flatten(1)) == 0


def test_nor_at_inference(tables, run_experiment, data_dir, tmp_path, in_bytes):
    tables["data"]["new-share"] = 0.2
    nodes = [
        {"partition-id": part, "num-partitions": 2, "model-dir": str(tmp_path / "local-models")} for part in range(2)
    ]
    folder = run_experiment(f3_tables(tables), node_configs=nodes)
    wire = Wire(in_bytes)
    head = {"name": "later", "method": "f3-inference"}
    later = {**tables, "experiment": head, "f3-inference": {"run": str(folder.path)}}
    again = run_experiment(later, client=wire, node_configs=nodes)
    assert again.summary()["exchanges"] == 1
    kept = load_state(again.checkpoint)["samples"]
    assert seen(wire.data, kept["embeddings"].transpose(0, 1).flatten(1)) > 100
    assert seen(wire.data, *inputs(tables, data_dir)) == 0
    stored = [load_file(path)["parameters"] for path in (tmp_path / "local-models").glob("*.safetensors")]
    assert len(stored) == OWNERS
    assert seen(wire.data, *stored) == 0
