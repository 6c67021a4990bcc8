"""
FedNGM: ask a model of three clinics' patients
==============================================

Three clinics draw patients from the Bayesian network "asia" and share no row. Together they learn a graph
of the features, and a model that answers questions about any of them.
"""

import matplotlib.pyplot as plt
import pandas as pd

import fedgraph
from fedgraph.data.tables import asia_network
from fedgraph.graphical.inference import posterior

keys = {"data.rows": 1500, "fedngm.recovery.method": "ges"}
run = fedgraph.run("fedngm/asia.toml", set=keys, progress=False)
model, truth = run.graphical_model, asia_network()

figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
for axis, graph, title in zip(
    axes, (truth.moral_graph, model.graph), ("true", "consensus"), strict=True
):
    graph.draw(axis)
    axis.set(title=f"{title}: {len(graph.edges)} dependencies")
plt.show()

# %%
# Lung cancer, given what is known of a patient: the model's answer, and the exact one.

answers = {}
yes = truth.variables["lung"].categories.index("yes")
patients = [
    {},
    {"smoke": "yes"},
    {"smoke": "yes", "xray": "yes"},
    {"smoke": "no", "xray": "yes"},
]
for known in patients:
    answer = model.conditional(known, ["lung"])["lung"]
    learned = float(answer.probabilities[0, answer.categories.index("yes")])
    positions = {
        name: truth.variables[name].categories.index(known[name]) for name in known
    }
    exact = float(posterior(truth, "lung", positions)[yes])
    answers[str(known or "nothing")] = {"model": learned, "exact": exact}
pd.DataFrame(answers).T.round(3)

# %%
# Samples of the model, not rows of a clinic:

rows = model.sample(5, given={"lung": "yes"})
pd.DataFrame({name: rows.column(name).to_pylist() for name in rows.names})
