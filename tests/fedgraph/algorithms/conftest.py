"""A problem small enough to redo a whole run of a method by hand."""

import pytest
import torch
from flwr.app import Message
from torch.nn.functional import cross_entropy

from fedgraph.clients.app import app as client_app
from fedgraph.data import open_source, parse_data
from fedgraph.federation.federation import Federation
from fedgraph.messages import error_content
from fedgraph.models import build, initial_model
from fedgraph.models.base import TaskSpec
from fedgraph.models.parameters import Layout
from fedgraph.runs.folder import RunFolder
from fedgraph.runs.plan import RunPlan
from fedgraph.runs.result_files import load_models
from fedgraph.strategies.engine.algorithm_run import AlgorithmRun
from fedgraph.support.errors import RunError
from fedgraph.support.files import load_state
from fedgraph.training.client_state import ClientState

CLASSES, PIXELS = 10, 64
STEPS, RATE = 3, 0.2


def descend(gradient, v, steps=STEPS, rate=RATE, momentum=0.0, nesterov=False):
    """Gradient descent as in torch.optim.SGD."""
    velocity = torch.zeros_like(v)
    for _ in range(steps):
        velocity = momentum * velocity + gradient(v)
        v = v - rate * (gradient(v) + momentum * velocity if nesterov else velocity)
    return v


class Problem:
    """Three clients of unequal size with a linear classifier; every minibatch is all of a client's examples.

    So the order of examples is of no matter, and a client's training is gradient descent, here in float64. A model is
    a vector of the 640 weights and the 10 biases.
    """

    names = ("client-0", "client-1", "client-2")
    descend = staticmethod(descend)

    def __init__(self, data_dir, run_experiment, out):
        self._run, self._out = run_experiment, out
        self.tables = {
            "experiment": {"name": "small", "rounds": 3},
            "data": {"set": "digits", "clients": 3, "partition": "dirichlet", "alpha": 0.5, "limit": 300},
            "model": {"name": "mlp", "hidden": []},
            "evaluation": {"splits": ["train", "test"]},
            "train": {"learning-rate": RATE, "batch-size": 1000, "local-steps": STEPS, "workers": 1},
        }
        data = open_source(parse_data(self.tables["data"]), data_dir).load(self.names)
        train = data.splits["train"]
        self.sizes = train.num_examples.double()
        assert len(set(self.sizes.tolist())) == 3
        batch = train.batch(torch.arange(int(self.sizes.max())).expand(3, -1))
        self.examples = [
            (inputs[:size].flatten(1).double(), targets[:size])
            for inputs, targets, size in zip(batch.inputs, batch.targets, self.sizes.int().tolist(), strict=True)
        ]
        self.initial = initial_model(build(self.tables["model"], data.task), 0).double()

    def loss(self, client, v):
        inputs, targets = self.examples[client]
        outputs = inputs @ v[:-CLASSES].view(CLASSES, PIXELS).T + v[-CLASSES:]
        return cross_entropy(outputs, targets)

    def losses(self, models):
        """Of each client's model on its own training examples."""
        return pytest.approx([self.loss(client, v).item() for client, v in enumerate(models)], rel=1e-4)

    def gradient(self, client, v):
        v = v.detach().requires_grad_()
        return torch.autograd.grad(self.loss(client, v), v)[0]

    def train(self, client, v, term=lambda v: 0.0, **sgd):
        return descend(lambda v: self.gradient(client, v) + term(v), v, **sgd)

    def mean(self, models):
        return (self.sizes / self.sizes.sum()) @ torch.stack(models)

    def run(self, method, table=None, train=None, lost=(), away=(), **more):
        """A run folder; in the rounds ``lost`` client-1 works but its reply is lost, in those ``away`` it does not."""
        head = {"method": method, **more.pop("experiment", {})}
        tables = {**self.tables, "experiment": {**self.tables["experiment"], **head}, method: table or {}}
        tables["train"] = {
            key: value for key, value in {**tables["train"], **(train or {})}.items() if value is not None
        }
        tables["evaluation"] = {**tables["evaluation"], **more.pop("evaluation", {})}
        if lost or away:
            tables["experiment"].setdefault("on-missing", "skip")
            more.setdefault("node_configs", [{"clients": name} for name in self.names])

        def client(message, context):
            config = message.content["config"]
            concerned = "client-1" in config.get("clients", ()) and config["train"]
            server_round = config.get("server-round") if concerned else None
            reply = None if server_round in away else client_app(message, context)
            if server_round in (*lost, *away):
                return Message(error_content("lost"), reply_to=message)
            return reply

        return self._run(tables, client=client, **more)

    def measured(self, folder, server_round=3):
        """The clients' losses on their training examples, as measured after a round."""
        (found,) = [line for line in folder.evaluations("train") if line["round"] == server_round]
        return [found["per_client"]["loss"][name] for name in self.names]

    @staticmethod
    def global_model(folder):
        _, shared = load_models(folder.models)
        return torch.cat([shared["head.weight"].flatten(), shared["head.bias"]]).double()

    def resumed(self, method, table=None, train=None, **more):
        """A run that is stopped after the clients' work of round 2 and before the server has heard of it, resumed."""
        with pytest.raises(RunError, match="lost"):
            self.run(method, table, train, lost=(2,), experiment={"on-missing": "fail"}, **more)
        (folder,) = (self._out / "runs").iterdir()
        return self.run(method, table, train, folder=RunFolder.open(folder), **more)

    def own_models(self, folder):
        """The clients' models of a finished run."""
        own, _ = load_models(folder.models)
        rows = [torch.cat([own[name]["head.weight"].flatten(), own[name]["head.bias"]]) for name in self.names]
        return torch.stack(rows).double()

    @staticmethod
    def strategy_state(folder):
        """What the server remembers at the end of a run."""
        return load_state(folder.checkpoint)["strategy"]

    def kept(self, folder, purpose, **empty):
        """What the clients remember at the end of a run."""
        return ClientState(folder.path / "nodes", folder.run, purpose).load(self.names, 10**6, empty)


@pytest.fixture(scope="session")
def serve():
    """``serve(algorithm, counts, initial)``: an algorithm at a server with clients a, b, ... of so many examples."""

    def of(algorithm, counts, initial, buffers=(), graph=None, hosts=None, train="{}", on_missing="fail"):
        names, counts = tuple("abcdefgh"[: len(counts)]), torch.as_tensor(counts)
        hosts = {7: torch.arange(len(names))} if hosts is None else hosts
        examples = dict.fromkeys(("train", "validation", "test"), counts)
        task = TaskSpec("regression", (2,), (1,))
        federation = Federation(names=names, hosts=hosts, task=task, data="test", num_examples=examples, graph=graph)
        plan = RunPlan(Layout.of(initial, buffers), "c", f'{{"train": {train}}}', "run", on_missing=on_missing)
        return AlgorithmRun(algorithm, federation, plan, initial)

    return of


@pytest.fixture(scope="session")
def aggregated():
    """``aggregated(served, round, replies)``: next models of those who replied."""

    def of(served, server_round, replies):
        begun, _ = served.algorithm.begin(served.clients, served.state, server_round)
        with pytest.raises(StopIteration) as end:
            begun.send(replies.answers())
        served.state = served.algorithm.after(served.state, end.value.value)
        return served.models[replies.positions]

    return of


@pytest.fixture
def problem(data_dir, run_experiment, tmp_path):
    return Problem(data_dir, run_experiment, tmp_path)


@pytest.fixture
def close():
    """Equal to what float32 can tell."""
    return lambda got, wanted: torch.testing.assert_close(got.double(), wanted.double(), rtol=1e-5, atol=2e-6)
