"""A study of one's own: a TOML file and a function beside it."""

import copy
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from fedgraph.commands import cli
from fedgraph.reproduce.result_file import ResultFile
from fedgraph.reproduce.study import StudyProfileTable, StudyTable

MODULE = """\
from fedgraph.reproduce.numbers import NumberTable
from fedgraph.reproduce.study import StudyPage
from fedgraph.support.settings import Settings


class Options(Settings):
    size: int = 1
    twice: bool = False


def page(context):
    options = context.parsed_options(Options)
    (context.folder / "picture.png").write_bytes(b"picture")
    table = NumberTable("all", "All", ("seed", "size"), tuple((seed, options.size) for seed in context.seeds))
    summary = NumberTable("summary", "Came out", ("size",), ((options.size * (1 + options.twice),),))
    first = NumberTable("first", "Of fewer seeds", ("what", "size", "seeds"), (("large", 9, str(context.seeds[0])),))
    return StudyPage("## Part\\n\\n![picture](picture.png)\\n", summary, [table, first])


constant = 3
"""


@pytest.fixture
def study(tmp_path):
    """Content of a study's file."""
    (tmp_path / "study_beside_table.py").write_text(MODULE)
    return {
        "study": {
            "title": "A study",
            "paper": "https://example.org",
            "caption": "What it is about.",
            "run": "study_beside_table:page",
            "options": {"size": 2, "twice": True},
        },
        "profiles": {"small": {"differs": "little"}, "full": {"seeds": [4, 5], "options": {"size": 30}}},
    }


@pytest.fixture
def call():
    """Reproduce a study of this content."""

    def call(content, *arguments):
        Path("mine.toml").write_text(tomli_w.dumps(content))
        return CliRunner().invoke(cli.app, ["reproduce", "mine.toml", "--out", "out", *map(str, arguments)])

    return call


def test_a_study_is_run_written_and_shown(study, call):
    result = call(study)
    assert result.exit_code == 0, result.output
    folder = Path("out/mine-small")
    assert {path.name for path in folder.iterdir()} == {
        "page.md", "summary.csv", "all.csv", "first.csv", "picture.png",
    }  # fmt: skip
    assert (folder / "all.csv").read_text() == "seed,size\n0,2\n"
    assert (folder / "summary.csv").read_text() == "size\n4\n"
    page = (folder / "page.md").read_text()
    for text in (
        "# A study", "<https://example.org>", "What it is about.", "| 4 |", "![picture](picture.png)",
        "Profile `small`: little. Seeds: 0.", "Again: `fedgraph reproduce mine --profile small`",
    ):  # fmt: skip
        assert text in page
    for text in ("Came out", "out/mine-small/page.md"):
        assert text in result.output


def test_profile_and_command_line_have_the_last_word(study, call):
    assert call(study, "--profile", "full").exit_code == 0
    assert Path("out/mine-full/all.csv").read_text() == "seed,size\n4,30\n5,30\n"
    assert Path("out/mine-full/summary.csv").read_text() == "size\n60\n"
    assert call(study, "--profile", "full", "--set", "options.size=7", "--seeds", "1").exit_code == 0
    (folder,) = Path("out").glob("mine-full-*")
    assert (folder / "all.csv").read_text() == "seed,size\n1,7\n"
    assert "--profile full --seeds 1 --set options.size=7" in (folder / "page.md").read_text()
    assert call(study, "--profile", "full", "--seeds", "4,5").exit_code == 0
    assert len(list(Path("out").iterdir())) == 2


def test_numbers_of_a_study_are_exported(study, call):
    result = call(study, "--seeds", "3,4", "--results", "kept")
    assert result.exit_code == 0, result.output
    assert "kept/mine-small.csv" in result.output
    kept = ResultFile(Path("kept/mine-small.csv"))
    assert (kept.spread("", "summary", "size").mean, kept.num_seeds("", "summary", "size")) == (4.0, 2)
    assert kept.spread("", "all", "size").values == {3: 2.0, 4: 2.0}
    assert kept.num_seeds("large", "first", "size") == 1, "the seeds that the line names, and not all"
    refused = call(study, "--results", "other", "--set", "options.size=3")
    assert refused.exit_code == 1
    assert "--results goes with the settings of the table alone" in refused.output
    assert not Path("other").exists()


def test_the_state_is_listed_and_nothing_is_made(study, call):
    result = call(study, "--list")
    assert result.exit_code == 0
    assert result.output.count("not made") == 2
    assert not Path("out").exists()
    call(study)
    result = call(study, "--list")
    assert result.output.count("not made") == 1
    assert "out/mine-small/page.md" in result.output


def test_studies_are_among_the_tables():
    result = CliRunner().invoke(cli.app, ["reproduce"])
    (line,) = [line for line in result.output.splitlines() if "f3-theory" in line]
    assert "a study" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--profile", "tiny"), "mine has no profile 'tiny'; it has small, full"),
        (("--rows", "x"), "mine is a study: it has no runs, so --rows means nothing"),
        (("--columns", "x"), "--columns means nothing"),
        (("--keep-models",), "--keep-models means nothing"),
        (("--seeds", "a"), "--seeds takes whole numbers"),
        (("--set", "options.sice=3"), "[study] options has no key 'sice'; known keys: size, twice"),
        (("--set", "train.workers=1"), "--set of a study is options.key=value"),
        (("--set", "options=3"), "override 'options=3' is not of the form"),
        (("--out", "mine.toml"), "--out: cannot write to mine.toml/mine-small"),
    ],
)
def test_what_cannot_be_done_is_one_message(study, call, arguments, message):
    result = call(study, *arguments)
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
    assert "Traceback" not in result.output
    assert not list(Path("out").rglob("*.md"))


@pytest.mark.parametrize(
    ("where", "entry", "message"),
    [
        (("study",), {"titel": "x"}, "[study] has no key 'titel'; known keys: caption, options"),
        (
            ("study",),
            {"run": "study_beside_table:constant"},
            "'study_beside_table:constant' is no function",
        ),
        (("study",), {"run": "study_beside_table:none"}, "has no 'none'"),
        (("study",), {"run": "no_such_module:page"}, "cannot import 'no_such_module'"),
        (("study",), {"seeds": []}, "[study] seeds"),
        (
            ("profiles", "small"),
            {"sets": []},
            "[profiles.small] has no key 'sets'; known keys: differs, options",
        ),
        (("profiles",), {"tiny": {}}, "profiles.tiny"),
        ((), {"rows": []}, "the study has no key 'rows'; known keys: profiles, study"),
        ((), {"profiles": 3}, "the study profiles"),
        ((), {"study": 3}, "the study study"),
    ],
)
def test_what_is_wrong_in_the_file_is_said(study, call, where, entry, message):
    content = copy.deepcopy(study)
    place = content
    for step in where:
        place = place[step]
    place.update(entry)
    result = call(content)
    assert result.exit_code == 1
    assert message in result.output.replace("\n", " ")
    assert "Traceback" not in result.output


def test_every_key_is_explained():
    for kind in (StudyTable, StudyProfileTable):
        assert [key for key in kind.model_fields if key not in kind.__doc__] == []
