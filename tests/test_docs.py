"""What README and documentation show is run, parsed or looked up; and every part of the project has its page."""

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tomllib
from functools import cached_property

import pytest
import torch
from flwr.app import MetricRecord
from reading.pages import DOCS, PAGES, REPOSITORY, WITH_RESULTS, blocks, lines, name_of
from reading.shell import COMMANDS
from typer.testing import CliRunner

import fedgraph
from fedgraph.commands.cli import app
from fedgraph.commands.keys import setting_tables
from fedgraph.experiment import built_ins, load_experiment
from fedgraph.strategies.engine.chosen import ChosenMethod

GALLERY = sorted((DOCS / "gallery").glob("plot_*.py"))
QUICK = ("keys", "methods", "data", "test-credentials", "new")


def test_the_readme_has_150_lines_at_most():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 150


def test_all_code_blocks_have_a_language():
    for page in PAGES:
        fences = re.findall(r"^```.*$", page.read_text(), re.MULTILINE)
        assert "```" not in fences[::2], page


def test_the_flower_app_of_the_readme_runs(leave_no_trace, tmp_path):
    from flwr.app import Message, RecordDict
    from flwr.clientapp import ClientApp

    from fedgraph.clients import client_name

    namespace = {}
    exec(blocks(REPOSITORY / "README.md", "python")[0][1], namespace)
    client = ClientApp(mods=[client_name])

    @client.train()
    def train(message, context):
        content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
        return Message(content, reply_to=message)

    hospitals = [{"client": name} for name in ("mercy", "saint-luke", "county")]
    client.evaluate()(train)
    fedgraph.simulate(namespace["app"], client, node_configs=hospitals)
    assert torch.load("mercy.pt")["weight"].shape == (2, 8)


@pytest.fixture
def picture():
    """The module that draws the picture of the tour."""
    spec = importlib.util.spec_from_file_location("tour_picture", DOCS / "tour_picture.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_and_the_start_page_have_the_numbers_of_the_readme(picture, tmp_path):
    from PIL import Image

    tour = picture.numbers_of_the_tour((REPOSITORY / "README.md").read_text())
    with Image.open(DOCS / "tour.png") as image:
        assert image.text["Description"] == picture.described(tour)
    shown = re.findall(r"\d+\.\d %", (DOCS / "index.md").read_text())
    assert len(shown) > 5
    assert set(shown) <= {value for rows in tour.values() for value in rows.values()}
    picture.draw(tour, tmp_path / "tour.png")
    assert Image.open(tmp_path / "tour.png").size == image.size


def test_code_is_seen_whole_at_1280_pixels():
    """There is room for some 96 letters."""
    pages = [*PAGES, *sorted(REPOSITORY.glob("simulations/*/README.md"))]
    long = [
        (str(page), line)
        for page in pages
        for _, text in blocks(page, "python", "toml", "sh", "text", "yaml", "Dockerfile")
        for line in text.splitlines()
        if len(line) > 92
    ]
    assert long == []


def test_blocks_that_are_files_are_complete(tmp_path):
    """Nothing that they use was defined in another block."""
    files = [
        (page.name, text) for page in PAGES for _, text in blocks(page, "python") if re.match(r'"""\w+\.py: ', text)
    ]
    assert {"flower-app.md", "strategy.md"} <= {name for name, _ in files}
    for place, (name, text) in enumerate(files):
        (tmp_path / f"{place}_{name.replace('.', '_')}.py").write_text(text)
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821,F401", tmp_path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("page", [page for page in WITH_RESULTS if blocks(page, "sh")], ids=name_of)
def test_commands_of_shell_blocks_are_known_and_their_experiments_are_there(page, leave_no_trace):
    targets = re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    for words in lines(page):
        if words[0] == "make":
            assert words[1] in targets, words
        if words[0] != "fedgraph":
            continue
        command = COMMANDS[words[1]]
        options = command.make_context(words[1], words[2:]).params
        file = options.get("experiment") or ""
        if words[1] in ("run", "node") and "/" in file and "resume" not in str(words):
            methods = options.get("compare") or []
            for method in (None, *methods):
                ChosenMethod(load_experiment(file, options.get("set_") or (), method))
        if words[1] == "reproduce" and options.get("name"):
            paper, _, table = options["name"].partition("-")
            assert (REPOSITORY / "simulations" / paper / "tables" / f"{table}.toml").is_file(), words


def test_quick_commands_of_the_pages_run(leave_no_trace, tmp_path, monkeypatch):
    """All else runs in tests/docs, which takes longer."""
    ran = 0
    for number, page in enumerate(PAGES):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        for words in lines(page):
            if words[0] == "fedgraph" and (words[1] in QUICK or words[1:] == ["reproduce"]):
                result = CliRunner().invoke(app, words[1:])
                assert result.exit_code == 0, (page, words, result.output)
                ran += 1
    assert ran > 10


def test_commands_and_tables_of_keys_in_the_text_are_known():
    for page in PAGES:
        for command, argument in re.findall(r"`fedgraph ([a-z][\w-]*) ?([\w.-]*)`", page.read_text()):
            assert command in COMMANDS, (page, command)
            if command == "keys" and argument.islower():
                assert argument in setting_tables(), (page, argument)
        for name in re.findall(r"<!-- keys (\S+) -->", page.read_text()):
            assert name in setting_tables(), (page, name)


def test_links_between_files_lead_somewhere():
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            if not re.match(r"\w+:", link) and "auto_examples" not in link:
                assert (page.parent / link).exists(), (page, link)


@pytest.mark.parametrize("script", GALLERY, ids=lambda path: path.stem)
def test_examples_say_what_they_show_and_import_what_is_there(script):
    tree = ast.parse(script.read_text())
    title, line, *_ = (ast.get_docstring(tree) or "").splitlines()
    assert line == "=" * len(title), script
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), (script, node.module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.endswith(".toml"):
            load_experiment(node.value)


def test_everything_has_its_page():
    reference = (DOCS / "reference" / "index.md").read_text().split()
    rooms = [
        path.parent.relative_to(REPOSITORY).as_posix().replace("/", ".")
        for path in sorted((REPOSITORY / "fedgraph").rglob("__init__.py"))
        if "__all__" in path.read_text() and path.parent.name != "templates"
    ]
    assert [room for room in rooms if room not in reference] == []
    assert {"fedgraph.algorithms", "fedgraph.clients.engine.base"} <= set(reference)
    methods = DOCS / "methods"
    listed = (methods / "index.md").read_text()
    assert [name for name in built_ins() if f"`{name}`" not in listed] == []
    for name in ("sfl", "f3", "f3-forecast", "ipa", "fedngm"):
        page = (methods / f"{name}.md").read_text()
        for part in ("## Equations", "## When to use it", "## When not", "## Run it", f"<!-- keys {name} -->", "$$"):
            assert part in page, (name, part)
    for file in [
        *REPOSITORY.glob("simulations/*/README.md"),
        *REPOSITORY.glob("docker/*.md"),
        REPOSITORY / "CHANGELOG.md",
    ]:
        stands_for = f"]({os.path.relpath(file, DOCS / 'results')})."
        assert any(stands_for in page.read_text() for page in PAGES if page.parent.parent == DOCS), file


def test_summaries_of_properties_are_not_shown_as_types():
    """Sphinx takes what stands before a colon in the first line for the type."""
    rooms = re.findall(r"^ +(fedgraph[\w.]*)$", (DOCS / "reference" / "index.md").read_text(), re.MULTILINE)
    public = [getattr(room, name, None) for room in map(importlib.import_module, rooms) for name in dir(room)]
    told = {
        (each.__qualname__, name): (inspect.getdoc(found) or "").partition("\n")[0]
        for each in public
        if inspect.isclass(each) and each.__module__.startswith("fedgraph")
        for name, found in vars(each).items()
        if not name.startswith("_") and isinstance(found, property | cached_property)
    }
    assert len(told) > 50
    assert [of for of, line in told.items() if ":" in re.sub(r"``.*?``|:\w+:`.*?`", "", line)] == []


@pytest.mark.slow
def test_the_documentation_builds_without_a_warning(tmp_path):
    for needed in (
        "sphinx",
        "myst_parser",
        "sphinx_gallery",
        "pydata_sphinx_theme",
        "sphinx_design",
        "sphinx_copybutton",
    ):
        pytest.importorskip(needed, reason="the extra `docs` is not installed; `make docs` installs it")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(tmp_path / "html")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-4000:]
    assert (tmp_path / "html" / "auto_examples" / "plot_01_compare_methods.html").is_file()


def test_versions_on_pages_are_those_of_the_metadata():
    metadata = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    first, last = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", metadata["project"]["requires-python"]).groups()
    last = int(last) - 1
    for page in ("README.md", "docs/guides/getting-started.md", "docker/site.md"):
        told = re.findall(r"Python ((?:>= )?3\.\d+(?: or newer| to 3\.\d+)?)", (REPOSITORY / page).read_text())
        assert told == [f"3.{first} to 3.{last}"], page
    assert f"not (3, {first}) <= sys.version_info[:2] <= (3, {last})" in (REPOSITORY / "Makefile").read_text()
    named = [line for line in metadata["project"]["classifiers"] if re.search(r":: 3\.\d+$", line)]
    assert [line.rpartition(".")[2] for line in named] == [str(minor) for minor in range(int(first), last + 1)]
    target = metadata["tool"]["flwr"]["app"]["flwr-version-target"]
    assert f"flwr=={target}\n" in (REPOSITORY / ".ci" / "constraints.txt").read_text()
    assert f"| Flower {target} | `make venv` installs it |" in (REPOSITORY / "CONTRIBUTING.md").read_text()
