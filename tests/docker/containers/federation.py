"""A server with its door, and three sites, set up as their pages say, on one host."""

from __future__ import annotations

import json
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

from containers import pages
from containers.engine import Engine
from containers.project import Project, Submitted, until
from fedgraph.commands.deployment.credentials import make_test_credentials
from fedgraph.federation.grids.local_flower import free_port

OUTSIDE = "fed.example"
SITES = ("mercy", "st-olav", "ucla")
EXPERIMENT = "hospitals"
# The same nodes as functions of one process.
ONE_PROCESS = """
import sys
from fedgraph.clients.app import app as client
from flwr.app import Context, RecordDict
from fedgraph.strategies.app import app as server
from fedgraph.federation.grids import LocalGrid
settings, *names = sys.argv[1:]
folders = {"data-dir": "/data", "state-dir": "/tmp/state"}
own = [{"clients": name, "data": f"{name}/visits.csv", **folders} for name in names]
told = {"experiment": "/files/one-process.toml", "set": settings, "output-dir": "/tmp/runs"}
server(LocalGrid(client, own, told), Context(1, 1, {}, RecordDict(), told))
"""


class ServerAndSites:
    """``server.yaml``, and ``site.yaml`` three times; all are down when they are made.

    The sites come to the door under a name that the host's address is given in place of a name server.
    """

    def __init__(self, engine: Engine, image: str, folder: Path) -> None:
        self._engine = engine
        self._image = image
        self.folder = folder
        self.files = folder / "files"
        self.door = free_port()
        self.authority = self._door_credentials()
        pages.run("server", "openssl req", folder)
        inside = folder / "docker" / "credentials"
        for name in ("server.crt", "server.key"):
            shutil.copy(folder / "outside" / "server" / name, inside / "door")
        for name in SITES:
            self._site_files(name)
            shutil.copy(folder / name / f"{name}.pub", inside / "public-keys")
        self._write_experiment()
        self._give_to_the_user(inside / "server" / "server.key", inside / "door" / "server.key")
        self._give_to_the_user(*(folder / name / name for name in SITES))
        told = {
            "FEDGRAPH_CREDENTIALS": str(inside),
            "FEDGRAPH_DOOR": str(inside / "door"),
            "FEDGRAPH_FILES": str(self.files),
            "FEDGRAPH_PORT": str(free_port()),
            "FEDGRAPH_DOOR_PORT": str(self.door),
        }
        self.server = Project(engine, "fedgraph-test-server", "server", image, folder / "compose", told)
        self.sites = {name: self._site(name) for name in SITES}

    def up(self) -> None:
        """Start the server, then all sites at once, without what tests that were killed have left."""
        self.down()
        self.server.up()
        with ThreadPoolExecutor() as pool:
            list(pool.map(Project.up, self.sites.values()))

    def down(self) -> None:
        """Stop all, and delete their volumes."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(Project.down, [*self.sites.values(), self.server]))

    def submit(self, log: str, **run_config: str) -> Submitted:
        """Submit a run; its log is kept under a name."""
        return self.server.submit(self.folder / log, **run_config)

    def until_sites_are_back(self, seconds: float) -> None:
        """Wait until the SuperLink takes all nodes for online."""

        def online() -> bool:
            listed = self.server.execute("superlink", "flwr", "supernode", "list", "here", "--format", "json")
            return listed.count('"status": "online"') == len(SITES)

        until(online, seconds, lambda: "".join(site.logs() for site in self.sites.values()))

    def in_one_process(self, *settings: str) -> dict[str, Any]:
        """Return the summary of the same experiment, run in one container where nothing is disturbed."""
        mounts = ["--volume", f"{self.files}:/files:ro"]
        for name in SITES:
            mounts += ["--volume", f"{self.folder / name / 'data'}:/data/{name}:ro"]
        said = self._engine.docker(
            "run", "--rm", "--network", "none", *mounts, self._image,
            "sh", "-c", '"$@" >&2 && cat /tmp/runs/*/summary.json', "sh",
            "python", "-c", ONE_PROCESS, " ".join(settings), *SITES, seconds=200,
        )  # fmt: skip
        return dict(json.loads(said))

    def _door_credentials(self) -> Path:
        """Have an authority outside sign the door's certificate, and return the authority's own."""
        return make_test_credentials(self.folder / "outside", [OUTSIDE], []).authority

    def _site_files(self, name: str) -> None:
        """Make a site's key as its page says, and a table of its own."""
        folder = self.folder / name
        (folder / "data").mkdir(parents=True)
        pages.run("site", "ssh-keygen", folder)
        for ending in ("", ".pub"):
            (folder / f"mercy{ending}").rename(folder / f"{name}{ending}")
        draw = random.Random(name)
        lines = ["age,sex,days,discharge"]
        for _ in range(150):
            age, days = draw.randrange(18, 95), draw.randrange(1, 30)
            home = age + 2 * days + draw.randrange(30) < 100
            lines.append(f"{age},{draw.choice('FM')},{days},{'home' if home else 'ward'}")
        (folder / "data" / "visits.csv").write_text("\n".join(lines) + "\n")

    def _write_experiment(self) -> None:
        """Write the experiment of the researcher's page, in which nothing may be missing, and a small model."""
        self.files.mkdir()
        tables = pages.tables("researcher", "[clients]")
        tables["experiment"] |= {"on-missing": "fail", "wait": 600, "timeout": 600}
        tables |= {"model": {"name": "mlp", "hidden": [8]}, "graph": {"source": "complete"}}
        assert tuple(tables["clients"]["expect"]) == SITES
        (self.files / f"{EXPERIMENT}.toml").write_text(tomli_w.dumps(tables))
        # In one process there are no keys to prove anything with.
        del tables["clients"]["public-keys"]
        (self.files / "one-process.toml").write_text(tomli_w.dumps(tables))

    def _give_to_the_user(self, *keys: Path) -> None:
        """Do ``chown 10001 KEY; chmod 400 KEY``, which on the host would take root."""
        inside = [f"/host/{key.relative_to(self.folder)}" for key in keys]
        command = 'chown 10001 "$@" && chmod 400 "$@"'
        self._engine.docker(
            "run", "--rm", "--user", "0", "--network", "none", "--volume", f"{self.folder}:/host",
            self._image, "sh", "-c", command, "sh", *inside,
        )  # fmt: skip

    def _site(self, name: str) -> Project:
        own = self.folder / name
        told = {
            "FEDGRAPH_SERVER": f"{OUTSIDE}:{self.door}",
            "FEDGRAPH_CLIENTS": name,
            "FEDGRAPH_CA": str(self.authority),
            "FEDGRAPH_KEY": str(own / name),
            "FEDGRAPH_DATA": str(own / "data"),
            "FEDGRAPH_NODE_CONFIG": 'data="visits.csv"',
        }
        host = {"extra_hosts": [f"{OUTSIDE}:host-gateway"]}
        return Project(self._engine, f"fedgraph-test-{name}", "site", self._image, own / "compose", told, node=host)
