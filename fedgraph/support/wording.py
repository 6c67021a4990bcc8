"""Parts of sentences in messages: counts with their nouns, and lists that may be empty."""

from __future__ import annotations


def counted(count: int, word: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 row``, ``1,200 rows``; ``plural`` is for other endings than s."""
    return f"{count:,} {word if count == 1 else plural or f'{word}s'}"


def if_any(before: str, text: str) -> str:
    """Return ``before`` and ``text``, as in ``; known: a, b``, or nothing if there is no text."""
    return f"{before}{text}" if text else ""
