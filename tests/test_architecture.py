"""The plan of the house: which rooms there are, who may import whom, and that all come in by the front door."""

import ast
import doctest
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

# In one process, files are read once.
pytestmark = pytest.mark.xdist_group("architecture")

REPOSITORY = Path(__file__).resolve().parent.parent
# Folders beside the library that are imported as parts of the package.
INSIDE = ("clients", "strategies", "simulations")
# A room imports those before it.
ROOMS = [
    *(
        "support",
        "graph",
        "models",
        "data",
        "training",
        "privacy",
        "defence",
        "fusion",
        "graphical",
        "messages",
        "algorithms",
    ),
    *("federation", "experiment", "runs", "starting", "reproduce", "commands"),
]
# Two floors: the library lies below the methods, the programs lie above them and import them openly.
FORBIDDEN = {
    "library": {"clients", "strategies", "simulations"},
    "programs": {"simulations"},
    "clients": {"strategies", "simulations"},
    "strategies": {"clients", "simulations"},
}
PROGRAMS = {"starting", "reproduce", "commands"}
MATHEMATICS = {
    *("support", "graph", "models", "data", "training", "privacy", "defence", "fusion", "graphical"),
    "algorithms",
}
# Rooms and folders whose modules are doors themselves: each is one contract, one source, one tool or one command.
DOORS_OF_THEIR_OWN = (
    "messages.apps",
    "messages.frozen_layers",
    "support",
    "models.native",
    "models.recurrent",
    "training.metrics",
    "algorithms",
    "starting",
    "commands",
)

# What takes a tenth of a second or more, and not every run needs: a program starts in half the time without.
IMPORTED_WHERE_USED = (
    *("dp_accounting", "matplotlib", "networkx", "pandas", "ray", "scipy.optimize", "scipy.stats", "sklearn"),
    "torch_geometric",
)
# Estimators derive from scikit-learn's classes; their rooms import them once somebody asks for them.
ESTIMATORS = ("fedgraph.fusion.classifier", "fedgraph.graphical.estimator")


def modules(package):
    """Dotted name and file of every module of a folder: clients, strategies and simulations are parts of fedgraph."""
    within = "fedgraph." if package in INSIDE else ""
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        name = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        yield f"{within}{name}", path


@cache
def read(path):
    """Strings of a file, and pairs of a module that it imports from and what it takes; many tests look at all files."""
    strings, imports = [], []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.append(node.value)
        elif isinstance(node, ast.Import):
            imports += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports += [(node.module, alias.name) for alias in node.names]
    return strings, imports


def strings(path):
    return read(path)[0]


def imports(path):
    return read(path)[1]


def imports_at_the_start(path):
    """Those of a file itself, not of its functions, nor of type checkers alone."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(module):
    parts = module.split(".")
    return parts[1] if parts[0] == "fedgraph" and len(parts) > 1 else parts[0]


def is_library(module):
    return module.startswith("fedgraph.") and room_of(module) not in INSIDE


def is_module(name):
    path = REPOSITORY.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() and not path.is_dir()


@pytest.fixture(scope="module")
def doors():
    """Every package of the library, and what it exports."""
    found = {}
    for name, path in modules("fedgraph"):
        if path.name == "__init__.py":
            found[name] = [
                entry.value
                for node in ast.parse(path.read_text()).body
                if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
                for entry in node.value.elts
            ]
    return found


def floor_of(name):
    if room_of(name) in INSIDE:
        return room_of(name)
    return "programs" if room_of(name) in PROGRAMS else "library"


@pytest.mark.parametrize("floor", FORBIDDEN)
def test_no_import_runs_up_the_stairs(floor):
    package = floor if floor in ("clients", "strategies") else "fedgraph"
    files = [(name, path) for name, path in modules(package) if floor_of(name) == floor]
    assert files
    taken = [(name, room_of(target)) for name, path in files for target, _ in imports(path)]
    assert [pair for pair in taken if pair[1] in FORBIDDEN[floor]] == []


def test_no_string_runs_up_the_stairs_but_that_of_an_algorithm_with_its_clients():
    named = re.compile(r"^fedgraph\.(strategies|clients)(\.\w+)+:\w+$")
    found = [(name, text) for name, path in modules("fedgraph") for text in strings(path) if named.match(text)]
    assert [pair for pair in found if not names_its_clients(*pair)] == []
    assert found


def test_what_is_slow_to_import_is_imported_where_it_is_used():
    slow = tuple(f"{name}." for name in IMPORTED_WHERE_USED)
    early = [
        f"{name}: {target}"
        for package in ("fedgraph", "clients", "strategies")
        for name, path in modules(package)
        for target in imports_at_the_start(path)
        if f"{target}.".startswith(slow) and name not in ESTIMATORS
    ]
    assert early == []


def test_rooms_with_estimators_do_not_import_scikit_learn():
    code = "import sys, fedgraph.fusion, fedgraph.graphical; sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False).returncode == 0


def test_nothing_lies_loose_in_the_library():
    loose = {path.name for path in (REPOSITORY / "fedgraph").iterdir() if path.is_file()}
    assert loose == {"__init__.py", "__main__.py", "py.typed"}
    folders = {path.name for path in (REPOSITORY / "fedgraph").iterdir() if path.is_dir()}
    assert folders - {"__pycache__"} == {*ROOMS, *INSIDE}


def test_rooms_import_those_before_them():
    bad = []
    for name, path in modules("fedgraph"):
        room = room_of(name)
        if room not in ROOMS:
            continue
        below = set(ROOMS[: ROOMS.index(room) + 1])
        taken = [target for target, _ in imports(path) if is_library(target)]
        # A module that a loader is handed as a string is imported too.
        taken += [text for text in strings(path) if is_dotted_path(text) and not names_its_clients(name, text)]
        bad += [f"{name} -> {target}" for target in taken if room_of(target) not in below]
    assert bad == []


def names_its_clients(module, text):
    """What an algorithm does at the data is a class of the engine's clients, which it does not import."""
    return room_of(module) == "algorithms" and room_of(text) == "clients"


def test_no_two_modules_import_each_other():
    """Not for types, nor where a function is called; the front door of a package imports what it offers."""
    files = {name: path for package in ("fedgraph", *INSIDE) for name, path in modules(package)}
    edges = {name: set() for name, path in files.items() if path.name != "__init__.py"}
    for name in edges:
        for module, taken in imports(files[name]):
            inner = f"{module}.{taken}"
            edges[name] |= {found for found in (inner, module) if found in edges and found != name}
    # Without those that import no other, or that no other imports, circles are left, and what lies between them.
    while ends := edges.keys() - ({name for name in edges if edges[name]} & set().union(*edges.values())):
        edges = {name: others - ends for name, others in edges.items() if name not in ends}
    assert edges == {}


def is_dotted_path(text):
    module, colon, attribute = text.partition(":")
    return bool(colon) and attribute.isidentifier() and module.startswith("fedgraph.") and is_module(module)


def test_all_come_in_by_the_front_door(doors):
    around = []
    for package in ("fedgraph", "clients", "strategies", "simulations"):
        for name, path in modules(package):
            for target, taken in imports(path):
                inside = room_of(target) == room_of(name) or not is_library(target)
                by_itself = target.startswith(tuple(f"fedgraph.{door}" for door in DOORS_OF_THEIR_OWN))
                if inside or by_itself or is_module(f"{target}.{taken}"):
                    continue
                if taken not in doors.get(target, ()):
                    around.append(f"{name}: from {target} import {taken}")
    assert around == []


def test_only_programs_start_runs():
    starters = {
        room_of(name)
        for package in ("fedgraph", "clients", "strategies")
        for name, path in modules(package)
        if any(room_of(target) == "starting" for target, _ in imports(path))
    }
    # The package itself hands over what starts runs, once somebody asks for it.
    assert {"starting", "reproduce", "commands"} <= starters <= {*PROGRAMS, "fedgraph"}


def test_doors_are_narrow(doors):
    assert {name: len(exported) for name, exported in doors.items() if len(exported) > 25} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_says_what_the_room_is_for(room):
    told = importlib.import_module(f"fedgraph.{room}").__doc__
    assert "\n\n    " in told or ">>> " in told, "no lines that a user would write"


def test_examples_at_the_doors_run(doors):
    examples = 0
    for name in doors:
        test = doctest.DocTestParser().get_doctest(importlib.import_module(name).__doc__ or "", {}, name, None, 0)
        said = []
        assert doctest.DocTestRunner().run(test, out=said.append).failed == 0, "".join(said)
        examples += len(test.examples)
    assert examples > 20


def test_mathematics_does_not_know_flower():
    """But for messages that lie beside the algorithm that they are of."""
    known = [
        name
        for name, path in modules("fedgraph")
        if room_of(name) in MATHEMATICS
        and not name.endswith("_messages")
        and any(target.partition(".")[0] == "flwr" for target, _ in imports(path))
    ]
    assert known == []


FLOWER = {"flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy"}
"""What Flower documents for apps; its other modules change from one minor version to the next."""


@pytest.mark.parametrize("package", ["fedgraph", "clients", "strategies", "simulations", "tests", "docs"])
def test_of_flower_only_what_is_public_is_imported(package):
    private, public = [], 0
    for name, path in modules(package):
        for target, _ in imports(path):
            if target.partition(".")[0] == "flwr":
                allowed = target in FLOWER
                public += allowed
                private += [] if allowed else [f"{name}: {target}"]
    assert private == []
    assert public or package == "docs"


def test_top_level_is_what_the_plan_says():
    expected = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "Makefile"}
    expected |= {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"}
    expected |= {"fedgraph", "clients", "strategies", "simulations", "tests", "docker", "docs"}
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("not a git checkout")
    top = {line.partition("/")[0] for line in listed.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= expected


def test_the_page_names_every_room_and_no_file_that_is_not_there():
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    rooms = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert rooms == ROOMS
    named = re.findall(r"`((?:fedgraph|strategies|clients|simulations|docker|tests)/[\w/.]*)`", page)
    assert len(named) > 15
    assert [name for name in named if not (REPOSITORY / name.replace("NAME", "sfl")).exists()] == []
    for room, row in re.findall(r"^\| `(\w+)` \|(.*)", page, flags=re.MULTILINE):
        paths = [f"{path.relative_to(REPOSITORY)}" for path in (REPOSITORY / "fedgraph" / room).rglob("*")]
        named = [name.rstrip("/") for name in re.findall(r"`([\w/]+(?:\.py|/))`", row)]
        assert [name for name in named if not any(path.endswith(f"/{name}") for path in paths)] == [], room


def test_long_tests_are_there():
    named = [line.partition("::")[::2] for line in (REPOSITORY / "tests" / "long.txt").read_text().split()]
    gone = [test for file, test in named if f"def {test}(" not in (REPOSITORY / file).read_text()]
    assert gone == []


def test_the_app_of_the_repository_waits_for_the_whole_package():
    """A bundle has no links: folders beside ``fedgraph`` are found as parts of it once it is imported whole."""
    components = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    assert {reference.partition(".")[0] for reference in components.values()} == {"strategies", "clients"}
    for folder in ("strategies", "clients"):
        assert ("fedgraph", "") in imports(REPOSITORY / folder / "__init__.py")
