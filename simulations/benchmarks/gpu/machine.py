"""The machine: what is in it, how fast it multiplies and copies, and the tests that need its GPU."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from fedgraph.simulations.benchmarks.gpu.found import Found
from fedgraph.simulations.benchmarks.measure import timed
from fedgraph.support.errors import RunError
from fedgraph.training import TrainSettings

_REPOSITORY = Path(__file__).resolve().parents[3]


def facts(device: str, folder: str, size: int, copied: int, repeats: int) -> Found:
    """Versions, memory, the state that runs compute in, and two ceilings: products of matrices, and copies.

    size : rows of square matrices. copied : float32 numbers of a copy.
    """
    where = TrainSettings.model_validate({"device": device}).torch_device()
    values = {
        "torch": torch.__version__,
        "CUDA of torch": torch.version.cuda or "none: a CPU build",
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic cuDNN": torch.backends.cudnn.deterministic,
        "TF32 in products": torch.backends.cuda.matmul.allow_tf32,
        "TF32 in cuDNN": torch.backends.cudnn.allow_tf32,
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", "not set"),
    }
    if where.type == "cuda":
        properties, (free, total) = torch.cuda.get_device_properties(where), torch.cuda.mem_get_info(where)
        values |= {
            "device": properties.name,
            "driver": _driver(),
            "capability": "{}.{}".format(*torch.cuda.get_device_capability(where)),
            "multiprocessors": properties.multi_processor_count,
            "memory": f"{total / 2**30:.1f} GiB, of which {free / 2**30:.1f} are free",
        }
    rows: dict[str, dict[str, Any]] = {name: {"value": str(value)} for name, value in values.items()}
    operations, many = 2 * size**3 / 1e12, torch.randn(copied, device=where)
    target = torch.empty_like(many)
    for kind in (torch.float32, torch.bfloat16):
        left, right = (torch.randn(size, size, device=where).to(kind) for _ in range(2))
        name = f"product {size} x {size}, {str(kind).removeprefix('torch.')}, TFLOP/s"
        rows[name] = {"value": _rates(functools.partial(torch.mm, left, right), operations, repeats)}
    name = f"copy of {4 * copied / 2**20:.0f} MiB, read and written, GB/s"
    rows[name] = {"value": _rates(functools.partial(target.copy_, many), 8 * copied / 1e9, repeats)}
    return Found(rows)


def _rates(work: Callable[[], object], amount: float, repeats: int) -> list[float]:
    work()
    return [amount / timed(work).wall for _ in range(repeats)]


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown ({error})"


def suite(device: str, folder: str) -> Found:
    """The tests of the suite that need a GPU, by pytest in a process of its own; they are skipped on a CPU.

    What pytest prints goes to the log, line by line, with the tests that took longest.
    """
    if find_spec("pytest") is None or not (_REPOSITORY / "tests").is_dir():
        raise RunError("there is no pytest here, or no folder of tests")
    files = [each for each in sorted((_REPOSITORY / "tests").rglob("test_*.py")) if "mark.gpu" in each.read_text()]
    command = [sys.executable, "-m", "pytest", "-v", "-rfE", "-m", "gpu", "--durations=5", "-p", "no:cacheprovider"]
    with subprocess.Popen(
        [*command, *map(str, files)], cwd=_REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pytest:
        assert pytest.stdout is not None
        lines = []
        for line in pytest.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    found = (re.findall(r"(\d+) (passed|failed|skipped|error)", line) for line in reversed(lines))
    counts = {word: int(number) for number, word in next(filter(None, found), [])}
    if not counts:
        raise RunError("pytest counted nothing:\n" + "\n".join(lines)[-2000:])
    failures = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return Found({"tests that need a GPU": {**dict.fromkeys(("passed", "failed", "skipped"), 0), **counts}}, failures)
