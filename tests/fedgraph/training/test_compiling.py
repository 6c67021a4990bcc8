"""Compiled functions give the results and gradients of plain ones, from several threads, and fall back."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._inductor.config

from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.training import compiling
from fedgraph.training.compiling import Compiled


def draws(clients=3):
    return torch.randn(clients, 4, generator=torch.Generator().manual_seed(clients))


def squares(parts, scale):
    return {"sum": (parts["first"] * parts["second"]).square().sum(1) * scale}


@pytest.fixture
def counted(monkeypatch):
    """Stands in for torch.compile's graphs and counts what they are built for."""
    built = []

    def build_(function):
        def graph(*args, **kwargs):
            if graph not in built:
                built.append(graph)
            return function(*args, **kwargs)

        return graph

    monkeypatch.setattr(compiling, "_build", build_)
    return built


# Runs compilers for 20 seconds.
@pytest.mark.process
def test_results_and_gradients_are_those_of_the_plain_model():
    model = build({"name": "mlp", "hidden": [6]}, TaskSpec("classification", (2, 3), (4,)))
    inputs = torch.randn(3, 5, 2, 3, generator=torch.Generator().manual_seed(0))

    def loss(matrix):
        outputs, _ = model.forward(model.layout.unflatten(matrix), inputs, True)
        return outputs.square().mean(), outputs

    fast = Compiled(loss)
    found, expected = [], []
    for function, results in ((fast, found), (loss, expected)):
        matrix = torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(3)]).requires_grad_()
        total, outputs = function(matrix)
        results += [outputs, *torch.autograd.grad(total, matrix)]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert not fast.failed
    assert len(fast._built) == 1


@pytest.mark.process
def test_random_draws_are_those_of_the_plain_function():
    def dropped(values):
        return torch.nn.functional.dropout(values, 0.5)

    results = []
    with torch.random.fork_rng(devices=[]):
        for function in (dropped, Compiled(dropped)):
            torch.manual_seed(3)
            results.append(function(torch.ones(64)))
    assert 0 < int((results[0] == 0).sum()) < 64
    assert torch.equal(*results)


def test_shapes_are_told_apart_and_built_once_each(counted):
    fast = Compiled(squares)
    for clients in (3, 2, 3, 3, 2):
        values = draws(clients)
        found = fast({"first": values, "second": values}, scale=2.0)
        assert torch.equal(found["sum"], 2 * values.pow(2).square().sum(1))
    assert len(counted) == 2


def test_threads_wait_for_one_build_of_their_shape(counted):
    fast = Compiled(squares)
    values = draws()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(fast, {"first": values, "second": values}, 1.0) for _ in range(12)]
    assert all(torch.equal(job.result()["sum"], values.pow(2).square().sum(1)) for job in jobs)
    assert len(counted) == 1


@pytest.mark.slow
@torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True)
def test_many_compiled_copies_of_one_function_do_not_push_each_other_out():
    copies = [Compiled(lambda values, shift=shift: values + shift) for shift in range(2)]
    assert [copy(draws()).sub(draws()).mean().round().item() for copy in copies] == [0, 1]
    assert not any(copy.failed for copy in copies)


def test_shapes_beyond_the_limit_are_computed_plainly(counted, monkeypatch):
    monkeypatch.setattr(compiling, "SHAPES", 2)
    fast = Compiled(torch.square)
    for clients in (1, 2, 3, 4):
        assert torch.equal(fast(draws(clients)), draws(clients).square())
    assert len(counted) == 2
    assert not fast.failed


# What pytest puts back with monkeypatch, these settings would hide for the rest of the process.
@torch._inductor.config.patch({"cpp.cxx": ("no-such-compiler",), "force_disable_caches": True})
def test_without_a_compiler_the_plain_function_computes_and_one_warning_says_so(caplog):
    fast = Compiled(lambda values: values.sin() + 1)
    with caplog.at_level(logging.WARNING, logger="fedgraph"):
        for clients in (2, 3, 2):
            assert torch.equal(fast(draws(clients)), draws(clients).sin() + 1)
    assert fast.failed
    (message,) = [record.getMessage() for record in caplog.records if record.name == "fedgraph"]
    assert message.startswith("[train] compile: torch.compile failed on this node")
    assert "install a C++ compiler" in message


def test_errors_of_the_function_itself_come_through(counted, caplog):
    def broken(values):
        raise ValueError("not these values")

    fast = Compiled(broken)
    with pytest.raises(ValueError, match="not these values"):
        fast(draws())
    assert not fast.failed
    assert not caplog.records


def test_threads_do_not_wait_for_each_other_beyond_the_limit(counted, monkeypatch):
    monkeypatch.setattr(compiling, "SHAPES", 0)
    meeting = threading.Barrier(2, timeout=10)

    def met(values):
        meeting.wait()
        return values

    fast = Compiled(met)
    with ThreadPoolExecutor(2) as pool:
        assert all(torch.equal(found, draws()) for found in pool.map(fast, [draws(), draws()]))
