import os
import random
import sys
import time

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

import fedgraph
from fedgraph.clients import table_client_app
from fedgraph.federation.grids.in_process import LocalGrid
from fedgraph.federation.grids.local_flower import run_app_on_flower
from fedgraph.strategies import FedNGM
from fedgraph.support.errors import AppError, IdentityError, RunError


def by_hand(nodes, rounds, lr):
    """Federated averaging of linear regressions, in plain NumPy."""
    w = np.zeros(4)
    for _ in range(rounds):
        total, count = np.zeros(4), 0
        for partition in range(nodes):
            generator = np.random.default_rng(partition)
            x = generator.normal(size=(20 + partition, 4))
            y = x @ np.arange(4.0) + generator.normal(size=len(x))
            total += len(x) * (w - lr * x.T @ (x @ w - y) / len(x))
            count += len(x)
        w = total / count
    return w


def test_an_app_folder_gives_the_weights_of_federated_averaging(write_app):
    done = fedgraph.simulate(write_app(), num_nodes=5, run_config="num-server-rounds=4 lr=0.2")
    np.testing.assert_allclose(done.returned, by_hand(5, 4, 0.2), rtol=1e-12)
    assert done.answered == 4 * 5
    assert done.failures == []
    assert [context.node_config for context in done.contexts] == [
        {"partition-id": i, "num-partitions": 5} for i in range(5)
    ]
    assert done.contexts[0].run_config == done.context.run_config
    assert done.context.run_config["model.width"] == 4
    assert repr(done) == "Simulation(answered=20)"


@pytest.mark.process
@pytest.mark.xdist_group("flower")
def test_an_app_gives_the_same_weights_as_flwr_run_on_ray(write_app, tmp_path):
    folder, out, log = write_app(), tmp_path / "ray.hex", tmp_path / "flower.log"
    here = fedgraph.simulate(folder, num_nodes=3).returned
    # Flower draws as many nodes as are there when a round begins, or min_train_nodes.
    run_app_on_flower(folder, {"out": str(out), "wait-for": 3}, 3, log, {})
    assert out.is_file(), log.read_text(errors="replace")[-3000:]
    assert out.read_text() == here.tobytes().hex()


def regression(**client_options):
    """The two apps of a notebook, over data that both enclose."""
    generator = np.random.default_rng(0)
    xs = generator.normal(size=(4, 30, 3))
    ys = xs @ np.array([1.0, -1.0, 2.0]) + generator.normal(size=(4, 30))
    server, client = ServerApp(), ClientApp(**client_options)

    @client.train()
    def train(message, context):
        i, w = context.node_config["partition-id"], message.content["arrays"]["w"].numpy()
        w = w - message.content["config"]["lr"] * xs[i].T @ (xs[i] @ w - ys[i]) / 30
        records = {"arrays": ArrayRecord({"w": Array(w)}), "metrics": MetricRecord({"num-examples": 30})}
        return Message(RecordDict(records), reply_to=message)

    @client.evaluate()
    def evaluate(message, context):
        i, w = context.node_config["partition-id"], message.content["arrays"]["w"].numpy()
        metrics = {"num-examples": 30, "mse": float(((xs[i] @ w - ys[i]) ** 2).mean())}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    @server.main()
    def main(grid, context):
        start = ArrayRecord({"w": Array(np.zeros(3))})
        lr = ConfigRecord({"lr": context.run_config["lr"]})
        return FedAvg().start(grid, start, num_rounds=3, train_config=lr)

    return server, client


def test_apps_of_a_notebook_run_and_what_main_returns_is_kept():
    server, client = regression()
    first, second = (fedgraph.simulate(server, client, num_nodes=4, run_config={"lr": 0.1}) for _ in range(2))
    result = first.returned
    mse = [metrics["mse"] for metrics in result.evaluate_metrics_clientapp.values()]
    assert len(mse) == 3
    assert mse[2] < mse[1] < mse[0]
    # Flower's strategies shuffle the nodes: bits repeat because replies come in the order of nodes.
    assert first.returned.arrays["w"].data == second.returned.arrays["w"].data
    assert first.answered == 2 * 3 * 4


def test_flowers_loop_on_the_grid_for_our_runs_gives_the_same_within_rounding():
    server, client = regression()
    wanted = FedAvg().start(
        LocalGrid.of_partitions(client, 4),
        ArrayRecord({"w": Array(np.zeros(3))}),
        num_rounds=3,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    found = fedgraph.simulate(server, client, num_nodes=4, run_config={"lr": 0.1}).returned
    np.testing.assert_allclose(found.arrays["w"].numpy(), wanted.arrays["w"].numpy(), rtol=1e-12)


def test_replies_are_in_the_order_of_nodes_for_sampled_nodes_too():
    server, client, seen = ServerApp(), ClientApp(), []

    class Watching(FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            seen.append([reply.content["metrics"]["partition"] for reply in replies])
            return None

    @client.evaluate()
    def evaluate(message, context):
        metrics = {"num-examples": 1, "partition": context.node_config["partition-id"]}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    @server.main()
    def main(grid, context):
        Watching(fraction_train=0.0, fraction_evaluate=0.5).start(grid, ArrayRecord(), num_rounds=6)

    fedgraph.simulate(server, client, num_nodes=12)
    assert all(partitions == sorted(partitions) for partitions in seen)
    assert len({tuple(partitions) for partitions in seen}) > 1


def talking(handler, rounds=2, message_type="query", **client_options):
    """Apps whose server sends a message to every node in each round and returns what the nodes replied."""
    server, client = ServerApp(), ClientApp(**client_options)
    client.query()(handler)

    @server.main()
    def main(grid, context):
        context.state["seen"] = ConfigRecord({"nodes": len(list(grid.get_node_ids()))})
        told = []
        for _ in range(rounds):
            content = RecordDict({"config": ConfigRecord({"x": 1})})
            replies = grid.send_and_receive([Message(content, node, message_type) for node in grid.get_node_ids()])
            told.append([r.error.reason if r.has_error() else dict(r.content["config"]) for r in replies])
        return told

    return server, client


def reply(message, **config):
    return Message(RecordDict({"config": ConfigRecord(config)}), reply_to=message)


def test_nodes_are_told_who_they_are_and_remember():
    def handler(message, context):
        count = context.state.setdefault("count", ConfigRecord({"count": 0}))
        count["count"] += 1
        config = context.node_config
        return reply(message, **count, client=config["client"], of=config["num-partitions"], p=config["partition-id"])

    configs = [{"client": "mercy", "site": {"beds": 10}}, {"client": "county"}]
    done = fedgraph.simulate(*talking(handler), node_configs=configs)
    assert done.returned[1] == [
        {"count": 2, "client": "mercy", "of": 2, "p": 0},
        {"count": 2, "client": "county", "of": 2, "p": 1},
    ]
    assert done.contexts[0].node_config["site.beds"] == 10
    assert done.contexts[1].state["count"]["count"] == 2
    assert done.state["seen"]["nodes"] == 2


def test_mods_and_lifespans_run_around_handlers():
    order = []

    def mod(message, context, call):
        order.append("mod")
        message.content["config"]["x"] = 5
        answer = call(message, context)
        answer.content["config"]["y"] = 6
        return answer

    def handler(message, context):
        order.append("handler")
        return reply(message, **message.content["config"])

    server, client = talking(handler, rounds=1, mods=[mod])

    @client.lifespan()
    def client_lifespan(context):
        order.append("begin")
        yield
        order.append("end")

    @server.lifespan()
    def server_lifespan(context):
        order.append("open")
        yield
        order.append("close")

    assert fedgraph.simulate(server, client, num_nodes=2).returned == [[{"x": 5, "y": 6}] * 2]
    assert order == ["open", *["begin", "mod", "handler", "end"] * 2, "close"]


def test_an_exception_of_a_client_is_an_error_reply_or_ends_the_run(caplog):
    def handler(message, context):
        if context.node_config["partition-id"] == 1:
            raise ArithmeticError("overflow")
        return reply(message, fine=True)

    done = fedgraph.simulate(*talking(handler, rounds=1), num_nodes=3)
    assert done.returned == [[{"fine": True}, "ArithmeticError: overflow", {"fine": True}]]
    assert done.failures[0].partition == 1
    assert "node 1001 (partition 1), message 'query':\nTraceback" in caplog.text
    with pytest.raises(ArithmeticError, match="overflow") as raised:
        fedgraph.simulate(*talking(handler, rounds=1), num_nodes=3, on_error="raise")
    assert raised.traceback[-1].name == "handler"
    assert "partition 1" in raised.value.__notes__[0]
    with pytest.raises(AppError, match="'reply' or 'raise'"):
        fedgraph.simulate(*talking(handler), on_error="ignore")


def test_an_exception_of_the_server_passes_as_it_is():
    server, error = ServerApp(), LookupError("nothing there")

    @server.main()
    def main(grid, context):
        raise error

    for _ in range(2):
        with pytest.raises(LookupError) as raised:
            fedgraph.simulate(server, ClientApp())
        assert raised.value is error
        assert not hasattr(error, "__notes__")
    # The app is left as it was.
    assert server._main is main


def test_all_is_done_in_this_thread():
    import threading

    threads = set()

    def handler(message, context):
        threads.add(threading.current_thread())
        # Where a debugger would show the whole way from the caller.
        assert any(frame.f_code.co_name == "test_all_is_done_in_this_thread" for frame in frames())
        return reply(message)

    def frames():
        frame = sys._getframe()
        while frame:
            yield frame
            frame = frame.f_back

    done = fedgraph.simulate(*talking(handler), num_nodes=2, on_error="raise")
    assert done.answered == 4
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("option", ["min_available_nodes", "min_train_nodes", "min_evaluate_nodes"])
def test_a_strategy_that_waits_for_more_nodes_is_told_how_many_there_are(option):
    server, client = ServerApp(), regression()[1]

    @server.main()
    def main(grid, context):
        lr = ConfigRecord({"lr": 0.1})
        FedAvg(**{option: 5}).start(grid, ArrayRecord({"w": Array(np.zeros(3))}), num_rounds=1, train_config=lr)

    began = time.monotonic()
    with pytest.raises(RunError, match="simulate 5 nodes"):
        fedgraph.simulate(server, client, num_nodes=3)
    assert time.monotonic() - began < 5


def test_apps_of_the_old_api_are_refused():
    server, client = regression()
    with pytest.raises(AppError, match=r"server_fn .*@app\.main\(\)"):
        fedgraph.simulate(ServerApp(server_fn=lambda context: None), client)
    with pytest.raises(AppError, match="client_fn"):
        fedgraph.simulate(server, ClientApp(client_fn=lambda context: None))
    with pytest.raises(AppError, match="main function"):
        fedgraph.simulate(ServerApp(), client)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_nodes": 3, "node_configs": [{}]}, "num_nodes is 3, .*node_configs"),
        ({"num_nodes": 0}, "at least one node"),
        ({"node_configs": [{"table": np.zeros(3)}]}, r"table of node_configs\[0\] is ndarray"),
        ({"run_config": {"rows": [1]}}, "rows of the run config is list"),
        ({"seed": -1}, "seed is -1"),
        ({"client_app": None}, "second argument .*ClientApp"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    server, client = regression()
    with pytest.raises(AppError, match=message):
        fedgraph.simulate(**{"server_app": server, "client_app": client, **arguments})


def test_a_folder_brings_its_own_client_app_and_knows_its_keys(write_app):
    with pytest.raises(AppError, match="leave out client_app"):
        fedgraph.simulate(write_app(), ClientApp())
    with pytest.raises(AppError, match="'learning-rate'"):
        fedgraph.simulate(write_app(), run_config={"learning-rate": 0.1})


def test_apps_that_both_have_a_module_task_do_not_mix(write_app):
    late = """
        from flwr.app import ConfigRecord, Message, RecordDict
        from flwr.clientapp import ClientApp

        app = ClientApp()

        @app.query()
        def query(message, context):
            import task    # first looked for in the middle of the run
            return Message(RecordDict({"config": ConfigRecord({"name": task.NAME})}), reply_to=message)
    """
    server = """
        from flwr.app import Message, RecordDict
        from flwr.serverapp import ServerApp

        app = ServerApp()

        @app.main()
        def main(grid, context):
            replies = grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])
            return [reply.content["config"]["name"] for reply in replies]
    """
    folders = [
        write_app(name, task=f"NAME = '{name}'\n", client_app=late, server_app=server) for name in ("one", "two")
    ]
    for _ in range(2):
        assert [fedgraph.simulate(folder, on_error="raise").returned for folder in folders] == [
            ["one"] * 2,
            ["two"] * 2,
        ]


def drawing(message, context):
    return reply(message, a=random.random(), b=float(np.random.rand()), c=float(torch.rand(())))


def test_nothing_is_seeded_unless_a_seed_is_given():
    def run(seed):
        return fedgraph.simulate(*talking(drawing), num_nodes=2, seed=seed).returned

    assert run(3) == run(3)
    assert run(3) != run(4)
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    after = (random.getstate()[1][:5], np.random.get_state()[1][:5].tolist(), torch.get_rng_state()[:50].tolist())
    fedgraph.simulate(*talking(lambda message, context: reply(message)), num_nodes=2)
    assert after == (
        random.getstate()[1][:5],
        np.random.get_state()[1][:5].tolist(),
        torch.get_rng_state()[:50].tolist(),
    )
    assert run(None) != run(None)


def test_the_seed_comes_before_modules_of_the_app(write_app):
    task = "import numpy as np\nSTART = np.random.rand()\ndef step(w, partition, lr):\n    return w + START, 1\n"
    found = [fedgraph.simulate(write_app(task=task), seed=seed).returned.tolist() for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_an_error_in_the_app_of_a_table_is_told_in_full_and_raised_where_asked_for(caplog):
    def load(context):
        raise ValueError("the file is empty")

    server = ServerApp()

    @server.main()
    def main(grid, context):
        FedNGM(scaling={"source": "shared-ranges"}).start(grid)

    with pytest.raises(ValueError, match="the file is empty"):
        fedgraph.simulate(server, table_client_app(load=load), num_nodes=2, on_error="raise")
    with pytest.raises(IdentityError, match="the file is empty"):
        fedgraph.simulate(server, table_client_app(load=load), num_nodes=2)
    assert "FEDGRAPH_FULL_ERRORS" not in os.environ


def test_apps_in_the_wrong_order_are_told():
    with pytest.raises(AppError, match="the first argument is the ServerApp"):
        fedgraph.simulate(ClientApp(), ServerApp())
