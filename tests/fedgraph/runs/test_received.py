"""A run folder that somebody else made is data: none of its files is code, and none leads out of it."""

import json
import os
import re
import shutil
import sys
from contextlib import suppress
from uuid import uuid4

import pytest

import fedgraph
from fedgraph.commands.runs import list_runs
from fedgraph.runs import RunFolder, load_run
from fedgraph.support.errors import FedgraphError, RunError

CODE = """
from pathlib import Path
Path({place!r}).touch()
from fedgraph.strategies import FedAvg as S
from fedgraph.models.mlp import MLP as Net
def function(*arguments): ...
"""


@pytest.fixture
def made(digits_tables, run_experiment):
    digits_tables["experiment"] |= {"method": "fedavg", "rounds": 1}
    del digits_tables["sfl"], digits_tables["graph"]
    return run_experiment(digits_tables).path


@pytest.fixture(
    params=[
        ('name = "mlp"', 'name = "{}:Net"'),
        ("[train]", '[train]\nfunction = "{}:function"'),
        ('method = "fedavg"', 'strategy = "{}:S"'),
    ],
    ids=["model", "function", "strategy"],
)
def hostile(request, made, tmp_path, monkeypatch):
    """A finished run whose experiment names code of its folder, and the file that this code makes."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before, after = request.param
    module, ran = f"hostile_{uuid4().hex}", tmp_path / "ran"
    for folder in (made, made / "run_plugins"):
        folder.mkdir(exist_ok=True)
        (folder / f"{module}.py").write_text(CODE.format(place=str(ran)))
    text = (made / "experiment.toml").read_text()
    assert text.count(before) == 1
    text = re.sub(r"(\[model\]\n)(?:.+\n)+", r'\1name = "mlp"\n', text)
    (made / "experiment.toml").write_text(text.replace(before, after.format(module)))
    environment = json.loads((made / "environment.json").read_text())
    environment["plugins"] = [str(made / "run_plugins"), str(made), "run_plugins", "."]
    (made / "environment.json").write_text(json.dumps(environment))
    return made, ran


def unfinished(folder):
    for name in ("summary.json", "checkpoint.safetensors"):
        (folder / name).unlink(missing_ok=True)
    return folder


USES = {
    "predict": lambda folder, **trust: fedgraph.predict(folder, folder / "x.npz", client="client-0", **trust),
    "module": lambda folder, **trust: load_run(folder, **trust).module(),
    "export": lambda folder, **trust: load_run(folder, **trust).export(folder / "x.onnx"),
    "report": lambda folder, **trust: fedgraph.report(folder, folder / "x.html", **trust),
    "compare": lambda folder, **trust: fedgraph.compare([folder], **trust).runs[0].experiment,
    "resume": lambda folder, **trust: fedgraph.resume(unfinished(folder), progress=False, **trust),
}


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("use", USES)
def test_nothing_is_imported_from_it(hostile, use, within, monkeypatch):
    folder, ran = hostile
    if within:
        monkeypatch.chdir(folder)
    with suppress(FedgraphError):
        USES[use](folder)
    assert not ran.exists()


def test_an_error_says_how_to_trust_it_and_then_its_code_is_found(hostile):
    folder, ran = hostile
    with pytest.raises(FedgraphError, match=r"with --trust \(in Python trust=True\)"):
        fedgraph.resume(unfinished(folder), progress=False)
    assert not ran.exists()
    with suppress(FedgraphError):
        fedgraph.resume(folder, progress=False, trust=True)
    assert ran.exists()


def pipe(path):
    os.mkfifo(path)


def link(path):
    path.symlink_to("/etc/passwd")


def link_to_a_folder(path):
    path.symlink_to("/etc")


@pytest.mark.parametrize("make", [pipe, link, link_to_a_folder])
@pytest.mark.parametrize(
    "name", ["summary.json", "metrics.jsonl", ".lock", "nodes", "nodes/runs/x", "logs/run.log", "new"]
)
def test_links_and_pipes_are_not_read(made, make, name):
    path = made / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    make(path)
    for use in (RunFolder.open, load_run, fedgraph.report, fedgraph.resume):
        with pytest.raises(RunError, match=f"{path} is a link, a pipe or a device"):
            use(made)
    assert "is a link, a pipe or a device" in list_runs(made.parent)[1][0]


def test_links_to_a_run_folder_and_those_of_trackers_are_followed_and_left_alone(made, tmp_path):
    (made / "wandb").mkdir()
    (made / "wandb" / "latest-run").symlink_to("run-1")
    (tmp_path / "link").symlink_to(made)
    assert load_run(tmp_path / "link").method == "fedavg"
