import fcntl
import json
import threading
import time
from dataclasses import replace

import pytest

from fedgraph.experiment.experiment import parse_experiment
from fedgraph.graph import read_graph
from fedgraph.reproduce import execution
from fedgraph.reproduce.cells import digest
from fedgraph.reproduce.execution import failure, missing_data
from fedgraph.runs.folder import RunFolder
from fedgraph.support.errors import RunError


def summary(cell):
    return json.loads((cell.path / "summary.json").read_text())


def files(cell):
    return {path.name for path in cell.path.iterdir()}


def test_cells_are_run_once(table, plan, execute):
    cells = plan(table)
    assert execute(cells) == cells
    assert [summary(cell)["method"] for cell in cells] == ["fedavg", "sfl"] * 2
    written = [(cell.path / "summary.json").stat().st_mtime_ns for cell in cells]
    assert execute(cells) == []
    assert [(cell.path / "summary.json").stat().st_mtime_ns for cell in cells] == written


def test_what_only_a_run_that_goes_on_needs_is_removed(table, plan, execute):
    first, second = plan(table, "train.keep-optimizer=true", "train.momentum=0.5", seeds=[0])
    execute([first])
    execute([second], keep_models=True)
    for cell in (first, second):
        assert files(cell) >= {"summary.json", "metrics.jsonl", "experiment.toml", "environment.json", "logs"}
        assert files(cell).isdisjoint({"checkpoint.safetensors", "nodes", "failure.txt"})
    assert "models.safetensors" not in files(first)
    assert "models.safetensors" in files(second)
    execute([first, second])
    assert "models.safetensors" in files(second)


def training_lines(cell):
    return [line for line in (cell.path / "metrics.jsonl").read_text().splitlines() if '"training"' in line]


class Killed(BaseException):
    pass


def test_a_killed_cell_goes_on_from_its_checkpoint(table, plan, execute, monkeypatch):
    _, cell = plan(table, "experiment.rounds=3", seeds=[0])
    _, whole = plan(table, "experiment.rounds=3", "experiment.min-clients=2", seeds=[0])
    execute([whole])
    original = RunFolder.write_summary

    def kill(folder, content):
        raise Killed

    monkeypatch.setattr(RunFolder, "write_summary", kill)
    with pytest.raises(Killed):
        execute([cell])
    assert "checkpoint.safetensors" in files(cell)
    monkeypatch.setattr(RunFolder, "write_summary", original)
    # The times on these lines would be others if the rounds were trained anew.
    before = training_lines(cell)
    assert execute([cell]) == [cell]
    assert training_lines(cell) == before
    assert len(before) == 3
    assert summary(cell)["weights_sha256"] == summary(whole)["weights_sha256"]
    assert "checkpoint.safetensors" not in files(cell)


def test_tidying_up_that_was_killed_is_done_again(table, plan, execute, monkeypatch):
    def kill(folder, **how):
        raise Killed

    cell = plan(table, "train.keep-optimizer=true", "train.momentum=0.5", seeds=[0])[0]
    with monkeypatch.context() as patched:
        patched.setattr(execution.shutil, "rmtree", kill)
        with pytest.raises(Killed):
            execute([cell])
    assert "summary.json" in files(cell)
    assert execute([cell]) == []
    assert files(cell).isdisjoint({"nodes", "models.safetensors", "checkpoint.safetensors"})


def test_a_cell_that_lost_its_end_ends_the_same(table, plan, execute):
    cell = plan(table, seeds=[0])[1]
    execute([cell])
    first = summary(cell)
    (cell.path / "summary.json").unlink()
    assert execute([cell]) == [cell]
    assert summary(cell)["metrics"] == first["metrics"]


def test_one_that_fails_does_not_stop_the_others_and_is_tried_again(table, plan, execute):
    bad, good = plan(table, seeds=[0])
    table["rows"][0]["set"] = ["experiment.min-clients=7"]
    bad = plan(table, seeds=[0])[0]
    assert execute([bad, bad, good]) == [bad, good]
    assert "only 6 of at least 7 clients" in failure(bad)
    assert "\n" not in failure(bad)
    assert "Traceback" in (bad.path / "failure.txt").read_text()
    assert failure(good) is None
    assert execute([bad]) == [bad]


def test_a_cell_that_cannot_be_resolved_is_not_run(table, plan, execute):
    table["rows"][0]["method"] = "fedavgg"
    cell = plan(table, seeds=[0])[0]
    assert execute([cell]) == []
    assert failure(cell).endswith("'fedavgg' is not a built-in")


def test_an_error_of_a_bug_is_a_failure_too(table, plan, execute, monkeypatch):
    def trip(*arguments, **named):
        raise ZeroDivisionError("somebody divided")

    cell = plan(table, seeds=[0])[0]
    monkeypatch.setattr(execution, "run_one", trip)
    execute([cell])
    assert failure(cell) == "somebody divided"


def test_errors_of_nodes_are_told_by_their_last_line(table, plan, execute, monkeypatch):
    def trip(*arguments, **named):
        raise RunError("node 1000: Traceback (most recent call last):\n  line 3\nKeyError: 'x'\nRun folder: /a; go on")

    cell = plan(table, seeds=[0])[0]
    monkeypatch.setattr(execution, "run_one", trip)
    execute([cell])
    assert failure(cell) == "KeyError: 'x'"


def test_cells_without_data_are_left_alone(table, plan, execute, tmp_path):
    cell = plan(table, 'data={set = "pems04"}', 'graph.source="none"', seeds=[0])[0]
    assert execute([cell]) == []
    assert "no files of PEMS04" in missing_data(cell.experiment, tmp_path / "no-data")
    assert failure(cell) is None
    assert not cell.path.exists()


def test_missing_data_of_a_file_of_ones_own(digits_tables, tmp_path):
    assert missing_data(parse_experiment(digits_tables), tmp_path) is None
    tables = digits_tables | {"data": {"set": "series", "path": "mine.csv"}}
    assert "mine.csv" in missing_data(parse_experiment(tables), tmp_path)


def test_a_cell_of_another_process_is_awaited_not_run_twice(table, plan, execute, monkeypatch):
    monkeypatch.setattr(execution, "_POLL_SECONDS", 0.05)
    first, second = plan(table, seeds=[0])
    execute([first])
    kept = (first.path / "summary.json").read_text()
    (first.path / "summary.json").unlink()
    with (first.path.parent / ".locks" / first.path.name).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ran = []
        thread = threading.Thread(target=lambda: ran.extend(execute([first, second])))
        thread.start()
        deadline = time.monotonic() + 20
        while not (second.path / "summary.json").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert thread.is_alive()
        (first.path / "summary.json").write_text(kept)
    thread.join(20)
    assert ran == [second]


@pytest.fixture
def chained(table):
    """A table whose second row goes over the graph that the run of the first has learned."""
    table["rows"][:2] = [
        {"label": "SFL*", "method": "sfl-star", "set": ['graph.source="none"']},
        {"label": "SFL", "method": "sfl", "after": "SFL*", "set": ['graph={source = "run", path = "{run}"}']},
    ]
    return table


def test_a_row_builds_on_the_run_of_another_of_the_same_seed(chained, plan, execute):
    cells = plan(chained)
    learned = {cell.seed: cell.path for cell in cells if cell.row == "SFL*"}
    later = [cell for cell in cells if cell.row == "SFL"]
    assert [cell.experiment.graph.path for cell in later] == [str(learned[0]), str(learned[1])]
    ran = execute(later[:1])
    assert [(cell.row, cell.seed) for cell in ran] == [("SFL*", 0), ("SFL", 0)]
    assert read_graph(later[0].path / "graph.npz") == read_graph(learned[0] / "learned-graph.npz")
    assert [(cell.row, cell.seed) for cell in execute(plan(chained))] == [("SFL*", 1), ("SFL", 1)]
    # Other settings of the first row are another run, and so are those that build on it.
    assert {cell.path for cell in plan(chained, "train.batch-size=16")}.isdisjoint(cell.path for cell in cells)


def test_a_cell_is_the_same_wherever_the_folder_of_all_cells_lies(chained, plan):
    first, second = plan(chained, seeds=[0])
    moved = second.path.parent.with_name("moved")
    elsewhere = second.experiment.graph.model_copy(update={"path": str(moved / first.path.name)})
    assert digest(replace(second.experiment, graph=elsewhere)) == digest(second.experiment)
    other = second.experiment.graph.model_copy(update={"path": str(moved / "another")})
    assert digest(replace(second.experiment, graph=other)) != digest(second.experiment)


def test_a_cell_waits_for_the_one_that_another_process_runs(chained, plan, execute, monkeypatch):
    monkeypatch.setattr(execution, "_POLL_SECONDS", 0.05)
    first, second = plan(chained, seeds=[0])
    execute([first])
    kept = (first.path / "summary.json").read_text()
    (first.path / "summary.json").unlink()
    with (first.path.parent / ".locks" / first.path.name).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        ran = []
        thread = threading.Thread(target=lambda: ran.extend(execute([second])))
        thread.start()
        thread.join(1)
        assert thread.is_alive()
        assert not second.path.exists()
        (first.path / "summary.json").write_text(kept)
    thread.join(20)
    assert ran == [second]


def test_what_builds_on_a_cell_that_cannot_be_resolved_says_why(chained, plan):
    chained["rows"][0]["set"].append("train.batch-size=0")
    _, second = plan(chained, seeds=[0])
    assert second.experiment is None
    assert "batch-size" in failure(second)


def test_a_cell_is_locked_while_it_is_run(table, plan, execute, monkeypatch):
    cell = plan(table, seeds=[0])[0]
    original, tried = execution.run_one, []

    def look_at_lock(*arguments, **named):
        with (cell.path.parent / ".locks" / cell.path.name).open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with (cell.path.parent / ".locks" / cell.path.name).open() as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        tried.append(original(*arguments, **named))

    monkeypatch.setattr(execution, "run_one", look_at_lock)
    execute([cell])
    assert len(tried) == 1


def test_a_cell_that_another_process_left_unfinished_is_taken_over(table, plan, execute, monkeypatch):
    monkeypatch.setattr(execution, "_POLL_SECONDS", 0.05)
    cell = plan(table, seeds=[0])[0]
    (cell.path.parent / ".locks").mkdir(parents=True)
    other = (cell.path.parent / ".locks" / cell.path.name).open("w")
    fcntl.flock(other, fcntl.LOCK_EX)
    timer = threading.Timer(0.3, other.close)
    timer.start()
    assert execute([cell]) == [cell]
    assert (cell.path / "summary.json").exists()


def test_a_row_may_ask_for_one_node(table, plan, execute):
    table["rows"][0]["nodes"] = 1
    cells = plan(table, seeds=[0])
    execute(cells)
    assert "6 clients on 1 nodes" in (cells[0].path / "logs" / "run.log").read_text()
    assert "6 clients on 2 nodes" in (cells[1].path / "logs" / "run.log").read_text()
