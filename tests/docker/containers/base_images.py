"""Stand-ins, made of Debian's packages, for the base images that a registry would have.

They have the names that the Dockerfile and the compose files ask for, so that these are used as they are, and pip in
them is told what pip on this machine is: its indices, whom it trusts, and the wheels that lie here.
"""

from __future__ import annotations

import functools
import hashlib
import re
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from containers import debian
from containers.engine import Engine

DOCKER = Path(__file__).resolve().parents[3] / "docker"
WHEELS_PORT = 8399  # always the same, or pip's settings, and with them all layers, would be others every time


@dataclass(frozen=True)
class Recipe:
    """What a stand-in is made of."""

    suite: str
    packages: tuple[str, ...]

    @property
    def name(self) -> str:
        """The image's own name, which is another when the recipe is."""
        return f"fedgraph-stand-in:{hashlib.sha256(repr(self).encode()).hexdigest()[:12]}"


RECIPES = {
    "python": Recipe("bookworm", ("python3", "python3-venv", "python3-pip", "python-is-python3", "ca-certificates")),
    "nginx": Recipe("trixie", ("nginx", "curl", "ca-certificates")),
}


def asked_for() -> dict[str, Recipe]:
    """Return the names of the base images, as the files have them, with the recipes of their stand-ins."""
    python = re.search(r"^FROM (python:\S+)", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)
    nginx = re.search(r"image: (nginx:\S+)", (DOCKER / "server.yaml").read_text())
    assert python, "the Dockerfile names no image of Python"
    assert nginx, "server.yaml names no image of nginx"
    return {found[1]: RECIPES[found[1].partition(":")[0]] for found in (python, nginx)}


@contextmanager
def provided(engine: Engine) -> Iterator[None]:
    """See to it that the engine has all base images; wheels of this machine can be fetched within the block."""
    wanted = asked_for()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda recipe: _import(engine, recipe), wanted.values()))
    with ExitStack() as stack:
        asked = ("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}")
        gateway = engine.docker(*asked).strip()
        settings = debian.pip_settings()
        links = settings.get("find-links", "").split()
        folders = [Path(link.removeprefix("file://")) for link in links if not link.startswith("http")]
        ports = enumerate((folder for folder in folders if folder.is_dir()), WHEELS_PORT)
        served = [stack.enter_context(_served(folder, gateway, port)) for port, folder in ports]
        settings["find-links"] = " ".join([*(link for link in links if link.startswith("http")), *served])
        settings["trusted-host"] = f"{settings.get('trusted-host', '')} {gateway}".strip()
        for name, recipe in wanted.items():
            _name(engine, name, recipe, settings)
        yield


def _import(engine: Engine, recipe: Recipe) -> None:
    if engine.try_docker("image", "inspect", recipe.name).returncode == 0:
        return
    with tempfile.TemporaryDirectory() as folder:
        tar = Path(folder, "image.tar")
        debian.unpack(recipe.suite, list(recipe.packages), tar)
        engine.docker("import", tar, recipe.name)


def _name(engine: Engine, name: str, recipe: Recipe, settings: dict[str, str]) -> None:
    """Give a stand-in the name that is asked for, with pip's settings and this machine's authorities in it."""
    lines = "".join(f"{key} = {value}\n" for key, value in sorted(settings.items()) if value)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pip.conf").write_text(f"[global]\ncert = {debian.AUTHORITIES}\n{lines}")
        Path(folder, "authorities").write_bytes(debian.AUTHORITIES.read_bytes())
        Path(folder, "Dockerfile").write_text(
            f"FROM {recipe.name}\nCOPY pip.conf /etc/pip.conf\nCOPY authorities {debian.AUTHORITIES}\n"
        )
        engine.docker("build", "--quiet", "--tag", name, folder)


@contextmanager
def _served(folder: Path, host: str, port: int) -> Iterator[str]:
    """Offer the files of a folder to containers; yields the address."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer((host, port), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{host}:{port}/"
    finally:
        server.shutdown()
        server.server_close()
