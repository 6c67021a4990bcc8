import re

import pytest
import torch
from flwr.app import Message

from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source, parse_data
from fedgraph.messages import error_content
from fedgraph.messages.array_records import from_record, to_record
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.reports.peer_comparison import MEASURES, PeerComparison
from fedgraph.runs.result_files import load_models
from fedgraph.support.errors import ExperimentError

NAMES = ("client-0", "client-1", "client-2")


@pytest.fixture
def tables():
    """Three peers with digits of few classes, tested on the same 359; a linear classifier."""
    return {
        "experiment": {"name": "small", "method": "local", "rounds": 2},
        "data": {"set": "digits", "clients": 3, "partition": "dirichlet", "alpha": 0.3, "test": "shared"},
        "model": {"name": "mlp", "hidden": []},
        "train": {"learning-rate": 0.2, "batch-size": 200, "local-epochs": 1, "workers": 1},
        "evaluation": {"splits": ["test"], "compare-peers": True},
    }


def found(folder):
    return PeerComparison.read(folder.path / "peers.npz")


def spoiling(client, spoil):
    """A ClientApp whose node answers a request to predict for ``client`` with what ``spoil`` makes of the tensors."""

    def serve(message, context):
        reply = client_app(message, context)
        config = message.content["config"]
        if config.get("predict") and client in config["clients"]:
            if spoil is None:
                return Message(error_content("out of memory"), reply_to=message)
            tensors = from_record(reply.content["stacked"])
            spoil(tensors, list(config["clients"]).index(client))
            reply.content["stacked"] = to_record(tensors)
        return reply

    return serve


def apart(name):
    return [{"clients": name}, {"clients": ",".join(each for each in NAMES if each != name)}]


@pytest.mark.parametrize(("method", "exchanges"), [("local", 1 + 2 + 1 + 1), ("ipa", 1 + 1 + 2 * 3 + 1 + 1)])
def test_models_and_predictions_of_a_run_by_hand(tables, run_experiment, data_dir, method, exchanges):
    tables["experiment"]["method"] = method
    folder = run_experiment(tables)
    clients, _ = load_models(folder.models)
    theta = torch.stack([torch.cat([value.flatten() for value in clients[name].values()]) for name in NAMES]).double()
    test = open_source(parse_data(tables["data"]), data_dir).load(NAMES).splits["test"]
    batch = test.batch(torch.arange(int(test.num_examples[0])).expand(3, -1))
    weight, bias = (torch.stack([clients[name][f"head.{part}"] for name in NAMES]) for part in ("weight", "bias"))
    classes = (batch.inputs.flatten(2) @ weight.transpose(1, 2) + bias[:, None]).argmax(-1)
    right = classes == batch.targets
    comparison = found(folder)
    assert (comparison.names, comparison.examples) == (NAMES, right.shape[1])
    for i in range(3):
        for j in range(3):
            way = theta[i] - theta[j]
            by_hand = (
                way.abs().sum(), way.square().sum().sqrt(), (classes[i] != classes[j]).sum(),
                (right[i] & right[j]).sum(), (~right[i] & ~right[j]).sum(),
            )  # fmt: skip
            for measure, value in zip(MEASURES, by_hand, strict=True):
                assert comparison.matrix(measure)[i, j].item() == pytest.approx(value.item(), rel=1e-9), measure
    summary = folder.summary()
    assert summary["peers"] == comparison.summary()
    assert summary["peers"]["hamming"] > 20, "peers of different classes differ"
    assert summary["exchanges"] == exchanges
    assert (folder.path / "peers.csv").read_text().count("\n") == 1 + 3


def test_predictions_of_rows_that_clients_scale_are_none_of_a_private_run(tables, run_experiment):
    tables["experiment"] |= {"method": "ipa", "rounds": 1}
    tables["data"] = {"set": "wine", "clients": 3, "test": "shared"}
    tables["ipa"] = {"privacy": {"clip-norm": 1.0, "noise-multiplier": 1.0}}
    tables["evaluation"]["splits"] = []
    with pytest.raises(ExperimentError, match="predictions of rows that every client scales"):
        run_experiment(tables)
    tables["data"]["scaling"] = "none"
    assert run_experiment(tables).summary()["peers"]


def test_it_is_asked_for(tables, run_experiment):
    compared = run_experiment(tables)
    del tables["evaluation"]["compare-peers"]
    plain = run_experiment(tables)
    assert "peers" not in plain.summary()
    assert not list(plain.path.glob("peers.*"))
    assert compared.summary()["exchanges"] == plain.summary()["exchanges"] + 1
    assert compared.summary()["weights_sha256"] == plain.summary()["weights_sha256"]


def test_packing_changes_nothing(tables, run_experiment):
    tables["experiment"]["method"] = "ipa"
    first, *others = (found(run_experiment(tables, node_configs=configs)) for configs in (apart("client-1"), None))
    for other in others:
        assert all(torch.equal(first.matrix(measure), other.matrix(measure)) for measure in MEASURES)


def test_models_that_early_stopping_brought_back_are_compared(tables, run_experiment):
    """Trained on few classes, models get worse on all; the best is that of no round."""
    tables["experiment"]["rounds"] = 9
    tables["train"]["learning-rate"] = 30.0
    tables["evaluation"] |= {"monitor": "test/loss", "patience": 1}
    summary = run_experiment(tables).summary()
    assert summary["rounds"] == 1
    assert (summary["peers"]["l1"], summary["peers"]["hamming"]) == (0, 0)


def test_a_run_that_lost_its_end_compares_its_peers_again(tables, run_experiment):
    folder = run_experiment(tables)
    before, files = folder.summary(), ("summary.json", "peers.npz", "peers.csv")
    for name in files:
        (folder.path / name).unlink()
    run_experiment(None, folder=RunFolder.open(folder.path))
    assert folder.summary()["peers"] == before["peers"]
    assert folder.summary()["weights_sha256"] == before["weights_sha256"]
    assert all((folder.path / name).exists() for name in files)


def test_clients_that_do_not_answer_are_left_out(tables, run_experiment):
    whole = found(run_experiment(tables))
    part = found(run_experiment(tables, node_configs=apart("client-1"), client=spoiling("client-1", None)))
    assert part.names == ("client-0", "client-2")
    for measure in MEASURES:
        # How many clients are computed at once may change the last bits.
        torch.testing.assert_close(part.matrix(measure)[0, 1], whole.matrix(measure)[0, 2], rtol=1e-5, atol=0)


def test_one_answer_is_nothing_to_compare(tables, run_experiment, caplog):
    folder = run_experiment(tables, client=spoiling("client-0", None))
    assert "peers" not in folder.summary()
    assert not (folder.path / "peers.npz").exists()
    assert "peers are not compared: 1 of them sent predictions" in caplog.text


def replaced(name, change):
    def spoil(tensors, row):
        tensors[name] = change(tensors[name].clone(), row)

    return spoil


def at(row, value, tensor):
    tensor[row, 3] = value
    return tensor


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (replaced("predicted", lambda tensor, row: at(row, 10, tensor)), "'predicted' holds labels beyond the 10"),
        (replaced("predicted", lambda tensor, row: at(row, -1, tensor)), "'predicted' holds labels beyond the 10"),
        (replaced("targets", lambda tensor, row: at(row, 10**9, tensor)), "'targets' holds labels beyond the 10"),
        (replaced("predicted", lambda tensor, row: tensor[:, 1:]), r"'predicted' has the shape \(1, 358\), expected"),
        (replaced("targets", lambda tensor, row: tensor[0]), r"'targets' has the shape \(359,\), expected"),
        (replaced("predicted", lambda tensor, row: tensor.float()), "'predicted' has the type float32, expected int32"),
        (replaced("predicted", lambda tensor, row: tensor.long()), "'predicted' has the type int64, expected int32"),
        (lambda tensors, row: tensors.pop("targets"), r"holds the arrays \['predicted'\], expected"),
        (lambda tensors, row: tensors.update(more=tensors["targets"]), r"holds the arrays \['more', "),
    ],
)
def test_what_cannot_be_predictions_is_left_out(tables, run_experiment, caplog, spoil, reason):
    tables["experiment"]["rounds"] = 0
    folder = run_experiment(tables, node_configs=apart("client-2"), client=spoiling("client-2", spoil))
    assert found(folder).names == ("client-0", "client-1")
    (line,) = [line for line in caplog.messages if "client-2" in line]
    assert re.search(reason, line)


def test_a_client_with_impossible_classes_costs_its_node_nothing_else(tables, run_experiment):
    spoil = replaced("predicted", lambda tensor, row: at(row, 10, tensor))
    folder = run_experiment(tables, nodes=1, client=spoiling("client-1", spoil))
    assert found(folder).names == ("client-0", "client-2")


def test_different_targets_are_refused_and_the_run_can_be_ended_without(tables, run_experiment, tmp_path):
    """Both are classes, so that only the comparison of all clients tells."""
    spoil = replaced("targets", lambda tensor, row: at(row, (int(tensor[row, 3]) + 1) % 10, tensor))
    with pytest.raises(ExperimentError, match="client-2 .*compare-peers = false"):
        run_experiment(tables, client=spoiling("client-2", spoil))
    (path,) = (tmp_path / "runs").iterdir()
    file = path / "experiment.toml"
    file.write_text(file.read_text().replace("compare-peers = true", "compare-peers = false"))
    assert "peers" not in run_experiment(None, folder=RunFolder.open(path)).summary()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"test": "matched"}}, r'tested on the same examples, as with \[data\] test = "shared"'),
        ({"data": {"test": "matched", "partition": "iid", "alpha": None}}, 'test = "shared"'),
        ({"experiment": {"method": "fedavg"}}, "'fedavg' has one model for all"),
        ({"experiment": {"method": "ditto"}}, "'ditto' has one model for all"),
        (
            {"experiment": {"method": "sfl-per"}, "model": {"hidden": [4]}, "graph": {"source": "complete"}},
            "clients of 'sfl-per' keep personal layers",
        ),
        ({"data": {"clients": 1, "partition": "iid", "alpha": None}}, "needs at least two clients"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_the_first_round(tables, run_experiment, tmp_path, changes, message):
    for name, change in changes.items():
        tables[name] = {key: value for key, value in {**tables.get(name, {}), **change}.items() if value is not None}
    with pytest.raises(ExperimentError, match=rf"\[evaluation\] compare-peers .*{message}"):
        run_experiment(tables, nodes=1)
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "metrics.jsonl").exists()


def test_a_node_that_counts_other_test_examples_is_found_out_early(tables, run_experiment):
    def counts_one_more(message, context):
        reply = client_app(message, context)
        if "metrics" in reply.content and "client-2" in reply.content["config"]["clients"]:
            reply.content["metrics"]["test"] = [360]
        return reply

    with pytest.raises(ExperimentError, match="tested on the same examples"):
        run_experiment(tables, node_configs=apart("client-2"), client=counts_one_more)


def test_numbers_have_no_classes_to_compare(run_experiment):
    tables = {
        "experiment": {"method": "local", "rounds": 1},
        "data": {"set": "synthetic-traffic", "sensors": 4, "days": 3},
        "model": {"name": "mlp", "hidden": [4]},
        "evaluation": {"compare-peers": True},
    }
    with pytest.raises(ExperimentError, match="forecast task"):
        run_experiment(tables)
