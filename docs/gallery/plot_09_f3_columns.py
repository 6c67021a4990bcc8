"""
F3: a table cut by columns
==========================

Three clinics have measured different features of the same patients (scikit-learn's breast cancer data). Fusions of
their embeddings are compared with the best clinic alone and a majority vote.
"""

import matplotlib.pyplot as plt

import fedgraph

keys = {"train.local-epochs": 60, "f3.epochs": 60, "f3.draw-per": "batch"}
runs = {
    fusion: fedgraph.run(
        "f3/breast-cancer.toml", set={**keys, "f3.fusion": fusion}, progress=False
    )
    for fusion in ("graph", "concatenation", "vote", "best-owner")
}
accuracy = {name: run.clients["test/accuracy"].mean() for name, run in runs.items()}

figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
alone = runs["graph"].clients["test/accuracy-local"]
axis.bar([f"{name} alone" for name in alone.index], alone, color="0.75")
axis.bar(list(accuracy), list(accuracy.values()))
axis.set(ylim=(0.8, 1), ylabel="test accuracy")
axis.tick_params(axis="x", rotation=30)
plt.show()
