"""The features that clients have in common, from their schemas alone.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models. Common features are those that all clients have
(section 2.1, and the global variable list of section 2.5); value sets may overlap or be disjoint (section 2).

Clients may see different parts of a feature. These are the same feature:

- different lists of categories: their union, in an order that does not depend on the clients' order;
- binary here, categorical or constant there: binary with two categories in all, else categorical;
- integer here, real there: real;
- numbers here, at most two categories that are numbers there (a table with 0 and 1 only): numbers.

Everything else is a dispute: ordinal features must be ordinal everywhere, with words in the same order; an embedding
must have the same size. A feature with the same single category everywhere is left out.

A client can keep features private by sending only part of its schema.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from fedgraph.data.columns.columns import is_number, sort_categories
from fedgraph.data.schema.json import check_limits
from fedgraph.data.schema.schema import Feature, Schema
from fedgraph.support.errors import DataError, counted
from fedgraph.support.untrusted import in_short


@dataclass(frozen=True)
class Agreement:
    """The features that the clients' schemas have in common.

    Attributes
    ----------
    common : Schema
        The features that all clients have, each with all categories, in the order of the first client by name.
    schemas : mapping of str to Schema
        Of the clients, sorted by name.
    disputed : tuple of str
        Features that all clients have, but with incompatible kinds.
    constant : tuple of str
        Features with the same single category everywhere.
    """

    common: Schema
    schemas: Mapping[str, Schema]
    disputed: tuple[str, ...]
    constant: tuple[str, ...]

    @property
    def private(self) -> dict[str, tuple[str, ...]]:
        """Each client's features beyond the common ones."""
        return {client: private_features(self.common, schema).names for client, schema in self.schemas.items()}

    @property
    def unseen(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Categories that other clients have and this client has not seen, by common feature and client."""
        found: dict[str, dict[str, tuple[str, ...]]] = {}
        for feature in self.common.features:
            for client, schema in self.schemas.items():
                seen = set(schema[feature.name].categories)
                if lacking := tuple(category for category in feature.categories if category not in seen):
                    found.setdefault(feature.name, {})[client] = lacking
        return found

    def describe(self) -> str:
        """Describe in a few lines the common features, changed kinds, and what was left out."""
        lines = [f"{counted(len(self.common.features), 'common feature')} of {counted(len(self.schemas), 'client')}"]
        for feature in self.common.features:
            changed = {name: own for name, own in self.schemas.items() if own[feature.name].kind != feature.kind}
            if changed:
                lines.append(f"  '{feature.name}' is {feature.kind}: {describe_kinds(feature.name, changed)}")
        for name, clients in self.unseen.items():
            parts = (f"{_first(lacking)} at '{client}'" for client, lacking in clients.items())
            lines.append(f"  '{name}' has values that not all have seen: no {'; no '.join(parts)}")
        lines += [f"  '{name}' is constant, and left out" for name in self.constant]
        lines += [
            f"  '{name}' is disputed, and private: {describe_kinds(name, self.schemas)}" for name in self.disputed
        ]
        for client, names in self.private.items():
            if names:
                lines.append(f"  private to '{client}': {', '.join(names)}")
        return "\n".join(lines)


def agree(schemas: Mapping[str, Schema], disputes: Literal["error", "private"] = "error") -> Agreement:
    """Return the agreement of clients, which does not depend on their order.

    With at least one common feature. Raises DataError for disputes, with the kind at every client; when there is no
    common feature; when the union of all categories is too large.

    Parameters
    ----------
    schemas : mapping of str to Schema
        By client.
    disputes : {"error", "private"}
        Whether a disputed feature is an error, or a private feature of every client.
    """
    ordered = {client: schemas[client] for client in sorted(schemas)}
    if not ordered:
        raise DataError("there are no clients to agree on features")
    shared = set.intersection(*(set(schema.names) for schema in ordered.values()))
    names = [name for name in next(iter(ordered.values())).names if name in shared]
    merged = {name: _merged([schema[name] for schema in ordered.values()]) for name in names}
    disputed = tuple(name for name, feature in merged.items() if feature is None)
    if disputed and disputes == "error":
        lines = [f"  '{name}' is {describe_kinds(name, ordered)}" for name in disputed]
        raise DataError(
            "\n".join(["clients disagree about features:", *lines]) + "\ngive their kinds, or leave them out (drop)"
        )
    constant = tuple(name for name, feature in merged.items() if feature and len(feature.categories) == 1)
    common = tuple(feature for name, feature in merged.items() if feature and name not in constant)
    if not common:
        parts = (f"'{client}' has {', '.join(schema.names[:10])}" for client, schema in ordered.items())
        raise DataError(f"the clients have no feature in common: {'; '.join(parts)}")
    check_limits(Schema(common))
    return Agreement(Schema(common), ordered, disputed, constant)


def private_features(common: Schema, own: Schema) -> Schema:
    """Return the private features of a client's schema ``own``, in its order, without constant ones."""
    return Schema(tuple(f for f in own.features if f.name not in common.names and len(f.categories) != 1))


def with_private_features(common: Schema, own: Schema) -> Schema:
    """Return the common features, then the client's private ones (section 2.4, stitching)."""
    return Schema(common.features + private_features(common, own).features)


def describe_kinds(name: str, schemas: Mapping[str, Schema]) -> str:
    """List the kinds of a feature at the clients, e.g. ``binary (n, y) at 'north', real at 'south'``."""
    by_text: dict[str, list[str]] = {}
    for client, schema in schemas.items():
        feature = schema[name]
        words = f"{feature.size} numbers" if feature.kind == "embedding" else _first(feature.categories)
        by_text.setdefault(f"{feature.kind} ({words})" if words else feature.kind, []).append(f"'{client}'")
    return ", ".join(f"{text} at {_first(clients)}" for text, clients in by_text.items())


def _first(words: Sequence[str], shown: int = 5) -> str:
    return ", ".join(words[:shown]) + (f", ... ({len(words)} in all)" if len(words) > shown else "")


def _merged(features: Sequence[Feature]) -> Feature | None:
    """Merge the clients' versions of a feature into one; None if they cannot be one feature."""
    name, kinds = features[0].name, {feature.kind for feature in features}
    listed = [feature.categories for feature in features if feature.categories]
    order = _longest(listed)
    if "embedding" in kinds:
        return features[0] if len(set(features)) == 1 else None
    if "ordinal" in kinds:
        same = len(kinds) == 1 and len(listed) in (0, len(features)) and order is not None
        return Feature(name, "ordinal", order or ()) if same else None
    if len(listed) < len(features):
        if not all(len(categories) <= 2 and all(map(is_number, categories)) for categories in listed):
            return None
        whole = all(float(category).is_integer() for categories in listed for category in categories)
        return Feature(name, "integer" if whole and "real" not in kinds else "real")
    union = order or sort_categories(sorted({category for categories in listed for category in categories}))
    unordered = any(feature.kind == "categorical" and len(feature.categories) == 2 for feature in features)
    return Feature(name, "binary" if len(union) == 2 and not unordered else "categorical", union)


def _longest(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the list that contains all others in order; () for no lists, None if there is none."""
    longest = max(lists, key=len, default=())
    for one in lists:
        rest = iter(longest)
        if not all(category in rest for category in one):
            return None
    return longest


def disagreeing(schemas: Mapping[str, Schema], disputes: Literal["error", "private"]) -> dict[str, str]:
    """Return the clients that :func:`agree` with the fewest others, and why; {} if all agree equally."""
    problems: dict[str, list[str]] = {name: [] for name in schemas}
    for pair in combinations(schemas, 2):
        try:
            agree({name: schemas[name] for name in pair}, disputes)
        except DataError as error:
            for name in pair:
                problems[name].append(str(error))
    counts = {name: len(found) for name, found in problems.items()}
    most = max(counts.values())
    if min(counts.values()) == most:
        return {}
    return {
        name: f"its features conflict with those of {most} others: {in_short(problems[name][0], 300)}"
        for name, count in counts.items()
        if count == most
    }
