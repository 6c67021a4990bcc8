"""The image, the compose files and the door, as far as they can be held to account without a container engine."""

import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from fedgraph.commands.cli import app as fedgraph_app
from fedgraph.federation.identity import hosted_clients

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKER = REPOSITORY / "docker"
PAGES = sorted(DOCKER.glob("*.md"))
GIVEN = {
    "FEDGRAPH_SERVER": "fed.example:8443",
    "FEDGRAPH_CLIENTS": "mercy",
    "FEDGRAPH_CA": "/srv/ca.crt",
    "FEDGRAPH_KEY": "/srv/mercy",
    "FEDGRAPH_EXPERIMENT": "/srv/visits.toml",
    "FEDGRAPH_DATA": "/srv/data",
}
# Flower's own parsers; a release that moves them leaves the run at the end of this file, which needs none of them.
PARSERS = {
    "flower-superlink": ("flwr.superlink.cli.flower_superlink", "_parse_args_run_superlink"),
    "flower-supernode": ("flwr.supernode.cli.flower_supernode", "_parse_args_run_supernode"),
}


def filled(text, variables):
    """``text`` with ${NAME}, ${NAME:-default} and ${NAME:?message} replaced, from the inside out."""
    pattern = re.compile(r"\$\{(\w+)(?::(?P<how>[-?])(?P<other>[^${}]*))?\}")

    def value(found):
        if variables.get(found[1]):
            return variables[found[1]]
        assert found["how"] == "-", f"{found[1]} must be given: {found['other']}"
        return found["other"]

    while pattern.search(text):
        text = pattern.sub(value, text)
    return text


def compose(name, **variables):
    """A compose file, with commands as lists, which Compose makes of strings as a shell does."""
    whole = yaml.safe_load(filled((DOCKER / f"{name}.yaml").read_text(), variables))
    for service in whole["services"].values():
        if isinstance(service.get("command"), str):
            service["command"] = shlex.split(service["command"])
    return whole


ONE_HOST, SERVER, SITE = compose("compose"), compose("server"), compose("site", **GIVEN)
FILES = {"compose": ONE_HOST, "server": SERVER, "site": SITE}
EVERY = [(file, name, service) for file, whole in FILES.items() for name, service in whole["services"].items()]
OURS = [(file, name, service) for file, name, service in EVERY if name != "door"]
SERVICES = ONE_HOST["services"]
SUPERLINKS = [SERVICES["superlink"], SERVER["services"]["superlink"]]
NODES = {name: service for name, service in SERVICES.items() if "flower-supernode" in service["command"]}
DOOR = SERVER["services"]["door"]
SITE_NODE = SITE["services"]["node"]


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


HOME = next(arguments for name, arguments in final_stage() if name == "WORKDIR")
UID = [arguments for name, arguments in final_stage() if name == "USER"][-1]


def copied(stage):
    """(sources, target) of every COPY from the repository."""
    for name, arguments in stage:
        words = shlex.split(arguments)
        if name == "COPY" and not any(word.startswith("--from=") for word in words):
            *sources, target = [word for word in words if not word.startswith("--")]
            yield sources, target


def bound(stage):
    """Files of the repository that a RUN reads where they are."""
    text = " ".join(arguments for name, arguments in stage if name == "RUN")
    return set(re.findall(r"--mount=type=bind,source=([^,\s]+)", text))


def mounts(service):
    """Container path -> (kind, source, whether it is read-only); a source with a slash is a place of the host."""
    found = {}
    for volume in service.get("volumes", []):
        if isinstance(volume, str):
            source, target, *options = volume.split(":")
            volume = {"source": source, "target": target, "read_only": "ro" in options}
        kind = volume.get("type", "bind" if "/" in volume["source"] else "volume")
        found[volume["target"]] = (kind, volume["source"], bool(volume.get("read_only")))
    return found


def scratch(service):
    return [entry.partition(":")[0] for entry in service.get("tmpfs", [])]


def words(command):
    """The command that a shell ends with, where there is one, and that which is supervised."""
    if command[0] == "sh":
        return shlex.split(command[-1].rpartition("exec ")[2])
    return list(command[2:] if command[:2] == ["fedgraph", "supervise"] else command)


def parse(command):
    """What Flower's or this project's own parser makes of a command."""
    command = words(command)
    if command[0] == "fedgraph":
        group = typer.main.get_command(fedgraph_app)
        chosen = group.commands[command[1]]
        # Of click's, that typer converts later.
        return chosen.make_context(command[1], list(command[2:])).params
    module_name, function = PARSERS[command[0]]
    module = pytest.importorskip(module_name)
    return vars(getattr(module, function)().parse_args(list(command[1:])))


def page_commands():
    """Flower's and this project's long-running commands in the code blocks of the pages."""
    text = "\n".join(page.read_text() for page in PAGES)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.split(" ", 1)[0] in {*PARSERS, "fedgraph"}]


@pytest.mark.parametrize("service", [service for _, _, service in OURS], ids=[f"{f}-{n}" for f, n, _ in OURS])
def test_every_command_is_one_that_its_program_understands(service):
    parse(service["command"])


def test_the_commands_on_the_pages_are_understood():
    commands = page_commands()
    assert {"server", "node", "test-credentials"} <= {c[1] for c in commands if c[0] == "fedgraph"}
    for command in commands:
        parse(command)


def test_no_command_uses_an_option_that_flower_calls_deprecated():
    used = {part.partition("=")[0] for _, _, service in OURS for part in service["command"][1:]}
    for name, (module_name, function) in PARSERS.items():
        actions = getattr(pytest.importorskip(module_name), function)()._actions
        deprecated = {
            text for action in actions if "eprecated" in (action.help or "") for text in action.option_strings
        }
        assert used & deprecated == set(), name


def test_everything_is_encrypted_and_nodes_prove_who_they_are():
    for _, _, service in EVERY:
        assert "insecure" not in " ".join(service.get("command", []))
    for service in SUPERLINKS:
        told = parse(service["command"])
        assert all(told[key] for key in ("certificate", "key", "authority", "public_keys"))
    for service in NODES.values():
        told = parse(service["command"])
        assert told["root_certificates"]
        assert told["auth_supernode_private_key"]
    told = parse(SITE_NODE["command"])
    assert told["root_certificates"]
    assert told["private_key"]
    assert not told["insecure"]


def test_nodes_and_host_meet_the_superlink_at_its_port():
    superlink = SERVICES["superlink"]
    told = parse(superlink["command"])
    assert told["host"] == "0.0.0.0", "on the loopback interface no other container would reach it"
    made = parse(SERVICES["credentials"]["command"])
    assert "superlink" in made["host"], "the certificate is for the name under which nodes come"
    assert set(made["node"]) == set(NODES)
    for name, service in NODES.items():
        node = parse(service["command"])
        assert node["superlink"] == f"superlink:{told['port']}"
        assert node["root_certificates"] == str(told["authority"]) == f"{made['folder']}/ca.crt"
        assert node["auth_supernode_private_key"] == f"{made['folder']}/nodes/{name}"
        assert service["depends_on"]["superlink"]["condition"] == "service_healthy"
        assert set(service["networks"]) & set(superlink["networks"])
    for service in [*NODES.values(), SITE_NODE]:
        assert f"http://127.0.0.1:{parse(service['command'])['port']}/health" in service["healthcheck"]["test"][-1]
    for service in SUPERLINKS:
        told = parse(service["command"])
        check = service["healthcheck"]["test"][-1]
        assert f"https://127.0.0.1:{told['port']}/health" in check
        assert f"cafile='{told['authority']}'" in check
        assert str(told["ready"]) in check
        assert str(Path(told["ready"]).parent) in scratch(service), "it is gone when the container starts again"
        assert mounts(service)[f"{image_environment()['FLWR_HOME']}/config.toml"][1] == "./flower.toml"
        inside = tomllib.loads((DOCKER / "flower.toml").read_text())["superlink"]["here"]
        expected = {"address": f"127.0.0.1:{told['port']}", "root-certificates": str(told["authority"])}
        assert inside == expected


def test_only_the_door_can_be_reached_from_elsewhere():
    """Whoever reaches the SuperLink's own port can submit runs, and so run code on every node."""
    for service in SUPERLINKS:
        assert service["ports"] == [f"127.0.0.1:8000:{parse(service['command'])['port']}"]
    assert [name for _, name, service in EVERY if "ports" in service] == ["superlink", "superlink", "door"]
    for service in NODES.values():
        assert all(ONE_HOST["networks"][network]["internal"] for network in service["networks"])
    behind = set(DOOR["networks"]) & set(SERVER["services"]["superlink"]["networks"])
    assert behind
    assert all(SERVER["networks"][network]["internal"] for network in behind)
    # Docker publishes no port of a container whose networks are all internal.
    for whole, service in ((ONE_HOST, SUPERLINKS[0]), (SERVER, SUPERLINKS[1]), (SERVER, DOOR)):
        assert not all((whole["networks"][network] or {}).get("internal") for network in service["networks"])


def test_the_nodes_host_every_client_once(told_config):
    known = [f"client-{index:02d}" for index in range(20)]
    hosted = []
    for service in NODES.values():
        config = told_config(parse(service["command"])["node_config"])
        assert config["num-partitions"] == len(NODES)
        hosted += hosted_clients(config, known)
    assert sorted(hosted) == known


def test_a_site_answers_its_own_experiment_and_proves_who_it_is_with_its_key():
    told, mounted = parse(SITE_NODE["command"]), mounts(SITE_NODE)
    assert told["superlink"] == GIVEN["FEDGRAPH_SERVER"]
    assert mounted[told["experiment"]] == ("bind", GIVEN["FEDGRAPH_EXPERIMENT"], True)
    assert mounted[str(told["root_certificates"])][1] == GIVEN["FEDGRAPH_CA"]
    assert mounted[str(told["private_key"])][1] == GIVEN["FEDGRAPH_KEY"]
    assert mounted[image_environment()["FEDGRAPH_DATA"]] == ("bind", GIVEN["FEDGRAPH_DATA"], True)
    assert list(told["config"]) == ["clients=mercy"]
    assert not told["agreed"], "a changed experiment waits for a person"
    options = "--data /data/visits.csv --config full-errors=1 --check --agree"
    told = parse(compose("site", **GIVEN, FEDGRAPH_NODE_OPTIONS=options)["services"]["node"]["command"])
    assert str(told["data"]) == "/data/visits.csv"
    assert list(told["config"]) == ["clients=mercy", "full-errors=1"]
    assert told["check"]
    assert told["agreed"]
    for name in GIVEN:
        with pytest.raises(AssertionError, match=f"{name} must be given"):
            compose("site", **{**GIVEN, name: ""})


def test_volumes_are_declared_and_belong_to_the_user():
    """A named volume over a folder that the image does not have belongs to root, and the user cannot write to it."""
    made = next(arguments for name, arguments in final_stage() if name == "RUN" and "install -d -o" in arguments)
    assert f"cd {HOME}" in made
    folders = {f"{HOME}/{word}" for word in made.rpartition("install -d")[2].split()}
    for file, name, service in EVERY:
        for target, (kind, source, read_only) in mounts(service).items():
            if kind == "bind":
                assert read_only, (file, name, target)
            else:
                assert source in FILES[file]["volumes"]
                assert read_only or target in folders, (file, name, target)
    states = [mounts(service)[image_environment()["FEDGRAPH_STATE"]][1] for service in NODES.values()]
    assert len(set(states)) == len(states), "every SuperNode keeps its own state"
    assert mounts(SITE_NODE)[image_environment()["FEDGRAPH_STATE"]][0] == "volume"
    for service in SUPERLINKS:
        assert mounts(service)[f"{HOME}/runs"][0] == "volume", "the default [output] dir, from the working folder"
        told = parse(service["command"])
        assert mounts(service)[str(Path(told["database"]).parent)][0] == "volume"
        keys = mounts(service)[str(Path(told["authority"]).parent)]
        assert keys[2], "what is started from them does not change them"
    assert image_environment()["FLWR_HOME"] in folders
    assert compose("compose", FEDGRAPH_DATA="/srv/x")["services"]["node-0"]["volumes"][-1] == "/srv/x:/data:ro"


def test_containers_come_back_without_privileges_and_write_only_where_they_must():
    for file, name, service in EVERY:
        once = (file, name) == ("compose", "credentials")
        assert service["restart"] == ("no" if once else "unless-stopped")
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert service["read_only"] is True
        assert "/tmp" in scratch(service)
        assert not service.get("privileged")
        assert service.get("user", f"{UID}:{UID}") == f"{UID}:{UID}"
    assert "user" in DOOR, "that image would be root"
    for _, _, service in OURS:
        (home,) = [entry for entry in service["tmpfs"] if entry.startswith(f"{image_environment()['FLWR_HOME']}:")]
        assert f"uid={UID}" in home


def test_the_image_does_not_run_as_root_nor_fetch_anything_when_it_runs():
    assert UID not in ("root", "0")
    assert f"--uid {UID} " in str(final_stage())
    environment = image_environment()
    for name in ("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "FLWR_DISABLE_UPDATE_CHECK"):
        assert environment[name] == "1"
    assert environment["FLWR_TELEMETRY_ENABLED"] == "0"


def test_the_image_is_built_here_and_never_fetched():
    builds = {}
    for file, name, service in OURS:
        assert (service["image"], service["pull_policy"]) == ("fedgraph", "never")
        if "build" in service:
            builds[file] = name
            assert (DOCKER / service["build"]["context"]).resolve() == REPOSITORY
            assert (REPOSITORY / service["build"]["dockerfile"]).is_file()
            assert set(service["build"]["args"]) <= {
                args.partition("=")[0] for kind, args in instructions() if kind == "ARG"
            }
    assert set(builds) == set(FILES), "one service of each file builds it"


def test_what_the_image_copies_exists_and_reaches_the_builder():
    rules = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    let_in = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert "*" in rules
    sources = {source for group, _ in copied(instructions()) for source in group}
    assert sources | bound(instructions()) == let_in
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
    ignored = (REPOSITORY / ".gitignore").read_text().split()
    assert "docker/credentials/" in ignored
    assert mounts(SUPERLINKS[1])[f"{HOME}/credentials"][1] == "./credentials", "the folder that git does not take"


def test_the_pages_name_files_services_and_pages_that_exist():
    assert [page.stem for page in PAGES] == ["README", "researcher", "server", "site", "threats"]
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for path, rest in re.findall(r"docker compose -f ([\w./]+) ?(.*)", text):
            services = yaml.safe_load(filled((REPOSITORY / path).read_text(), GIVEN))["services"]
            for service in re.findall(r"^(?:exec|logs|cp|run|stop)(?: +-\S+(?: +\".*?\")?)* +([\w-]+)", rest):
                assert service in services, (page.name, service)
        for target in re.findall(r"\]\((?!http)([^)#]+)", text):
            assert (page.parent / target).exists(), (page.name, target)


def flower_routes(module_name):
    """Method and path of every request that a router of Flower answers."""
    routes = importlib.import_module(module_name).router.routes
    return {(method, route.path) for route in routes for method in route.methods}


def test_the_door_lets_through_what_nodes_ask_and_nothing_else(lets_through):
    nodes = flower_routes("flwr.superlink.routers.fleet.router")
    assert ("POST", "/v1/fleet/pull-messages") in nodes
    assert all(lets_through(*route) for route in nodes)
    assert lets_through("GET", "/health")
    others = flower_routes("flwr.superlink.routers.control.router") | {
        ("POST", "/v1/runtime/push-messages"),
        ("POST", "/responses"),
        ("GET", "/docs"),
        ("GET", "/openapi.json"),
    }
    assert ("POST", "/v1/control/start-run") in others
    assert not [route for route in others if lets_through(*route)]
    for way_round in (
        "/v1/fleet/../control/start-run",
        "/v1/fleet/..%2fcontrol/start-run",
        "/v1/fleet//v1/control/start-run",
        "/v1/fleet/%2e%2e/control/start-run",
        "/x?/v1/fleet/pull-messages",
        "/health/../v1/control/start-run",
    ):
        assert not lets_through("POST", way_round)
        assert not lets_through("GET", way_round)


def test_the_door_speaks_tls_on_both_sides_and_takes_messages_of_any_size():
    text = (DOCKER / "nginx.conf").read_text()
    settings = dict(re.findall(r"^\s*([a-z_]+) ([^;{]+);$", text, re.MULTILINE))
    assert settings["listen"] == f"{DOOR['ports'][0].rpartition(':')[2]} ssl"
    assert settings["proxy_pass"] == f"https://$superlink:{parse(SUPERLINKS[1]['command'])['port']}"
    assert settings["set"] == "$superlink superlink"
    assert settings["proxy_ssl_verify"] == "on"
    assert settings["proxy_ssl_name"] == "superlink"
    mounted = mounts(DOOR)
    for key in ("ssl_certificate", "ssl_certificate_key"):
        assert str(Path(settings[key]).parent) in mounted
    assert settings["proxy_ssl_trusted_certificate"] in mounted
    assert "/etc/nginx/nginx.conf" in mounted
    assert (settings["client_max_body_size"], settings["proxy_request_buffering"]) == ("0", "off")
    assert settings["daemon"] == "off"
    written = [value for key, value in settings.items() if key.endswith("_temp_path") or key == "pid"]
    assert all(value.startswith("/tmp/") for value in written)
