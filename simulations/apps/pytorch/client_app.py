"""The ClientApp: a client trains the model that it receives on its own images."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, accuracy, load_data
from task import train as train_model

from fedgraph.clients import client_name

app = ClientApp(mods=[client_name])


def received(msg: Message, context: Context):
    """Return the received model, and the client's batches for training and testing."""
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    seed = 1000 * msg.content["config"]["server-round"] + partition
    return model, *load_data(partition, partitions, context.run_config["batch-size"], seed)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model and send it back."""
    model, batches, _ = received(msg, context)
    loss = train_model(model, batches, context.run_config["local-epochs"], msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Measure the model on images that it was not trained on."""
    model, _, batches = received(msg, context)
    metrics = MetricRecord({"accuracy": accuracy(model, batches), "num-examples": len(batches.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
