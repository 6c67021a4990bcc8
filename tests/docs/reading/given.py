"""What pages take for granted: files of the reader's own, runs of other pages, certificates, a server that runs."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
import torch
from PIL import Image

import fedgraph
from fedgraph.commands.deployment.credentials import make_test_credentials

from .pages import REPOSITORY, blocks
from .shell import Shell

HERE = ["127.0.0.1", "localhost"]


def rows(seed: int, count: int = 60) -> pd.DataFrame:
    """Return a table of patients, for every question that the pages ask of one."""
    draws = np.random.default_rng(seed)
    age, dose = draws.uniform(20, 90, count), draws.uniform(0, 5, count)
    ward = np.where(age + 8 * dose + draws.normal(0, 5, count) > 70, "east", "west")
    apgar = (age / 10 + draws.normal(0, 1, count)).round(1)
    return pd.DataFrame({"key": range(count), "age": age, "dose": dose, "apgar": apgar, "long": ward})


def trained(name: str, method: str = "local", **tables: Any) -> None:
    """Make a finished run, with as little training as can be."""
    of_rounds = {"graph": {"source": "complete"}} if method == "sfl" else {}
    rounds = {"rounds": 1} if of_rounds else {}
    tables = {"experiment": {"name": name, "method": method, **rounds}, **of_rounds, **tables}
    fedgraph.run(tables, progress=False)


def wards(shell: Shell) -> None:
    """Write rows of several clients, and train on such."""
    frame = rows(0, 120).drop(columns=["key", "apgar"]).rename(columns={"long": "stay"})
    frame["ward"] = ["mercy", "county"] * 60
    rows(1).assign(ward=["mercy", "county"] * 30).to_csv("new.csv", index=False)
    data = {"set": "table", "path": frame, "label": "stay", "client-column": "ward"}
    trained("sfl-wards", "sfl", data=data, model={"name": "mlp"})


def pictures(shell: Shell) -> None:
    """Write pictures of two classes at a client, and train on such."""
    draws = np.random.default_rng(0)
    for place in range(24):
        for folder in (Path("pictures", "mercy", "ny"[place % 2]), Path("scans")):
            folder.mkdir(parents=True, exist_ok=True)
            picture = draws.integers(0, 128, (8, 8), dtype=np.uint8) + np.uint8(127 * (place % 2))
            Image.fromarray(picture).save(folder / f"{place}.png")
    data = {"set": "images", "path": str(Path("pictures").resolve()), "classes": ["n", "y"], "size": [8, 8]}
    trained("sfl-scans", "sfl", data=data, model={"name": "cnn"})


def births(shell: Shell) -> None:
    """Train a graphical model that knows the apgar score."""
    frame = rows(0, 200).drop(columns="key")
    data = {"set": "mixed-table", "path": frame, "clients": 2, "public-share": 0.2}
    of_model = {"scaling": {"source": "public"}, "ngm": {"epochs": 2}, "distillation": {"samples": 200}}
    fedngm = {**of_model, "yardsticks": False, "sample-quality": False}
    trained("fedngm-births", "fedngm", data=data, fedngm=fedngm)


def people(shell: Shell) -> None:
    """Write what two owners know of the same people, a model that one has, and the experiment."""
    frame = rows(0, 200)
    frame[["key", "age", "long"]].to_csv("bank.csv", index=False)
    frame[["key", "dose", "long"]].to_csv("clinic.csv", index=False)
    own = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)).eval()
    many = {0: torch.export.Dim("batch", min=1, max=4096)}
    torch.export.save(torch.export.export(own, (torch.zeros(5, 1),), dynamic_shapes=(many,)), "bank.pt2")
    Path("people.toml").write_text(PEOPLE)


PEOPLE = """
[experiment]
name = "people"
method = "f3"

[data]
set = "table-columns"
key-column = "key"
label = "long"

[data.categories]
long = ["east", "west"]

[model]
name = "mlp"
hidden = [4]

[f3.noise]
clip-norm = 5.0
noise-multiplier = 1.0
"""


def fused(shell: Shell) -> None:
    """Train on what two owners know, and have new people of theirs."""
    people(shell)
    tables = tomllib.loads(PEOPLE) | {"train": {"local-epochs": 1}}
    tables["f3"] = {"epochs": 2, "draws": 2}
    tables["data"] |= {"path": rows(0, 200).drop(columns="apgar"), "owners": {"bank": ["age"], "clinic": ["dose"]}}
    trained("people", "f3", **tables)
    rows(1).drop(columns="long").to_csv("new.csv", index=False)
    secret = {
        "experiment": {"method": "f3-secret"},
        "f3-secret": {"run": "runs/people", "aggregators": 3, "threshold": 2},
    }
    data = {key: value for key, value in tables["data"].items() if key != "path"}
    Path("secret.toml").write_text(tomli_w.dumps({**tables, "data": data, **secret}))


def stays(shell: Shell) -> None:
    """Write the experiment of the guide to sites, and the files of its two sites."""
    (_, experiment), *_ = blocks(REPOSITORY / "docs/guides/sites.md", "toml")
    ((_, files),) = blocks(REPOSITORY / "docs/guides/sites.md", "python")
    for name in ("stays.toml", "EXPERIMENT.toml"):
        Path(name).write_text(experiment)
    exec(files, {})


def visits(shell: Shell) -> None:
    """Have what a site has after a run: its data, its key, its state, and a copy of the run folder."""
    served(shell)
    Path("srv/data").mkdir()
    for name in ("visits", "new-visits"):
        shutil.copy("mercy.csv", f"srv/data/{name}.csv")
    shutil.move("mercy", "srv/mercy")
    run = fedgraph.run("stays.toml", sites={"mercy": "mercy.csv", "county": "county.csv"}, progress=False)
    shutil.copytree(run.folder.path / "nodes", "srv/state")
    Path("RUN-FOLDER").symlink_to(run.folder.path)


def credentials(shell: Shell) -> None:
    """Lay out certificates and keys as they are named on the pages, beside the files of two sites."""
    stays(shell)
    made = make_test_credentials(Path("made"), HERE, ["mercy", "county", "east"])
    for path in (made.certificate, made.key, made.authority):
        shutil.copy(path, path.name)
    shutil.copytree(made.public_keys, "public-keys")
    Path("srv").mkdir()
    shutil.copy("mercy.csv", "srv")
    for name in ("mercy", "east"):
        shutil.copy(made.private_key(name), name)


def served(shell: Shell) -> None:
    """Start the server of these certificates."""
    credentials(shell)
    line = "--certificate server.crt --key server.key --authority ca.crt --public-keys public-keys --host 127.0.0.1"
    shell.type({}, ["fedgraph", "server", *line.split()])


def checkout(shell: Shell) -> None:
    """Have the example apps, and the program of measurements."""
    shutil.copytree(REPOSITORY / "simulations" / "apps", "simulations/apps")


GIVEN: dict[str, tuple[Callable[[Shell], None], ...]] = {
    "docs/deployment/index.md": (credentials,),
    "docs/guides/data.md": (stays, people, wards, pictures, births),
    "docs/guides/model.md": (wards,),
    "docs/guides/simulation.md": (checkout,),
    "docs/methods/f3.md": (served, fused),
    "docker/server.md": (credentials,),
    "docker/site.md": (visits,),
    "simulations/apps/README.md": (checkout,),
}
