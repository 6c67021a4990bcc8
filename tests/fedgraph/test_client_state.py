import torch

from fedgraph.client_state import ClientState

EMPTY = {"momentum": torch.zeros(3)}


def stacked(value, clients=2):
    return {"momentum": torch.full((clients, 3), float(value))}


def test_a_round_sees_what_an_earlier_round_left(tmp_path):
    state = ClientState(tmp_path, "run")
    assert torch.equal(state.load(["a", "b"], 1, EMPTY)["momentum"], torch.zeros(2, 3))
    state.save(["a", "b"], 1, stacked(1), keep_from=1)
    state.save(["a"], 2, stacked(2, clients=1), keep_from=2)
    assert state.load(["b", "a"], 3, EMPTY)["momentum"][:, 0].tolist() == [1.0, 2.0]
    # Round 2 was cut short and is asked for again: it must not see its own outcome.
    assert state.load(["a"], 2, EMPTY)["momentum"][0, 0] == 1


def test_only_what_a_resume_can_need_is_kept(tmp_path):
    state = ClientState(tmp_path, "run")
    for server_round in range(1, 11):
        state.save(["a"], server_round, stacked(server_round, 1), keep_from=server_round - server_round % 5)
    kept = sorted(path.name for path in (tmp_path / "run" / "a").iterdir())
    # The last checkpoint may be that of round 5 or 10, so the newest state up to each is needed, and all after.
    assert "round-9.safetensors" in kept
    assert "round-10.safetensors" in kept
    assert "round-3.safetensors" not in kept


def test_runs_and_clients_with_odd_names_do_not_mix(tmp_path):
    one, other = ClientState(tmp_path, "run/1"), ClientState(tmp_path, "run/2")
    one.save(["../x"], 1, stacked(1, 1), keep_from=0)
    assert other.load(["../x"], 2, EMPTY)["momentum"].sum() == 0
    assert one.load(["../x"], 2, EMPTY)["momentum"].sum() == 3
    assert all(tmp_path in path.parents for path in tmp_path.rglob("*"))
    assert not (tmp_path.parent / "x").exists()
