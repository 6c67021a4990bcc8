"""
Compare methods on the same clients
===================================

Twenty clients see two kinds of handwritten digits each. SFL aggregates their models over a graph that links clients
with a kind in common, FedAvg over everybody, and ``local`` shares nothing.
"""

import matplotlib.pyplot as plt

import fedgraph

comparison = fedgraph.run_methods("sfl/digits.toml", ["sfl", "fedavg", "local"], progress=False)
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
# Two classes are easily learned alone, so that ``local`` is ahead in the end; who shares with whom decides how much is
# lost by sharing. The clients that lose most under FedAvg:

accuracy.sort_values("fedavg").head()
