"""
Models for sensors that have nothing to train on
================================================

A quarter of 40 simulated road sensors have one day of readings, too few to train on. ``sfl-cold-start`` gives each of
them a model made from its neighbourhood in the road graph.
"""

import matplotlib.pyplot as plt
import networkx as nx

import fedgraph

experiment = "sfl/cold-traffic.toml"
methods = ["sfl-cold-start", "fedavg", "local"]
comparison = fedgraph.run_methods(
    experiment, methods, set={"experiment.rounds": 4}, progress=False
)

# %%
# Error in mph an hour ahead, of the sensors that train and those that cannot:

errors = comparison.clients("test/mae-60min")
group = comparison[0].clients["group"]
errors.groupby(group).mean().round(2)

# %%
# The road graph. Squares are cold sensors; the colour is the error of the sensor's model.

graph = comparison[0].graph
drawn = graph.to_networkx().to_undirected()
at = nx.spring_layout(drawn, seed=3, weight="weight")
figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
nx.draw_networkx_edges(drawn, at, ax=axis, edge_color="0.85")
for shape, kind in (("o", "warm"), ("s", "cold")):
    nodes = [name for name in drawn if group[name] == kind]
    dots = nx.draw_networkx_nodes(
        drawn, at, nodelist=nodes, node_shape=shape, node_size=110, ax=axis,
        vmin=errors["sfl-cold-start"].min(), vmax=errors["sfl-cold-start"].max(),
        node_color=errors["sfl-cold-start"][nodes],
    )  # fmt: skip
figure.colorbar(dots, ax=axis, label="error an hour ahead, mph")
axis.axis("off")
plt.show()
