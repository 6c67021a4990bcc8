"""
Compare methods on the same clients
===================================

Forty clients have 24 handwritten digits each, in four groups that label the digits differently. SFL averages models
along the graph of the groups, FedAvg averages over everybody, and ``local`` shares nothing.
"""

import matplotlib.pyplot as plt

import fedgraph

methods = ["sfl", "fedavg", "local"]
comparison = fedgraph.run_methods("sfl/digits-groups.toml", methods, progress=False)
comparison.metrics.round(3)

# %%
# Learning curves: the mean over the clients after every round, on their own test data.

figure, (curves, clients) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for label, run in zip(comparison.labels, comparison, strict=True):
    lines = run.metrics.query("split == 'validation' and metric == 'accuracy'")
    curves.plot(lines["round"], lines["mean"], label=label)
curves.set(xlabel="round", ylabel="validation accuracy, mean of clients")
curves.legend()

accuracy = comparison.clients("test/accuracy")
clients.boxplot(accuracy, tick_labels=accuracy.columns)
clients.set(ylabel="test accuracy, every client")
plt.show()

# %%
# One model for all is of no use here, and a client has too little data to learn alone. The clients with the lowest
# accuracy under SFL:

accuracy.sort_values("sfl").head()
