"""Exact probabilities in a Bayesian network, by variable elimination: the ground truth with which models are compared.

Zhang, Poole: A simple approach to Bayesian network computations (Canadian AI 1994).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedgraph.data.tables import BayesianNetwork
from fedgraph.support.errors import DataError

_Factor = tuple[tuple[str, ...], Tensor]


def posterior(network: BayesianNetwork, target: str, given: Mapping[str, int]) -> Tensor:
    """Compute the probabilities of the categories of ``target`` given other variables.

    Parameters
    ----------
    network : BayesianNetwork
        Variables and their conditional probabilities.
    target : str
        Variable asked for.
    given : mapping of str to int
        Position of the known category of each known variable.

    Returns
    -------
    Tensor
        float64 ``[categories]``.

    Raises
    ------
    DataError
        When ``given`` is impossible or contains the target, or the network lacks a name.
    """
    unknown = [name for name in (target, *given) if name not in network.variables]
    if unknown or target in given:
        raise DataError(f"'{target}' given {', '.join(given)} cannot be asked of this network")
    relevant = _ancestors(network, {target, *given})
    factors = [_sliced((*network.variables[name].parents, name), network, given) for name in relevant]
    left = [name for name in relevant if name != target and name not in given]
    while left:
        # The variable whose elimination leaves the smallest table.
        sizes = {name: _size(network, _scope(factors, name)) for name in left}
        name = min(left, key=sizes.__getitem__)
        left.remove(name)
        own = [factor for factor in factors if name in factor[0]]
        factors = [factor for factor in factors if name not in factor[0]]
        factors.append(_product(own, tuple(each for each in _scope(own, name) if each != name)))
    shares = _product(factors, (target,))[1]
    if not float(shares.sum()) > 0:
        raise DataError(f"{', '.join(f'{name} = {value}' for name, value in given.items())} is impossible")
    return shares / shares.sum()


def _ancestors(network: BayesianNetwork, names: set[str]) -> list[str]:
    """Return these variables and their ancestors; others make no difference."""
    found, waiting = set(names), list(names)
    while waiting:
        new = [parent for parent in network.variables[waiting.pop()].parents if parent not in found]
        found.update(new)
        waiting += new
    return [name for name in network.variables if name in found]


def _sliced(scope: tuple[str, ...], network: BayesianNetwork, given: Mapping[str, int]) -> _Factor:
    index = tuple(given.get(name, slice(None)) for name in scope)
    return tuple(name for name in scope if name not in given), network.variables[scope[-1]].probabilities[index]


def _scope(factors: list[_Factor], name: str) -> list[str]:
    return sorted({each for scope, _ in factors if name in scope for each in scope})


def _size(network: BayesianNetwork, scope: list[str]) -> int:
    size = 1
    for name in scope:
        size *= len(network.variables[name].categories)
    return size


def _product(factors: list[_Factor], result: tuple[str, ...]) -> _Factor:
    """Multiply all factors, summed over the variables that the result lacks."""
    names = {name: place for place, name in enumerate(sorted({each for scope, _ in factors for each in scope}))}
    arguments: list[object] = []
    for scope, table in factors:
        arguments += [table, [names[each] for each in scope]]
    return result, torch.einsum(*arguments, [names[each] for each in result])
