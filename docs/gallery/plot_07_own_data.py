"""
Time series of your own
=======================

An experiment needs only a CSV file, with a column of timestamps and one per client, and a file of edges.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import fedgraph

random = np.random.default_rng(0)
hours = pd.date_range("2026-01-01", periods=24 * 40, freq="h")
daily = 20 * np.sin(
    2 * np.pi * (hours.hour.to_numpy()[:, None] - 9) / 24
    + np.array([0, 0.2, 0.4, 2.0, 2.2, 2.4])
)
load = pd.DataFrame(
    60 + daily + random.normal(0, 3, daily.shape), hours, ["a", "b", "c", "x", "y", "z"]
)
folder = Path(tempfile.mkdtemp())
load.to_csv(folder / "load.csv", index_label="time")
(folder / "lines.csv").write_text("from,to,weight\na,b,1\nb,c,1\nx,y,1\ny,z,1\n")

experiment = {
    "experiment": {"name": "load", "method": "sfl", "rounds": 5},
    "data": {
        "set": "series",
        "path": str(folder / "load.csv"),
        "input-steps": 12,
        "output-steps": 3,
        "unit": "MW",
    },
    "model": {"name": "gru", "hidden": 16},
    "train": {
        "optimizer": "adam",
        "learning-rate": 0.01,
        "batch-size": 64,
        "local-steps": 30,
    },
    "graph": {"source": "file", "path": str(folder / "lines.csv"), "directed": False},
    "sfl": {"alpha": 0.5, "hops": 1},
    "evaluation": {"horizons": [1, 3]},
}
comparison = fedgraph.run_methods(experiment, ["sfl", "fedavg", "local"], progress=False)

# %%
figure, (series, errors) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
load["2026-01-01":"2026-01-03"].plot(ax=series, legend=False)
series.set(ylabel="MW", title="six clients, three days")
comparison.clients("test/mae").plot.bar(ax=errors, rot=0)
errors.set(ylabel="error, MW", title="test error of every client")
plt.show()

# %%
comparison.metrics.xs("mean", axis=1, level=1).round(2)
