"""Many clients trained at once: their models are one matrix ``[clients, parameters]``.

>>> from pathlib import Path
>>> import torch
>>> from fedgraph.data import open_source, parse_data
>>> from fedgraph.models import build
>>> from fedgraph.training import Cohort, TrainSettings
>>> source = open_source(parse_data({"set": "digits", "clients": 3, "partition": "iid"}), Path("."))
>>> data = source.load(source.client_names())
>>> model = build({"name": "mlp", "hidden": [16]}, data.task)
>>> cohort = Cohort(model, data, TrainSettings(learning_rate=0.1), seed=0)
>>> trained = cohort.train(model.initial(torch.Generator().manual_seed(0)).expand(3, -1), round=1)
>>> list(cohort.evaluate(trained.parameters, "test"))
['accuracy', 'loss', 'f1']
"""

from fedgraph.training.batches import learning_rates, num_steps, shuffling_keys, steps_per_epoch, training_batches
from fedgraph.training.client_state import ClientState, state_folder
from fedgraph.training.cohort import Cohort, GradientTerm, TrainResult, mean_of
from fedgraph.training.metrics import AFTER_TURN, EXTREMES, LAST, direction, is_share, num_extreme, summarise
from fedgraph.training.optimisers import EPSILON, Optimiser, clip_rows, fresh_state
from fedgraph.training.settings import TrainSettings
from fedgraph.training.tallies import mean_f1
from fedgraph.training.working_set import working_set

__all__ = [
    "AFTER_TURN",
    "EPSILON",
    "EXTREMES",
    "LAST",
    "ClientState",
    "Cohort",
    "GradientTerm",
    "Optimiser",
    "TrainResult",
    "TrainSettings",
    "clip_rows",
    "direction",
    "fresh_state",
    "is_share",
    "learning_rates",
    "mean_f1",
    "mean_of",
    "num_extreme",
    "num_steps",
    "shuffling_keys",
    "state_folder",
    "steps_per_epoch",
    "summarise",
    "training_batches",
    "working_set",
]
