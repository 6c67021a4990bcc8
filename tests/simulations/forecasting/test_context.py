"""Forecasters with a context: the same as their twins, on chosen windows, and with the right gradients."""

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.models import build, initial_model, parse_model
from fedgraph.models.base import TaskSpec
from fedgraph.simulations.forecasting.context import (
    ContextForecaster,
    cohort_with_context,
    context_gradients,
    hidden_states,
)
from fedgraph.support.errors import ExperimentError
from fedgraph.training import Cohort, TrainSettings

NAMES = ("whole", "gaps")
INPUT, OUTPUT, HIDDEN = 4, 2, 3
TABLE = {"name": "gru", "hidden": HIDDEN}


@pytest.fixture
def cohort(tmp_path):
    random = np.random.default_rng(0)
    series = random.standard_normal((120, 2))
    series[random.random(120) < 0.3, 1] = np.nan
    path = tmp_path / "series.npz"
    np.savez(path, data=series.astype(np.float32), names=np.array(NAMES))
    table = {"set": "series", "path": str(path), "input-steps": INPUT, "output-steps": OUTPUT}
    data = open_source(parse_data(table), tmp_path).load(NAMES)
    settings = TrainSettings(local_steps=3, batch_size=4, learning_rate=0.1, workers=1)
    return Cohort(build(TABLE, data.task), data, settings, 0)


@pytest.fixture
def model(cohort):
    return ContextForecaster(parse_model(TABLE), cohort.data.task)


@pytest.fixture
def places():
    """The second client lacks the first window that is asked for."""
    return torch.tensor([[5, 0, 9, 7], [-1, 3, 4, 8]])


@pytest.mark.parametrize("table", [TABLE, {"name": "lstm", "hidden": 2, "read-out": "steps"}])
def test_a_stacked_forecaster_is_its_twin(table):
    task = TaskSpec("forecast", (INPUT, 2), (OUTPUT,))
    model = ContextForecaster(parse_model(table), task)
    rows = torch.stack([initial_model(model, seed) for seed in (0, 1)])
    inputs = torch.randn(2, 5, INPUT * 2 + model.context_size, generator=torch.Generator().manual_seed(0))
    outputs, _ = model.forward(model.layout.unflatten(rows), inputs, training=True)
    for row, values, found in zip(rows, inputs, outputs, strict=True):
        twin = model.twin()
        twin.load_state_dict(model.layout.row_state(row))
        torch.testing.assert_close(found, twin(values))


def test_only_recurrent_models_have_a_hidden_state_to_send():
    with pytest.raises(ExperimentError, match="that of a recurrent model: gru, lstm, rnn"):
        ContextForecaster(parse_model({"name": "mlp"}), TaskSpec("forecast", (INPUT, 1), (OUTPUT,)))


def test_gradients_are_those_of_each_clients_mean_loss(cohort, model, places):
    rows = torch.stack([initial_model(model, seed) for seed in (0, 1)])
    contexts = torch.randn(2, 4, HIDDEN, generator=torch.Generator().manual_seed(0))
    found = context_gradients(cohort, model, rows, places, contexts)
    assert found[1, 0].abs().max() == 0
    for client in range(2):
        twin = model.twin()
        twin.load_state_dict(model.layout.row_state(rows[client]))
        chosen = places[client][places[client] >= 0]
        batch = cohort.data.splits["train"].batch(chosen.expand(2, -1))
        leaf = contexts[client, places[client] >= 0].requires_grad_()
        outputs = twin(torch.cat([batch.inputs[client].flatten(1), leaf], 1))
        read = batch.weights[client] > 0
        (outputs - batch.targets[client])[read].abs().mean().backward()
        torch.testing.assert_close(found[client, places[client] >= 0], leaf.grad)


def test_hidden_states_and_chosen_windows_make_the_forecasts(cohort, model, places):
    rows = torch.stack([initial_model(model, seed) for seed in (0, 1)])
    contexts = torch.randn(2, 4, HIDDEN, generator=torch.Generator().manual_seed(0))
    hidden = hidden_states(cohort, model, rows, "train", places)
    assert hidden[1, 0].abs().max() == 0
    chosen = cohort_with_context(cohort, model, {"train": places}, {"train": contexts})
    assert chosen.data.splits["train"].num_examples.tolist() == [4, 3]
    forecasts = chosen.predict(rows, "train")
    assert forecasts[1, 3].isnan().all()
    expected = model.decode(model.layout.unflatten(rows), hidden, contexts)
    expected = expected * cohort.data.std[:, None, None] + cohort.data.mean[:, None, None]
    torch.testing.assert_close(forecasts[0], expected[0])
    torch.testing.assert_close(forecasts[1, :3], expected[1, 1:])
    trained = chosen.train(rows, 1)
    assert trained.num_examples.tolist() == [4, 3]
    assert bool((trained.parameters != rows).any(1).all())
