"""NOTEARS-ADMM for linear models, a rival of graph recovery: clients agree on the weights of one acyclic graph.

Ng, Zhang: Towards federated Bayesian network structure learning with continuous optimization, AISTATS 2022. In every
round each client sends its weights, and the server returns those that all are drawn to. Settings are those of the
released program. Two things are ours, since features have several units: a unit has no weight from another of its own
feature, and it is the features whose graph has no cycles, not the units.
"""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import expm
from scipy.optimize import Bounds, minimize

Matrix = NDArray[np.float64]

THRESHOLD = 0.3
"""Edges are weights beyond it."""

_ROUNDS = 200
_SPARSITY = 0.01
_FIRST_PENALTY = 1e-3
_LARGEST_PENALTY = 1e16
_CYCLES_FACTOR, _CONSENSUS_FACTOR = 1.75, 1.25
"""By which the penalties of cycles and of disagreement grow after every round."""

_FAR = 1e100
"""No weights of interest have a measure of cycles beyond it."""


def agreed_weights(correlations: Sequence[Matrix], unit_feature: NDArray[np.int64]) -> Matrix:
    """Minimise the squared errors of linear models of each unit, with one sparse set of weights for all clients.

    Parameters
    ----------
    correlations : sequence of array
        Between standardised units, of each client, ``[units, units]``.
    unit_feature : array
        Position of the feature that each unit belongs to, ``[units]``.

    Returns
    -------
    array
        The server's weights, from the first unit to the second, ``[units, units]``.
    """
    clients, units = len(correlations), len(unit_feature)
    shares = [each / clients for each in correlations]
    server = _Server(unit_feature)
    agreed = np.zeros((units, units))
    duals = [np.zeros((units, units)) for _ in shares]
    cycles, consensus, multiplier = _FIRST_PENALTY, _FIRST_PENALTY, 0.0
    for _ in range(_ROUNDS):
        weights = [
            _weights_of_client(share, consensus * agreed - dual, consensus, unit_feature)
            for share, dual in zip(shares, duals, strict=True)
        ]
        # The sum over clients of <dual, W - B> + consensus / 2 |W - B|^2, up to a constant.
        pulled = sum((own + dual / consensus for own, dual in zip(weights, duals, strict=True)), np.zeros_like(agreed))
        agreed = server.agree(agreed, pulled / clients, clients * consensus, cycles, multiplier)
        multiplier += cycles * server.cyclicity(agreed)[0]
        duals = [dual + consensus * (own - agreed) for own, dual in zip(weights, duals, strict=True)]
        cycles = cycles * _CYCLES_FACTOR if cycles < _LARGEST_PENALTY else cycles
        consensus = consensus * _CONSENSUS_FACTOR if consensus < _LARGEST_PENALTY else consensus
    return agreed


def edges(weights: Matrix, unit_feature: NDArray[np.int64], features: int) -> NDArray[np.bool_]:
    """Read the graph of features: the largest absolute weight between their units is beyond ``THRESHOLD``.

    The weakest edges are left out until there is no cycle, as in the released program.

    Returns
    -------
    array
        Whether there is an edge from the first feature to the second, bool ``[features, features]``.
    """
    strengths = np.zeros((features, features))
    np.maximum.at(strengths, (unit_feature[:, None], unit_feature[None]), np.abs(weights))
    strengths[strengths <= THRESHOLD] = 0.0
    for size in np.sort(strengths[strengths > 0]):
        if _is_acyclic(strengths > 0):
            break
        strengths[strengths == size] = 0.0
    return strengths > 0


def _weights_of_client(share: Matrix, pull: Matrix, consensus: float, unit_feature: NDArray[np.int64]) -> Matrix:
    """The minimum in closed form, with weights of 0 within a feature.

    ``pull`` is consensus x agreed weights - dual.
    """
    inverse = np.linalg.inv(share + consensus * np.eye(len(share)))
    weights = inverse @ (share + pull)
    for feature in np.unique(unit_feature):
        own = unit_feature == feature
        weights[:, own] -= inverse[:, own] @ np.linalg.solve(inverse[np.ix_(own, own)], weights[np.ix_(own, own)])
        weights[np.ix_(own, own)] = 0.0
    return weights


class _Server:
    """What the server computes of the clients' weights."""

    def __init__(self, unit_feature: NDArray[np.int64]) -> None:
        self._from, self._to = np.nonzero(unit_feature[:, None] != unit_feature)
        self._feature = unit_feature
        self._membership = np.eye(int(unit_feature.max()) + 1)[unit_feature]

    def cyclicity(self, weights: Matrix) -> tuple[float, Matrix]:
        """``tr exp(A) - features`` and its gradient; A has the sums of squared weights between features."""
        powers = expm(self._membership.T @ weights**2 @ self._membership)
        gradient = 2 * weights * powers.T[self._feature][:, self._feature]
        return float(np.trace(powers)) - len(powers), gradient

    def agree(self, start: Matrix, centre: Matrix, consensus: float, cycles: float, multiplier: float) -> Matrix:
        """Minimise ``consensus / 2 |B - centre|^2 + sparsity |B|_1 + multiplier h(B) + cycles / 2 h(B)^2``."""
        count = len(self._from)

        def weights(halves: Matrix) -> Matrix:
            found = np.zeros_like(start)
            found[self._from, self._to] = halves[:count] - halves[count:]
            return found

        def objective(halves: Matrix) -> tuple[float, Matrix]:
            now = weights(halves)
            apart = now - centre
            with np.errstate(over="ignore", invalid="ignore"):
                cyclic, by_weights = self.cyclicity(now)
            if not cyclic < _FAR:
                # A step of the line search that went too far: back.
                return _FAR**2, np.zeros_like(halves)
            value = consensus / 2 * (apart**2).sum() + _SPARSITY * halves.sum()
            value += multiplier * cyclic + cycles / 2 * cyclic**2
            gradient = (consensus * apart + (multiplier + cycles * cyclic) * by_weights)[self._from, self._to]
            return value, np.concatenate([gradient + _SPARSITY, _SPARSITY - gradient])

        # Positive and negative parts apart, of which the norm is a sum (Zheng et al. 2018).
        first = start[self._from, self._to]
        halves = np.concatenate([first.clip(min=0), (-first).clip(min=0)])
        return weights(minimize(objective, halves, jac=True, method="L-BFGS-B", bounds=Bounds(lb=0.0)).x)


def _is_acyclic(edges: NDArray[np.bool_]) -> bool:
    try:
        TopologicalSorter({node: np.flatnonzero(column).tolist() for node, column in enumerate(edges.T)}).prepare()
    except CycleError:
        return False
    return True
