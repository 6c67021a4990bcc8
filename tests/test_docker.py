"""The image and the compose file, as far as they can be held to account without a container engine."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from flwr.common.config import parse_config_args

from fedgraph.experiment import apply_overrides, find_experiment
from fedgraph.identity import hosted_clients
from fedgraph.local_flower import (
    connection_file,
    flower_environment,
    free_port,
    process,
    program,
    wait_for_superlink,
)

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKER = REPOSITORY / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
SUPERNODES = {name: service for name, service in SERVICES.items() if service["command"][0] == "flower-supernode"}
SUPERLINK = SERVICES["superlink"]
# Flower's own parsers; a release that moves them leaves the run at the end of this file, which needs none of them.
PARSERS = {
    "flower-superlink": ("flwr.superlink.cli.flower_superlink", "_parse_args_run_superlink"),
    "flower-supernode": ("flwr.supernode.cli.flower_supernode", "_parse_args_run_supernode"),
}


def instructions():
    """The Dockerfile as (instruction, arguments), continuation lines joined, comments left out."""
    lines = [line for line in (DOCKER / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def final_stage():
    every = instructions()
    last = max(index for index, (name, _) in enumerate(every) if name == "FROM")
    return every[last:]


def image_environment():
    pairs = " ".join(arguments for name, arguments in final_stage() if name == "ENV")
    return dict(pair.partition("=")[::2] for pair in shlex.split(pairs))


def copied(stage):
    """(sources, target) of every COPY from the repository."""
    for name, arguments in stage:
        words = shlex.split(arguments)
        if name == "COPY" and not any(word.startswith("--from=") for word in words):
            *sources, target = [word for word in words if not word.startswith("--")]
            yield sources, target


def mounts(service):
    """Container path -> (source as written, options)."""
    # A volume is source:target[:options]; the source may hold a ${NAME:-default}.
    pattern = re.compile(r"(?P<source>\$\{[^}]*\}|[^:]+):(?P<target>[^:]+)(?::(?P<options>.+))?")
    found = [pattern.fullmatch(text) for text in service["volumes"]]
    return {match["target"]: (match["source"], match["options"] or "rw") for match in found}


def parse(command):
    module_name, function = PARSERS[command[0]]
    module = pytest.importorskip(module_name)
    return getattr(module, function)().parse_args(list(command[1:]))


def readme_commands():
    """Flower's commands in the code blocks of the README."""
    blocks = re.findall(r"```sh\n(.*?)```", (DOCKER / "README.md").read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.split(" ", 1)[0] in PARSERS]


def test_every_command_is_one_that_flower_understands():
    for service in SERVICES.values():
        parse(service["command"])
    commands = readme_commands()
    assert {command[0] for command in commands} == set(PARSERS)
    for command in commands:
        parse(command)


def test_no_command_uses_an_option_that_flower_calls_deprecated():
    used = {part.partition("=")[0] for service in SERVICES.values() for part in service["command"][1:]}
    for name, (module_name, function) in PARSERS.items():
        actions = getattr(pytest.importorskip(module_name), function)()._actions
        deprecated = {
            text for action in actions if "eprecated" in (action.help or "") for text in action.option_strings
        }
        assert used & deprecated == set(), name


def test_supernodes_and_host_meet_the_superlink_at_its_port():
    superlink = parse(SUPERLINK["command"])
    assert superlink.host == "0.0.0.0", "on the loopback interface no other container would reach it"
    for service in SUPERNODES.values():
        node = parse(service["command"])
        assert node.superlink == f"superlink:{superlink.port}"
        assert f":{node.port}/health" in " ".join(service["healthcheck"]["test"])
        assert service["depends_on"]["superlink"]["condition"] == "service_healthy"
        assert set(service["networks"]) & set(SUPERLINK["networks"])
    assert f":{superlink.port}/health" in " ".join(SUPERLINK["healthcheck"]["test"])
    (published,) = SUPERLINK["ports"]
    assert published == f"127.0.0.1:${{FEDGRAPH_PORT:-{superlink.port}}}:{superlink.port}"
    inside = tomllib.loads((DOCKER / "flower.toml").read_text())["superlink"]["here"]
    assert inside == {"address": f"127.0.0.1:{superlink.port}", "insecure": superlink.insecure}


def test_only_the_superlink_can_be_reached_and_only_from_this_machine():
    """The traffic is not encrypted, so no port may be open to the network."""
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["superlink"]
    assert all(str(port).startswith("127.0.0.1:") for port in SUPERLINK["ports"])
    for service in SUPERNODES.values():
        assert all(COMPOSE["networks"][network]["internal"] for network in service["networks"])
    # Docker publishes no port of a container whose networks are all internal.
    assert not all(COMPOSE["networks"][network].get("internal") for network in SUPERLINK["networks"])


def test_the_supernodes_host_every_client_once():
    known = [f"client-{index:02d}" for index in range(20)]
    hosted = []
    for service in SUPERNODES.values():
        config = parse_config_args([parse(service["command"]).node_config])
        assert config["num-partitions"] == len(SUPERNODES)
        hosted += hosted_clients(config, known)
    assert sorted(hosted) == known


def test_volumes_are_declared_and_belong_to_the_user():
    """A named volume over a folder that the image does not have belongs to root, and the user cannot write to it."""
    made = next(arguments for name, arguments in final_stage() if name == "RUN" and "install -d -o" in arguments)
    home = next(arguments for name, arguments in final_stage() if name == "WORKDIR")
    assert f"cd {home}" in made
    folders = {f"{home}/{word}" for word in made.rpartition("install -d")[2].split()}
    for service in SERVICES.values():
        for target, (source, options) in mounts(service).items():
            if target == "/data":
                assert (source, options) == ("${FEDGRAPH_DATA:-no-data}", "ro")
                assert "no-data" in COMPOSE["volumes"]
            else:
                assert source in COMPOSE["volumes"]
                assert target in folders
    states = [mounts(service)[image_environment()["FEDGRAPH_STATE"]][0] for service in SUPERNODES.values()]
    assert len(set(states)) == len(states), "every SuperNode keeps its own state"
    assert f"{home}/runs" in mounts(SUPERLINK), "the default [output] dir, from the working folder"
    database = Path(parse(SUPERLINK["command"]).database)
    assert str(database.parent) in mounts(SUPERLINK)
    assert image_environment()["FLWR_HOME"] in folders
    assert image_environment()["FEDGRAPH_DATA"] == "/data"


def test_containers_come_back_without_privileges():
    for service in SERVICES.values():
        assert service["restart"] == "unless-stopped"
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert not service.get("privileged")
        assert "user" not in service


def test_the_image_does_not_run_as_root_nor_fetch_anything_when_it_runs():
    users = [arguments for name, arguments in final_stage() if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")
    assert f"--uid {users[-1]} " in str(final_stage())
    environment = image_environment()
    for name in ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "FLWR_DISABLE_UPDATE_CHECK"):
        assert environment[name] == "1"
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"


def test_one_service_builds_the_image_that_all_run():
    assert {service["image"] for service in SERVICES.values()} == {"fedgraph"}
    assert [name for name, service in SERVICES.items() if "build" in service] == ["superlink"]
    assert (DOCKER / SUPERLINK["build"]["context"]).resolve() == REPOSITORY
    assert (REPOSITORY / SUPERLINK["build"]["dockerfile"]).is_file()
    for service in SUPERNODES.values():
        assert service["pull_policy"] == "never"


def test_what_the_image_copies_exists_and_reaches_the_builder():
    rules = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert "*" in rules
    sources = {source for group, _ in copied(instructions()) for source in group}
    assert sources == let_in
    for source in sources:
        assert (REPOSITORY / source).exists(), source
    with (REPOSITORY / "pyproject.toml").open("rb") as stream:
        packages = tomllib.load(stream)["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert set(packages) <= sources


def test_no_secrets():
    """Neither in the files nor asked for as build arguments, which stay readable in an image's history."""
    text = "\n".join(path.read_text() for path in sorted(DOCKER.iterdir()) if path.is_file())
    assert not re.search(r"BEGIN [A-Z ]*PRIVATE KEY", text)
    assert not re.search(r"(?i)\b\w*(password|passwd|secret|token|api_?key)\w*\s*[=:]\s*\S", text)


def test_the_readme_names_files_and_services_that_exist():
    text = (DOCKER / "README.md").read_text()
    for path in re.findall(r"-f (\S+)", text):
        assert (REPOSITORY / path).is_file(), path
    for service in re.findall(r"(?:exec|logs|cp) (?:-\w+ )?([a-z]+(?:-\d)?)\b(?!\.)", text):
        assert service in SERVICES, service
    assert "not encrypted" in text


@pytest.mark.xdist_group("nodes")
def test_the_services_run_an_experiment(tmp_path, run_experiment):
    """The compose file's own commands as plain processes: only hosts, ports and folders are put in place of theirs."""
    overrides = ["data.clients=6", "experiment.rounds=1", "train.local-epochs=1"]
    tables = apply_overrides(tomllib.loads(find_experiment("sfl/digits.toml").read_text()), overrides)
    expected = json.loads((run_experiment(tables, nodes=len(SUPERNODES)).path / "summary.json").read_text())

    app = tmp_path / "app"
    for sources, target in copied(final_stage()):
        for source in sources:
            if target.startswith("/opt/fedgraph"):
                place(REPOSITORY / source, app / target.removeprefix("/opt/fedgraph").strip("/"), target.endswith("/"))
    home, log = next(arguments for name, arguments in final_stage() if name == "WORKDIR"), tmp_path / "flower.log"
    link = parse_port(SUPERLINK["command"])
    port = free_port()

    def start(name):
        """Run a service as its container would; returns the context manager of the process."""
        folder = tmp_path / name
        own = {container: folder / container.removeprefix(home).strip("/") for container in mounts(SERVICES[name])}
        for path in own.values():
            path.mkdir(parents=True)
        command = list(SERVICES[name]["command"])
        for index, part in enumerate(command):
            part = part.replace("--host=0.0.0.0", "--host=127.0.0.1").replace("superlink:", "127.0.0.1:")
            part = part.replace(f"127.0.0.1:{link}", f"127.0.0.1:{port}").replace(f"{home}/", f"{folder}/")
            if part.startswith("--port="):
                part = f"--port={port if name == 'superlink' else free_port()}"
            command[index] = part
        image = image_environment()
        placed = {key: image[key].replace(home, str(folder)) for key in ("FEDGRAPH_STATE", "FLWR_HOME")}
        placed["FEDGRAPH_DATA"] = str(own[image["FEDGRAPH_DATA"]])
        environment = {**flower_environment(folder), **placed}
        return process(["env", f"--chdir={folder}", program(command[0]), *command[1:]], environment, log)

    with ExitStack() as stack:
        superlink = stack.enter_context(start("superlink"))
        wait_for_superlink(port, superlink, log)
        for name in SUPERNODES:
            stack.enter_context(start(name))
        connection_file(tmp_path / "host", f"127.0.0.1:{port}")
        with log.open("ab") as stream:
            subprocess.run(
                [program("flwr"), "run", str(app), "here", "--stream", "-c", f'set="{" ".join(overrides)}"'],
                env=flower_environment(tmp_path / "host"), stdout=stream, stderr=subprocess.STDOUT, check=False,
                timeout=240,
            )  # fmt: skip
    # In the folder that the volume for runs is laid over, without its being named in the run config.
    summaries = list((tmp_path / "superlink" / "runs").glob("*/summary.json"))
    assert len(summaries) == 1, log.read_text(errors="replace")[-4000:]
    summary = json.loads(summaries[0].read_text())
    assert summary["weights_sha256"] == expected["weights_sha256"]
    assert summary["per_client"] == expected["per_client"]


def place(source, target, into):
    """Copy as COPY does: a folder's content becomes the target; a file goes into a target that ends with a slash."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target = target / source.name if into else target
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def parse_port(command):
    return next(int(part.partition("=")[2]) for part in command if part.startswith("--port="))
