"""
Read finished runs, and write a report
======================================

Every run leaves a folder. Runs are read from it again, compared, and shown on a page that needs no other file.
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
# ``load_run`` takes the folder, ``compare`` several:

again = fedgraph.load_run(first.path)
comparison = fedgraph.compare([again, second.path])
comparison.metrics.round(3)

# %%
# Models are state dicts. How far are those of the clients from each other?

models = torch.stack(
    [
        torch.cat([value.flatten() for value in model.values()])
        for model in again.models.values()
    ]
)
figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
picture = axis.imshow(torch.cdist(models, models), cmap="viridis")
figure.colorbar(picture, ax=axis, label="distance of parameters")
axis.set(xlabel="client", ylabel="client")
plt.show()

# %%
# The same as a page, with curves, clients and graphs:

fedgraph.report(comparison).name
