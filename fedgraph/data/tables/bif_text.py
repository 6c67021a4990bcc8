"""Tokenises BIF files: blocks, statements, and lists of names or categories.

https://sites.poli.usp.br/p/fabio.cozman/Research/InterchangeFormat/index.html; comments and properties
are skipped. Unambiguous extensions of the format are read: names and categories in quotes or with blanks, and intervals
such as ``(0,18]`` as categories.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fedgraph.support.errors import DataError

_COMMENT = re.compile(r'"[^"]*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_WORD = re.compile(r'"[^"]*"|[^\s,|()\[\]{}";]+|[^\s]')
_KINDS = ("network", "variable", "probability")


class Statement(NamedTuple):
    """A statement up to its semicolon, and where it begins in the text."""

    text: str
    at: int


@dataclass(frozen=True)
class Block:
    """``variable rain { ... }``: kind, text before the brace, statements without properties, and position."""

    kind: str
    head: str
    statements: tuple[Statement, ...]
    at: int


class BifText:
    """The text of a file, without comments.

    Attributes
    ----------
    text : of the same length as the file's, so that places have their lines.
    """

    def __init__(self, text: str) -> None:
        def blank(found: re.Match[str]) -> str:
            return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])

        self.text = _COMMENT.sub(blank, text)

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in order, the network first."""
        at, text, first = 0, self.text, True
        while (word := _WORD.search(text, at)) is not None:
            kind = word[0]
            if (kind == "network") != first or kind not in _KINDS:
                wanted = "'network'" if first else "'variable' or 'probability'"
                raise self.error(word.start(), f"'{kind}' where {wanted} belongs")
            first = False
            begin = self._find("{", word.end())
            head = text[word.end() : begin].strip()
            if not head and kind != "network":
                raise self.error(begin, "'{' where the name of a variable belongs")
            end = self._end_of(begin)
            yield Block(kind, head, tuple(self._statements(begin + 1, end)), begin)
            at = end + 1
        if first:
            raise DataError("the text ends too early")

    def error(self, at: int, problem: str) -> DataError:
        """Return an error with the line of a position in the text."""
        return DataError(f"line {self.text.count(chr(10), 0, at) + 1}: {problem}")

    def _statements(self, begin: int, end: int) -> Iterator[Statement]:
        while self.text[begin:end].strip():
            begin += len(self.text[begin:end]) - len(self.text[begin:end].lstrip())
            stop = self._find(";", begin, end)
            if not re.match(r"property\b", self.text[begin:stop]):
                yield Statement(self.text[begin:stop].strip(), begin)
            begin = stop + 1

    def _find(self, letter: str, at: int, end: int | None = None) -> int:
        """Return the position of a letter outside quotes."""
        for found in re.finditer(f'"[^"]*"|{re.escape(letter)}', self.text[at:end]):
            if found[0] == letter:
                return at + found.start()
        if end is not None:
            raise self.error(at, f"there is no '{letter}' behind '{self.text[at:end].strip().splitlines()[0]}'")
        raise DataError("the text ends too early")

    def _end_of(self, begin: int) -> int:
        depth = 0
        for found in re.finditer(r'"[^"]*"|[{}]', self.text[begin:]):
            depth += {"{": 1, "}": -1}.get(found[0], 0)
            if not depth:
                return begin + found.start()
        raise DataError("the text ends too early")


def unquoted(text: str) -> str:
    """Return a name or a category without quotes and blanks around it."""
    text = " ".join(text.split())
    return text[1:-1].strip() if len(text) > 1 and text[0] == text[-1] == '"' else text


def possible_lists(text: str) -> list[tuple[str, ...]]:
    """Return the lists that a text may denote: separated by commas, by commas outside brackets, or by blanks."""
    plain = re.findall(r'(?:"[^"]*"|[^,"])+', text)
    bracketed = re.findall(r'(?:"[^"]*"|[\[(][^\])]*[\])]|[^,"])+', text)
    blanks = re.findall(r'"[^"]*"|[^\s,"]+', text)
    return list(dict.fromkeys(tuple(filter(None, map(unquoted, parts))) for parts in (plain, bracketed, blanks)))


def entries(text: str, known: list[Collection[str]]) -> tuple[str, ...]:
    """Return the entries of a list, one of each of ``known``; if that fails, those between commas."""
    found = possible_lists(text)
    for parts in found:
        if len(parts) == len(known) and all(part in of for part, of in zip(parts, known, strict=True)):
            return parts
    return found[0]
