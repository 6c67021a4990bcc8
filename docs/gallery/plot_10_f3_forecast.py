"""
F3: forecasts from neighbours' embeddings
=========================================

Simulated road sensors forecast their speed an hour ahead. Each sends embeddings of its readings once, and the server
learns a graph over which to mix them. Controls are other graphs over the same embeddings.
"""

import matplotlib.pyplot as plt

import fedgraph

keys = {
    "data.sensors": 12,
    "data.days": 14,
    "train.local-steps": 80,
    "f3-forecast.steps": 300,
}
run = fedgraph.run("forecasting/synthetic-traffic.toml", set=keys, progress=False)

columns = {
    "encoder alone": "test/mae-60min-local",
    "nobody else's embeddings": "test/mae-60min-no-graph",
    "road graph, permuted": "test/mae-60min-permuted-graph",
    "learned graph": "test/mae-60min",
}
errors = run.clients[list(columns.values())]

figure, (clients, graph) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
clients.boxplot(errors, tick_labels=[name.replace(" ", "\n", 1) for name in columns])
clients.set(ylabel="error an hour ahead, mph")
picture = graph.imshow(run.learned_graph.dense(), cmap="Blues")
graph.set(title="learned: whose embedding goes to whom", xlabel="sends", ylabel="receives")
figure.colorbar(picture, ax=graph)
plt.show()

# %%
errors.rename(columns={value: name for name, value in columns.items()}).mean().round(2)
