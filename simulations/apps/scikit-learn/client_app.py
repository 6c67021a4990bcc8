"""The ClientApp: a clinic goes on with the logistic regression that it receives."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import CLASSES, load_data, model_of

from fedgraph.clients import client_name

app = ClientApp(mods=[client_name])


def received(msg: Message, context: Context):
    """Return the received model, and the clinic's rows for training and testing."""
    arrays, config = msg.content["arrays"], msg.content["config"]
    partition, partitions = context.node_config["partition-id"], context.node_config["num-partitions"]
    seed = 1000 * config["server-round"] + partition
    model = model_of(arrays["coef"].numpy(), arrays["intercept"].numpy(), context.run_config["learning-rate"], seed)
    return model, *load_data(partition, partitions)


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model and send it back."""
    model, x, y, _, _ = received(msg, context)
    for _ in range(context.run_config["local-epochs"]):
        model.partial_fit(x, y, CLASSES)
    arrays = ArrayRecord({"coef": Array(model.coef_), "intercept": Array(model.intercept_)})
    metrics = MetricRecord({"train_accuracy": float(model.score(x, y)), "num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Measure the model on rows that it was not trained on."""
    model, _, _, x, y = received(msg, context)
    metrics = MetricRecord({"accuracy": float(model.score(x, y)), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
