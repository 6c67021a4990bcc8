from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.utils.deterministic

from fedgraph.support import devices

GIB = 2**30


@pytest.fixture
def as_before(monkeypatch):
    """What a GPU is set up with belongs to the process."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    kept = cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32
    filled = torch.utils.deterministic.fill_uninitialized_memory
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    yield
    cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32 = kept
    torch.utils.deterministic.fill_uninitialized_memory = filled
    torch.use_deterministic_algorithms(False)
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.parametrize(
    ("device", "there", "kind"),
    [("cpu", True, "cpu"), ("auto", False, "cpu"), ("auto", True, "cuda"), ("cuda", True, "cuda")],
)
def test_a_gpu_is_taken_where_there_is_one_and_is_set_up_then_alone(device, there, kind, as_before, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    assert devices.chosen(device, "[train] device").type == kind
    on_gpu = kind == "cuda"
    assert torch.are_deterministic_algorithms_enabled() is on_gpu
    assert torch.is_deterministic_algorithms_warn_only_enabled() is on_gpu
    assert torch.backends.cudnn.deterministic is on_gpu
    assert ("CUBLAS_WORKSPACE_CONFIG" in os.environ) is on_gpu


def test_float32_is_no_tf32_and_fresh_memory_is_not_filled(as_before):
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    devices.repeatable()
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.utils.deterministic.fill_uninitialized_memory
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    devices.repeatable()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def on_ray(monkeypatch, given):
    context = SimpleNamespace(get_assigned_resources=lambda: given)
    ray = SimpleNamespace(is_initialized=lambda: given is not None, get_runtime_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", ray)


@pytest.mark.parametrize(
    ("given", "share"), [(None, 1.0), ({"CPU": 1.0}, 1.0), ({"GPU": 0.25}, 0.25), ({"GPU": 2.0}, 1.0)]
)
def test_nodes_on_ray_have_the_share_that_it_gives_them(given, share, monkeypatch):
    on_ray(monkeypatch, given)
    assert devices.gpu_share() == share


def test_memory_is_the_same_in_every_run_unless_others_have_taken_it(monkeypatch):
    free = {"bytes": 79.0 * GIB}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free["bytes"], 80.0 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    on_ray(monkeypatch, {"GPU": 0.5})
    gpu = torch.device("cuda")
    assert devices.room(gpu) == 40 * GIB
    free["bytes"] = 60.0 * GIB  # another node has its part
    assert devices.room(gpu) == 40 * GIB
    free["bytes"] = 10.0 * GIB  # another program has it
    assert devices.room(gpu) == 8 * GIB
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50 * GIB)  # what this process keeps for itself
    assert devices.room(gpu) == 40 * GIB
