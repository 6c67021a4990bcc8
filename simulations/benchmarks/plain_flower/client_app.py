"""The ClientApp: every node is one sensor."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, batches, load_data
from task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received model on this sensor's data and send it back."""
    config = context.run_config
    model = Net(int(config["hidden"]))
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]

    data = load_data(int(context.node_config["partition-id"]), str(config["data-dir"]))
    num_examples = len(data[0])
    train_loss = train_fn(
        model,
        data,
        batches(num_examples, int(config["batch-size"]), int(config["local-steps"])),
        float(config["learning-rate"]),
        float(config["momentum"]),
        float(config["clip-norm"]),
    )

    metrics = MetricRecord({"train_loss": train_loss, "num-examples": num_examples})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
