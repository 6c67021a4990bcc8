"""
A client graph from coordinates
===============================

If clients have coordinates, their distances give a graph: by a Gaussian kernel, or by nearest neighbours.
"""

import matplotlib.pyplot as plt
import torch

from fedgraph.graph import ClientGraph

names = [
    "Oslo",
    "Bergen",
    "Trondheim",
    "Stavanger",
    "Kristiansand",
    "Hamar",
    "Bodø",
    "Tromsø",
    "Alta",
]
places = torch.tensor(
    [
        [59.91, 10.75], [60.39, 5.32], [63.43, 10.40], [58.97, 5.73], [58.15, 8.00],
        [60.79, 11.07], [67.28, 14.40],
        [69.65, 18.96], [69.97, 23.27],
    ]
)  # fmt: skip
graphs = {
    "Gaussian kernel of distances": ClientGraph.from_coordinates(places, names),
    "two nearest neighbours": ClientGraph.from_coordinates(
        places, names, method="knn", k=2
    ),
}

figure, axes = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
at = {
    name: (float(place[1]), float(place[0]))
    for name, place in zip(names, places, strict=True)
}
for axis, (title, graph) in zip(axes, graphs.items(), strict=True):
    graph.draw(axis, places=at)
    axis.set(title=title)
plt.show()

# %%
# Methods compute with the normalised adjacency: here one hop replaces every client's value by the mean of its
# neighbourhood, itself included. ``fedgraph.graph.write_graph`` writes a graph for ``[graph] source = "file"``.

values = places[:, :1]
torch.cat([values, graphs["two nearest neighbours"].propagate(values, 1)], dim=1)
