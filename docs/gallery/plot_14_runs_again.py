"""
Runs in a notebook
==================

Every run leaves a folder. In a notebook, runs, comparisons, graphs and models display themselves, and ``plot`` draws
them; one call writes a self-contained page. (This example can be downloaded as a notebook below.)
"""

import matplotlib.pyplot as plt
import pandas as pd
import torch

import fedgraph

first = fedgraph.run("sfl/digits.toml", set={"experiment.rounds": 4}, progress=False)
second = fedgraph.run(
    "sfl/digits.toml", set={"experiment.rounds": 4, "sfl.alpha": 0.5}, progress=False
)
pd.Series(sorted(path.name for path in first.path.iterdir()), name="file")

# %%
# During a run, a line below the cell shows the progress, unless ``progress=False``, as here. Afterwards,
# ``load_run`` reads the folder, and the last line of a cell shows the run:

again = fedgraph.load_run(first.path)
again

# %%
# ``plot`` draws the client graph, each client coloured by its result, beside the learning curves. It returns a
# Matplotlib figure: ``savefig`` writes it.

again.plot()

# %%
# Several runs side by side, as a table and as a picture:

comparison = fedgraph.compare([again, second.path])
comparison

# %%
comparison.plot()

# %%
# The client graph by itself, coloured by each client's F1. It converts to graphs of NetworkX and PyTorch Geometric, and
# to a data frame of its edges.

again.graph.plot(again.clients["test/f1"].to_dict(), "f1")

# %%
again.graph.to_pandas().head()

# %%
# Models are state dicts. How far apart are the clients' models?

models = [
    torch.cat([value.flatten() for value in model.values()])
    for model in again.models.values()
]
figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
picture = axis.imshow(torch.cdist(torch.stack(models), torch.stack(models)), cmap="viridis")
figure.colorbar(picture, ax=axis, label="distance of parameters")
axis.set(xlabel="client", ylabel="client")
plt.show()

# %%
# All of this as a page, with curves, clients and graphs:

fedgraph.report(comparison).name
