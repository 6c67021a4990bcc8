"""One node that hosts owners: what it answers to the request for embeddings."""

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedgraph.clients.app import app as client_app
from fedgraph.clients.engine.node import Node
from fedgraph.clients.f3 import F3Client
from fedgraph.experiment import AgreementTable
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.fusion.owner_models import stage
from fedgraph.messages import read_error
from fedgraph.messages.embeddings import EmbedReply, EmbedRequest
from fedgraph.privacy.noise.gaussian import clipped
from fedgraph.support.errors import DataError, ExperimentError, IdentityError, ReplyError

NAMES = ("patch-0-0", "patch-0-1")


@pytest.fixture
def ask(patches_tables, tmp_path, data_dir):
    """``ask(method=..., data=..., config=..., **request)`` is the answer of a node for two of the four owners."""

    def ask(method=None, data=None, model=None, config=None, tables=None, run="run", limits=None, **request):
        tables = tables or {
            **patches_tables,
            "data": {**patches_tables["data"], **(data or {})},
            "model": {**patches_tables["model"], **(model or {})},
        }
        part = parse_experiment(tables).client_part(method or {})
        config = {"clients": ",".join(NAMES), "state-dir": str(tmp_path / "state"), **(config or {})}
        config = {key: value for key, value in config.items() if value is not None}
        node = Node.of(Context(1, 1, {"data-dir": str(data_dir), **config}, RecordDict(), {}))
        vars(node)["limits"] = limits or node.limits
        asked = EmbedRequest(**request, client="fedgraph.clients.f3:F3Client", experiment=part, run=run)
        message = Message(asked.pack(), 1, EmbedRequest.message_type)
        return EmbedReply.unpack(F3Client.handle(message, node))

    return ask


@pytest.fixture
def trained(monkeypatch):
    calls, pretrain = [], stage.pretrain
    monkeypatch.setattr(stage, "pretrain", lambda *arguments: calls.append(1) or pretrain(*arguments))
    return calls


def test_the_answer_is_of_the_samples_asked_for(ask):
    whole = ask()
    assert whole.clients == NAMES
    assert whole.partition is None
    assert whole.sizes.tolist() == [6, 6]
    assert whole.classes == tuple("0123456789")
    assert "digits" in whole.data
    assert len(whole.keys) == 1797
    assert sorted(whole.split.unique().tolist()) == [0, 1, 2]
    assert bool(whole.present.all())
    assert len(set(whole.fingerprints)) == 2
    torch.testing.assert_close(whole.predictions.sum(2), torch.ones(2, 1797))
    test = ask(splits=("test",))
    kept = whole.split == 2
    assert test.keys == tuple(key for key, one in zip(whole.keys, kept.tolist(), strict=True) if one)
    assert torch.equal(test.labels, whole.labels[kept])
    assert torch.equal(test.embeddings, whole.embeddings[:, kept])
    assert test.fingerprints == whole.fingerprints


def test_new_samples_come_without_labels_and_only_when_asked_for(ask):
    data = {"new-share": 0.3}
    assert 3 not in ask(data=data).split.tolist()
    with pytest.raises(ReplyError, match="asks for new samples, which the method does not use"):
        ask(data=data, splits=("new",))
    new = ask({"samples": "new"}, data=data, splits=("new",))
    assert 400 < len(new.keys) < 680
    assert new.split.unique().tolist() == [3]
    assert new.labels.unique().tolist() == [-1]
    assert bool((new.embeddings.abs().sum(2) > 0).any(1).all())


def test_what_an_owner_lacks_is_masked_and_zero(ask):
    answer = ask(data={"lacking-share": 0.4})
    assert 0.5 < answer.present.float().mean() < 0.8
    assert bool(answer.present.any(0).all()), "samples that no owner of the node has are not its to name"
    assert len(answer.keys) < 1797
    assert not answer.embeddings[~answer.present].any()
    assert not answer.predictions[~answer.present].any()
    assert bool((answer.predictions[answer.present].sum(1) > 0.99).all())


def test_an_owner_learns_from_samples_of_its_own_and_sends_only_those_that_all_hold(ask, monkeypatch):
    counts, pretrain = [], stage.pretrain

    def counted(cohort, *arguments):
        counts.append([cohort.data.splits[split].num_examples for split in ("train", "validation")])
        return pretrain(cohort, *arguments)

    monkeypatch.setattr(stage, "pretrain", counted)
    whole, answer = ask(), ask(data={"overlap": 0.2})
    assert bool(answer.present.all()), "every sample of the answer is held by both owners"
    learned = answer.split < 2
    assert int((answer.split == 2).sum()) == int((whole.split == 2).sum()), "all of the test samples"
    assert float(learned.sum()) == pytest.approx(0.2 * int((whole.split < 2).sum()), rel=0.2)
    for split, trained in enumerate(counts[1]):
        sent = int((answer.split == split).sum())
        # A fifth is held by all four owners, and of the others each holds a quarter.
        assert (trained > 1.5 * sent).all()
        assert (trained < 0.6 * int((whole.split == split).sum())).all()
    told = ask(data={"overlap": 0.2}, embeddings=False)
    assert told.keys == answer.keys, "and nothing else about the others is sent"


def test_who_has_what_is_told_without_any_model(ask, trained):
    answer = ask(embeddings=False, method={"noise": {"clip-norm": 1.0, "noise-multiplier": 1.0}})
    assert trained == []
    assert answer.embeddings.shape == (2, 1797, 0)
    assert answer.predictions.shape == (2, 1797, 0)
    assert len(answer.keys) == 1797
    assert answer.fingerprints == ("", "")


def test_models_are_trained_once_per_node_whatever_the_run_is_called(ask, trained):
    first = ask()
    assert len(trained) == 1
    assert torch.equal(ask().embeddings, first.embeddings)
    assert len(trained) == 1
    ask(method={"local-patience": 3})
    assert len(trained) == 2, "other settings of the owners' models are other models"
    ask(method={"hidden": 99, "epochs": 7})
    assert len(trained) == 2, "what the server learns is no matter of the owners"


def test_the_models_are_kept_where_the_node_says(ask, tmp_path, monkeypatch):
    ask()
    assert len(list((tmp_path / "state" / "local-models").glob("*.safetensors"))) == 2
    ask(config={"model-dir": str(tmp_path / "mine")})
    assert len(list((tmp_path / "mine").glob("*.safetensors"))) == 2
    monkeypatch.setenv("FEDGRAPH_MODELS", str(tmp_path / "theirs"))
    ask()
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) == 2


def test_a_message_holds_nothing_but_what_the_answer_is_made_of(patches_tables, ask, monkeypatch):
    contents = []
    pack = EmbedReply.pack
    monkeypatch.setattr(EmbedReply, "pack", lambda self: contents.append(pack(self)) or contents[-1])
    ask()
    (content,) = contents
    assert {name: sorted(record) for name, record in content.array_records.items()} == {
        "samples": ["labels", "present", "split"],
        "stacked": ["embeddings", "predictions"],
    }


SIZES = {"variants": [{"clients": ["patch-0-1"], "name": "mlp", "hidden": [12, 4]}]}
NOISE = {"clip-norm": 0.2, "noise-multiplier": 0.1}


def test_with_noise_embeddings_are_clipped_and_noisy_and_predictions_stay(ask):
    data = {"lacking-share": 0.2}
    clean = ask(model=SIZES, data=data)
    answer = ask(model=SIZES, data=data, method={"noise": NOISE})
    assert answer.predictions.shape[2] == 0
    assert answer.keys == clean.keys
    assert answer.sizes.tolist() == [6, 4]
    assert float(torch.linalg.vector_norm(clean.embeddings, dim=2).median()) > 0.2, "there is something to clip"
    for row, size in enumerate((6, 4)):
        there = clean.present[row]
        error = answer.embeddings[row, there, :size] - clipped(clean.embeddings[row, there, :size], 0.2)
        assert float(error.std()) == pytest.approx(0.1 * 2 * 0.2, rel=0.05)
        assert float(error.mean()) == pytest.approx(0, abs=0.005)
        assert not answer.embeddings[row, ~there].any()
        assert not answer.embeddings[row, :, size:].any(), "noise on each owner's own size only"


def test_what_was_released_is_released_again_and_not_drawn_anew(ask, tmp_path):
    test = ask(method={"noise": NOISE}, splits=("test",))
    whole = ask(method={"noise": NOISE})
    assert torch.equal(whole.embeddings[:, whole.split == 2], test.embeddings), "a mean of many draws has no noise"
    assert torch.equal(ask(method={"noise": NOISE}, run="another run").embeddings, whole.embeddings)
    other = ask(method={"noise": NOISE}, config={"state-dir": str(tmp_path / "other")})
    assert other.fingerprints == whole.fingerprints
    assert not torch.equal(other.embeddings, whole.embeddings), "noise that follows from a seed can be taken off"


SPENT = "no such embeddings are sent of patch-0-[01]: .*than was promised"


def test_samples_have_one_budget_for_all_models_and_noises(ask):
    twice = {**NOISE, "releases": 2}
    whole = ask(method={"noise": twice})
    # The training samples by models of other folds, the others by the same as before.
    folded = ask(method={"noise": twice, "folds": 2})
    train = whole.split == 0
    assert not torch.equal(folded.embeddings[:, train], whole.embeddings[:, train])
    assert torch.equal(folded.embeddings[:, ~train], whole.embeddings[:, ~train])
    louder = {"noise": {**twice, "clip-norm": 0.4}}
    assert ask(method=louder, splits=("test",)).embeddings.any()
    for method in (louder, {"noise": {**NOISE, "releases": 99, "clip-norm": 0.3}}, {"noise": twice, "folds": 3}):
        with pytest.raises(ReplyError, match=SPENT):
            ask(method=method, splits=("train",))
    assert torch.equal(ask(method={"noise": twice}).embeddings, whole.embeddings), "what was sent is sent again"
    with pytest.raises(ReplyError, match=SPENT):
        ask(method={"noise": twice}, model={"hidden": [5]})


def test_the_epsilon_of_a_site_is_over_all_releases(ask):
    """At delta 1e-5, a multiplier of 3.73 has an epsilon of 1."""
    once = {"clip-norm": 1.0, "noise-multiplier": 3.74, "releases": 100}
    ask(method={"noise": once}, splits=("test",), limits=AgreementTable(epsilon=1.0))
    with pytest.raises(ReplyError, match=r"\[agreement\] epsilon"):
        ask(method={"noise": {**once, "clip-norm": 1.01}}, splits=("test",), limits=AgreementTable(epsilon=1.0))
    ask(method={"noise": {**once, "clip-norm": 1.01}}, splits=("test",), limits=AgreementTable(epsilon=1.5))
    with pytest.raises(ReplyError, match=SPENT):
        ask(
            method={"noise": {**once, "noise-multiplier": 3.7}},
            splits=("train",),
            limits=AgreementTable(epsilon=1),
        )


@pytest.fixture
def ask_for_patients(tmp_path):
    """``ask(key, columns, ...)`` is the answer of a hospital about its own file, or its error."""
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"age": random.uniform(20, 90, 60).round(1), "dose": random.integers(1, 999, 60)})
    frame["ill"] = np.where(random.random(60) < 0.3, "y", "n")
    frame["patient"], frame["record"] = [f"P{row}" for row in range(60)], [f"R{59 - row}" for row in range(60)]
    frame.to_csv(tmp_path / "mercy.csv", index=False)

    def ask(key="patient", columns=("age", "dose"), noise=None, data=None, **request):
        tables = {
            "experiment": {"name": "x", "method": "f3", "rounds": 1},
            "data": {
                "set": "table-columns", "label": "ill", "key-column": key, "owners": {"mercy": list(columns)},
                "categories": {"ill": ["n", "y"]}, **(data or {}),
            },
            "model": {"name": "mlp", "hidden": [3]},
        }  # fmt: skip
        noise = {"clip-norm": 1.0, "noise-multiplier": 1.0, **(noise or {})}
        # As of an inference, where models may be asked for.
        part = parse_experiment(tables).client_part({"noise": noise, "run": "x"})
        config = {"clients": "mercy", "data": str(tmp_path / "mercy.csv"), "state-dir": str(tmp_path / "state")}
        node = Node.of(Context(1, 1, config, RecordDict(), {}))
        asked = EmbedRequest(**{"run": "run", **request}, client="fedgraph.clients.f3:F3Client", experiment=part)
        return EmbedReply.unpack(F3Client.handle(Message(asked.pack(), 1, EmbedRequest.message_type), node))

    return ask


def test_a_hundred_nearly_equal_requests_have_the_noise_of_one(ask_for_patients):
    found, refused = [], 0
    for number in range(100):
        noise = {"clip-norm": 1 + 1e-7 * number, "noise-multiplier": 1 + 1e-7 * (number % 7), "releases": 1 + number}
        try:
            found.append(ask_for_patients(noise=noise, run=f"run-{number}").embeddings)
        except ReplyError:
            refused += 1
    assert (len(found), refused) == (1, 99)


def test_a_sample_under_another_key_has_the_noise_that_it_had(ask_for_patients):
    first = ask_for_patients()
    pinned = dict(zip(first.clients, first.fingerprints, strict=True))
    other = ask_for_patients("record", fingerprints=pinned)
    assert set(first.keys).isdisjoint(other.keys)
    rows = [other.keys.index(f"R{59 - int(key[1:])}") for key in first.keys]
    assert torch.equal(other.embeddings[:, rows], first.embeddings)
    # A model that was trained on other splits, as the new keys have, is another one.
    with pytest.raises(ReplyError, match="no such embeddings are sent of mercy"):
        ask_for_patients("record")


@pytest.mark.parametrize(
    "data",
    [{"split-seed": 1}, {"missing": ["34.5", "17"]}, {"thousands": "'"}, {"first-rows": 50},
     {"delimiter": ","}, {"default-missing": False}, {"scaling": "none"}],
)  # fmt: skip
def test_rows_are_known_however_they_are_read(ask_for_patients, data):
    first = ask_for_patients()
    pinned = dict(zip(first.clients, first.fingerprints, strict=True))
    again = ask_for_patients(data=data, fingerprints=pinned)
    rows = [first.keys.index(key) for key in again.keys]
    assert torch.equal(again.embeddings, first.embeddings[:, rows]), "by the same model"
    with pytest.raises(ReplyError, match="no such embeddings are sent of mercy"):
        ask_for_patients(columns=("dose",), data=data)


def test_every_sample_gets_noise_of_its_own(ask):
    clean, noisy = ask(), ask(method={"noise": {**NOISE, "clip-norm": 100.0}})
    noise = (noisy.embeddings - clean.embeddings)[0]
    assert len(noise.unique(dim=0)) == len(noise) == 1797


def test_a_packing_of_owners_into_nodes_does_not_draw_anew(ask):
    together = ask(method={"noise": NOISE})
    alone = ask(method={"noise": NOISE}, config={"clients": NAMES[1]})
    assert torch.equal(alone.embeddings[0], together.embeddings[1])


def test_asking_who_has_what_releases_nothing(ask, tmp_path):
    ask(method={"noise": NOISE}, embeddings=False)
    assert not (tmp_path / "state" / "releases").exists()


def test_noise_by_epsilon(ask):
    from dp_accounting import get_sigma_gaussian

    table = {"clip-norm": 0.01, "epsilon": 1.0, "delta": 1e-5}
    answer = ask(method={"noise": table}, splits=("test",))
    wanted = 2 * 0.01 * get_sigma_gaussian(1.0, 1e-5)
    assert float(answer.embeddings.std()) == pytest.approx(wanted, rel=0.05)


def test_a_node_without_owners_says_so(ask):
    answer = ask(config={"clients": None, "partition-id": 6, "num-partitions": 7})
    assert (answer.clients, answer.partition, answer.keys) == ((), (6, 7), ())


def test_a_node_with_models_of_its_own(ask, exported, tmp_path, trained):
    part = ask(config={"models": f"patch-0-1={exported}"})
    assert part.sizes.tolist() == [6, 9]
    assert trained == [1]
    both = ask(config={"model": str(exported)})
    assert both.sizes.tolist() == [9, 9]
    assert trained == [1]
    torch.testing.assert_close(both.embeddings[1], part.embeddings[1])
    # One file, whose inputs each owner scales by its own samples.
    assert both.fingerprints[1] == part.fingerprints[1] != both.fingerprints[0]
    with pytest.raises(IdentityError, match="entry 'nobody=x' of node config 'models'"):
        ask(config={"models": "nobody=x"})
    with pytest.raises(ExperimentError, match=r"gone\.pt2"):
        ask(config={"model": str(tmp_path / "gone.pt2")})


def test_data_whose_clients_have_the_same_features_is_refused(ask, digits_tables):
    tables = {**digits_tables, "experiment": {"method": "f3"}, "f3": {}}
    with pytest.raises(DataError, match="'f3' .*image-patches"):
        ask(tables=tables, config={"clients": "client-0"})


def test_errors_of_a_node_go_back_in_its_own_words(patches_tables, data_dir, tmp_path):
    part = parse_experiment(patches_tables).client_part({})
    config = {"clients": "patch-9-9", "data-dir": str(data_dir), "state-dir": str(tmp_path), "agreement": "any"}
    request = EmbedRequest(client="fedgraph.clients.f3:F3Client", experiment=part, run="run")
    reply = client_app(Message(request.pack(), 1, EmbedRequest.message_type), Context(1, 1, config, RecordDict(), {}))
    assert "patch-9-9" in read_error(reply)
