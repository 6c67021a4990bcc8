"""
The price of noise on embeddings
================================

``[f3.noise]`` clips every embedding and adds Gaussian noise before it leaves its owner. A smaller epsilon protects
more and costs accuracy.
"""

import matplotlib.pyplot as plt

import fedgraph

keys = {"train.local-epochs": 60, "f3.epochs": 60, "f3.draw-per": "batch"}
clean = fedgraph.run("f3/breast-cancer.toml", set=keys, progress=False)
epsilons = [2, 10, 50, 250]
noisy = [
    fedgraph.run(
        "f3/breast-cancer.toml",
        set={**keys, "f3.noise.clip-norm": 1, "f3.noise.epsilon": epsilon},
        progress=False,
    )
    for epsilon in epsilons
]

figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
axis.semilogx(
    epsilons,
    [run.clients["test/accuracy"].mean() for run in noisy],
    "o-",
    label="with noise",
)
axis.axhline(
    clean.clients["test/accuracy"].mean(), color="0.5", linestyle=":", label="without noise"
)
axis.set(xlabel="epsilon of one embedding of one owner", ylabel="test accuracy")
axis.legend()
plt.show()
