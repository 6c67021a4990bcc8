"""The features of a mixed table: names and kinds, which are all that a client reveals of its data.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, section 2 (data setup).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fedgraph.support.errors import DataError

Kind = Literal["real", "integer", "ordinal", "binary", "categorical", "embedding"]
"""``ordinal`` features are numbers or ordered categories; ``binary`` ones have two categories. An ``embedding`` is
several real numbers that form one feature, such as another model's representation of an image or a text.
"""


@dataclass(frozen=True)
class Feature:
    """One column, or several for an embedding.

    Raises DataError when categories or size do not fit the kind.

    Attributes
    ----------
    name : str
        Of the column, or of the embedding.
    kind : Kind
        How the feature is encoded.
    categories : tuple of str
        Of binary and categorical features, and of ordinal ones that are words, in their order; empty for numbers.
    size : int
        How many numbers a value consists of; 1 except for embeddings.
    """

    name: str
    kind: Kind
    categories: tuple[str, ...] = ()
    size: int = 1

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise DataError(f"feature '{self.name}' is {self.kind!r}; kinds are {', '.join(get_args(Kind))}")
        if len(set(self.categories)) < len(self.categories):
            raise DataError(f"feature '{self.name}' lists a category twice: {', '.join(self.categories)}")
        wrong = {
            "real": bool(self.categories),
            "integer": bool(self.categories),
            "ordinal": len(self.categories) == 1,
            "binary": len(self.categories) != 2,
            "categorical": not self.categories,
            "embedding": bool(self.categories),
        }[self.kind]
        if wrong:
            raise DataError(f"feature '{self.name}' is {self.kind} and cannot have {len(self.categories)} categories")
        if self.size < 1 or (self.size > 1 and self.kind != "embedding"):
            raise DataError(f"feature '{self.name}' is {self.kind} and cannot consist of {self.size} numbers")

    @property
    def is_number(self) -> bool:
        """Whether it is one unit on a scale; otherwise it has a unit per category, or one for two categories."""
        return self.kind in ("real", "integer", "ordinal")

    @property
    def is_scaled(self) -> bool:
        """Whether its units are numbers on a scale; otherwise they are indicators of categories."""
        return self.is_number or self.kind == "embedding"

    @property
    def width(self) -> int:
        """Number of units of a network that represent it."""
        return len(self.categories) if self.kind == "categorical" else self.size

    def as_json(self) -> dict[str, Any]:
        """Return the feature as plain data for a message."""
        plain = {"name": self.name, "kind": self.kind, "categories": list(self.categories)}
        return {**plain, "size": self.size} if self.kind == "embedding" else plain


@dataclass(frozen=True)
class Schema:
    """Features in the order of the columns of matrices; the units of a feature are adjacent, and so are its values.

    Raises DataError when two features have one name.

    Attributes
    ----------
    features : tuple of Feature
        With different names.
    """

    features: tuple[Feature, ...]

    def __post_init__(self) -> None:
        names = [feature.name for feature in self.features]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise DataError(f"duplicate feature '{twice}'")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def unit_feature(self) -> Tensor:
        """Position of the feature of each unit, int64 ``[units]``."""
        widths = torch.tensor([feature.width for feature in self.features], dtype=torch.int64)
        return torch.arange(len(self.features)).repeat_interleave(widths)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Columns of units of each feature."""
        return self._slices([feature.width for feature in self.features])

    @cached_property
    def value_slices(self) -> dict[str, slice]:
        """Columns of values of each feature; one, except for embeddings."""
        return self._slices([feature.size for feature in self.features])

    @property
    def num_values(self) -> int:
        """Number of columns of values."""
        return sum(feature.size for feature in self.features)

    def _slices(self, widths: Sequence[int]) -> dict[str, slice]:
        ends = list(accumulate(widths))
        parts = zip(self.names, widths, ends, strict=True)
        return {name: slice(end - width, end) for name, width, end in parts}

    def __getitem__(self, name: str) -> Feature:
        """Return a feature by name; raise DataError listing the features if there is none."""
        if name not in self.names:
            raise DataError(f"there is no feature '{name}'; there are {', '.join(self.names)}")
        return self.features[self.names.index(name)]

    def select(self, names: Sequence[str]) -> Schema:
        """Return a schema of some features, in the order given."""
        return Schema(tuple(self[name] for name in names))
