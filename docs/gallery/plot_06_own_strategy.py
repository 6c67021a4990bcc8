"""
A strategy of your own
======================

A strategy is a class whose ``aggregate`` makes the next models from the answers. It may be defined where it is used, in
a script or a notebook.
"""

import matplotlib.pyplot as plt
import torch
from pydantic import Field

import fedgraph
from fedgraph.algorithms import Algorithm
from fedgraph.support.settings import Settings


class TrimSettings(Settings):
    """trim : share of the models that are left out at either end."""

    trim: float = Field(default=0.2, ge=0, lt=0.5)


class TrimmedNeighbourMean(Algorithm[TrimSettings]):
    """Every client gets the trimmed mean of its own and its neighbours' models."""

    needs_graph = True

    def aggregate(self, clients, state, answers):
        """Return the next models, [clients, parameters], from ``answers.parameters`` of the same shape."""
        listens_to = answers.graph.with_self_loops().dense() > 0
        means = []
        for row in listens_to:
            models = answers.parameters[row].sort(dim=0).values
            cut = int(self.settings.trim * len(models))
            means.append(models[cut : len(models) - cut].mean(dim=0))
        return torch.stack(means)


# %%
# Compared with built-in methods, on the same clients:

methods = [TrimmedNeighbourMean, "sfl", "fedavg"]
comparison = fedgraph.run_methods(
    "sfl/digits.toml", methods, set={"experiment.rounds": 6}, progress=False
)
comparison.metrics.xs("mean", axis=1, level=1).round(3)

# %%
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for label, accuracy in comparison.clients("test/accuracy").items():
    axis.plot(sorted(accuracy), label=label)
axis.set(xlabel="clients, from the worst to the best", ylabel="test accuracy")
axis.legend()
plt.show()
