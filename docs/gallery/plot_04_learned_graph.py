"""
Learn who is alike
==================

SFL* gets no graph: it learns one from the clients' models. It is shown beside the graph that an oracle makes from every
client's labels.
"""

import matplotlib.pyplot as plt

import fedgraph

few = {"experiment.rounds": 5, "data.clients": 10}
given = fedgraph.run("sfl/digits.toml", set=few, progress=False)
learned = fedgraph.run(
    "sfl/digits.toml",
    method="sfl-star",
    set={**few, "graph.source": "none"},
    progress=False,
)

figure, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
titles = ("clients with a label in common", "learned from the models")
for axis, graph, title in zip(
    axes, (given.graph, learned.learned_graph), titles, strict=True
):
    axis.imshow(graph.dense(), cmap="Blues")
    axis.set(title=title, xlabel="is listened to", ylabel="listens")
plt.show()

# %%
# Accuracy of the clients with either graph, on their own test data:

import pandas as pd

pd.DataFrame(
    {"given": given.clients["test/accuracy"], "learned": learned.clients["test/accuracy"]}
).describe().round(3)
