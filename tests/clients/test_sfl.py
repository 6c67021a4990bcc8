from types import SimpleNamespace

import pytest
import torch

from fedgraph.algorithms.sfl import SFLSettings
from fedgraph.clients.sfl import SFLClient
from fedgraph.models.parameters import Layout

CLIENTS, WIDTH, TRAINABLE = 5, 9, 6


@pytest.fixture
def client():
    random = torch.Generator().manual_seed(0)
    served = SFLClient.__new__(SFLClient)
    state = {"body": torch.zeros(2), "head": torch.zeros(TRAINABLE - 2), "running": torch.zeros(WIDTH - TRAINABLE)}
    # A model and a device, and no clients to train.
    served.cohort = SimpleNamespace(
        model=SimpleNamespace(layout=Layout.of(state, buffers=["running"])), device=torch.device("cpu")
    )
    served.settings = SFLSettings(lambda_global=0.3, lambda_personal=0.7)
    served.request = SimpleNamespace(
        stacked={"parameters": torch.randn(CLIENTS, WIDTH, generator=random)},
        shared={"global": torch.randn(WIDTH, generator=random)},
    )
    return served


def expected(client, row, v):
    """lambda_1 (v - w) / ||v - w|| + lambda_2 (v - u) / ||v - u|| over what is trained."""
    w, u = client.request.shared["global"][:TRAINABLE], client.request.stacked["parameters"][row, :TRAINABLE]
    return 0.3 * (v - w) / (v - w).norm() + 0.7 * (v - u) / (v - u).norm()


@pytest.mark.parametrize("clients", [slice(1, 4), torch.tensor([1, 2, 3]), torch.tensor([4, 0, 2])], ids=str)
def test_term_of_a_slice_or_of_single_rows(client, clients):
    """The loss is a mean over the minibatch, and the lambdas stand beside it, whatever the size of the minibatch."""
    rows = torch.arange(CLIENTS)[clients].tolist()
    v, batch = torch.randn(3, TRAINABLE, generator=torch.Generator().manual_seed(1)), torch.tensor([1.0, 4.0, 8.0])
    got = client.gradient_term()(v, clients, batch)
    for position, row in enumerate(rows):
        torch.testing.assert_close(got[position], expected(client, row, v[position]))


def test_layers_that_stay_with_the_client_have_no_term(client):
    client.settings = client.settings.model_copy(update={"personal_layers": ("body",)})
    # The server knows the shared layers only: head and running statistics.
    client.request.stacked["parameters"] = client.request.stacked["parameters"][:, 2:]
    client.request.shared["global"] = client.request.shared["global"][2:]
    v, batch = torch.randn(CLIENTS, TRAINABLE, generator=torch.Generator().manual_seed(1)), torch.ones(CLIENTS)
    got = client.gradient_term()(v, slice(0, CLIENTS), batch)
    assert not got[:, :2].any()
    w, u = client.request.shared["global"][:4], client.request.stacked["parameters"][:, :4]
    to_global, to_personal = (v[:, 2:] - w), (v[:, 2:] - u)
    wanted = 0.3 * to_global / to_global.norm(dim=1, keepdim=True)
    wanted += 0.7 * to_personal / to_personal.norm(dim=1, keepdim=True)
    torch.testing.assert_close(got[:, 2:], wanted)
