import math
from pathlib import Path

import pytest
import torch

from fedgraph.clients.sfl_cold_start import choice, cross_losses
from fedgraph.data import open_source, parse_data
from fedgraph.models import build
from fedgraph.training import Cohort, TrainSettings


def test_choice_is_the_formula():
    prior = torch.tensor([[0.5, 0.3, 0.2], [0.0, 0.5, 0.5]])
    losses = torch.tensor([[2.0, 1.0, 1.1], [0.1, 3.0, 4.0]], dtype=torch.float64)
    got = choice(prior, losses, temperature=0.5)
    for row in range(2):
        best = min(losses[row].tolist())
        weights = [
            float(prior[row, j]) * math.exp(-(float(losses[row, j]) / best - 1) / 0.5) for j in range(3)
        ]  # fmt: skip
        assert got[row].tolist() == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-5)


def test_what_could_not_be_measured_does_not_count():
    prior = torch.tensor([[0.5, 0.5], [0.2, 0.8], [1.0, 0.0]])
    losses = torch.tensor([[math.nan, 1.0], [math.nan, math.nan], [1e9, 1.0]], dtype=torch.float64)
    got = choice(prior, losses, temperature=0.01)
    # The only one that was measured; the graph alone; the only one that the graph allows, however bad.
    torch.testing.assert_close(got, torch.tensor([[0.0, 1.0], [0.2, 0.8], [1.0, 0.0]], dtype=torch.float64))


def test_a_loss_of_zero_is_the_best():
    got = choice(torch.full((1, 2), 0.5), torch.tensor([[0.0, 1.0]], dtype=torch.float64), temperature=0.1)
    assert got[0, 0] > 0.99


SERIES = {"set": "synthetic-traffic", "sensors": 4, "days": 3, "missing-share": 0.1}
IMAGE_TASK = {"set": "digits", "clients": 3, "partition": "iid"}


@pytest.mark.parametrize(("table", "model"), [(SERIES, {"name": "rnn", "hidden": 4}), (IMAGE_TASK, {"name": "mlp"})])
def test_every_candidate_is_measured_on_every_clients_own_examples(table, model):
    source = open_source(parse_data(table), Path())
    data = source.load(source.client_names())
    stacked = build(model, data.task)
    cohort = Cohort(stacked, data, TrainSettings(), 0)
    draws = torch.Generator().manual_seed(0)
    candidates = torch.stack([stacked.initial(draws) for _ in range(5)])
    everybody = torch.arange(len(data.names))
    losses = cross_losses(cohort, candidates, everybody)
    assert losses.shape == (len(data.names), 5)
    assert torch.equal(cross_losses(cohort, candidates, everybody[[2, 0]]), losses[[2, 0]])
    assert cross_losses(cohort, candidates, everybody[:0]).shape == (0, 5)
    metric = "mae" if table is SERIES else "loss"
    for number, candidate in enumerate(candidates):
        alone = cohort.evaluate(candidate.repeat(len(data.names), 1), "train")[metric]
        torch.testing.assert_close(losses[:, number], alone.double(), rtol=1e-5, atol=1e-6)
    assert losses.std(dim=1).min() > 1e-4, "candidates differ, and so do their losses"
