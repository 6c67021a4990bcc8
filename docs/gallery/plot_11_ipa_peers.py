"""
IPA: two peers without a class in common
========================================

One peer has the digits 0 to 4, the other 5 to 9, and they start from different models. Nothing is averaged: while it
trains, each peer pulls its parameters towards the other's. Both are tested on all ten digits.
"""

import matplotlib.pyplot as plt

import fedgraph

keys = {"experiment.rounds": 80, "evaluation.compare-peers": True}
run = fedgraph.run("ipa/digits.toml", set=keys, progress=False)
alone = fedgraph.run(
    "ipa/digits.toml", method="local", set={"experiment.rounds": 20}, progress=False
)

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
measured = run.client_metrics.query(
    "split == 'test' and metric == 'accuracy' and round < 80"
)
for peer, lines in measured.groupby("client"):
    axis.plot(lines["round"], lines["value"], label=peer)
axis.axhline(
    alone.clients["test/accuracy"].mean(),
    color="0.5",
    linestyle=":",
    label="each for itself",
)
axis.set(xlabel="round", ylabel="test accuracy, all ten digits", ylim=(0, 1))
axis.legend()
plt.show()

# %%
# The two models stay different. Their distance in parameters and in predictions:

import pandas as pd

pd.read_csv(run.path / "peers.csv")
