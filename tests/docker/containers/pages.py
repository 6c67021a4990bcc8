"""What the pages of ``docker/`` tell people to do, for tests that do it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

DOCKER = Path(__file__).resolve().parents[3] / "docker"


def block(page: str, kind: str, words: str) -> str:
    """Return the first code block of a kind, on a page, that has some words in it."""
    for found in re.findall(rf"```{kind}\n(.*?)```", (DOCKER / f"{page}.md").read_text(), re.DOTALL):
        if words in found:
            return str(found)
    raise AssertionError(f"{page}.md has no block of {kind} with '{words}'")


def run(page: str, words: str, folder: Path) -> None:
    """Run the commands of a code block in a folder."""
    done = subprocess.run(
        ["sh", "-e", "-c", block(page, "sh", words)],
        cwd=folder, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def tables(page: str, words: str) -> dict[str, Any]:
    """Return the tables of a code block that is TOML."""
    return tomllib.loads(block(page, "toml", words))
