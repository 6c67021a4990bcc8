"""Inference on secret shares over the in-process grid: what comes out, who sees what, and who may be away."""

import csv
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict

from fedgraph.clients import f3_secret
from fedgraph.clients.app import app as client_app
from fedgraph.clients.f3_secret import SecretClient
from fedgraph.messages import check_content, error_content
from fedgraph.messages.array_records import to_record
from fedgraph.messages.embeddings import EmbedReply
from fedgraph.privacy.secret.sealed import Context as SealedContext
from fedgraph.privacy.secret.sealed import open_sealed
from fedgraph.privacy.secret.shamir import ShareSettings, reconstruct
from fedgraph.support.errors import ExperimentError, IdentityError, RunError
from fedgraph.support.files import load_state

OWNERS = ("patch-0-0", "patch-0-1", "patch-1-0", "patch-1-1")
HOSTS = [{"clients": "patch-0-0,patch-0-1"}, {"clients": "patch-1-0,patch-1-1"}]
AGGREGATORS = [{"aggregator": name} for name in ("east", "north", "west")]
SHARING = {"aggregators": 3, "threshold": 2, "map-bits": 9, "random-bits": 24, "largest": 8.0}


@pytest.fixture
def trained(patches_tables, run_experiment, data_dir, tmp_path):
    """``infer(method, **keys)`` uses a run of f3, on the same frozen models; ``trained()`` gives its folder."""
    patches_tables["data"] |= {"new-share": 0.05, "lacking-share": 0.1}
    patches_tables["f3"] |= {"hidden": 2, "epochs": 6}
    patches_tables["train"] |= {"local-epochs": 3}
    state = {"state-dir": str(tmp_path / "state"), "data-dir": str(data_dir)}
    folders = []

    def infer(method="f3-secret", client=client_app, configs=(*HOSTS, *AGGREGATORS), experiment=None, **keys):
        if not folders:
            folders.append(run_experiment(patches_tables, node_configs=[{**state, **host} for host in HOSTS]))
        tables = {name: table for name, table in patches_tables.items() if name != "f3"}
        tables["experiment"] = {"name": "secret", "method": method, **(experiment or {})}
        table = {"run": str(folders[0].path), "draws": 2, **keys}
        if method == "f3-secret":
            table = SHARING | table
        tables[method] = table
        return run_experiment(tables, node_configs=[{**state, **config} for config in configs], client=client)

    infer.tables, infer.folders = patches_tables, folders
    return infer


def rows(folder):
    with (folder.path / "predictions.csv").open() as stream:
        return list(csv.DictReader(stream))


def numbers(folder, what="probability"):
    return np.array([[float(value) for head, value in row.items() if head.startswith(what)] for row in rows(folder)])


class Wire:
    """A client app, and everything that passes, by node; ``spoil(message, reply)`` may give another reply."""

    def __init__(self, spoil=None):
        self.messages, self.replies, self.contexts, self.spoil = [], [], {}, spoil

    def __call__(self, message, context):
        self.messages.append(message)
        self.contexts[context.node_id] = context
        reply = client_app(message, context)
        if self.spoil is not None:
            reply = self.spoil(message, reply)
        self.replies.append(reply)
        return reply


def step(message):
    return message.content["config"].get("step")


def test_predictions_are_those_in_the_clear_within_the_bound(trained):
    clear, secret = trained("f3-inference"), trained()
    found, expected = rows(secret), rows(clear)
    heads = ("key", "split", "label", "owners")
    assert [[row[head] for head in heads] for row in found] == [[row[head] for head in heads] for row in expected]
    assert {row["split"] for row in found} == {"new"}
    assert {"2", "3", "4"} <= {row["owners"] for row in found}, "samples that some owners lack"
    summary = secret.summary()
    error = np.abs(numbers(secret) - numbers(clear)).max()
    # Numbers are written with six digits.
    assert 0 < error <= summary["probability_error_bound"] + 1e-6
    assert error < 0.1 * numbers(clear).std(0).max()
    assert np.abs(numbers(secret, "deviation") - numbers(clear, "deviation")).max() < 0.01
    assert summary["exchanges"] == 3
    assert summary["predictions"] == len(found)
    assert list(summary["aggregators"]) == summary["aggregators_used"] == ["east", "north", "west"]
    counts = [sum(1 for row in found if int(row["owners"]) == 4), len(found)]
    assert 3 * (48 + 64 * counts[0]) < summary["bytes_per_owner"] < 3 * (48 + 64 * counts[1]), "of 6 numbers and a tag"
    assert 4 * summary["bytes_per_owner"] < 2 * summary["bytes_up"]


def test_an_embedding_that_is_too_large_is_refused_without_saying_how_large(trained, caplog):
    trained()  # what has been split for another run is no way round
    with pytest.raises(RunError, match="'patch-0-0' .*'largest'") as told:
        trained(largest=0.01)
    assert "magnitude" not in str(told.value)
    assert "owner 'patch-0-0': an embedding to be shared has a number of magnitude" in caplog.text


def test_labelled_samples_are_measured(trained):
    clear, secret = trained("f3-inference", samples="test"), trained(samples="test")
    assert secret.summary()["metrics"]["test"]["accuracy"] == pytest.approx(
        clear.summary()["metrics"]["test"]["accuracy"], abs=0.02
    )


def clear_embeddings(trained, samples="new"):
    answers = []

    def listening(message, context):
        reply = client_app(message, context)
        answers.append(EmbedReply.unpack(check_content(reply.content)))
        return reply

    trained("f3-inference", client=listening, configs=HOSTS, samples=samples)
    return torch.cat([answer.embeddings[answer.present] for answer in answers])


def places(data, values, width):
    """How many of the numbers, written in ``width`` bytes, are anywhere in the data."""
    shifted = [data[start : start + (len(data) - start) // width * width] for start in range(width)]
    found = np.unique(np.concatenate([np.frombuffer(part, dtype=f"<u{width}") for part in shifted]))
    return int(np.isin(np.unique(values), found).sum())


def traces(embeddings, settings):
    """What would show an embedding: its floats, and pairs of its numbers quantised."""
    flat = embeddings[embeddings.abs() > 1e-3]
    pairs = flat[: len(flat) // 2 * 2].float().numpy().view("<u8")
    quantised = (flat.double() * 2.0**settings.fractional_bits).round().long()
    return pairs, np.unique(quantised.numpy())


def kept(tmp_path):
    """What the owners have split, on their own nodes."""
    files = (tmp_path / "state" / "releases").glob("shares*.safetensors")
    return [each["numbers"] for file in files for each in load_state(file)["numbers"].values()]


def test_nobody_sees_an_embedding(trained, tmp_path, in_bytes):
    embeddings, settings = clear_embeddings(trained), ShareSettings(fractional_bits=10, random_bits=24)
    wire = Wire()
    trained(client=wire)
    assert [step(message) for message in wire.messages] == [None] * 5 + ["share"] * 2 + ["compute"] * 3
    pairs, quantised = traces(embeddings, settings)
    assert len(pairs) > 200
    assert places(embeddings[embeddings.abs() > 1e-3].float().numpy().tobytes(), pairs, 8) == len(pairs)
    everything = b"".join(in_bytes(message.content) for message in (*wire.messages, *wire.replies))
    assert places(everything, pairs, 8) == 0
    assert places(everything, embeddings[embeddings != 0].double().numpy().view("<u8"), 8) == 0
    encoded = torch.cat([each.flatten() for each in kept(tmp_path)]).numpy().view("<u8")
    encoded = encoded[encoded >> settings.random_bits != 0]  # a zero is its random bits alone, 3 bytes found by chance
    assert len(encoded) >= len(pairs)
    assert places(everything, encoded, 8) == 0
    # An aggregator also sees what it unseals: elements of the field that say nothing about the embedding.
    for message in wire.messages:
        if step(message) != "compute":
            continue
        seen = torch.cat([part.flatten() for part in unsealed(wire, message).values()])
        assert len(seen) > 1000
        whole = torch.where(seen > (2**61 - 1) // 2, seen - (2**61 - 1), seen)
        rounded = (whole.double() / 2.0**settings.random_bits).round().long().numpy()
        assert np.isin(rounded, quantised).mean() < 0.01
        # Uniform: the share's high bits are as often 1 as 0.
        assert float(((seen >> 60) & 1).double().mean()) == pytest.approx(0.5, abs=0.05)
    # And what the two unseal together is the embedding: the search would have found it.
    first, second = (unsealed(wire, message) for message in wire.messages if step(message) == "compute" and
                     message.content["config"]["aggregator"] in ("east", "north"))  # fmt: skip
    for owner, share in first.items():
        secret = [(2 * a - b) % (2**61 - 1) for a, b in zip(share.tolist(), second[owner].tolist(), strict=True)]
        signed = torch.tensor([each - (2**61 - 1) if each > 2**60 else each for each in secret])
        rounded = (signed.double() / 2.0**settings.random_bits).round().long().numpy()
        assert np.isin(rounded[rounded != 0], [0, *quantised]).mean() > 0.99


def unsealed(wire, message):
    """What the aggregator that gets the message can open with its own key, int64 by owner."""
    from fedgraph.algorithms.f3_secret_messages import ComputeRequest, binding
    from fedgraph.clients.engine.node import Node
    from fedgraph.privacy.secret import field
    from fedgraph.privacy.secret.aggregator_files import own_keys

    request = ComputeRequest.unpack(check_content(message.content))
    node = Node.of(wire.contexts[message.metadata.dst_node_id])
    keys = own_keys(node.state_dir / "aggregators" / request.aggregator)
    settings = ShareSettings.model_validate(SHARING)
    opened = {}
    for row, owner in enumerate(request.owners):
        named = [key for key, there in zip(request.keys, request.present[row].tolist(), strict=True) if there]
        size = int(request.sizes[row])
        bound = binding(request.request, settings, named, size, request.fingerprints[row])
        context = SealedContext(request.run, owner, request.aggregator, bound)
        data = open_sealed(keys, request.sealed[owner].numpy().tobytes(), context)
        opened[owner] = field.from_bytes(data[: 8 * len(named) * size], (len(named) * size,))
    return opened


def silent(*names):
    def spoil(message, reply):
        if step(message) == "compute" and message.content["config"]["aggregator"] in names:
            return Message(error_content("gone"), reply_to=message)
        return reply

    return spoil


def test_an_aggregator_that_does_not_answer_is_done_without(trained):
    whole = trained()
    for name, others in (("east", ["north", "west"]), ("west", ["east", "north"])):
        found = trained(client=Wire(silent(name)))
        assert found.summary()["aggregators_used"] == others
        np.testing.assert_array_equal(numbers(found), numbers(whole))
        (note,) = found.summary()["notes"]
        assert note.startswith(f"nothing usable from aggregator '{name}'; from no more than 2, it cannot be found out")
    assert not whole.summary()["notes"]
    with pytest.raises(RunError, match=r"1 came \(east: gone; west: gone\)"):
        trained(client=Wire(silent("east", "west")))


def test_aggregators_that_have_lost_their_keys_are_not_taken_for_owners_with_bad_shares(trained, tmp_path):
    def client(message, context):
        name = context.node_config.get("aggregator")
        if step(message) == "compute" and name in lost:
            shutil.rmtree(tmp_path / "state" / "aggregators" / name)
        return client_app(message, context)

    whole, lost = trained(), {"east"}
    found = trained(client=client)
    assert found.summary()["aggregators_used"] == ["north", "west"]
    np.testing.assert_array_equal(numbers(found), numbers(whole))
    lost = {"east", "north"}
    for policy in ("fail", "skip"):
        with pytest.raises(RunError, match="answers of 2 aggregators are needed, but 1 came .*east: cannot open"):
            trained(client=client, experiment={"on-missing": policy})


def cheating(message, reply):
    if step(message) == "compute" and message.content["config"]["aggregator"] == "north":
        shares = torch.from_numpy(reply.content["shares"]["shares"].numpy()) ^ 1
        return Message(RecordDict({**reply.content, "shares": to_record({"shares": shares})}), reply_to=message)
    return reply


def test_an_aggregator_that_computes_something_else_is_found_out(trained):
    for policy in ("fail", "skip"):
        with pytest.raises(RunError, match="with 4 or more"):
            trained(client=Wire(cheating), experiment={"on-missing": policy})


def test_two_aggregators_more_than_needed_do_without_one_that_computes_something_else(trained):
    four = [*HOSTS, *AGGREGATORS, {"aggregator": "south"}]
    whole = trained(configs=four, aggregators=4)
    found = trained(client=Wire(cheating), configs=four, aggregators=4, experiment={"on-missing": "skip"})
    assert found.summary()["aggregators_used"] == ["east", "south", "west"]
    np.testing.assert_array_equal(numbers(found), numbers(whole))
    (note,) = found.summary()["notes"]
    assert note == "the shares of aggregator 'north' contradicted those of all others, and were left out"
    with pytest.raises(RunError, match="contradict each other: those of 'north' .*on-missing = \"skip\" goes on"):
        trained(client=Wire(cheating), configs=four, aggregators=4)


def tampering(*places):
    """Changes the shares of patch-1-1 for the aggregators at these places."""

    def spoil(message, reply):
        if step(message) != "share":
            return reply
        record = {name: torch.from_numpy(array.numpy().copy()) for name, array in reply.content["sealed"].items()}
        if "patch-1-1" in reply.content["config"]["owners"]:
            for place in places:
                record["1"][place, 60] ^= 1
        return Message(RecordDict({**reply.content, "sealed": to_record(record)}), reply_to=message)

    return spoil


def test_tampered_seals_are_refused_with_names_and_spend_nothing(trained, tmp_path):
    with pytest.raises(
        RunError,
        match="1 came .*of patch-1-1; west",
    ):
        trained(client=Wire(tampering(0, 2)))
    notes = {name: len(list((tmp_path / "state" / "aggregators" / name).glob("maps-*.safetensors")))
             for name in ("east", "north", "west")}  # fmt: skip
    assert notes == {"east": 0, "north": 4, "west": 0}, "of a request that is refused no map was applied"


def test_an_owner_whose_seals_too_few_can_open_is_left_out_where_some_may_be_absent(trained):
    skip = {"on-missing": "skip"}
    found = trained(client=Wire(tampering(0, 1, 2)), experiment=skip)
    away = trained("f3-inference", configs=[HOSTS[0], {"clients": "patch-1-0"}], experiment=skip)
    assert [row["key"] for row in rows(found)] == [row["key"] for row in rows(away)]
    assert np.abs(numbers(found) - numbers(away)).max() < 0.01
    whole = trained(experiment=skip)
    one = trained(client=Wire(tampering(1)), experiment=skip)
    assert one.summary()["aggregators_used"] == ["east", "west"]
    np.testing.assert_array_equal(numbers(one), numbers(whole))


def test_an_owner_whose_shares_are_no_numbers_of_the_field_is_left_out_alone(trained, monkeypatch):
    sealed = SecretClient._sealed

    def spoilt(self, owner, source, clear, request):
        with pytest.MonkeyPatch.context() as patch:
            if owner == "patch-1-1":
                patch.setattr(f3_secret.field, "to_bytes", lambda share: b"\xff" * (8 * share.numel()))
            return sealed(self, owner, source, clear, request)

    skip = {"on-missing": "skip"}
    away = trained("f3-inference", configs=[HOSTS[0], {"clients": "patch-1-0"}], experiment=skip)
    monkeypatch.setattr(SecretClient, "_sealed", spoilt)
    found = trained(experiment=skip)
    assert [row["key"] for row in rows(found)] == [row["key"] for row in rows(away)]
    assert np.abs(numbers(found) - numbers(away)).max() < 0.01
    with pytest.raises(RunError, match="are needed, but 0 came .*of patch-1-1"):
        trained()


def test_the_server_cannot_tell_an_aggregator_of_other_samples(trained):
    def client(message, context):
        if step(message) == "compute":
            config = message.content["config"]
            keys = list(config["keys"])
            keys[0], keys[1] = "another", "key"
            config["keys"] = sorted(keys)
        return client_app(message, context)

    with pytest.raises(RunError, match="2 aggregators .*came"):
        trained(client=client)


def test_owners_that_are_lost_on_the_way(trained):
    def spoil(message, reply):
        if step(message) == "share" and "patch-1-1" in message.content["config"]["owners"]:
            return Message(error_content("lost"), reply_to=message)
        return reply

    with pytest.raises(RunError, match=".patch-1-0, patch-1-1: .*on-missing"):
        trained(client=Wire(spoil))
    skip = {"on-missing": "skip"}
    found = trained(client=Wire(spoil), experiment=skip)
    away = trained("f3-inference", configs=HOSTS[:1], experiment=skip)
    assert [row["key"] for row in rows(found)] == [row["key"] for row in rows(away)]
    assert {row["owners"] for row in rows(found)} == {"1", "2"}
    assert np.abs(numbers(found) - numbers(away)).max() < 0.01
    with pytest.raises(RunError, match="only 2 of at least 3 owners"):
        trained(client=Wire(spoil), experiment={**skip, "min-clients": 3})


def test_asking_again_sends_other_shares_of_the_same_numbers(trained):
    wires = Wire(), Wire()
    first, second = (trained(client=wire) for wire in wires)
    np.testing.assert_array_equal(numbers(first), numbers(second))
    outcomes, seals = zip(*((outcome_of(wire), sealed_by(wire)) for wire in wires), strict=True)
    assert torch.equal(*outcomes), "to the last random bit: an average tells nothing more"
    assert all(not torch.equal(a, b) for a, b in zip(*seals, strict=True))


def outcome_of(wire):
    """What the server learns, in whole numbers."""
    shares = [reply.content["shares"]["shares"].numpy() for reply in wire.replies if "shares" in reply.content]
    return reconstruct(torch.stack([torch.from_numpy(each) for each in shares]), [1, 2, 3], 2)


def sealed_by(wire):
    return [
        torch.from_numpy(array.numpy())
        for reply in wire.replies if "sealed" in reply.content for array in reply.content["sealed"].values()
    ]  # fmt: skip


def test_a_third_model_on_the_same_samples_is_refused_by_the_aggregators(trained, monkeypatch):
    from fedgraph.fusion.model_file import FittedFusion

    trained()
    read = FittedFusion.read

    def other(path):
        fusion = read(path)
        random = torch.Generator().manual_seed(other.seed)
        fusion.network.weights[0].data = torch.randn(fusion.network.weights[0].shape, generator=random)
        return fusion

    monkeypatch.setattr("fedgraph.fusion.FittedFusion.read", other)
    other.seed = 1
    trained()  # 4 of 6 numbers are known now
    other.seed = 2
    trained(samples="test")
    with pytest.raises(RunError, match="0 came .*'patch-0-0': 6 .*3 fusion"):
        trained()


def test_a_node_that_fails_is_not_asked_for_ever(trained):
    """Skip goes on without its owners, and with fewer aggregators than are wanted, as long as it can."""
    asked = []

    def client(message, context):
        asked.append(context.node_id)
        if context.node_config.get("clients") == HOSTS[1]["clients"]:
            return Message(error_content("the disc is broken"), reply_to=message)
        return client_app(message, context)

    few = [*HOSTS, *AGGREGATORS[:2]]
    found = trained(client=client, configs=few, experiment={"on-missing": "skip", "min-clients": 2})
    assert {row["owners"] for row in rows(found)} <= {"1", "2"}
    assert found.summary()["exchanges"] == 3
    assert len(asked) == 4 + 1 + 2


def test_simulated_aggregators_and_who_is_missing(trained):
    whole = trained()
    dealt = [{"partition-id": place, "num-partitions": 3} for place in range(3)]
    found = trained(configs=dealt, **{"simulated-aggregators": 3})
    np.testing.assert_array_equal(numbers(found), numbers(whole))
    assert list(found.summary()["aggregators"]) == ["aggregator-000", "aggregator-001", "aggregator-002"]
    with pytest.raises(RunError, match="only 2 of 3 aggregators .*on-missing"):
        trained(configs=dealt, **{"simulated-aggregators": 2})
    fewer = trained(configs=[*HOSTS, *AGGREGATORS[:2]], experiment={"on-missing": "skip"})
    np.testing.assert_array_equal(numbers(fewer), numbers(whole))
    with pytest.raises(RunError, match="only 1 of 3"):
        trained(configs=[*HOSTS, *AGGREGATORS[:1]], experiment={"on-missing": "skip"})
    with pytest.raises(ExperimentError, match="4 nodes .*aggregators is 3"):
        trained(configs=[*HOSTS, *AGGREGATORS, {"aggregator": "south"}])
    with pytest.raises(IdentityError, match="duplicate aggregator 'east'"):
        trained(configs=[*HOSTS, *AGGREGATORS[:1], *AGGREGATORS[:2]])


def test_aggregators_that_come_late_are_waited_for(trained, monkeypatch):
    from fedgraph.federation.grids.in_process import LocalGrid

    polls = []

    def connected(self):
        polls.append(1)
        return list(self.contexts)[: 4 if len(polls) < 4 else 5]

    trained()
    monkeypatch.setattr(LocalGrid, "get_node_ids", connected)
    monkeypatch.setattr(LocalGrid, "nodes_may_come", True)
    assert trained(experiment={"wait": 20}).summary()["exchanges"] == 3
    assert len(polls) > 4


def test_an_owner_that_pins_other_aggregators_refuses(trained, tmp_path):
    command = [sys.executable, "-m", "fedgraph.privacy.secret", str(tmp_path / "state"), "north"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert printed.stderr == ""
    told = printed.stdout.strip()
    known = trained().summary()["aggregators"]
    assert told == known["north"], "the aggregator's own node tells it, and before any run"
    entries = ", ".join(f"{name}={print_}" for name, print_ in known.items())
    pinned = [{**host, "aggregator-fingerprints": entries} for host in HOSTS]
    trained(configs=[*pinned, *AGGREGATORS])
    wrong = entries.replace(known["north"], "0" * 64)
    with pytest.raises(RunError, match=f"aggregator 'north' has the key {known['north']}.* has 0000"):
        trained(configs=[pinned[0], {**HOSTS[1], "aggregator-fingerprints": wrong}, *AGGREGATORS])
    fewer = ",".join(f"{name}={known[name]}" for name in ("east", "north"))
    with pytest.raises(RunError, match="aggregator 'west'"):
        trained(configs=[pinned[0], {**HOSTS[1], "aggregator-fingerprints": fewer}, *AGGREGATORS])
    with pytest.raises(RunError, match="'east' .*'aggregator-fingerprints'"):
        trained(configs=[pinned[0], {**HOSTS[1], "aggregator-fingerprints": "east"}, *AGGREGATORS])


def test_a_node_does_not_hand_out_clear_embeddings_in_a_secret_run(trained, data_dir, tmp_path):
    from fedgraph.clients.engine.node import Node
    from fedgraph.clients.f3_secret import SecretClient
    from fedgraph.experiment.experiment import parse_experiment
    from fedgraph.messages.embeddings import EmbedRequest
    from fedgraph.support.errors import ReplyError

    part = parse_experiment(trained.tables).client_part({"run": "x"})
    node = Node.of(Context(1, 1, {"clients": OWNERS[0], "data-dir": str(data_dir)}, RecordDict(), {}))
    asked = EmbedRequest(client="fedgraph.clients.f3_secret:SecretClient", experiment=part, run="run")
    with pytest.raises(ReplyError, match="in the clear"):
        SecretClient.handle(Message(asked.pack(), 1, EmbedRequest.message_type), node)
