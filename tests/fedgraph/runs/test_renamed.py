"""Run folders that were renamed or copied, and state that was lost, before and after the end of their run."""

import re
import shutil

import pytest
import torch

import fedgraph
from fedgraph.clients.app import app
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.runs.folder import RunFolder
from fedgraph.strategies.app import serve
from fedgraph.strategies.engine.kept_states import KeptStates, with_new_attempt
from fedgraph.strategies.engine.replies import Replies
from fedgraph.support.errors import IdentityError, RunError
from fedgraph.training import ClientState


@pytest.fixture
def begun(digits_tables, tmp_path):
    """The folder of a run of fedper that has one round of two."""
    digits_tables["experiment"] |= {"method": "fedper", "rounds": 1}
    path = fedgraph.run(digits_tables, out=tmp_path, progress=False).path
    (path / "summary.json").unlink()
    file = path / "experiment.toml"
    file.write_text(re.sub(r"(?m)^rounds = 1$", "rounds = 2", file.read_text()))
    return path


def test_a_copy_goes_on_with_the_layers_of_its_clients(begun):
    copy = begun.with_name("copy")
    shutil.copytree(begun, copy)
    again = fedgraph.resume(copy, progress=False)
    whole = fedgraph.resume(begun, progress=False)
    assert again.folder.name == "copy"
    assert again.summary["per_client"] == whole.summary["per_client"]
    assert again.models["client-1"].keys() == whole.models["client-1"].keys()
    assert [each.name for each in (copy / "nodes" / "runs").iterdir()] == [begun.name]


def test_a_run_that_begins_again_takes_the_name_of_its_folder(begun):
    copy = begun.rename(begun.with_name("copy"))
    (copy / "checkpoint.safetensors").unlink()
    fedgraph.resume(copy, progress=False)
    assert sorted(each.name for each in (copy / "nodes" / "runs").iterdir()) == sorted([begun.name, "copy"])


CLIENTS = "'client-0', 'client-1', 'client-2', 'client-3', 'client-4' and 1 more"


def test_state_that_is_gone_is_noted(begun, caplog):
    shutil.rmtree(begun / "nodes")
    run = fedgraph.resume(begun, progress=False)
    note = f"round 2: the nodes of {CLIENTS} no longer had their state ('personal-layers'), and went on without it"
    assert note in run.summary["notes"]
    assert f"{note}; to go on with that state, stop the run, put back the state folders of these nodes" in caplog.text


def test_a_node_that_loses_its_state_in_every_round_is_noted_once(caplog):
    states, empty = KeptStates({}), torch.zeros(0)
    for server_round in range(1, 5):
        found = {"control-variates": {"b": -1, "a": -1, "c": server_round - 1 or -1}}
        replies = Replies(
            empty, (), {}, {}, None, empty, found=found, saved={"control-variates": dict.fromkeys("abc", server_round)}
        )
        states.update(server_round, replies)
    again = KeptStates({})
    again.load_state(states.state())
    note = (
        "rounds 2, 3, 4: the nodes of 'a', 'b' no longer had their state ('control-variates'), and went on without it"
    )
    assert states.notes() == again.notes() == [note]
    assert len({record.once for record in caplog.records}) == 1


def test_state_of_an_earlier_round_is_noted(begun):
    file = begun / "experiment.toml"
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    backup = begun.with_name("backup")
    shutil.copytree(begun / "nodes", backup)
    run = fedgraph.resume(begun, progress=False)
    assert not [note for note in run.summary["notes"] if "state" in note]
    (begun / "summary.json").unlink()
    file.write_text(file.read_text().replace("rounds = 3", "rounds = 4"))
    shutil.rmtree(begun / "nodes")
    shutil.copytree(backup, begun / "nodes")
    run = fedgraph.resume(begun, progress=False)
    note = "had an older state, of round 1 ('personal-layers'), and went on from it"
    assert f"round 4: the nodes of {CLIENTS} {note}" in run.summary["notes"]


@pytest.mark.parametrize("method", ["ditto", "scaffold", "feddyn", "fedavg", "ipa", "private ipa"])
def test_runs_that_lose_nothing_note_nothing(digits_tables, tmp_path, method):
    digits_tables["experiment"] |= {"method": method.removeprefix("private "), "rounds": 3}
    digits_tables["train"] |= {"momentum": 0.5, "keep-optimizer": method in ("fedavg", "ipa")}
    if method == "private ipa":
        digits_tables["evaluation"] = {"splits": []}
        digits_tables["ipa"] = {"privacy": {"clip-norm": 1.0, "epsilon": 5.0, "delta": 1e-4, "releases": 6}}
    run = fedgraph.run(digits_tables, out=tmp_path, progress=False)
    assert not [note for note in run.summary.get("notes", ()) if "state" in note]


@pytest.mark.parametrize("turns", ["sequential", "simultaneous"])
def test_counters_of_releases_are_noted_when_they_are_gone_and_not_before(digits_tables, tmp_path, turns):
    privacy = {"clip-norm": 1.0, "epsilon": 8.0, "releases": 9}
    digits_tables["experiment"] |= {"method": "ipa", "rounds": 2}
    digits_tables["data"]["test"] = "shared"
    digits_tables |= {"evaluation": {"splits": ["test"]}, "ipa": {"turns": turns, "privacy": privacy}}
    run = fedgraph.run(digits_tables, out=tmp_path, progress=False)
    assert "notes" not in run.summary
    file = run.path / "experiment.toml"
    file.write_text(re.sub(r"(?m)^rounds = 2$", "rounds = 3", file.read_text()))
    (run.path / "summary.json").unlink()
    shutil.rmtree(run.path / "nodes")
    notes = [note for note in fedgraph.resume(run.path, progress=False).summary["notes"] if "('releases')" in note]
    assert notes == [f"round 3: the nodes of {CLIENTS} no longer had their state ('releases'), and went on without it"]


def test_the_moments_of_optimisers_are_state_too(digits_tables, tmp_path):
    digits_tables["experiment"]["rounds"] = 1
    digits_tables["train"] = {**digits_tables["train"], "momentum": 0.5, "keep-optimizer": True}
    path = fedgraph.run(digits_tables, out=tmp_path, progress=False).path
    (path / "summary.json").unlink()
    shutil.rmtree(path / "nodes")
    file = path / "experiment.toml"
    file.write_text(re.sub(r"(?m)^rounds = 1$", "rounds = 2", file.read_text()))
    notes = fedgraph.resume(path, progress=False).summary["notes"]
    assert any("no longer had their state ('optimiser')" in note for note in notes)


# ---- rounds that are repeated


class Unsteady(LocalGrid):
    """Two nodes, of which the second gets no training requests of some rounds; the run is killed in a round."""

    def __init__(self, state, away=(), killed=None):
        clients = ("client-0,client-1,client-2", "client-3,client-4,client-5")
        super().__init__(app, [{"clients": each, "state-dir": str(state)} for each in clients])
        self._away, self._killed = {str(each) for each in away}, str(killed)

    def send_and_receive(self, messages, *, timeout=None):
        messages, second = list(messages), max(self.get_node_ids())
        rounds = {each.metadata.group_id for each in messages if each.metadata.message_type == "train"}
        if rounds & self._away:
            messages = [each for each in messages if each.metadata.dst_node_id != second]
        replies = super().send_and_receive(messages)
        if self._killed in rounds:
            raise RunError("killed")
        return replies


@pytest.mark.parametrize(("every", "killed"), [(3, 6), (1, 4)])
@pytest.mark.parametrize("method", ["fedper", "scaffold", "ditto"])
def test_a_client_that_misses_a_repeated_round_goes_on_from_the_checkpoint(
    digits_tables, tmp_path, method, every, killed
):
    digits_tables["experiment"] |= {"method": method, "rounds": 6, "on-missing": "skip"}
    digits_tables["output"] = {"checkpoint-every": every}

    def ran(name, *grids):
        folder = RunFolder.create(parse_experiment(digits_tables), tmp_path / name)
        config = {"experiment": str(folder.path / "experiment.toml"), "set": f"output.resume={folder.path}"}
        for grid in grids[:-1]:
            with pytest.raises(RunError, match="killed"):
                serve(grid, config)
        return serve(grids[-1], config).summary()

    once, twice = tmp_path / "state", tmp_path / "state-of-two-attempts"
    expected = ran("once", Unsteady(once, away=[4]))
    found = ran("twice", Unsteady(twice, killed=killed), Unsteady(twice, away=[4]))
    assert found["per_client"] == expected["per_client"]
    assert [note for note in found.get("notes", ()) if "state" in note] == []


def test_a_resumed_run_counts_the_rounds_before_its_checkpoint():
    first = with_new_attempt(None)
    assert list(first.values()) == [ClientState.LAST]
    states = KeptStates(first)
    empty = torch.zeros(0)
    states.update(3, Replies(empty, (), {}, {}, None, empty))
    second = with_new_attempt(states.state())
    assert list(second.values()) == [3, ClientState.LAST]
    assert "" in with_new_attempt({"last": {}, "lost": []}), "a run of an older version"


# ---- clients that are missing or new


def test_a_resumed_run_says_which_clients_have_changed(begun, run_experiment, digits_tables):
    folder = RunFolder.open(begun)
    assert folder.clients_before() == tuple(f"client-{number}" for number in range(6))

    def go_on(*nodes):
        return run_experiment(digits_tables, node_configs=[{"clients": names} for names in nodes], folder=folder)

    with pytest.raises(IdentityError, match="clients that took part before the run was stopped, nobody hosts client-5"):
        go_on("client-0,client-1,client-2,client-3,client-4")
    file = begun / "experiment.toml"
    file.write_text(file.read_text().replace('on-missing = "fail"', 'on-missing = "skip"'))
    with pytest.raises(RunError, match=r"clients have changed .*\(missing: client-5; new: none\)"):
        go_on("client-0,client-1", "client-2,client-3,client-4")
    assert go_on("client-0,client-1,client-5", "client-2,client-3,client-4").is_finished


# ---- nodes that several runs use


class Between(LocalGrid):
    """A grid on which something happens once, before the nodes are asked to train in round 2."""

    def __init__(self, state, happens=lambda: None):
        super().__init__(app, [{"partition-id": 0, "num-partitions": 1, "state-dir": str(state)}])
        self._happens = happens

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if any((each.metadata.message_type, each.metadata.group_id) == ("train", "2") for each in messages):
            happens, self._happens = self._happens, lambda: None
            happens()
        return super().send_and_receive(messages)


def test_runs_whose_folders_have_the_same_name_keep_states_of_their_own(digits_tables, tmp_path):
    """As two researchers may begin them in the same second, on the same nodes."""
    digits_tables["experiment"] |= {"method": "fedper", "seed": 1}

    def begin(number, state, happens=lambda: None, **head):
        tables = {**digits_tables, "experiment": {**digits_tables["experiment"], **head}}
        folder = RunFolder.create(parse_experiment(tables), tmp_path / str(number))
        folder = RunFolder(folder.path.rename(folder.path.with_name("run")))
        config = {"experiment": str(folder.path / "experiment.toml"), "set": f"output.resume={folder.path}"}
        return serve(Between(state, happens), config, number=number).summary()

    alone, other = begin(1, tmp_path / "alone"), []
    state = tmp_path / "state"
    both = begin(2, state, lambda: other.append(begin(3, state, seed=2)))
    assert both["per_client"] == alone["per_client"]
    assert other[0]["per_client"] == begin(4, tmp_path / "other", seed=2)["per_client"]
    assert [summary["run"] for summary in (both, *other)] == ["run-run-2", "run-run-3"]


def test_a_run_that_begins_again_keeps_its_name_at_nodes(digits_tables, tmp_path):
    experiment = parse_experiment(digits_tables)
    folder = RunFolder.create(experiment, tmp_path)
    folder.begin_or_go_on(experiment, number=5)
    again = RunFolder(folder.path)
    again.begin_or_go_on(experiment, number=6)
    assert folder.run == again.run == f"{folder.name}-run-5"
    renamed = RunFolder(folder.path.rename(tmp_path / "renamed"))
    renamed.begin_or_go_on(experiment, number=7)
    assert renamed.run == "renamed-run-7"


# ---- finished runs


def test_forecasts_and_personal_models_of_a_renamed_run_are_found(table_tables, tmp_path):
    path = fedgraph.run(table_tables, out=tmp_path, progress=False).path
    before = fedgraph.load_run(path).personal_models
    assert before
    path = path.rename(path.with_name("renamed"))
    assert fedgraph.load_run(path).personal_models.keys() == before.keys()
    (path / "environment.json").unlink()
    assert fedgraph.load_run(path).personal_models.keys() == before.keys()
