"""Every code block of README, documentation and results runs, in the order of its page."""

import importlib
import json
import os
import re
import sys
import tomllib
from contextlib import ExitStack
from functools import cache

import pytest
from reading.given import GIVEN
from reading.pages import WITH_RESULTS, blocks, lines, lines_of, name_of, pages_with
from reading.shell import ELSEWHERE, Shell

import fedgraph
from fedgraph.experiment import parse_experiment
from fedgraph.federation.grids.local_flower import (
    free_port,
    offered,
    process,
    wait_for_superlink,
)
from fedgraph.federation.grids.programs import flower_environment, program
from fedgraph.strategies.engine.chosen import ChosenMethod
from fedgraph.support.plugins import add_plugin_paths

# Runs of a page's Python and TOML blocks end above these, by the method or, as "", all of them; and what else its
# blocks have to reach.
QUALITY = {
    "README.md": {"sfl": 0.82, "local": 0.65, "fedavg": 0.2},
    "docs/index.md": {"sfl": 0.85, "local": 0.65, "fedavg": 0.2},
    "docs/guides/getting-started.md": {"": 0.8},
    "docs/guides/which-method.md": {"sfl": 0.85, "pfedgraph": 0.75, "local": 0.65},
    "docs/guides/flower-app.md": {"": 0.85},
    "docs/guides/data.md": {"": 0.85},
    "docs/guides/model.md": {"fedavg": 0.6, "fedprox": 0.6, "f3": 0.85},
    "docs/guides/strategy.md": {"": 0.65},
    "docs/methods/sfl.md": {"": 0.75},
    "docs/methods/f3.md": {"": 0.85},
    "docs/methods/f3-forecast.md": {},
    "docs/methods/ipa.md": {"": 0.75},
    "docs/methods/fedngm.md": {},
    "docs/methods/baselines.md": {"": 0.6},
}
REACHED = {
    "docs/guides/flower-app.md": lambda page: page["last_error"] < 1.2,  # alone 1.6
    "docs/guides/client-graph.md": lambda page: page["found"].pays,
    "docs/methods/f3.md": lambda page: page["scores"].mean() > 0.8,
    "docs/methods/f3-forecast.md": lambda page: (
        page["run"].clients["test/mae-60min"].mean() < page["run"].clients["test/mae-60min-no-graph"].mean()
    ),
    # Made with 120 + 0.8 (age - 60) + 15 for smokers.
    "docs/methods/fedngm.md": lambda page: abs(page["answer"].mean[0] - 147) < 8,
}
FILE = re.compile(r'"""(\w+\.py): |# ([\w-]+\.toml)$', re.MULTILINE)
NO_DOWNLOAD = ("digits", "stochastic-blocks", "image-patches")


@pytest.fixture(scope="module")
def simulation(tmp_path_factory):
    """The address of a SuperLink that simulates nodes; started when it is first asked for."""
    folder = tmp_path_factory.mktemp("simulation")
    with ExitStack() as stack:

        @cache
        def address():
            port = free_port()
            command = [
                program("flower-superlink"), "--insecure", "--isolation", "subprocess",
                *offered("flower-superlink", "--simulation"), "--host", "127.0.0.1", "--port", str(port),
            ]  # fmt: skip
            log = folder / "log"
            started = stack.enter_context(process(command, flower_environment(folder / "home"), log, cwd=folder))
            wait_for_superlink(port, started, log)
            return f"127.0.0.1:{port}"

        yield address


@pytest.mark.process
@pytest.mark.xdist_group("pages")
@pytest.mark.parametrize("page", pages_with("python", "toml", "sh"))
def test_the_blocks_of_a_page_run_one_after_the_other(
    page, leave_no_trace, short_tour, data_dir, simulation, tmp_path, monkeypatch
):
    """What Python and TOML blocks train learns; what lines of a shell train is cut short.

    A block that begins with the name of a file is that file; experiments that need no file run as they stand.
    """
    name = name_of(page)
    namespace, learned = {"__name__": "page"}, set()
    no_data = os.environ["FEDGRAPH_DATA"]
    add_plugin_paths([str(tmp_path)])
    with Shell(monkeypatch.setenv, simulation, short_tour) as shell:
        for give in GIVEN.get(name, ()):
            give(shell)
        for language, text in blocks(page, "python", "toml", "sh"):
            before = runs_in(tmp_path)
            file = FILE.match(text)
            if file is not None:
                (tmp_path / (file[1] or file[2])).write_text(text)
            if language == "sh":
                monkeypatch.setenv("FEDGRAPH_DATA", str(data_dir))
                for variables, words in lines_of(text):
                    shell.type(variables, words)
                monkeypatch.setenv("FEDGRAPH_DATA", no_data)
            elif language == "python":
                exec(compile(text, f"{page}", "exec"), namespace)
            else:
                run_tables(tomllib.loads(text))
            if language != "sh":
                learned |= runs_in(tmp_path) - before
    imported = {file.stem: sys.modules.pop(file.stem, None) for file in tmp_path.glob("*.py")}
    assert_learned(QUALITY.get(name), learned)
    if imported.get("server_app"):
        errors = (
            imported["server_app"].kept["history"].query("metric == 'evaluate/mse'").groupby("round")["value"].mean()
        )
        namespace["last_error"] = errors.iloc[-1]
    if name in REACHED:
        assert REACHED[name](namespace)
    if shell.lacking:
        pytest.skip(f"all else is run, but data are not here: {', '.join(shell.lacking)}")


def runs_in(folder):
    return set(folder.glob("runs/*/summary.json"))


def run_tables(tables):
    """Run what is a whole experiment and needs no file; all else is looked at."""
    if "project" in tables:
        for path in tables["tool"]["flwr"]["app"]["components"].values():
            module, _, name = path.partition(":")
            assert not module.startswith("fedgraph") or hasattr(importlib.import_module(module), name)
    elif "superlink" not in tables:
        complete = {"experiment", "data"} <= tables.keys()
        defaults = {"experiment": {"method": "local"}, "data": {"set": "digits"}, "model": {"name": "gru"}}
        ChosenMethod(parse_experiment(tables if complete and "model" in tables else defaults | tables))
        if complete and tables["data"]["set"] in NO_DOWNLOAD:
            fedgraph.run(tables, progress=False)


def assert_learned(least, files):
    """The test accuracy of every run is above what its page promises; a page with runs promises something."""
    summaries = [json.loads(file.read_text()) for file in files]
    assert least is not None or not summaries, "say in QUALITY what the runs of this page reach"
    for summary in summaries:
        accuracy = summary["metrics"].get("test", {}).get("accuracy")
        if accuracy is not None:
            assert accuracy["mean"] > least.get(summary["method"], least.get("", 1)), summary["method"]


def test_what_is_run_elsewhere_is_on_a_page():
    shown = [" ".join(words) + " " for page in WITH_RESULTS for words in lines(page)]
    assert [begin for begin in ELSEWHERE if not any(line.startswith(f"{begin} ") for line in shown)] == []
    assert set(GIVEN) <= {name_of(page) for page in WITH_RESULTS}
