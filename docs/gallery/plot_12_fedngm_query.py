"""
FedNGM: ask a model of three clinics' patients
==============================================

Three clinics draw patients from the Bayesian network "asia" and show nobody a row. What they learn together is a graph
of the features, and a model that answers questions about any of them.
"""

import matplotlib.pyplot as plt
import networkx as nx
import pandas as pd

import fedgraph
from fedgraph.data.tables import asia_network
from fedgraph.graphical.asking import posterior

keys = {"data.rows": 1500, "fedngm.recovery.method": "ges"}
run = fedgraph.run("fedngm/asia.toml", set=keys, progress=False)
model, truth = run.graphical_model, asia_network()

figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
true = nx.Graph(truth.moral_graph.edges)
at = nx.kamada_kawai_layout(true)
for axis, edges, title in zip(
    axes, (true.edges, model.graph.edges), ("true", "consensus"), strict=True
):
    found = nx.Graph()
    found.add_nodes_from(true)
    found.add_edges_from(edges)
    nx.draw_networkx(
        found, at, ax=axis, node_color="lightsteelblue", node_size=900, font_size=9
    )
    axis.set(title=f"{title}: {found.number_of_edges()} dependencies")
    axis.axis("off")
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
# Rows that nobody has: samples of the model.

rows = model.sample(5, given={"lung": "yes"})
pd.DataFrame({name: rows.column(name).to_pylist() for name in rows.names})
