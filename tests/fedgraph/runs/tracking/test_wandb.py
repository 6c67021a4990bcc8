import json
import struct
import time

import pytest

pytest.importorskip("wandb", reason="wandb is not installed")
from wandb.proto import wandb_internal_pb2


def records(path):
    """All records of an offline file: blocks of 32 KiB of parts with checksum, length and kind (LevelDB's log)."""
    data, position, whole = path.read_bytes(), 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last of several parts
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def read(folder):
    """The history rows, the configuration and the ids in the offline files of a run."""
    rows, config, ids = [], {}, []
    for path in sorted(folder.path.glob("wandb/offline-run-*/*.wandb")):
        # W&B's own process writes on for a moment after the run has ended.
        deadline = time.monotonic() + 30
        while not (found := list(records(path))) or not found[-1].HasField("exit"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for record in found:
            if record.HasField("history"):
                items = record.history.item
                rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
            for update in [*record.config.update, *record.run.config.update]:
                config[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
            if record.HasField("run"):
                ids.append((record.run.run_id, record.run.project, record.run.display_name))
    return rows, config, ids


def test_a_resumed_run_is_one_record_offline(run_tracked, digits_tables):
    digits_tables["experiment"]["rounds"] = 4
    folder = run_tracked(["wandb"], stops=[4], **{"checkpoint-every": 2})
    rows, config, ids = read(folder)
    assert len(set(ids)) == 1
    assert ids[0][1:] == ("small", folder.name)
    assert config["train.learning-rate"] == 0.1
    summary = folder.summary()
    told = [(row["step"], row["test/accuracy/mean"]) for row in rows if "test/accuracy/mean" in row]
    assert [step for step, _ in told] == [0, 1, 2, 3, 2, 3, 4], "the checkpoint was written after round 2 was trained"
    assert told[-1][1] == pytest.approx(summary["metrics"]["test"]["accuracy"]["mean"])
    assert [row["step"] for row in rows if "training/loss/client-5" in row] == [1, 2, 3, 4, 3, 4]
    own = [row["_step"] for row in rows]
    assert own == sorted(set(own)), "W&B's own count never falls, or it would drop rows"
    names = {path.name for path in folder.path.glob("wandb/offline-run-*/files/*")}
    assert "summary.json" in names
