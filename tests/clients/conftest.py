"""One node that answers requests of a method."""

import pytest
import torch
from flwr.app import Context, RecordDict

from fedgraph.clients.engine.node import Node
from fedgraph.experiment.experiment import parse_experiment
from fedgraph.messages import WorkRequest
from fedgraph.training.cohort import TrainResult


@pytest.fixture
def exported(tmp_path):
    """A model that an owner of a patch has already, exported: 16 pixels, an embedding of 9, 10 classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 9), torch.nn.Tanh(), torch.nn.Linear(9, 10))
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(own.eval(), (torch.zeros(5, 1, 4, 4),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "own.pt2")
    return tmp_path / "own.pt2"


@pytest.fixture
def first_client_fails(monkeypatch):
    """``first_client_fails(kind, trouble)``: from now on the first client of a request diverges, or does not train."""

    def fails(kind, trouble):
        plain = kind.train_from

        def spoilt(self, start, gradient_term=None):
            result = plain(self, start, gradient_term)
            if trouble == "diverged":
                result.parameters[0, 5] = torch.nan
                return result
            parameters = torch.cat([start[:1], result.parameters[1:]])
            steps = result.steps * torch.tensor([0, 1])
            return TrainResult(parameters, result.loss, steps, result.num_examples, {})

        monkeypatch.setattr(kind, "train_from", spoilt)

    return fails


class OneNode:
    """Hosts two of the six clients of a small experiment and remembers between requests; round 1 unless said."""

    clients = ("client-0", "client-1")

    def __init__(self, kind, method, tables, folder, train=None):
        tables = {**tables, "train": {**tables["train"], "workers": 1, **(train or {})}}
        self.kind, self.part = kind, parse_experiment(tables).client_part(method)
        config = {"clients": ",".join(self.clients), "state-dir": str(folder / "state")}
        self.node = Node.of(Context(1, 1, config, RecordDict(), {}))
        self.cohort = self.node.cohort(self.part, self.clients)
        self.layout = self.cohort.model.layout

    def request(self, server_round=1, shared=None, stacked=None, clients=None, **fields):
        names = self.clients if clients is None else clients
        return WorkRequest(
            names, server_round, stacked or {}, shared or {}, **fields, client="c", experiment=self.part, run="run"
        )

    def served(self, *arguments, **fields):
        """The client class's answer in the making."""
        return self.kind(self.node, self.request(*arguments, **fields))

    def ask(self, *arguments, **fields):
        return self.served(*arguments, **fields).reply()

    def model(self, seed=0):
        width = self.layout.num_parameters
        return torch.zeros(width).normal_(0, 0.1, generator=torch.Generator().manual_seed(seed))

    def remembered(self, purpose, **empty):
        return self.node.state("run", purpose).load(self.clients, 10**6, empty)


@pytest.fixture
def one_node(digits_tables, tmp_path):
    return lambda kind, method=None, train=None: OneNode(kind, method or {}, digits_tables, tmp_path, train)
