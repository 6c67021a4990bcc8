"""The Bayesian network "asia" of a chest clinic, built in.

Lauritzen, Spiegelhalter: Local Computations with Probabilities on Graphical Structures and Their Application to Expert
Systems (J. R. Stat. Soc. B, 1988), table 1.
"""

import torch

from fedgraph.data.tables.bif import BayesianNetwork, Variable

# Parents, and the probability of "yes" where they are yes or no, in this order, the last parent varying fastest.
_YES = {
    "asia": ((), [0.01]),
    "tub": (("asia",), [0.05, 0.01]),
    "smoke": ((), [0.5]),
    "lung": (("smoke",), [0.1, 0.01]),
    "bronc": (("smoke",), [0.6, 0.3]),
    "either": (("lung", "tub"), [1.0, 1.0, 1.0, 0.0]),
    "xray": (("either",), [0.98, 0.05]),
    "dysp": (("bronc", "either"), [0.9, 0.8, 0.7, 0.1]),
}


def asia_network() -> BayesianNetwork:
    """Return the network: eight variables with the values yes and no."""
    variables = {}
    for name, (parents, probabilities) in _YES.items():
        table = torch.tensor([[yes, round(1 - yes, 12)] for yes in probabilities], dtype=torch.float64)
        table = (table / table.sum(-1, keepdim=True)).reshape(*[2] * len(parents), 2)
        variables[name] = Variable(("yes", "no"), parents, table)
    return BayesianNetwork(variables)
