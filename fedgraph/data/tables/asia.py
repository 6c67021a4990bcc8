"""The Bayesian network "asia" of a chest clinic, built in.

Lauritzen, Spiegelhalter: Local Computations with Probabilities on Graphical Structures and Their Application to Expert
Systems (J. R. Stat. Soc. B, 1988), table 1.
"""

from fedgraph.data.tables.bif import BayesianNetwork, parse_bif

_PARENTS = {
    "asia": (),
    "tub": ("asia",),
    "smoke": (),
    "lung": ("smoke",),
    "bronc": ("smoke",),
    "either": ("lung", "tub"),
    "xray": ("either",),
    "dysp": ("bronc", "either"),
}
# Probability of "yes", by the values of the parents in their order: y for yes, n for no.
_YES = {
    "asia": {"": 0.01},
    "tub": {"y": 0.05, "n": 0.01},
    "smoke": {"": 0.5},
    "lung": {"y": 0.1, "n": 0.01},
    "bronc": {"y": 0.6, "n": 0.3},
    "either": {"yy": 1.0, "ny": 1.0, "yn": 1.0, "nn": 0.0},
    "xray": {"y": 0.98, "n": 0.05},
    "dysp": {"yy": 0.9, "ny": 0.7, "yn": 0.8, "nn": 0.1},
}


def asia_network() -> BayesianNetwork:
    """Return the network: eight variables with the values yes and no."""
    lines = ["network asia {}"]
    lines += [f"variable {name} {{ type discrete [ 2 ] {{ yes, no }}; }}" for name in _PARENTS]
    for name, parents in _PARENTS.items():
        lines.append(f"probability ( {' | '.join([name, *([', '.join(parents)] if parents else [])])} ) {{")
        for values, yes in _YES[name].items():
            given = ", ".join({"y": "yes", "n": "no"}[value] for value in values)
            lines.append(f"  {f'({given})' if given else 'table'} {yes}, {1 - yes:.12g};")
        lines.append("}")
    return parse_bif("\n".join(lines))
