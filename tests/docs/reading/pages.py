"""The pages, their code blocks, and the lines of those for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
DOCS = REPOSITORY / "docs"
GENERATED = ("_build", "auto_examples", "api")
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md"]
PAGES += [path for path in sorted(DOCS.rglob("*.md")) if not set(GENERATED) & set(path.relative_to(DOCS).parts)]
PAGES += sorted((REPOSITORY / "docker").glob("*.md"))
APPS = REPOSITORY / "simulations" / "apps" / "README.md"
WITH_RESULTS = [*PAGES, *sorted((REPOSITORY / "simulations").rglob("README.md"))]


def name_of(page: Path) -> str:
    """Return a page's path in the repository."""
    return page.relative_to(REPOSITORY).as_posix()


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    """Return the code blocks of a page in these languages, in their order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [(language, text) for language, text in found if language in languages]


def pages_with(*languages: str) -> list[object]:
    """Return the pages that have blocks in one of these languages, as parameters of a test; of results, slow ones."""
    return [
        pytest.param(page, id=name_of(page), marks=[] if page in [*PAGES, APPS] else [pytest.mark.slow])
        for page in WITH_RESULTS
        if blocks(page, *languages)
    ]


def lines_of(text: str) -> Iterator[tuple[dict[str, str], list[str]]]:
    """Yield the lines of a block for a shell: variables that are set before the command, and its words."""
    for line in text.replace("\\\n", " ").splitlines():
        words, variables = shlex.split(line, comments=True), {}
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        if words:
            yield variables, words


def lines(page: Path) -> Iterator[list[str]]:
    """Yield the words of all lines for a shell on a page."""
    for _, text in blocks(page, "sh"):
        for _, words in lines_of(text):
            yield words
