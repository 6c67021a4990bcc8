"""
F3: four owners of a quarter of every image
===========================================

Each owner trains on its own patch of handwritten digits and sends embeddings once, never pixels. The server aligns
them, learns a graph over the owners and fuses them.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import fedgraph

keys = {"train.local-epochs": 40, "f3.epochs": 60, "f3.draw-per": "batch"}
run = fedgraph.run("f3/digits.toml", set=keys, progress=False)

figure, (whole, alone, graph) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
whole.imshow(load_digits().images[8], cmap="gray_r")
whole.axhline(3.5, color="tab:red")
whole.axvline(3.5, color="tab:red")
whole.set(title="what four owners see of one image")
whole.axis("off")

fused = run.clients["test/accuracy"].mean()
run.clients["test/accuracy-local"].plot.bar(ax=alone, rot=0)
alone.axhline(fused, color="tab:orange", label=f"fused: {fused:.3f}")
alone.set(ylabel="test accuracy", title="owners alone, and fused")
alone.legend(loc="lower right")

picture = graph.imshow(run.learned_graph.dense(), vmin=0, vmax=1, cmap="Blues")
graph.set(title="learned probabilities of edges")
figure.colorbar(picture, ax=graph)
plt.show()

# %%
# What each owner has sent, in one exchange:

f"{run.summary['bytes_up_per_client'] / 1e3:.0f} kB"
