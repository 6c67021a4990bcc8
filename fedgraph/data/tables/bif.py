"""Bayesian networks of categories from BIF files: ground truth for graph recovery.

Categorical variables with a probability table each, as written by the bnlearn repository, pgmpy and JavaBayes
(:mod:`fedgraph.data.tables.bif_text`). https://www.bnlearn.com/bnrepository
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.data.tables.bif_text import BifText, Block, Statement, entries, possible_lists, unquoted
from fedgraph.graph import FeatureGraph
from fedgraph.support.errors import DataError, quoted

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
        Names of the variables that it depends on directly.
    probabilities : Tensor
        float64 ``[categories of the first parent, ..., own categories]``, with sums of 1 over the last axis.
    """

    categories: tuple[str, ...]
    parents: tuple[str, ...]
    probabilities: Tensor


class BayesianNetwork:
    """A directed acyclic graph of categorical variables.

    Raises DataError when the graph has a cycle.

    Attributes
    ----------
    variables : dict of str to Variable
        By name; all parents are among them.
    """

    def __init__(self, variables: dict[str, Variable]) -> None:
        self.variables = variables
        try:
            self._order = tuple(TopologicalSorter({name: of.parents for name, of in variables.items()}).static_order())
        except CycleError as error:
            raise DataError(f"the network has a cycle: {' -> '.join(error.args[1])}") from None

    @cached_property
    def schema(self) -> Schema:
        """The variables as features, binary with two categories, else categorical."""
        return Schema(
            tuple(
                Feature(name, "binary" if len(of.categories) == 2 else "categorical", of.categories)
                for name, of in self.variables.items()
            )
        )

    @property
    def moral_graph(self) -> FeatureGraph:
        """The moral graph, which joins a variable to its parents and children, and parents of a child to each other."""
        return FeatureGraph.moral(tuple(self.variables), {name: of.parents for name, of in self.variables.items()})

    @property
    def skeleton(self) -> FeatureGraph:
        """The undirected graph of each variable with its parents and children."""
        edges = [(name, parent) for name, of in self.variables.items() for parent in of.parents]
        return FeatureGraph(tuple(self.variables), tuple(edges))

    def sample(self, num_rows: int, generator: torch.Generator) -> Tensor:
        """Draw rows from the network, parents first. Returns positions of categories, int64 ``[rows, variables]``."""
        uniform = torch.rand(num_rows, len(self.variables), generator=generator, dtype=torch.float64)
        drawn: dict[str, Tensor] = {}
        position = {name: at for at, name in enumerate(self.variables)}
        for name in self._order:
            variable = self.variables[name]
            given = tuple(drawn[parent] for parent in variable.parents)
            cumulative = variable.probabilities.cumsum(-1)
            # The last possible category ends at exactly 1, above all draws.
            cumulative = (cumulative / cumulative[..., -1:])[given].expand(num_rows, -1)
            drawn[name] = (uniform[:, position[name], None] >= cumulative).sum(1)
        return torch.stack([drawn[name] for name in self.variables], 1)


def read_bif(path: str | os.PathLike[str]) -> BayesianNetwork:
    """Read a Bayesian network from a ``.bif`` or ``.bif.gz`` file.

    Returns a BayesianNetwork with its variables in the order of the file, and probabilities that sum to 1. Raises
    DataError for text outside the supported part of the format, for unknown names, and for tables that are incomplete
    or are not probabilities. The message contains path and line.
    """
    path = Path(path)
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        return parse_bif(_decoded(content))
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _decoded(content: bytes) -> str:
    """Decode a text as UTF-8, or else as Latin-1, which older programs write."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def parse_bif(text: str) -> BayesianNetwork:
    """Parse the text of a BIF file; raises DataError as :func:`read_bif` does."""
    return _Parser(text).network()


class _Parser:
    """Builds variables from the blocks of a file."""

    def __init__(self, text: str) -> None:
        self._source = BifText(text)
        self._categories: dict[str, tuple[str, ...]] = {}
        self._variables: dict[str, Variable] = {}

    def network(self) -> BayesianNetwork:
        blocks = list(self._source.blocks())
        # Probabilities may precede their variables.
        for block in blocks:
            if block.kind == "variable":
                self._variable(block)
        for block in blocks:
            if block.kind == "probability":
                self._probability(block)
        lacking = [name for name in self._categories if name not in self._variables]
        if lacking or not self._categories:
            raise DataError(f"no probabilities for {quoted(lacking)}" if lacking else "no variables")
        return BayesianNetwork({name: self._variables[name] for name in self._categories})

    def _variable(self, block: Block) -> None:
        name = unquoted(block.head)
        found = [statement for statement in block.statements if re.match(r"type\b", statement.text)]
        match = re.fullmatch(r"type\s+(\w+)\s*\[\s*(\d+)\s*\]\s*\{(.*)\}", found[0].text, re.DOTALL) if found else None
        if match is None or match[1] != "discrete" or len(block.statements) > 1:
            raise self._source.error(block.at, f"'{name}' must be categorical: type discrete [2] {{ no, yes }}")
        count, ways = int(match[2]), possible_lists(match[3])
        fitting = [way for way in ways if len(way) == count and len(set(way)) == count]
        if not fitting:
            raise self._source.error(block.at, f"'{name}' has {count} categories, listed are {', '.join(ways[0])}")
        if name in self._categories:
            raise self._source.error(block.at, f"'{name}' is defined twice")
        self._categories[name] = fitting[0]

    def _probability(self, block: Block) -> None:
        inside = re.fullmatch(r"\((.*)\)", block.head, re.DOTALL)
        if inside is None:
            raise self._source.error(block.at, f"'{block.head}' where '( name | parents )' belongs")
        name, *parents = self._names(block, inside[1])
        if name in self._variables or len(set(parents)) < len(parents):
            raise self._source.error(block.at, f"probabilities of '{name}', or a parent of it, are there twice")
        known: list[Collection[str]] = [self._categories[parent] for parent in parents]
        shape = [len(self._categories[each]) for each in (*parents, name)]
        rows: dict[tuple[str, ...], list[float]] = {}
        default: list[float] | None = None
        for statement in block.statements:
            if re.match(r"table\b", statement.text):
                rows |= self._table(name, known, statement)
            elif re.match(r"default\b", statement.text) and parents:
                default = self._row(name, statement.text.removeprefix("default"), statement)
            else:
                given, numbers = self._given(name, known, statement)
                if given in rows:
                    raise self._error(statement, f"probabilities of '{name}' given {', '.join(given)} are there twice")
                rows[given] = self._row(name, numbers, statement)
        lacking = [given for given in product(*known) if given not in rows]
        if lacking and default is None:
            end = Statement("", block.at)
            raise self._error(end, f"'{name}' has no probabilities given ({', '.join(lacking[0])})")
        rows |= {given: default for given in lacking if default is not None}
        table = torch.tensor([rows[given] for given in product(*known)], dtype=torch.float64).reshape(shape)
        self._variables[name] = Variable(self._categories[name], tuple(parents), table / table.sum(-1, keepdim=True))

    def _names(self, block: Block, text: str) -> list[str]:
        """Return a variable and its parents, separated by ``|`` or blanks."""
        child, bar, rest = text.partition("|")
        ways = [way for way in possible_lists(rest if bar else text) if all(name in self._categories for name in way)]
        parts = (ways or (possible_lists(rest) if bar else [(unquoted(text),)]))[0]
        names = [unquoted(child), *parts] if bar else list(parts)
        unknown = [name for name in names if name not in self._categories]
        if unknown:
            raise self._source.error(block.at, f"there is no variable '{unknown[0]}'")
        return names

    def _given(self, name: str, known: list[Collection[str]], statement: Statement) -> tuple[tuple[str, ...], str]:
        """Return the categories of the parents of a row, and the text of its probabilities."""
        found = re.fullmatch(r"\((.*)\)([^)]*)", statement.text, re.DOTALL)
        if found is None or not known:
            wanted = "'(' or 'table'" if known else "'table'"
            word = (statement.text.split() or [""])[0]
            raise self._error(statement, f"'{word}' where {wanted} belongs")
        given = entries(found[1], known)
        if len(given) != len(known) or not all(part in of for part, of in zip(given, known, strict=True)):
            raise self._error(
                statement,
                f"'{name}' has probabilities given ({', '.join(given)}), which are not categories of its parents",
            )
        return given, found[2]

    def _table(
        self, name: str, known: list[Collection[str]], statement: Statement
    ) -> dict[tuple[str, ...], list[float]]:
        """Return the rows of a flat table, whose slowest index is the category of the variable."""
        text = statement.text.removeprefix("table")
        if not known:
            return {(): self._row(name, text, statement)}
        own, combinations = len(self._categories[name]), list(product(*known))
        numbers = self._numbers(name, text, statement)
        if len(numbers) != own * len(combinations):
            raise self._error(
                statement, f"'{name}' has {own * len(combinations)} probabilities in its table; got {len(numbers)}"
            )
        rows = {given: numbers[place :: len(combinations)] for place, given in enumerate(combinations)}
        for row in rows.values():
            self._check(name, row, statement)
        return rows

    def _row(self, name: str, text: str, statement: Statement) -> list[float]:
        row = self._numbers(name, text, statement)
        if len(row) != len(self._categories[name]):
            raise self._error(
                statement, f"'{name}' has {len(self._categories[name])} probabilities in each row; got {row}"
            )
        self._check(name, row, statement)
        return row

    def _numbers(self, name: str, text: str, statement: Statement) -> list[float]:
        words = re.split(r"[\s,]+", text.strip())
        try:
            return [float(word) for word in words]
        except ValueError:
            raise self._error(
                statement, f"'{name}' has probabilities that are not numbers: {', '.join(words)}"
            ) from None

    def _check(self, name: str, row: list[float], statement: Statement) -> None:
        if not all(0 <= each <= 1 for each in row):
            raise self._error(statement, f"'{name}' has {len(row)} probabilities in each row, from 0 to 1; got {row}")
        if abs(sum(row) - 1) > _ROUNDING:
            raise self._error(statement, f"probabilities of '{name}' add up to {sum(row):g} in a row")

    def _error(self, statement: Statement, problem: str) -> DataError:
        return self._source.error(statement.at, problem)
