"""The ClientApp: every node is one sensor."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from task import Net, load_data
from task import train as train_fn

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received model on this sensor's data and send it back."""
    config = context.run_config
    model = Net(int(config["hidden"]))
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())  # type: ignore[union-attr]

    partition_id = int(context.node_config["partition-id"])
    trainloader = load_data(partition_id, int(config["batch-size"]), str(config["data-dir"]))
    train_loss = train_fn(
        model,
        trainloader,
        int(config["local-steps"]),
        float(config["learning-rate"]),
        float(config["momentum"]),
        float(config["clip-norm"]),
        torch.device("cuda:0" if torch.cuda.is_available() else "cpu"),
        str(config["optimizer"]),
    )

    metrics = MetricRecord({"train_loss": train_loss, "num-examples": len(trainloader.dataset)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=msg)
