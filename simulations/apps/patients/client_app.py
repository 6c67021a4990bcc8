"""The ClientApp: a client goes on with the linear model that it receives, on its own table."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import error, load_table, rows_of
from task import train as train_model

from fedgraph.clients import client_name

app = ClientApp(mods=[client_name])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model and send it back."""
    config = context.run_config
    table = load_table(context.node_config["partition-id"], context.node_config["num-partitions"])
    x, y = rows_of(table, test=False)
    weights = msg.content["arrays"]["weights"].numpy()
    weights = train_model(weights, x, y, config["local-steps"], config["learning-rate"])
    metrics = MetricRecord({"train_error": error(weights, x, y), "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord({"weights": Array(weights)}), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Measure the model on rows that it was not trained on."""
    table = load_table(context.node_config["partition-id"], context.node_config["num-partitions"])
    x, y = rows_of(table, test=True)
    metrics = MetricRecord({"error": error(msg.content["arrays"]["weights"].numpy(), x, y), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
