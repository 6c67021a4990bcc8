"""The image, built as the pages say from a checkout that has keys in it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from containers.engine import Engine

REPOSITORY = Path(__file__).resolve().parents[3]
# Not that of a user, which is called fedgraph.
IMAGE = "fedgraph-tested"
SECRET = "what-nobody-else-may-read"
# Folders in which an operator keeps keys, and what else of a checkout does not belong in the image.
SECRET_PLACES = ("docker/credentials/server/server.key", "docker/.env", ".git/config", ".venv/key", "runs/1/key")


def build(engine: Engine, checkout: Path) -> str:
    """Build the image of the sources as they are now, and return its name.

    The engine's own cache of layers is the one that decides what is built anew.
    """
    for line in (REPOSITORY / "docker" / "Dockerfile.dockerignore").read_text().splitlines():
        if line.startswith("!"):
            _copy(REPOSITORY / line[1:], checkout / line[1:])
    _copy(REPOSITORY / "docker", checkout / "docker")
    for place in SECRET_PLACES:
        (checkout / place).parent.mkdir(parents=True, exist_ok=True)
        (checkout / place).write_text(f"KEY={SECRET}\n")
    renamed = checkout / "renamed.json"
    renamed.write_text(json.dumps({"services": {"superlink": {"image": IMAGE}}}))
    files = ("--file", "docker/compose.yaml", "--file", renamed)
    engine.docker("compose", "--project-name", IMAGE, *files, "build", cwd=checkout, seconds=3600)
    return IMAGE


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "credentials", ".env"))
    else:
        shutil.copy(source, target)
