"""Many owners represented at once equal each alone."""

from __future__ import annotations

import pytest
import torch

from fedgraph.fusion.owner_models import representing
from fedgraph.fusion.owner_models.representing import represent
from fedgraph.models import build
from fedgraph.models.task import TaskSpec
from fedgraph.training.working_set import WorkingSet

TASK = TaskSpec("classification", (6, 2), (3,))


@pytest.mark.parametrize("table", [{"name": "lstm", "hidden": 4, "read-out": "steps"}, {"name": "mlp", "hidden": [5]}])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_equals_one_by_one(monkeypatch, table, compiled, workers):
    model = build(table, TASK)
    model = model.compiled() if compiled else model
    rows = torch.stack([model.initial(torch.Generator().manual_seed(i)) for i in range(5)])
    inputs = torch.randn(5, 13, 6, 2, generator=torch.Generator().manual_seed(0))
    blocks = []
    monkeypatch.setattr(
        WorkingSet, "clients_per_block", lambda self, batch_size, device: blocks.append(batch_size) or 2
    )
    found = represent(model, rows, inputs, batch_size=4, workers=workers)
    assert found.embeddings.shape == (5, 13, model.embedding_size)
    assert found.probabilities.shape == (5, 13, 3)
    for client in range(5):
        twin = model.twin().eval()
        twin.load_state_dict(model.layout.row_state(rows[client]))
        seen = []
        twin.head.register_forward_pre_hook(lambda layer, given, seen=seen: seen.append(given[0]))
        with torch.no_grad():
            expected = torch.softmax(twin(inputs[client]), dim=1)
        torch.testing.assert_close(found.probabilities[client], expected, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(found.embeddings[client], seen[0], atol=1e-6, rtol=1e-5)
    assert not found.embeddings.requires_grad


def test_never_more_than_a_batch_of_a_block_at_once(monkeypatch):
    model = build({"name": "mlp", "hidden": [5]}, TASK)
    shapes = []

    def watched(state, inputs, original=model.represent):
        shapes.append(tuple(inputs.shape[:2]))
        return original(state, inputs)

    monkeypatch.setattr(model, "represent", watched)
    monkeypatch.setattr(representing, "working_set", lambda model, task: WorkingSet(1, 1))
    monkeypatch.setattr(WorkingSet, "clients_per_block", lambda self, batch_size, device: 2)
    represent(model, torch.zeros(3, model.layout.num_parameters), torch.zeros(3, 9, 6, 2), batch_size=4, workers=1)
    assert shapes == [(2, 4), (2, 4), (2, 1), (1, 4), (1, 4), (1, 1)]
