import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fedgraph.support.errors import RunError
from fedgraph.training import client_state
from fedgraph.training.client_state import ClientState
from fedgraph.training.row_file import write_rows

EMPTY = {"momentum": torch.zeros(3)}


def stacked(value, clients=2):
    return {"momentum": torch.full((clients, 3), float(value))}


def values(state, clients, before):
    loaded = state.load(clients, before, EMPTY)["momentum"]
    assert loaded.shape == (len(clients), 3)
    assert (loaded == loaded[:, :1]).all()
    return loaded[:, 0].tolist()


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def rounds(folder):
    return sorted(int(path.name.split("-")[1]) for path in files(folder))


def test_a_round_sees_what_an_earlier_round_left(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    assert torch.equal(state.load(["a", "b"], 1, EMPTY)["momentum"], torch.zeros(2, 3))
    state.save(["a", "b"], 1, stacked(1), keep_from=1)
    state.save(["a"], 2, stacked(2, clients=1), keep_from=2)
    assert state.load(["b", "a"], 3, EMPTY)["momentum"][:, 0].tolist() == [1.0, 2.0]
    # Round 2 was cut short and is asked for again: it must not see its own outcome.
    assert state.load(["a"], 2, EMPTY)["momentum"][0, 0] == 1


def test_only_what_a_resume_can_need_is_kept(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    for server_round in range(1, 11):
        state.save(["a"], server_round, stacked(server_round, 1), keep_from=server_round - server_round % 5)
    # Round 10 may still be asked for again, so what was kept after round 9 is needed, and all after it.
    assert rounds(tmp_path) == [9, 10]


def test_runs_and_clients_with_odd_names_do_not_mix(tmp_path):
    one, other = ClientState(tmp_path, "run/1", "test"), ClientState(tmp_path, "run/2", "test")
    odd = ["../x", "", "ü" * 300, "a\nb", "a,b", '"', "\ud800"]
    one.save(odd, 1, {"momentum": torch.arange(7.0)[:, None].expand(7, 3)}, keep_from=0)
    assert values(other, odd, 2) == [0] * 7
    assert values(one, odd[::-1], 2) == [6, 5, 4, 3, 2, 1, 0]
    assert values(one, ["a", "b", "a\nb"], 2) == [0, 0, 3]
    assert all(tmp_path in path.parents for path in tmp_path.rglob("*"))
    assert not (tmp_path.parent / "x").exists()


def test_one_file_for_all_clients_and_one_sync(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("fedgraph.support.files.os.fsync", synced.append)
    ClientState(tmp_path, "run", "test").save([str(index) for index in range(50)], 1, stacked(1, 50), keep_from=1)
    assert len(files(tmp_path)) == len(synced) == 1


def test_rows_follow_the_order_asked_for(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    state.save(["c", "a", "b"], 1, {"momentum": torch.tensor([[3.0], [1.0], [2.0]]).expand(3, 3)}, keep_from=1)
    assert values(state, ["a", "b", "c"], 2) == [1, 2, 3]
    assert values(state, ["b", "new", "c"], 2) == [2, 0, 3]
    assert values(state, [], 2) == []


def test_every_tensor_and_its_shape_come_back_and_missing_clients_get_the_empty_ones(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    empty = {"matrix": torch.full((2, 2), -1.0), "step": torch.tensor(7.0)}
    state.save(["b"], 1, {"matrix": torch.ones(1, 2, 2), "step": torch.tensor([3.0])}, keep_from=1)
    loaded = state.load(["a", "b"], 2, empty)
    assert torch.equal(loaded["matrix"], torch.stack([empty["matrix"], torch.ones(2, 2)]))
    assert loaded["step"].tolist() == [7, 3]


def test_nothing_to_remember_writes_nothing(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a"], 1, {}, keep_from=1)
    state.save([], 1, {"momentum": torch.zeros(0, 3)}, keep_from=1)
    assert state.load(["a"], 2, {}) == {}
    assert files(tmp_path) == []


def test_rows_must_be_as_many_as_clients(tmp_path):
    with pytest.raises(ValueError, match=r"\{'momentum': 2\}"):
        ClientState(tmp_path, "run", "test").save(["a", "b", "c"], 1, stacked(1, 2), keep_from=1)


def test_what_is_loaded_or_saved_is_not_shared_with_the_caller(tmp_path):
    state, mine = ClientState(tmp_path, "run", "test"), stacked(1)
    state.save(["a", "b"], 1, mine, keep_from=1)
    mine["momentum"].fill_(9)
    state.load(["a", "b"], 2, EMPTY)["momentum"].fill_(9)
    state.load(["new", "other"], 2, EMPTY)["momentum"].fill_(9)
    assert values(state, ["a", "b", "new"], 2) == [1, 1, 0]


def test_what_changed_on_disk_is_seen(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a", "b"], 1, stacked(1), keep_from=1)
    assert values(state, ["a", "b"], 2) == [1, 1]
    (kept,) = files(tmp_path)
    before = kept.stat()
    write_rows(kept, ("a", "b"), stacked(5))
    os.utime(kept, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy with its times restored
    assert values(state, ["a", "b"], 2) == [5, 5]


def test_after_two_changes_of_packing_what_was_written_last_counts(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a", "b"], 5, stacked(5), keep_from=6)
    state.save(["a", "b"], 6, stacked(6), keep_from=6)
    state.save(["a", "b"], 7, stacked(7), keep_from=6)
    # Killed in round 8, resumed after round 5 on nodes with one client each, killed again and resumed on one node.
    for client, offset in (("a", 10), ("b", 20)):
        assert values(state, [client], 6) == [5]
        state.save([client], 6, stacked(6 + offset, 1), keep_from=6)
        state.save([client], 7, stacked(7 + offset, 1), keep_from=6)
    assert values(state, ["a", "b"], 8) == [17, 27]
    assert values(state, ["a", "b"], 7) == [16, 26]
    assert values(state, ["a", "b"], 6) == [5, 5]


def test_state_of_a_later_round_that_was_cut_short_is_forgotten(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    for server_round in (5, 6, 7):
        state.save(["a", "b"], server_round, stacked(server_round), keep_from=6)
    # Back to round 6; the client then has no part in round 7.
    state.save(["a"], 6, stacked(60, 1), keep_from=6)
    assert values(state, ["a", "b"], 8) == [60, 7]


def test_rounds_that_were_cut_short_are_dropped_and_before_that_do_not_count(tmp_path, monkeypatch):
    state = ClientState(tmp_path, "run", "test")
    for server_round in (5, 6, 7):
        state.save(["a", "b"], server_round, stacked(server_round), keep_from=6)
    with monkeypatch.context() as killed_before_dropping:
        killed_before_dropping.setattr(ClientState, "_drop_own", lambda *_: None)
        state.save(["a", "b"], 6, stacked(60), keep_from=6)
    assert rounds(tmp_path) == [5, 6, 6, 7]
    assert [values(state, ["a"], before) for before in (6, 7, 8)] == [[5], [60], [60]]
    state.save(["a", "b"], 6, stacked(61), keep_from=6)
    assert rounds(tmp_path) == [5, 6]
    assert [values(state, ["a"], before) for before in (6, 7, 8)] == [[5], [61], [61]]


def test_files_of_another_packing_go_once_all_its_clients_have_newer_state(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a", "b", "c"], 4, stacked(4, 3), keep_from=1)
    state.save(["a", "b", "c"], 5, stacked(5, 3), keep_from=5)
    files(tmp_path)[-1].with_name(".round-6-save-3.safetensors.x1y2.part").write_text("left by a killed writer")
    for server_round, keep_from in ((6, 6), (7, 6), (8, 8)):
        state.save(["c"], server_round, stacked(server_round + 10, 1), keep_from)
        state.save(["a"], server_round, stacked(server_round, 1), keep_from)
    assert values(state, ["a", "b", "c"], 9) == [8, 5, 18]
    assert 5 in rounds(tmp_path), "b has nothing newer"
    state.save(["b"], 8, stacked(8, 1), keep_from=8)
    state.save(["a"], 9, stacked(9, 1), keep_from=8)
    assert values(state, ["b"], 8) == [5], "round 8 may be asked for again"
    state.save(["b"], 9, stacked(9, 1), keep_from=9)
    state.save(["a"], 10, stacked(10, 1), keep_from=9)
    assert values(state, ["a", "b", "c"], 10) == [9, 9, 18]
    assert 5 not in rounds(tmp_path)
    assert len(list((tmp_path / "runs" / "run" / "test").iterdir())) == 3, "the folder of the old packing is gone too"


def test_leftovers_of_a_killed_writer_are_ignored_and_removed(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a", "b"], 1, stacked(1), keep_from=1)
    (kept,) = files(tmp_path)
    leftover = kept.with_name(".round-2-save-2.safetensors.x1y2.part")
    leftover.write_bytes(kept.read_bytes()[:50])
    assert values(state, ["a", "b"], 9) == [1, 1]
    state.save(["a", "b"], 2, stacked(2), keep_from=2)
    assert not leftover.exists()
    assert values(state, ["a", "b"], 9) == [2, 2]


@pytest.mark.process
def test_a_writer_that_is_killed_leaves_whole_rounds(tmp_path):
    code = f"""
import torch
from pathlib import Path
from fedgraph.training.client_state import ClientState
state, clients = ClientState(Path({str(tmp_path)!r}), "run", "test"), [str(index) for index in range(40)]
for server_round in range(1, 100_000):
    state.save(clients, server_round, {{"momentum": torch.full((40, 5000), float(server_round))}}, server_round)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    seen, deadline = 0, time.monotonic() + 60
    while seen < 3 and process.poll() is None and time.monotonic() < deadline:
        seen = max((int(path.name.split("-")[1]) for path in tmp_path.glob("runs/run/test/*/round-*")), default=0)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert seen >= 3
    clients = [str(index) for index in range(40)]
    rows = ClientState(tmp_path, "run", "test").load(clients, 1_000_000, {"momentum": torch.zeros(5000)})["momentum"]
    assert (rows == rows[0, 0]).all()
    assert rows[0, 0] >= seen


def test_broken_and_foreign_files(tmp_path):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a", "b"], 1, stacked(1), keep_from=1)
    (kept,) = files(tmp_path)
    whole = kept.read_bytes()
    with pytest.raises(RunError, match=r"\['momentum'\], .*\['other'\]"):
        state.load(["a", "b"], 2, {"other": torch.zeros(3)})
    with pytest.raises(RunError, match=r"momentum .*\(2, 3\), .*\(2, 4\)"):
        state.load(["a"], 2, {"momentum": torch.zeros(4)})
    client_state._names.cache_clear()
    kept.write_bytes(whole[:-4])
    for clients in (["a", "b"], ["a"]):
        with pytest.raises(RunError, match=f"cannot read the saved state {kept}"):
            state.load(clients, 2, EMPTY)
    write_rows(kept, ("a", "c"), stacked(1))
    for clients in (["a", "b"], ["a"]):
        with pytest.raises(RunError, match="not that of the clients"):
            state.load(clients, 2, EMPTY)
    kept.unlink()
    (tmp_path / "runs" / "run" / "test" / ".DS_Store").write_text("of no concern")
    assert values(state, ["a"], 2) == [0]


def test_a_file_dropped_between_listing_and_reading(tmp_path, monkeypatch):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a", "b"], 1, stacked(1), keep_from=1)
    read, interfered = client_state.read_rows, []

    def interfere(path, *arguments):
        if not interfered:
            interfered.append(path)
            state.save(["a", "b"], 2, stacked(2), keep_from=3)
            assert not path.exists()
        return read(path, *arguments)

    monkeypatch.setattr(client_state, "read_rows", interfere)
    assert values(state, ["b"], 3) == [2]
    assert len(interfered) == 1


def test_files_that_keep_vanishing_are_an_error(tmp_path, monkeypatch):
    state = ClientState(tmp_path, "run", "test")
    state.save(["a"], 1, stacked(1, 1), keep_from=1)
    monkeypatch.setattr(client_state, "read_rows", mock.Mock(side_effect=FileNotFoundError))
    with pytest.raises(RunError, match="another run of that name"):
        state.load(["a"], 2, EMPTY)


def test_nodes_that_work_at_the_same_time_on_one_folder(tmp_path):
    clients = [f"client-{index}" for index in range(12)]
    ClientState(tmp_path, "run", "test").save(clients, 1, stacked(1, 12), keep_from=1)

    def serve(part):
        state = ClientState(tmp_path, "run", "test")
        for server_round in range(2, 30):
            found = values(state, part, server_round)
            state.save(part, server_round, stacked(found[0] + 1, len(part)), keep_from=server_round)
            assert found == [server_round - 1] * len(part)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(serve, [clients[index : index + 2] for index in range(0, 12, 2)]))
    state = ClientState(tmp_path, "run", "test")
    assert values(state, clients, 30) == [29] * 12
    state.save(clients[:2], 30, stacked(30, 2), keep_from=30)
    assert set(rounds(tmp_path)) <= {28, 29, 30}, "the file of the first packing is gone"


def test_headers_of_other_packings_are_read_once(tmp_path, monkeypatch):
    client_state._names.cache_clear()
    read = mock.Mock(wraps=client_state.read_clients)
    monkeypatch.setattr(client_state, "read_clients", read)
    monkeypatch.setattr("fedgraph.support.files.os.fsync", lambda descriptor: None)
    for server_round in range(1, 6):
        for client in range(20):
            state = ClientState(tmp_path, "run", "test")
            assert values(state, [str(client)], server_round) == [server_round - 1]
            state.save([str(client)], server_round, stacked(server_round, 1), keep_from=server_round)
    assert read.call_count <= 20


NAMES = [f"client-{index}" for index in range(5)]


class Runs(RuleBasedStateMachine):
    """Any packings, rounds, resumes and checkpoints against a dict of what each client kept, in order of writing."""

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = {name: [] for name in NAMES}
        self.round, self.keep_from, self.written = 1, 1, 0
        self.attempts = {}

    def state(self):
        return ClientState(Path(self.folder.name), "run", "test", self.attempts)

    def expected(self, client, before):
        return next((value for kept, value in reversed(self.model[client]) if kept < before), 0.0)

    @rule(clients=st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    def train(self, clients):
        state = self.state()
        assert values(state, clients, self.round) == [self.expected(client, self.round) for client in clients]
        rows = torch.arange(self.written + 1.0, self.written + 1 + len(clients))
        self.written += len(clients)
        state.save(clients, self.round, {"momentum": rows[:, None].expand(-1, 3)}, self.keep_from)
        for client, value in zip(clients, rows.tolist(), strict=True):
            self.model[client] = [entry for entry in self.model[client] if entry[0] < self.round]
            self.model[client].append((self.round, value))

    @rule(steps=st.integers(1, 3))
    def go_on(self, steps):
        self.round += steps

    @rule()
    def checkpoint(self):
        self.round += 1
        self.keep_from = self.round

    @rule()
    def resume(self):
        self.round = self.keep_from

    @rule(
        clients=st.permutations(NAMES).flatmap(lambda names: st.integers(1, 5).map(lambda n: names[:n])),
        later=st.integers(0, 6),
    )
    def look(self, clients, later):
        before = self.keep_from + later
        state = self.state()
        assert values(state, clients, before) == [self.expected(client, before) for client in clients]

    @invariant()
    def keeps_no_temporary_files(self):
        if hasattr(self, "folder"):
            assert not list(Path(self.folder.name).rglob(".*"))

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()


class Attempts(Runs):
    """The same for a run whose nodes know its attempts: what was kept in rounds that are repeated is gone."""

    @initialize()
    def start(self):
        super().start()
        self.attempts = {"00000000": ClientState.LAST}

    @rule()
    def resume(self):
        super().resume()
        *_, current = self.attempts
        self.attempts |= {current: self.keep_from - 1, f"{len(self.attempts):08x}": ClientState.LAST}
        self.model = {name: [entry for entry in kept if entry[0] < self.keep_from] for name, kept in self.model.items()}


def test_what_was_kept_in_rounds_that_are_repeated_does_not_count(tmp_path):
    first, attempts = "00000001", {"00000001": ClientState.LAST}
    state = ClientState(tmp_path, "run", "test", attempts)
    for server_round in range(1, 6):
        state.save(["a", "b"], server_round, stacked(server_round), keep_from=4 if server_round > 3 else 1)
    state = ClientState(tmp_path, "run", "test", {first: 3, "00000002": ClientState.LAST})
    state.save(["b"], 4, stacked(40, 1), keep_from=4)
    assert values(state, ["a", "b"], 6) == [3, 40]
    assert values(state, ["a", "b"], ClientState.LAST) == [5, 40], "whatever its attempt"
    state.save(["a", "b"], 7, stacked(7), keep_from=7)
    assert values(state, ["a", "b"], 7) == [3, 40], "a run killed in round 7 needs these"
    state.save(["a", "b"], 9, stacked(9), keep_from=9)
    assert rounds(tmp_path) == [7, 9]


@pytest.mark.process
@pytest.mark.parametrize("runs", [Runs, Attempts])
def test_any_history_gives_what_a_dict_would(monkeypatch, runs):
    monkeypatch.setattr("fedgraph.support.files.os.fsync", lambda descriptor: None)
    run_state_machine_as_test(runs, settings=settings(max_examples=80, stateful_step_count=30))


@pytest.mark.parametrize("name", ["local-models", "aggregators", "forecasts", "logs", "answered", "runs", "../logs"])
def test_no_name_of_a_run_is_that_of_the_nodes_own_files(tmp_path, name):
    (tmp_path / "logs").mkdir()
    (tmp_path / "local-models").mkdir()
    ClientState(tmp_path, name, "test").save(["a"], 1, stacked(1, 1), keep_from=1)
    assert {path.parent.parent.parent.parent for path in tmp_path.rglob("round-*")} == {tmp_path / "runs"}


def test_state_of_older_versions_stays_where_it_is(tmp_path):
    run = "sfl-digits-20260101-120000-run-7"
    ClientState(tmp_path, run, "test").save(["a"], 1, stacked(1, 1), keep_from=1)
    (tmp_path / "runs" / run).rename(tmp_path / run)
    state = ClientState(tmp_path, run, "test")
    assert torch.equal(state.load(["a"], 2, EMPTY)["momentum"], stacked(1, 1)["momentum"])
    state.save(["a"], 2, stacked(2, 1), keep_from=2)
    assert not list((tmp_path / "runs").iterdir())
