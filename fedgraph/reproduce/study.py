"""A study as one TOML file: what a paper proves rather than measures, worked out by a function that makes a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field
from rich.console import Console

from fedgraph.experiment import apply_overrides
from fedgraph.reproduce.files import Profile, TableFile
from fedgraph.reproduce.numbers import NumberTable
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object
from fedgraph.support.settings import S, Settings, parse

_Seeds = tuple[Annotated[int, Field(ge=0)], ...]


class StudyTable(Settings):
    """``[study]``, in place of ``[table]``, ``[[columns]]`` and ``[[rows]]``.

    title, paper, caption : what the study shows, a link to where it was published, and how to read ours.
    run     : ``package.module:function``; given a :class:`StudyContext`, it returns a :class:`StudyPage`.
    seeds   : of what is drawn at random.
    options : what the function is told; which there are is its own business. ``--set options.key=value`` comes last.
    """

    title: str
    paper: str = ""
    caption: str = ""
    run: str
    seeds: _Seeds = Field(default=(0,), min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


class StudyProfileTable(Settings):
    """``[profiles.small]`` or ``[profiles.full]`` of a study.

    seeds   : in place of the study's.
    options : beside the study's, and before them.
    differs : how the profile differs from what the paper does, in plain words.
    """

    seeds: _Seeds | None = Field(default=None, min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)
    differs: str = ""


class Study(Settings):
    """The whole file."""

    study: StudyTable
    profiles: dict[Profile, StudyProfileTable] = Field(min_length=1)

    def profile(self, wanted: str, name: str) -> StudyProfileTable:
        """A profile by name; raises ExperimentError, naming those there are."""
        found = next((profile for known, profile in self.profiles.items() if known == wanted), None)
        if found is None:
            known = [known for known in get_args(Profile) if known in self.profiles]
            raise ExperimentError(f"{name} has no profile '{wanted}'; it has {', '.join(known)}")
        return found


STUDY_EXPLAINED: dict[str, tuple[str, type[Settings]]] = {
    "reproduce.study": ("[study] of a study for `fedgraph reproduce`", StudyTable),
    "reproduce.study-profiles": ("[profiles.small] and [profiles.full] there", StudyProfileTable),
}
"""A short name -> heading and settings class of every part of a study's file, for ``fedgraph keys``."""


@dataclass(frozen=True)
class StudyContext:
    """What the function of a study is given.

    folder   : for its pictures; it is there.
    seeds    : of what is drawn at random.
    options  : those of the study, the profile and the command line in one, unchecked; see :meth:`parsed_options`.
    data_dir : the data folder.
    console  : to say how far it has come.
    """

    folder: Path
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    data_dir: Path
    console: Console

    def parsed_options(self, kind: type[S]) -> S:
        """The options as an instance of ``kind``, a Settings class; raises ExperimentError for those it lacks."""
        return parse(kind, self.options, "[study] options")


@dataclass(frozen=True)
class StudyPage:
    """What the function of a study returns.

    text    : Markdown below the title; pictures in it are files of the study's folder.
    summary : what came out, for the terminal and the top of the page.
    tables  : all other numbers; each becomes a CSV file beside the page, as the summary does.
    """

    text: str
    summary: NumberTable
    tables: Sequence[NumberTable] = ()


StudyFunction = Callable[[StudyContext], StudyPage]


def parse_study(file: TableFile) -> Study:
    """What the file of a study says. Raises ExperimentError for every wrong key or value in it."""
    profiles = file.content.get("profiles")
    try:
        # Part by part, so that a message says which part is wrong and which keys are known there.
        if isinstance(file.content["study"], dict):
            parse(StudyTable, file.content["study"], "[study]")
        for name, profile in profiles.items() if isinstance(profiles, dict) else ():
            if isinstance(profile, dict):
                parse(StudyProfileTable, profile, f"[profiles.{name}]")
        return parse(Study, file.content, "the study")
    except ExperimentError as error:
        raise ExperimentError(f"{file.path}:\n{error}") from None


def merged_options(study: Study, profile: StudyProfileTable, overrides: Sequence[str]) -> dict[str, Any]:
    """Options of the study, then of the profile, then ``options.key=value`` of the command line; later ones win."""
    tables = apply_overrides({"options": {**study.study.options, **profile.options}}, overrides)
    if set(tables) != {"options"} or not isinstance(tables["options"], dict):
        raise ExperimentError("--set of a study is options.key=value; it has no experiments whose keys could be set")
    options: dict[str, Any] = tables["options"]
    return options


def study_function(study: Study) -> StudyFunction:
    """The function that a study names. Raises ExperimentError where there is none."""
    function: StudyFunction = load_object(study.study.run, "[study] run")
    if not callable(function):
        raise ExperimentError(f"[study] run = '{study.study.run}' is no function")
    return function
