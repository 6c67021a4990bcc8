"""The description of the package on an index, made of the README when the package is built."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# What is of use in a checkout alone, and what stands there for everybody else.
_ELSEWHERE = (
    (r"^<img [^>]*>\n\n", ""),
    (r"\[([^]]+)\]\((?!\w+:)[^)]+\)", r"\1"),
    (r"^make run\n(```\n\n)This sets itself up .*? and runs `fedgraph tour`: ", r"fedgraph tour\n\1This runs "),
    (r"^`make venv` .*?\. Or install it yourself \(", "Install it ("),
    (r"^pip install \.$", "pip install fedgraph-flower"),
    (r"^## Documentation\n.*\Z", "Apache-2.0.\n"),
)


def description(readme: str) -> str:
    """Return the README as it can be read without the repository: no picture of it, no links to its files."""
    for pattern, put in _ELSEWHERE:
        readme, found = re.subn(pattern, put, readme, flags=re.MULTILINE | re.DOTALL)
        if not found:
            raise ValueError(f"the README has nothing that matches {pattern!r}: see hatch_build.py")
    return readme


class ReadmeHook(MetadataHookInterface):
    """Puts the description into the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme``, which ``pyproject.toml`` leaves to this."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": description(readme)}
