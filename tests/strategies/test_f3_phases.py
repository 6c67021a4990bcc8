"""Runs of F3: one exchange, then everything at the server."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord

from fedgraph.algorithms import f3
from fedgraph.algorithms.f3_settings import F3Settings
from fedgraph.algorithms.owners import bytes_per_owner
from fedgraph.clients.app import app as client_app
from fedgraph.fusion.alignment import SoftAlignment
from fedgraph.fusion.model_file import FittedFusion
from fedgraph.fusion.prediction import Prediction
from fedgraph.messages import check_content
from fedgraph.messages.embeddings import EmbedReply
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import DataError, ExperimentError
from fedgraph.support.files import load_state, save_state

NAMES = ("patch-0-0", "patch-0-1", "patch-1-0", "patch-1-1")
KEYS = 1797


def predictions(folder):
    with (folder.path / "predictions.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def probabilities(folder):
    names = [f"probability {digit}" for digit in range(10)]
    return np.array([[float(line[name]) for name in names] for line in predictions(folder)])


class Listener:
    """A client that keeps what it is asked and answers."""

    def __init__(self):
        self.asked, self.replies = [], []

    def __call__(self, message, context):
        self.asked.append(message.metadata.message_type)
        reply = client_app(message, context)
        self.replies.append(reply)
        return reply


def refuse(message, context):
    raise AssertionError("nothing more may be sent")


def test_one_exchange_and_what_it_takes(patches_tables, run_experiment):
    listener = Listener()
    folder = run_experiment(patches_tables, client=listener, node_configs=[{"clients": name} for name in NAMES])
    summary = folder.summary()
    assert listener.asked == ["query.embed"] * 4
    assert (summary["exchanges"], summary["bytes_down"]) == (1, 0)
    records = [record for reply in listener.replies for record in reply.content.array_records.values()]
    assert summary["bytes_up"] == sum(len(array.data) for record in records for array in record.values())
    answer = EmbedReply.unpack(check_content(listener.replies[0].content))
    arrays = answer.embeddings, answer.predictions
    assert summary["bytes_per_owner"] == sum(each.numel() * 4 for each in arrays) + answer.present.numel()
    assert summary["bytes_per_owner"] == KEYS * (4 * (6 + 10) + 1)
    assert summary["training_bytes_per_owner"] == int((answer.split < 2).sum()) * (4 * (6 + 10) + 1)
    assert (summary["clients"], summary["method"]) == (4, "f3")
    assert summary["weights_sha256"]
    assert summary["fusion"]["epochs"] == 2
    assert set(summary["per_client"]["test"]["accuracy-local"]) == set(NAMES)


def test_what_is_left_in_the_run_folder(patches_tables, run_experiment):
    patches_tables["data"] |= {"lacking-share": 0.3}
    folder = run_experiment(patches_tables)
    lines = predictions(folder)
    assert [line["key"] for line in lines] == sorted(line["key"] for line in lines)
    np.testing.assert_allclose(probabilities(folder).sum(1), 1, atol=1e-4)
    assert {line["split"] for line in lines} == {"train", "validation", "test"}
    assert {int(line["owners"]) for line in lines} == {1, 2, 3, 4}
    test = [line for line in lines if line["split"] == "test"]
    accuracy = np.mean([line["label"] == line["predicted"] for line in test])
    summary = folder.summary()
    assert accuracy == pytest.approx(summary["metrics"]["test"]["accuracy"]["mean"])
    assert max(float(line["deviation 3"]) for line in lines) > 0, "predictions vary over drawn graphs"
    fusion = FittedFusion.read(folder.path / "fusion.safetensors")
    assert fusion.owners == NAMES
    assert len(set(fusion.fingerprints)) == 4
    with np.load(folder.path / "alignment.npz") as file:
        assert file["matrices"].shape == (4, 6, 6)
        assert file["owners"].tolist() == list(NAMES)
    graph = np.load(folder.path / "learned-graph.npz")
    assert graph.files
    with (folder.path / "entropies.csv").open() as stream:
        entropies = [float(line["entropy"]) for line in csv.DictReader(stream)]
    assert len(entropies) == len(lines)
    assert 0 < np.mean(entropies) <= 2
    epochs = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["round"] for line in epochs if line["phase"] == "fusion"] == [1, 2]


def test_a_run_that_is_stopped_after_the_exchange_sends_nothing_more(
    patches_tables, run_experiment, monkeypatch, tmp_path
):
    patches_tables["graph"] = {"source": "data"}
    patches_tables["f3"] |= {"graph": "given"}
    whole = run_experiment(patches_tables)

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f3, "fit_joined", killed)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(patches_tables)
    (path,) = (path for path in (tmp_path / "runs").iterdir() if path != whole.path)
    folder = RunFolder.open(path)
    assert not folder.is_finished
    saved = load_state(folder.checkpoint)
    assert 0 < saved["seconds"] < 100
    save_state(folder.checkpoint, saved | {"seconds": saved["seconds"] + 100})
    run_experiment(patches_tables, folder=folder, client=refuse)
    resumed, uninterrupted = folder.summary(), whole.summary()
    assert resumed["seconds"] > saved["seconds"] + 100 > uninterrupted["seconds"]
    for name in ("exchanges", "bytes_up", "bytes_down", "bytes_per_owner", "metrics", "weights_sha256", "data"):
        assert resumed[name] == uninterrupted[name], name
    assert resumed["exchanges"] == 1
    for name in ("predictions.csv", "entropies.csv", "fusion.safetensors"):
        assert (path / name).read_bytes() == (whole.path / name).read_bytes()
    assert len(folder.metrics.read_text().splitlines()) == len(whole.metrics.read_text().splitlines())


def test_packing_does_not_matter(patches_tables, run_experiment):
    patches_tables["data"] |= {"lacking-share": 0.1}
    two = run_experiment(patches_tables)
    text = (two.path / "predictions.csv").read_text()
    again = run_experiment(patches_tables)
    assert (again.path / "predictions.csv").read_text() == text
    assert again.summary()["weights_sha256"] == two.summary()["weights_sha256"]
    turned = run_experiment(
        patches_tables,
        node_configs=[{"partition-id": part, "num-partitions": 2} for part in (1, 0)],
    )
    assert (turned.path / "predictions.csv").read_text() == text
    assert turned.summary()["weights_sha256"] == two.summary()["weights_sha256"]
    for nodes in (1, 4, 6):
        other = run_experiment(patches_tables, nodes=nodes)
        np.testing.assert_allclose(probabilities(other), probabilities(two), atol=5e-5)
        assert [line["key"] for line in predictions(other)] == [line["key"] for line in predictions(two)]
    patches_tables["experiment"]["seed"] = 1
    assert np.abs(probabilities(run_experiment(patches_tables)) - probabilities(two)).max() > 0.02


def test_it_learns_more_than_any_owner_and_their_vote_know(patches_tables, run_experiment, tmp_path):
    patches_tables["model"]["hidden"] = [32, 16]
    patches_tables["train"] |= {"learning-rate": 0.003, "batch-size": 100, "local-epochs": 15}
    table = {**patches_tables["f3"], "hidden": 32, "epochs": 25, "batch-size": 100, "patience": 25}
    nodes = [{"partition-id": part, "num-partitions": 2, "model-dir": str(tmp_path / "models")} for part in range(2)]
    found = {}
    for name, changes in {
        "soft": {},
        "none": {"alignment": "none"},
        "vote": {"fusion": "vote"},
        "best": {"fusion": "best-owner"},
    }.items():
        folder = run_experiment({**patches_tables, "f3": {**table, **changes}}, node_configs=nodes)
        measured = folder.summary()
        found[name] = measured["metrics"]["test"]["accuracy"]["mean"]
        own = measured["per_client"]["test"]["accuracy-local"]
    assert 0.5 < min(own.values()) < max(own.values()) < 0.8
    assert found["best"] in own.values()
    assert found["vote"] > max(own.values())
    for name in ("soft", "none"):
        assert found[name] > found["vote"] + 0.08, found
        assert found[name] > 0.92, found


@pytest.mark.parametrize(
    "table",
    [
        {"fusion": "mean-pooling", "alignment": "none"},
        {"fusion": "transformer"},
        {"fusion": "concatenation"},
        {"alignment": "hard", "graph": "gumbel"},
        {"graph": "neighbours", "neighbours": 2, "absent": "zeros"},
        {"graph": "none"},
        {"draw-per": "never", "alignment-affine": True, "head": [5], "owner-dropout": 0.3},
        {"fusion": "ensemble", "members": {"graph": 1, "mean-pooling": 1}},
    ],
    ids=lambda table: "-".join(map(str, table.values())),
)
def test_every_fusion_runs_where_samples_lack(patches_tables, run_experiment, table):
    patches_tables["data"] |= {"lacking-share": 0.3}
    patches_tables["f3"] |= {**table, "epochs": 1}
    folder = run_experiment(patches_tables)
    assert folder.summary()["exchanges"] == 1
    assert np.isfinite(probabilities(folder)).all()
    assert FittedFusion.read(folder.path / "fusion.safetensors").owners == NAMES


def test_an_ensemble_takes_one_exchange_and_tells_what_its_members_came_to(patches_tables, run_experiment):
    alone = run_experiment(patches_tables).summary()
    patches_tables["f3"] |= {"fusion": "ensemble", "members": {"graph": 2, "concatenation": 1}}
    found = run_experiment(patches_tables).summary()
    assert (found["exchanges"], found["bytes_up"]) == (1, alone["bytes_up"])
    members = found["fusion"]["members"]
    assert [each["fusion"] for each in members] == ["graph", "graph", "concatenation"]
    assert [each["weight"] for each in members] == pytest.approx([1 / 3] * 3)
    assert members[0]["validation_loss"] == alone["fusion"]["validation_loss"]
    assert members[0]["validation_loss"] != members[1]["validation_loss"]


def test_owners_with_embeddings_of_different_sizes(patches_tables, run_experiment):
    patches_tables["model"]["variants"] = [
        {"clients": ["patch-0-1"], "name": "mlp", "hidden": [9]},
        {"clients": ["patch-1-*"], "name": "mlp", "hidden": [3]},
    ]
    folder = run_experiment(patches_tables)
    assert FittedFusion.read(folder.path / "fusion.safetensors").sizes.tolist() == [6, 9, 3, 3]
    assert folder.summary()["bytes_per_owner"] == KEYS * (4 * (9 + 10) + 1)
    apart = run_experiment(patches_tables, nodes=4)
    np.testing.assert_allclose(probabilities(apart), probabilities(folder), atol=5e-5)


@pytest.mark.parametrize("fusion", ["vote", "best-owner"])
def test_ensembles_are_those_of_the_owners_predictions(patches_tables, run_experiment, fusion):
    patches_tables["data"] |= {"lacking-share": 0.3}
    patches_tables["f3"] |= {"fusion": fusion}
    listener = Listener()
    folder = run_experiment(patches_tables, client=listener, nodes=1)
    answer = EmbedReply.unpack(check_content(listener.replies[0].content))
    said, present = answer.predictions.numpy(), answer.present.numpy()
    if fusion == "vote":
        votes = np.eye(10)[said.argmax(2)] * present[..., None]
        wanted = votes.sum(0) / present.sum(0)[:, None]
    else:
        from sklearn.metrics import f1_score

        rows = [(answer.split.numpy() == 1) & own for own in present]
        truth = answer.labels.numpy()
        f1 = [
            f1_score(truth[row], own[row].argmax(1), average="macro", zero_division=0.0)
            for row, own in zip(rows, said, strict=True)
        ]
        ranking = np.argsort(f1)[::-1]
        first = ranking[present[ranking].argmax(0)]
        wanted = said[first, np.arange(said.shape[1])]
    np.testing.assert_allclose(probabilities(folder), wanted, atol=1e-5)
    assert folder.summary()["exchanges"] == 1
    assert not (folder.path / "fusion.safetensors").exists()


def test_thresholds_are_for_two_classes(patches_tables, run_experiment):
    patches_tables["f3"] |= {"fusion": "threshold"}
    with pytest.raises(ExperimentError, match="require two classes; got 10"):
        run_experiment(patches_tables)


def test_noise_withholds_predictions_and_is_accounted_for(patches_tables, run_experiment):
    from dp_accounting import get_epsilon_gaussian

    patches_tables["f3"] |= {"noise": {"clip-norm": 1.0, "noise-multiplier": 2.0, "delta": 1e-4}}
    listener = Listener()
    folder = run_experiment(patches_tables, client=listener)
    summary = folder.summary()
    assert summary["privacy"]["epsilon"] == pytest.approx(get_epsilon_gaussian(2.0, 1e-4))
    together = get_epsilon_gaussian(2.0 / summary["clients"] ** 0.5, 1e-4)
    assert summary["privacy"]["epsilon_of_all_owners"] == pytest.approx(together)
    assert summary["bytes_per_owner"] == KEYS * (4 * 6 + 1)
    assert not (folder.path / "entropies.csv").exists()
    assert "accuracy-local" not in summary["metrics"]["test"]
    for reply in listener.replies:
        answer = EmbedReply.unpack(check_content(reply.content))
        assert answer.predictions.shape[2] == 0
        assert float(answer.embeddings.std()) == pytest.approx(4.0, rel=0.1)
    patches_tables["f3"] |= {"fusion": "vote"}
    with pytest.raises(ExperimentError, match="fusion = 'vote'"):
        run_experiment(patches_tables)


def test_bytes_per_owner_are_those_of_the_longest_embedding():
    class Joined:
        sizes = torch.tensor([3, 5])
        predictions = torch.zeros(2, 2, 4)

    assert bytes_per_owner(Joined, 2) == 2 * (4 * (5 + 4) + 1)


def without_training_samples(message, context):
    """Of patch-0-1 only samples of validation and test are there."""
    reply = client_app(message, context)
    samples = {name: array.numpy().copy() for name, array in reply.content["samples"].items()}
    owner = list(reply.content["config"]["clients"]).index("patch-0-1")
    samples["present"][owner, samples["split"] == 0] = 0
    reply.content["samples"] = ArrayRecord({name: Array(values) for name, values in samples.items()})
    return reply


@pytest.mark.parametrize(
    ("table", "warned"),
    [
        ({}, True),
        ({"alignment": "hard"}, True),
        ({"alignment-trained": False}, False),
        ({"alignment": "none"}, False),
        ({"fusion": "vote"}, False),
    ],
)
def test_who_has_no_training_samples_is_told_before_its_alignment_counts(
    patches_tables, run_experiment, caplog, table, warned
):
    patches_tables["f3"] |= {"epochs": 1, **table}
    run_experiment(patches_tables, nodes=1, client=without_training_samples)
    found = [each.getMessage() for each in caplog.records if "no training samples" in each.getMessage()]
    assert len(found) == warned
    assert all(text.startswith("patch-0-1: no training samples; the alignment remains") for text in found)


def test_it_runs_on_traffic(run_experiment, data_dir):
    if not (data_dir / "metr-la").is_dir():
        pytest.skip(f"no metr-la in {data_dir}: set FEDGRAPH_DATA to a folder with it")
    tables = {
        "experiment": {"name": "traffic", "method": "f3"},
        "data": {"set": "metr-la-rush-hour", "first-steps": 4000},
        "model": {"name": "lstm", "hidden": 4, "read-out": "steps"},
        "train": {"optimizer": "adam", "learning-rate": 0.01, "batch-size": 100, "local-epochs": 3, "workers": 1},
        "f3": {"epochs": 20, "learning-rates": [0.01], "draws": 2, "workers": 1, "device": "cpu"},
    }
    folder = run_experiment(tables)
    summary = folder.summary()
    assert summary["exchanges"] == 1
    assert summary["metrics"]["test"]["auc"]["mean"] > summary["metrics"]["test"]["auc-local"]["mean"] + 0.05
    assert "rush hours" in summary["data"]


@pytest.mark.parametrize("fusion", ["threshold", "best-owner"])
def test_what_chooses_by_validation_samples_needs_some(patches_tables, run_experiment, fusion):
    patches_tables["data"]["shares"] = [0.8, 0.0, 0.2]
    patches_tables["f3"]["fusion"] = fusion
    with pytest.raises(DataError, match=f"fusion = '{fusion}' needs validation samples"):
        run_experiment(patches_tables)


class OnGpu(torch.Tensor):
    """A tensor that NumPy cannot read, as those on a GPU."""

    def numpy(self, **named):
        raise TypeError("can't convert cuda tensor to numpy")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_an_alignment_that_was_learned_on_a_gpu_is_written(patches_tables, run_experiment, monkeypatch):
    files, matrices = f3.F3._learned, SoftAlignment.matrices

    def learned(self, fusion):
        with monkeypatch.context() as patch:
            patch.setattr(SoftAlignment, "matrices", lambda self: matrices(self).as_subclass(OnGpu))
            return files(self, fusion)

    monkeypatch.setattr(f3.F3, "_learned", learned)
    folder = run_experiment(patches_tables)
    with np.load(folder.path / "alignment.npz") as file:
        assert np.isfinite(file["matrices"]).all()


def stopped_in_fusion(run_experiment, tables, monkeypatch, out):
    with monkeypatch.context() as patch:
        patch.setattr(f3, "fit_joined", None)
        with pytest.raises(TypeError):
            run_experiment(tables)
    (path,) = (out / "runs").iterdir()
    return RunFolder.open(path)


def mended(folder, *changes):
    file = folder.path / "experiment.toml"
    text = file.read_text()
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    file.write_text(text)


def test_a_run_goes_on_with_what_was_sent_when_only_the_fusion_is_mended(
    patches_tables, run_experiment, monkeypatch, tmp_path
):
    folder = stopped_in_fusion(run_experiment, patches_tables, monkeypatch, tmp_path)
    mended(folder, ("epochs = 2\n", "epochs = 1\n"))
    run_experiment(patches_tables, folder=folder, client=refuse)
    assert (folder.summary()["fusion"]["epochs"], folder.summary()["exchanges"]) == (1, 1)


def test_what_owners_have_sent_cannot_be_changed_afterwards(patches_tables, run_experiment, monkeypatch, tmp_path):
    folder = stopped_in_fusion(run_experiment, patches_tables, monkeypatch, tmp_path)
    mended(folder, ("lacking-share = 0.0\n", "lacking-share = 0.5\n"))
    with pytest.raises(ExperimentError, match=r"data\.lacking-share .*f3\.epochs"):
        run_experiment(patches_tables, folder=folder, client=refuse)


def test_a_calibrated_network_is_what_the_run_leaves(patches_tables, run_experiment):
    patches_tables["f3"] |= {"calibrated": True}
    folder = run_experiment(patches_tables)
    told = folder.summary()["fusion"]["calibration"]
    assert 0 < told["factor"] != 1
    assert len(told["offset"]) == 10
    left = FittedFusion.read(folder.path / "fusion.safetensors")
    plain = run_experiment({**patches_tables, "f3": {**patches_tables["f3"], "calibrated": False}})
    before = FittedFusion.read(plain.path / "fusion.safetensors")
    (weight, bias), (first, offset) = left.network.output, before.network.output
    torch.testing.assert_close(weight, first * told["factor"])
    torch.testing.assert_close(bias, offset * told["factor"] + torch.tensor(told["offset"]))
    assert probabilities(folder).argmax(1).shape == (KEYS,)


def test_a_threshold_that_is_far_off_is_said():
    labels = torch.tensor([0] * 10 + [1] * 10)
    chances = torch.linspace(0.0, 0.4, 20)
    split = torch.ones(20, dtype=torch.int64)
    joined = SimpleNamespace(classes=("no", "yes"), labels=labels, of_split=lambda name: (split == 1).nonzero()[:, 0])
    prediction = Prediction(torch.stack([1 - chances, chances], 1), torch.zeros(20, 2))
    (note,) = f3.F3(F3Settings())._threshold_notes(joined, prediction)
    assert note.startswith(
        "50% of the validation samples are predicted correctly with the threshold 0.5, and 100% with"
    )
    assert f3.F3(F3Settings(calibrated=True))._threshold_notes(joined, prediction) == []
