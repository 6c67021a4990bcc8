"""MyData: simulated patients of four wards; replace them by your own data.

    fedgraph run my_data_set.toml
    fedgraph check my_data_set:MyData     # test it against the contract of data sets

The code below runs as it is. Each node creates the class and loads its own clients; the server only asks for the client
graph. Read files from ``self.data_dir``, the data folder of the node.
"""

import torch
from pydantic import Field

from fedgraph.data import DataSet, Examples, InputScale
from fedgraph.models import TaskSpec
from fedgraph.support.randomness import generator
from fedgraph.support.settings import Settings

FEATURES = ("age", "dose", "weight")


# The keys of [data], in addition to ``set``. Types and bounds are checked, unknown keys refused.
class MyDataSettings(Settings):
    """The table ``[data]``.

    Attributes
    ----------
    patients : number of patients of each ward.
    seed     : seed of the simulation.
    """

    patients: int = Field(default=120, ge=10)
    seed: int = 0


class MyData(DataSet[MyDataSettings]):
    """How many days a patient stays, by age, dose and weight."""

    def client_names(self) -> list[str]:
        """Return all clients, in a stable order."""
        return ["east", "north", "south", "west"]

    def task(self) -> TaskSpec:
        """Return the task: here a regression; a classification has an output per class."""
        return TaskSpec("regression", (len(FEATURES),), (1,), unit="days", features=FEATURES)

    # Must be the same on every call: runs are reproducible bit for bit, and a node may load some of its clients.
    def examples(self, client: str) -> Examples:
        """Return inputs ``[examples, features]`` and targets of each split in original units, NaN where missing."""
        draws = generator(self.settings.seed, "patients", client)
        place = self.client_names().index(client)
        inputs = torch.randn(self.settings.patients, len(FEATURES), generator=draws)
        inputs = inputs * torch.tensor([12.0, 40.0, 15.0]) + torch.tensor([45.0 + 8 * place, 200.0, 75.0])
        targets = 2 + 0.06 * inputs[:, 0] + 0.01 * inputs[:, 1] + torch.randn(len(inputs), generator=draws) / 2
        train, validation = int(0.7 * len(inputs)), int(0.8 * len(inputs))
        return {
            "train": (inputs[:train], targets[:train]),
            "validation": (inputs[train:validation], targets[train:validation]),
            "test": (inputs[validation:], targets[validation:]),
        }

    # Scaling of a client's inputs and targets by its training examples; delete both if your data are scaled already.
    def input_scale(self, client: str) -> InputScale:
        """Return mean and deviation of each feature; missing values are filled with the mean."""
        inputs, _ = self.examples(client)["train"]
        return InputScale.of(inputs.mean(0), inputs.std(0))

    def target_scale(self, client: str) -> tuple[float, float]:
        """Return mean and deviation of the targets; errors and predictions stay in days."""
        _, targets = self.examples(client)["train"]
        known = targets[~targets.isnan()]
        return float(known.mean()), float(known.std())

    # The client graph of the data, if any, for [graph] source = "data".
    # def given_graph(self): return ClientGraph.from_edges([("east", "north"), ("south", "west")])
