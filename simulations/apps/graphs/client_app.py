"""The ClientApp: a client trains the model that it receives on its own graph."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import GraphNet, accuracy, load_graph
from task import train as train_model

from fedgraph.clients import client_name

app = ClientApp(mods=[client_name])


def received(msg: Message, context: Context):
    """Return the received model and the client's graph."""
    model = GraphNet(context.run_config["hidden"])
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    return model, load_graph(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model and send it back."""
    model, graph = received(msg, context)
    loss = train_model(model, graph, context.run_config["local-epochs"], context.run_config["learning-rate"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": int(graph.train_mask.sum())})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Measure the model on the nodes without a label for training."""
    model, graph = received(msg, context)
    metrics = MetricRecord({"accuracy": accuracy(model, graph), "num-examples": int(graph.test_mask.sum())})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
