"""What an aggregator keeps: its own keys, and what it has let the server learn so far."""

import os
import stat
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from fedgraph.privacy.secret import aggregator_files
from fedgraph.privacy.secret.aggregator_files import AppliedMaps, folder_of, own_keys
from fedgraph.privacy.secret.sealed import Context, open_sealed, seal
from fedgraph.privacy.secret.shamir import ShareSettings
from fedgraph.support.errors import ExperimentError, RunError

SIZE, SETTINGS = 8, ShareSettings(fractional_bits=8, random_bits=32)


def projection(seed, hidden=3):
    return torch.randint(-200, 200, (hidden, SIZE), generator=torch.Generator().manual_seed(seed))


def allow(folder, keys, seed, owner="a", fingerprint="f"):
    AppliedMaps(folder, owner, fingerprint, SIZE).allow(keys, projection(seed), SETTINGS)


def test_keys_are_made_once_and_are_nobody_elses(tmp_path):
    folder = tmp_path / "aggregator"
    keys, context = own_keys(folder), Context("run", "a", "north", "r")
    assert open_sealed(own_keys(folder), seal(keys.public, b"text", context), context) == b"text"
    assert own_keys(tmp_path / "other").public != keys.public
    assert [file.name for file in folder.iterdir()] == ["private.key"]
    assert stat.S_IMODE(os.stat(folder / "private.key").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    content = (folder / "private.key").read_bytes()
    (folder / "private.key").write_bytes(bytes([content[0] ^ 8]) + content[1:])
    with pytest.raises(RunError, match=r"private\.key is damaged"):
        own_keys(folder)
    (folder / "private.key").write_bytes(content[:32])
    assert own_keys(folder).public == keys.public
    (folder / "private.key").write_bytes(b"short")
    with pytest.raises(RunError, match="32 bytes, not 5"):
        own_keys(folder)


def test_the_same_map_may_be_applied_again_and_others_until_too_much_is_known(tmp_path):
    allow(tmp_path, ["x", "y"], 1)
    allow(tmp_path, ["x", "y", "z"], 1)
    allow(tmp_path, ["y"], 2)  # 6 of 8 numbers of y
    allow(tmp_path, ["z"], 3)  # 6 of 8 numbers of z
    allow(tmp_path, ["x"], 2)
    for key in ("y", "z", "x"):
        with pytest.raises(ExperimentError, match="'a': 8 independent"):
            allow(tmp_path, ["w", key], 4)
    # With fewer random bits, 6 exact numbers are too many already.
    with pytest.raises(ExperimentError, match="random-bits is 20.*6 out of 8"):
        AppliedMaps(tmp_path, "a", "f", SIZE).allow(["z"], projection(3), ShareSettings())
    # What was refused is not counted.
    allow(tmp_path, ["w"], 4)
    allow(tmp_path, ["w"], 5)
    allow(tmp_path, ["y", "x"], 1)


def test_other_owners_and_models_are_other_embeddings(tmp_path):
    for seed in (1, 2):
        allow(tmp_path, ["x"], seed)
    allow(tmp_path, ["x"], 3, owner="b")
    allow(tmp_path, ["x"], 3, fingerprint="g")
    with pytest.raises(ExperimentError, match="owner 'a'"):
        allow(tmp_path, ["x"], 3)


def test_a_map_that_tells_too_much_by_itself_is_refused(tmp_path):
    maps = AppliedMaps(tmp_path, "a", "f", SIZE)
    with pytest.raises(ExperimentError, match="random-bits is 0"):
        maps.allow(["x"], projection(1, 6), ShareSettings(random_bits=0))
    assert not maps.path.exists()


def test_two_requests_at_once_do_not_pass_each_other_by(tmp_path, monkeypatch):
    judge = aggregator_files.check_leaks

    def slowly(*arguments):
        judge(*arguments)
        time.sleep(0.05)

    monkeypatch.setattr(aggregator_files, "check_leaks", slowly)
    with ThreadPoolExecutor(4) as pool:
        outcomes = [pool.submit(allow, tmp_path, ["x"], seed) for seed in range(1, 5)]
    assert sum(outcome.exception() is None for outcome in outcomes) == 2, "6 of 8 numbers, as one after the other"


@pytest.mark.parametrize("name", ["..", "../other", "a/b", "."])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    assert folder_of(tmp_path, name).resolve().parent == (tmp_path / "aggregators").resolve()


def test_the_old_command_names_the_one_that_prints_the_fingerprint(tmp_path):
    command = [sys.executable, "-m", "fedgraph.privacy.secret.aggregator_files", str(tmp_path), "north"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "python -m fedgraph.privacy.secret STATE_DIR NAME" in done.stderr
