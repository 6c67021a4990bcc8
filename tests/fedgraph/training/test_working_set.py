"""Block sizes follow from what a model keeps per client and example."""

from __future__ import annotations

import math

import pytest
import torch

from fedgraph.models import build
from fedgraph.models.base import TaskSpec
from fedgraph.training.working_set import GATHERED, WorkingSet, portion, working_set

CPU = torch.device("cpu")


def sizes(table, task):
    found = working_set(build(table, task), task)
    return found.per_client, found.per_example


def test_counts_what_a_multi_layer_perceptron_keeps():
    task = TaskSpec("classification", (64,), (10,))
    per_client, per_example = sizes({"name": "mlp", "hidden": [32]}, task)
    assert per_client == 16 * (64 * 32 + 32 + 32 * 10 + 10)
    # The inputs, the hidden layer and the outputs once or twice each.
    assert 4 * (64 + 32 + 10) <= per_example <= 8 * (64 + 32 + 10)


def test_a_recurrent_model_keeps_every_time_step():
    table = {"name": "gru", "hidden": 64}
    short, long = (sizes(table, TaskSpec("forecast", (steps, 1), (12,)))[1] for steps in (6, 60))
    assert 8 < long / short < 11


def test_a_module_keeps_what_its_layers_keep_though_it_is_tried_out_when_first_called():
    task = TaskSpec("classification", (1, 28, 28), (10,))
    per_client, per_example = sizes({"name": "fedgraph.simulations.benchmarks.models:ConvolutionNet"}, task)
    # Each of two blocks keeps its convolution, what it normalises and what it pools.
    layers = 28 * 28 * 16 + 14 * 14 * (16 + 32) + 7 * 7 * 32
    assert 4 * layers <= per_example <= 16 * layers
    assert WorkingSet(per_client, per_example).clients_per_block(32, CPU) < 100


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_measuring_leaves_the_global_generator_alone(name):
    before = torch.get_rng_state()
    sizes({"name": name}, TaskSpec("classification", (1, 8, 8), (10,)))
    assert torch.equal(torch.get_rng_state(), before)


def test_blocks_fill_the_cache_and_have_one_client_at_least():
    small = WorkingSet(per_client=1000.0, per_example=100.0)
    assert small.clients_per_block(10, CPU) == math.floor(8 * 2**21 / 2000)
    assert small.clients_per_block(100, CPU) < small.clients_per_block(10, CPU)
    assert WorkingSet(1e12, 1.0).clients_per_block(1, CPU) == 1


def test_the_way_follows_from_the_kind_of_model():
    images, rows = TaskSpec("classification", (1, 16, 16), (10,)), TaskSpec("classification", (16,), (10,))
    # One after the other, a few in a block; fewer where the models are large.
    assert working_set(build({"name": "cnn"}, images), images).clients_per_block(8, CPU) == 8
    assert working_set(build({"name": "resnet9"}, images), images).clients_per_block(8, CPU) == 1
    linear = build({"name": "torch.nn:LazyLinear", "options": {"out_features": 10}}, rows)
    assert working_set(linear, rows).clients_per_block(8, CPU) > 100
    perceptron = working_set(build({"name": "mlp"}, images), images)
    assert perceptron.clients_per_block(8, CPU, native=True) == GATHERED // (8 * 256)
    assert perceptron.clients_per_block(8, CPU) != perceptron.clients_per_block(8, CPU, native=True)


def test_a_gpu_takes_as_many_as_its_memory_holds(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (20_000_000, 20_000_000))
    assert WorkingSet(1000.0, 100.0).clients_per_block(10, torch.device("cuda")) == 4000


def test_a_gpu_has_more_models_at_once_of_which_a_mean_is_taken():
    # 100 ResNet9 of 2.4 million parameters are more than a processor's cache, and little for a GPU.
    assert portion(2_443_200, CPU) == 1
    assert portion(2_443_200, torch.device("cuda")) > 100
