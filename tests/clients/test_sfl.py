from types import SimpleNamespace

import pytest
import torch

from clients.sfl import SFLClient

CLIENTS, WIDTH, TRAINABLE = 5, 9, 6


@pytest.fixture
def client():
    random = torch.Generator().manual_seed(0)
    served = SFLClient.__new__(SFLClient)
    served.settings = {
        "lambda-global": 0.3, "lambda-personal": 0.7, "distance": "euclidean", "lambda-scale": "batch-sum",
        "start": "personalised",
    }  # fmt: skip
    served.request = SimpleNamespace(
        stacked={"parameters": torch.randn(CLIENTS, WIDTH, generator=random)},
        shared={"global": torch.randn(WIDTH, generator=random)},
    )
    return served


def expected(client, row, v, batch):
    """lambda_1 (v - w) / ||v - w|| + lambda_2 (v - u) / ||v - u|| over what is trained, per example of the batch."""
    w, u = client.request.shared["global"][:TRAINABLE], client.request.stacked["parameters"][row, :TRAINABLE]
    return (0.3 * (v - w) / (v - w).norm() + 0.7 * (v - u) / (v - u).norm()) / batch


@pytest.mark.parametrize("clients", [slice(1, 4), torch.tensor([1, 2, 3]), torch.tensor([4, 0, 2])], ids=str)
def test_term_of_a_slice_or_of_single_rows(client, clients):
    rows = torch.arange(CLIENTS)[clients].tolist()
    v, batch = torch.randn(3, TRAINABLE, generator=torch.Generator().manual_seed(1)), torch.tensor([1.0, 4.0, 8.0])
    got = client.gradient_term()(v, clients, batch)
    for position, row in enumerate(rows):
        torch.testing.assert_close(got[position], expected(client, row, v[position], batch[position]))
