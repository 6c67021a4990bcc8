"""Bayesian networks of categories from BIF files: a known truth from which to draw samples, for graph recovery.

The part of the Bayesian Interchange Format that the bnlearn repository uses: variables with categories, and one table
of probabilities per variable. https://www.bnlearn.com/bnrepository
"""

from __future__ import annotations

import gzip
import math
import os
import re
import zlib
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graph import FeatureGraph
from fedgraph.support.errors import DataError, quoted

_TOKEN = re.compile(r"[{}()\[\];,|]|[^\s{}()\[\];,|]+")
_ROUNDING = 1e-3
"""Largest deviation from 1 of the sum of a row's probabilities, which are rounded in published networks."""


@dataclass(frozen=True, eq=False)
class Variable:
    """The conditional distribution of a variable given its parents.

    Attributes
    ----------
    categories : tuple of str
        Values of the variable.
    parents : tuple of str
        Names of the variables on which it depends directly.
    probabilities : Tensor
        float64 ``[categories of the first parent, ..., own categories]``, with sums of 1 over the last axis.
    """

    categories: tuple[str, ...]
    parents: tuple[str, ...]
    probabilities: Tensor


class BayesianNetwork:
    """A directed acyclic graph of categorical variables.

    Attributes
    ----------
    variables : dict of str to Variable
        By name; all parents are among them.

    Raises
    ------
    DataError
        When the graph has a cycle.
    """

    def __init__(self, variables: dict[str, Variable]) -> None:
        self.variables = variables
        try:
            self._order = tuple(TopologicalSorter({name: of.parents for name, of in variables.items()}).static_order())
        except CycleError as error:
            raise DataError(f"the network has a cycle: {' -> '.join(error.args[1])}") from None

    @cached_property
    def schema(self) -> Schema:
        """The variables as features: binary with two categories, else categorical."""
        return Schema(
            tuple(
                Feature(name, "binary" if len(of.categories) == 2 else "categorical", of.categories)
                for name, of in self.variables.items()
            )
        )

    @property
    def moral_graph(self) -> FeatureGraph:
        """The moral graph: each variable with its parents and children, and with the other parents of its children."""
        return FeatureGraph.moral(tuple(self.variables), {name: of.parents for name, of in self.variables.items()})

    @property
    def skeleton(self) -> FeatureGraph:
        """The undirected graph of each variable with its parents and children."""
        edges = [(name, parent) for name, of in self.variables.items() for parent in of.parents]
        return FeatureGraph(tuple(self.variables), tuple(edges))

    def sample(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows from the network, parents first.

        Returns
        -------
        Tensor
            Positions of categories, int64 ``[rows, variables]``.
        """
        uniform = torch.rand(num_rows, len(self.variables), generator=generator, dtype=torch.float64)
        drawn: dict[str, Tensor] = {}
        position = {name: at for at, name in enumerate(self.variables)}
        for name in self._order:
            variable = self.variables[name]
            given = tuple(drawn[parent] for parent in variable.parents)
            cumulative = variable.probabilities.cumsum(-1)
            # The last possible category ends at exactly 1, which no draw reaches.
            cumulative = (cumulative / cumulative[..., -1:])[given].expand(num_rows, -1)
            drawn[name] = (uniform[:, position[name], None] >= cumulative).sum(1)
        return torch.stack([drawn[name] for name in self.variables], 1)


def read_bif(path: str | os.PathLike[str]) -> BayesianNetwork:
    """Read a Bayesian network from a ``.bif`` or ``.bif.gz`` file.

    Returns
    -------
    BayesianNetwork
        With its variables in the order of the file, and probabilities that sum to 1.

    Raises
    ------
    DataError
        For text outside the supported part of the format, for unknown names, and for tables that are incomplete or are
        not probabilities. The message contains path and line.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return parse_bif(content.decode("utf-8-sig"))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def parse_bif(text: str) -> BayesianNetwork:
    """Parse the text of a BIF file; raises DataError as :func:`read_bif` does."""
    return _Parser(text).network()


class _Parser:
    """Recursive descent parser."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [(found.group(), found.start()) for found in _TOKEN.finditer(text)]
        self._at = 0
        self._categories: dict[str, tuple[str, ...]] = {}
        self._variables: dict[str, Variable] = {}

    def network(self) -> BayesianNetwork:
        self._expect("network")
        self._word("the name of the network")
        self._expect("{", "}")
        while self._at < len(self._tokens):
            if self._next_is("variable"):
                self._variable()
            else:
                self._expect("probability")
                self._probability()
        lacking = [name for name in self._categories if name not in self._variables]
        if lacking or not self._categories:
            raise DataError(f"no probabilities for {quoted(lacking)}" if lacking else "no variables")
        return BayesianNetwork({name: self._variables[name] for name in self._categories})

    def _variable(self) -> None:
        name = self._word("the name of a variable")
        self._expect("{", "type", "discrete", "[")
        count = self._word("the number of categories")
        self._expect("]", "{")
        categories = self._words("}", "a category")
        self._expect(";", "}")
        if str(len(categories)) != count or len(set(categories)) < len(categories):
            raise self._error(f"'{name}' has {count} categories, listed are {', '.join(categories)}")
        if name in self._categories:
            raise self._error(f"'{name}' is there twice")
        self._categories[name] = categories

    def _probability(self) -> None:
        self._expect("(")
        name = self._known_variable()
        parents: list[str] = []
        if self._next_is("|"):
            parents.append(self._known_variable())
            while self._next_is(","):
                parents.append(self._known_variable())
            self._expect(")")
        else:
            self._expect(")")
        if name in self._variables or len(set(parents)) < len(parents):
            raise self._error(f"probabilities of '{name}', or a parent of it, are there twice")
        self._expect("{")
        rows: dict[tuple[str, ...], list[float]] = {}
        while not self._next_is("}"):
            if parents:
                self._expect("(")
                given = self._words(")", "a category of a parent")
            else:
                self._expect("table")
                given = ()
            if given in rows:
                raise self._error(f"probabilities of '{name}' given {', '.join(given)} are there twice")
            rows[given] = self._row(name)
        known = [self._categories[parent] for parent in parents]
        odd = [given for given in rows if len(given) != len(known) or not all(map(tuple.__contains__, known, given))]
        if odd:
            raise self._error(f"'{name}' has probabilities given ({', '.join(odd[0])}), which its parents cannot be")
        if len(rows) != math.prod(map(len, known)):
            lacking = next(given for given in product(*known) if given not in rows)
            raise self._error(f"'{name}' has no probabilities given ({', '.join(lacking)})")
        shape = [len(self._categories[each]) for each in (*parents, name)]
        table = torch.tensor([rows[given] for given in product(*known)], dtype=torch.float64).reshape(shape)
        self._variables[name] = Variable(self._categories[name], tuple(parents), table / table.sum(-1, keepdim=True))

    def _row(self, name: str) -> list[float]:
        words = self._words(";", "a probability")
        try:
            row = [float(word) for word in words]
        except ValueError:
            raise self._error(f"'{name}' has probabilities that are no numbers: {', '.join(words)}") from None
        if len(row) != len(self._categories[name]) or not all(0 <= each <= 1 for each in row):
            raise self._error(f"'{name}' has {len(self._categories[name])} probabilities in each row; got {row}")
        if abs(sum(row) - 1) > _ROUNDING:
            raise self._error(f"probabilities of '{name}' add up to {sum(row):g} in a row")
        return row

    def _known_variable(self) -> str:
        name = self._word("the name of a variable")
        if name not in self._categories:
            raise self._error(f"there is no variable '{name}' before this line")
        return name

    def _words(self, end: str, what: str) -> tuple[str, ...]:
        """Read one or more words with commas between them, and the ``end``."""
        words = [self._word(what)]
        while self._next_is(","):
            words.append(self._word(what))
        self._expect(end)
        return tuple(words)

    def _word(self, what: str) -> str:
        token = self._take()
        if token in "{}()[];,|":
            raise self._error(f"'{token}' where {what} belongs")
        return token

    def _expect(self, *tokens: str) -> None:
        for token in tokens:
            found = self._take()
            if found != token:
                raise self._error(f"'{found}' where '{token}' belongs")

    def _next_is(self, token: str) -> bool:
        if self._at < len(self._tokens) and self._tokens[self._at][0] == token:
            self._at += 1
            return True
        return False

    def _take(self) -> str:
        if self._at == len(self._tokens):
            raise DataError("the text ends too early")
        self._at += 1
        return self._tokens[self._at - 1][0]

    def _error(self, problem: str) -> DataError:
        """Return an error at the line of the token that was read last."""
        line = self._text.count("\n", 0, self._tokens[self._at - 1][1]) + 1
        return DataError(f"line {line}: {problem}")
