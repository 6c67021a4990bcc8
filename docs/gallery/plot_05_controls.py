"""
Is it the graph that helps?
===========================

Compare a method over a graph with the same method over a permuted graph (the same edges between other clients), and
over a complete one. The difference is what the graph is worth.
"""

import matplotlib.pyplot as plt

import fedgraph

graphs = {
    "given": {},
    "permuted": {"graph.permute-seed": 0},
    "complete": {"graph.source": "complete"},
}
runs = {
    name: fedgraph.run(
        "sfl/digits.toml", set={"experiment.rounds": 8, **keys}, progress=False
    )
    for name, keys in graphs.items()
}

figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
axis.violinplot([run.clients["test/accuracy"] for run in runs.values()], showmeans=True)
axis.set_xticks(range(1, len(runs) + 1), list(runs))
axis.set(xlabel="client graph", ylabel="test accuracy of clients")
plt.show()

# %%
# With two classes per client it does matter who is linked. On traffic data it hardly does: see the results pages.

{name: round(float(run.clients["test/accuracy"].mean()), 3) for name, run in runs.items()}
