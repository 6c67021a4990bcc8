"""The same experiment gives the same weights as before, bit for bit, on the kind of processor they were recorded on.

    RECORD_WEIGHTS=1 python -m pytest tests/test_same_weights.py -n 0

records them anew, which is right only where results were meant to change.
"""

import copy
import json
import os
import platform
from pathlib import Path

import pytest
import torch

RECORDED = Path(__file__).with_suffix(".json")
LINKED = {"main-labels": 2}  # with one main class each, no two of the clients are neighbours
PULLED = {"lambda-global": 0.1, "lambda-personal": 0.05}
ADAM = {"optimizer": "adam", "learning-rate": 0.001, "keep-optimizer": True}

# By name, what is changed in a small experiment; "method" is that of the name unless something else is said.
ROUNDS = {
    "sfl": {"graph": LINKED, "sfl": PULLED},
    "sfl-three-hops": {"experiment": {"method": "sfl"}, "graph": LINKED, "sfl": {"hops": 3, "alpha": 0.7}},
    "sfl-star": {"sfl-star": {"hops": 3}},
    "sfl-star-updates": {
        "experiment": {"method": "sfl-star"},
        "sfl-star": {"learner": "smoothness", "mixes": "updates", "server-momentum": 0.5, "hops": 3},
    },
    "sfl-cold-start": {"sfl-cold-start": {"cold-below": 1.0}},
    "sfl-per": {"graph": LINKED, "sfl-per": {**PULLED, "hops": 3}},
    "sfl-lg": {"graph": LINKED, "sfl-lg": {"hops": 3}},
    "sfl-ft": {"graph": LINKED, "sfl-ft": {"hops": 3}},
    "ipa": {"train": ADAM},
    "local": {"train": ADAM},
    "fedavg": {},
    "fedavg-own-start": {},
    "fedprox": {},
    "fedper": {},
    "lg-fedavg": {},
    "fedatt": {},
    "scaffold": {},
    "feddyn": {},
    "feddc": {},
    "cgsv": {},
    "ditto": {},
    "fedavg-ft": {},
    "centralised": {},
}
OWNERS = {
    "f3": {},
    "f3-hard": {"experiment": {"method": "f3"}, "f3": {"alignment": "hard"}},
    "vfl": {"vfl": {"epochs": 2}},
}
TABLES = {
    "fedngm": {},
    "fedngm-averaged": {"experiment": {"method": "fedngm"}, "fedngm": {"global-model": "average", "rounds": 2}},
}


def machine():
    """What the bits of a result may depend on."""
    processor, information = platform.processor(), Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text().splitlines()
        processor = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), processor)
    return f"{processor}, {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"


def changed(tables, name, changes):
    tables = copy.deepcopy(tables)
    own = tables["experiment"]["method"]
    tables["experiment"]["method"] = name
    for table, values in changes.items():
        tables.setdefault(table, {}).update(values)
    if "train" in tables:
        tables["train"]["compile"] = False  # what is recorded depends on the processor, not on a compiler too
    if tables["experiment"]["method"] != own:
        tables.pop(own)
    return tables


@pytest.fixture
def same_weights():
    """``same_weights(name, folder)``: those of the run are the recorded ones."""
    told = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    recording = "RECORD_WEIGHTS" in os.environ
    if machine() not in told and not recording:
        pytest.skip(f"no weights are recorded on this processor: {machine()}")

    def same(name, folder):
        found = folder.summary()["weights_sha256"]
        if recording:
            told.setdefault(machine(), {})[name] = found
            RECORDED.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
        if name not in told[machine()]:
            pytest.skip(f"weights of {name} are not recorded on this processor since they were meant to change")
        assert found == told[machine()][name]

    return same


@pytest.mark.parametrize("name", ROUNDS)
def test_of_rounds(name, same_weights, digits_tables, run_experiment):
    tables = changed(digits_tables, name, ROUNDS[name])
    same_weights(name, run_experiment(tables, nodes=1 if name == "centralised" else 2))


@pytest.mark.parametrize("name", OWNERS)
def test_of_owners(name, same_weights, patches_tables, run_experiment):
    same_weights(name, run_experiment(changed(patches_tables, name, OWNERS[name])))


@pytest.mark.parametrize("name", TABLES)
def test_of_tables(name, same_weights, table_tables, run_experiment):
    tables = changed(table_tables, name, TABLES[name])
    same_weights(name, run_experiment(tables, nodes=3))
