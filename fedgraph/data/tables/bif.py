"""Bayesian networks of categories from BIF files: ground truth for graph recovery.

Categorical variables with a probability table each, as written by the bnlearn repository, pgmpy and JavaBayes. Comments
and properties are skipped. Unambiguous extensions of the format are read: names and categories in quotes or with
blanks, and intervals such as ``(0,18]`` as categories. https://www.bnlearn.com/bnrepository,
https://sites.poli.usp.br/p/fabio.cozman/Research/InterchangeFormat/index.html
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import product
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.graph import FeatureGraph
from fedgraph.support.errors import DataError, quoted

_COMMENT = re.compile(r'"[^"]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_MARK = re.compile(r'"[^"]*"|[{};]')

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
        raise error.at(str(path)) from None
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


class Statement(NamedTuple):
    """A statement without its semicolon, and where it begins in the text."""

    text: str
    at: int


class Block(NamedTuple):
    """``variable rain { ... }``: kind, text before the brace, statements without properties, and position."""

    kind: str
    head: str
    statements: list[Statement]
    at: int


class _Parser:
    """Builds variables from the blocks of a file."""

    def __init__(self, text: str) -> None:
        def blank(found: re.Match[str]) -> str:
            return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])

        # Of the same length as the file, so that places have their lines.
        self._text = _COMMENT.sub(blank, text)
        self._categories: dict[str, tuple[str, ...]] = {}
        self._variables: dict[str, Variable] = {}

    def network(self) -> BayesianNetwork:
        blocks = list(self._blocks())
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

    def _blocks(self) -> Iterator[Block]:
        """Yield the blocks in order, the network first."""
        text, start, depth = self._text, 0, 0
        block: Block | None = None
        for mark in _MARK.finditer(text):
            part, at = text[start : mark.start()].strip(), mark.start()
            begin = at - len(text[start:at].lstrip())
            depth += {"{": 1, "}": -1}.get(mark[0], 0)
            if mark[0] == "{" and depth == 1:
                block = self._begun(part, begin, at, is_first=block is None)
            elif mark[0] == "}" and depth == 0 and block is not None:
                if part:
                    raise self._error(begin, f"there is no ';' behind '{part.splitlines()[0]}'")
                yield block
            elif mark[0] == ";" and depth == 1 and block is not None:
                if not re.match(r"property\b", part):
                    block.statements.append(Statement(part, begin))
            else:
                continue
            start = mark.end()
        if depth or block is None or text[start:].strip():
            raise DataError("the text ends too early")

    def _begun(self, part: str, begin: int, at: int, is_first: bool) -> Block:
        """Return a block without statements, of the text before its brace."""
        kind, head = re.fullmatch(r"(\w*|\W)(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        if kind not in (("network",) if is_first else ("variable", "probability")):
            wanted = "'network'" if is_first else "'variable' or 'probability'"
            raise self._error(begin, f"'{kind}' where {wanted} belongs")
        if not head.strip() and not is_first:
            raise self._error(at, "'{' where the name of a variable belongs")
        return Block(kind, head.strip(), [], at)

    def _variable(self, block: Block) -> None:
        name, found = _unquoted(block.head), block.statements
        match = re.fullmatch(r"type\s+(\w+)\s*\[\s*(\d+)\s*\]\s*\{(.*)\}", found[0].text, re.DOTALL) if found else None
        if match is None or match[1] != "discrete" or len(found) > 1:
            raise self._error(block.at, f"'{name}' must be categorical: type discrete [2] {{ no, yes }}")
        count, ways = int(match[2]), _possible_lists(match[3])
        fitting = [way for way in ways if len(way) == count and len(set(way)) == count]
        if not fitting:
            raise self._error(block.at, f"'{name}' has {count} categories, listed are {', '.join(ways[0])}")
        if name in self._categories:
            raise self._error(block.at, f"'{name}' is defined twice")
        self._categories[name] = fitting[0]

    def _probability(self, block: Block) -> None:
        name, *parents = self._names(block)
        if name in self._variables or len(set(parents)) < len(parents):
            raise self._error(block.at, f"probabilities of '{name}', or a parent of it, are there twice")
        known = [self._categories[parent] for parent in parents]
        every = list(product(*known))
        rows: dict[tuple[str, ...], list[float]] = {}
        default: list[float] | None = None
        for text, at in block.statements:
            if re.match(r"table\b", text):
                numbers = self._numbers(name, text.removeprefix("table"), at)
                # The slowest index of a flat table is the category of the variable.
                if len(numbers) != (count := len(self._categories[name]) * len(every)):
                    raise self._error(at, f"'{name}' has {count} probabilities in its table; got {len(numbers)}")
                rows |= {given: self._row(name, numbers[place :: len(every)], at) for place, given in enumerate(every)}
            elif re.match(r"default\b", text) and parents:
                default = self._row(name, self._numbers(name, text.removeprefix("default"), at), at)
            else:
                given, listed = self._given(name, known, text, at)
                if given in rows:
                    raise self._error(at, f"probabilities of '{name}' given {', '.join(given)} are there twice")
                rows[given] = self._row(name, self._numbers(name, listed, at), at)
        lacking = [given for given in every if given not in rows]
        if lacking and default is None:
            raise self._error(block.at, f"'{name}' has no probabilities given ({', '.join(lacking[0])})")
        rows |= {given: default for given in lacking if default is not None}
        table = torch.tensor([rows[given] for given in every], dtype=torch.float64)
        table = table.reshape([len(self._categories[each]) for each in (*parents, name)])
        self._variables[name] = Variable(self._categories[name], tuple(parents), table / table.sum(-1, keepdim=True))

    def _names(self, block: Block) -> list[str]:
        """Return a variable and its parents, separated by ``|`` or blanks."""
        inside = re.fullmatch(r"\((.*)\)", block.head, re.DOTALL)
        if inside is None:
            raise self._error(block.at, f"'{block.head}' where '( name | parents )' belongs")
        child, bar, rest = inside[1].partition("|")
        ways = _possible_lists(rest if bar else child)
        fitting = [way for way in ways if all(name in self._categories for name in way)]
        parts = (fitting or (ways if bar else [(_unquoted(child),)]))[0]
        names = [_unquoted(child), *parts] if bar else list(parts)
        unknown = [name for name in names if name not in self._categories]
        if unknown:
            raise self._error(block.at, f"there is no variable '{unknown[0]}'")
        return names

    def _given(self, name: str, known: Sequence[Sequence[str]], text: str, at: int) -> tuple[tuple[str, ...], str]:
        """Return the categories of the parents of a row, and the text of its probabilities."""
        found = re.fullmatch(r"\((.*)\)([^)]*)", text, re.DOTALL)
        if found is None or not known:
            wanted = "'(' or 'table'" if known else "'table'"
            raise self._error(at, f"'{(text.split() or [''])[0]}' where {wanted} belongs")
        ways = _possible_lists(found[1])
        for way in ways:
            if len(way) == len(known) and all(part in of for part, of in zip(way, known, strict=True)):
                return way, found[2]
        raise self._error(
            at, f"'{name}' has probabilities given ({', '.join(ways[0])}), which are not categories of its parents"
        )

    def _numbers(self, name: str, text: str, at: int) -> list[float]:
        words = re.split(r"[\s,]+", text.strip())
        try:
            return [float(word) for word in words]
        except ValueError:
            raise self._error(at, f"'{name}' has probabilities that are not numbers: {', '.join(words)}") from None

    def _row(self, name: str, row: list[float], at: int) -> list[float]:
        """Return the probabilities of a row, checked."""
        count = len(self._categories[name])
        if len(row) != count or not all(0 <= each <= 1 for each in row):
            raise self._error(at, f"'{name}' has {count} probabilities in each row, from 0 to 1; got {row}")
        if abs(sum(row) - 1) > _ROUNDING:
            raise self._error(at, f"probabilities of '{name}' add up to {sum(row):g} in a row")
        return row

    def _error(self, at: int, problem: str) -> DataError:
        """Return an error with the line of a position in the text."""
        return DataError(f"line {self._text.count(chr(10), 0, at) + 1}: {problem}")


def _unquoted(text: str) -> str:
    """Return a name or a category without quotes and blanks around it."""
    text = " ".join(text.split())
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] == '"' else text


def _possible_lists(text: str) -> list[tuple[str, ...]]:
    """Return the lists that a text may denote: separated by commas, by commas outside brackets, or by blanks."""
    plain = re.findall(r'(?:"[^"]*"|[^,"])+', text)
    bracketed = re.findall(r'(?:"[^"]*"|[\[(][^\])]*[\])]|[^,"])+', text)
    blanks = re.findall(r'"[^"]*"|[^\s,"]+', text)
    return list(dict.fromkeys(tuple(filter(None, map(_unquoted, parts))) for parts in (plain, bracketed, blanks)))
