"""A study as one TOML file: a result that a paper proves, not measures, worked out by a function that makes a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import Field
from rich.console import Console

from fedgraph.experiment import apply_overrides
from fedgraph.reproduce.numbers import NumberTable
from fedgraph.reproduce.toml_files import Profile, TableFile
from fedgraph.support.errors import ExperimentError
from fedgraph.support.plugins import load_object
from fedgraph.support.settings import S, Settings, parse

_Seeds = tuple[Annotated[int, Field(ge=0)], ...]


class StudyTable(Settings):
    """``[study]``, in place of ``[table]``, ``[[columns]]`` and ``[[rows]]``.

    Attributes
    ----------
    title, paper, caption : what the study shows, a link to where it was published, and how to read ours.
    run     : ``package.module:function``; given a :class:`StudyContext`, it returns a :class:`StudyPage`.
    seeds   : seeds of random numbers.
    options : options of the function, which defines them. ``--set options.key=value`` comes last.
    """

    title: str
    paper: str = ""
    caption: str = ""
    run: str
    seeds: _Seeds = Field(default=(0,), min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)


class StudyProfileTable(Settings):
    """``[profiles.small]`` or ``[profiles.full]`` of a study.

    Attributes
    ----------
    seeds   : in place of the study's.
    options : additional options, which override the study's.
    differs : how the profile differs from the paper, in plain words.
    """

    seeds: _Seeds | None = Field(default=None, min_length=1)
    options: dict[str, Any] = Field(default_factory=dict)
    differs: str = ""


class Study(Settings):
    """The whole file of a study."""

    study: StudyTable
    profiles: dict[Profile, StudyProfileTable] = Field(min_length=1)

    def profile(self, wanted: str, name: str) -> StudyProfileTable:
        """Return a profile by name. Raises ExperimentError, naming those there are."""
        found = next((profile for known, profile in self.profiles.items() if known == wanted), None)
        if found is None:
            known = [known for known in get_args(Profile) if known in self.profiles]
            raise ExperimentError(f"{name} has no profile '{wanted}'; it has {', '.join(known)}")
        return found


STUDY_EXPLAINED: dict[str, tuple[str, type[Settings]]] = {
    "reproduce.study": ("[study] of a study for `fedgraph reproduce`", StudyTable),
    "reproduce.study-profiles": ("[profiles.small] and [profiles.full] there", StudyProfileTable),
}
"""Heading and settings class of every part of a study's file by short name, for ``fedgraph keys``."""


@dataclass(frozen=True)
class StudyContext:
    """Argument of the function of a study.

    Attributes
    ----------
    folder : Path
        Existing folder for its pictures.
    seeds : tuple of int
        Seeds of random numbers.
    options : mapping
        Options of the study, the profile and the command line together, unchecked; see :meth:`parsed_options`.
    data_dir : Path
        The data folder.
    console : Console
        Terminal for reports of progress.
    """

    folder: Path
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    data_dir: Path
    console: Console

    def parsed_options(self, kind: type[S]) -> S:
        """Return the options as an instance of ``kind``, a Settings class. Raises ExperimentError for unknown ones."""
        return parse(kind, self.options, "[study] options")


@dataclass(frozen=True)
class StudyPage:
    """Result of the function of a study.

    Attributes
    ----------
    text : str
        Markdown below the title; pictures in it are files of the study's folder.
    summary : NumberTable
        The results, for the terminal and the top of the page.
    tables : sequence of NumberTable
        All other numbers; each becomes a CSV file next to the page, as the summary does.
    """

    text: str
    summary: NumberTable
    tables: Sequence[NumberTable] = ()


StudyFunction = Callable[[StudyContext], StudyPage]


def parse_study(file: TableFile) -> Study:
    """Validate the file of a study. Raises ExperimentError for every wrong key or value in it."""
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
    """Return options of the study, the profile and ``options.key=value`` of the command line; later ones win."""
    tables = apply_overrides({"options": {**study.study.options, **profile.options}}, overrides)
    if set(tables) != {"options"} or not isinstance(tables["options"], dict):
        raise ExperimentError("--set of a study is options.key=value; it has no experiments whose keys could be set")
    options: dict[str, Any] = tables["options"]
    return options


def study_function(study: Study) -> StudyFunction:
    """Return the function that a study names. Raises ExperimentError where there is none."""
    function: StudyFunction = load_object(study.study.run, "[study] run")
    if not callable(function):
        raise ExperimentError(f"[study] run = '{study.study.run}' is no function")
    return function
