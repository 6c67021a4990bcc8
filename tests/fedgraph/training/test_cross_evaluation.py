from pathlib import Path

import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.models import build
from fedgraph.training.cohort import Cohort, TrainSettings
from fedgraph.training.cross_evaluation import cross_losses

SERIES = {"set": "synthetic-traffic", "sensors": 4, "days": 3, "missing-share": 0.1}
IMAGES = {"set": "digits", "clients": 3, "partition": "iid"}


@pytest.mark.parametrize(("table", "model"), [(SERIES, {"name": "rnn", "hidden": 4}), (IMAGES, {"name": "mlp"})])
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
