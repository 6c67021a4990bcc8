"""What is in the image, what is not, and that it does all that servers and nodes do without what was left out."""

import pytest
from containers import SECRET

pytestmark = pytest.mark.docker

MEGABYTES = 1600  # of them up to 200 of the base image
EVERYTHING = """
import importlib, pkgutil
for package in ("fedgraph", "clients", "strategies"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
        if found.name != "fedgraph.__main__":
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as missing:
                # Those of the extras, which the image does not have.
                assert missing.name in {"mlflow", "onnx", "onnxruntime", "optuna", "skops", "tensorboard", "wandb"}
"""
BYTECODE = """
import os, sys
import fedgraph.clients.app, fedgraph.strategies.app
specs = [getattr(module, "__spec__", None) for module in list(sys.modules.values())]
found = [spec.cached for spec in specs if spec and spec.cached]
without = [path for path in found if "/site-packages/" in path and not os.path.exists(path)]
assert len(found) > 1000 and not without, without
"""
REQUIREMENTS = """
from importlib.metadata import requires, version
from packaging.requirements import Requirement
for text in requires("fedgraph-flower"):
    wanted = Requirement(text)
    if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
        assert wanted.specifier.contains(version(wanted.name)), text
"""


@pytest.fixture(scope="module")
def inside(engine, image):
    """``inside(command...)``: what a command prints in a container like those of the compose files, off the network."""

    def run(*command, user="10001"):
        as_there = ["--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--user", user]
        done = engine.try_docker("run", "--rm", *as_there, image, *command)
        assert done.returncode == 0, f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    return run


def test_no_key_of_the_checkout_is_in_the_image(inside):
    searched = "grep --recursive --files-with-matches --exclude-dir=proc --exclude-dir=sys"
    assert inside("sh", "-c", f"{searched} {SECRET} / 2>/dev/null || true", user="0") == ""
    assert "/opt/fedgraph/README.md" in inside("sh", "-c", f"{searched} fedgraph /opt/fedgraph")


def test_the_image_has_no_more_than_it_needs(engine, image, inside):
    size = int(engine.docker("image", "inspect", "--format", "{{.Size}}", image))
    assert size < MEGABYTES * 1e6
    for name in ("tests", "pip", "ray", "pytest", "uv"):
        assert inside("find", "/opt/venv/bin", "/opt/venv/lib/python3.11/site-packages", "-name", name) == "", name
    inside("python", "-c", REQUIREMENTS)


def test_a_process_for_a_message_compiles_nothing_of_what_is_installed(inside):
    """Flower starts one for every message, and bytecode could not be kept in a container."""
    inside("python", "-c", BYTECODE)


def test_all_modules_can_be_imported(inside):
    inside("python", "-c", EVERYTHING)


@pytest.mark.parametrize(
    ("experiment", "settings"),
    [
        ("sfl/digits.toml", ("experiment.rounds=1", "data.clients=4", "train.compile=true")),
        ("ipa/digits.toml", ("experiment.rounds=1", "data.class-groups=[[0,1,2,3],[4,5,6],[7,8,9]]")),
        ("f3/digits.toml", ("f3.epochs=2", "train.local-epochs=2")),
        (
            "fedngm/asia.toml",
            ("fedngm.sample-quality=false", "fedngm.ngm.epochs=5", "fedngm.ngr.epochs=5"),
        ),
    ],
)
def test_methods_run_in_one_process_and_write_their_reports(inside, experiment, settings):
    told = [part for setting in settings for part in ("--set", setting)]
    command = ["fedgraph", "run", experiment, "--quiet", "--out", "/tmp/runs", *told]
    said = inside("sh", "-c", '"$@" && ls /tmp/runs/* && cat /tmp/runs/*/logs/run.log', "sh", *command)
    assert "summary.json" in said
    assert "report.html" in said
    # Where C++ is asked for, as by FedNGM, it is said once that there is no compiler.
    asks = "train.compile=true" in settings or experiment.startswith("fedngm")
    assert said.count("there is no C++ compiler") == asks
