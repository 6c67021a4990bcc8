"""The table ``[model]`` and its variants: the architectures of an experiment, and the clients of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from fedgraph.models.base import StackedModel, TaskSpec
from fedgraph.models.registry import build, parse_model
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings

_NAMES_SHOWN = 8


class ModelTable(Settings):
    """``[model]``: the key ``name`` selects a model, whose keys are in the same table.

    Attributes
    ----------
    variants : tables ``[[model.variants]]``, other models for some of the clients; by default empty.
    """

    variants: tuple[dict[str, Any], ...] = ()


class VariantTable(Settings):
    """``[[model.variants]]``: a model for some clients, a complete model table with one additional key.

    Attributes
    ----------
    clients : names, or shell patterns (``*``, ``?``, ``[abc]``; case-sensitive), of the clients with this model. The
            first matching variant is used, else ``[model]``.
    """

    clients: tuple[str, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Rule:
    """One variant: clients that match ``patterns`` get the architecture ``number``; ``where`` is for messages."""

    patterns: tuple[str, ...]
    number: int
    where: str

    def matches(self, name: str) -> bool:
        """Return whether the rule applies to a client."""
        return any(_matches(pattern, name) for pattern in self.patterns)


@dataclass(frozen=True)
class ModelChoice:
    """The architectures of an experiment, determined by the table, on which server and nodes thus agree.

    Attributes
    ----------
    tables : tuple of dict
        A model table for each architecture, all different; the first is that of ``[model]``.
    places : tuple of str
        Place of each in the experiment, for messages.
    rules : tuple of Rule
        The variants, in the order of the experiment.
    """

    tables: tuple[dict[str, Any], ...]
    places: tuple[str, ...]
    rules: tuple[Rule, ...]

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ModelChoice:
        """Validate the table ``[model]`` with its variants.

        Raises ExperimentError for an unknown model or key (the message lists the known ones), and a variant that names
        no clients.
        """
        tables: dict[str, dict[str, Any]] = {}
        places: list[str] = []

        def number_of(table: Mapping[str, Any], settings: Settings, extra: type[Settings], where: str) -> int:
            other = set(extra.keys())
            resolved = {key: value for key, value in settings.as_table().items() if key not in other}
            identity = json.dumps(resolved, sort_keys=True, default=str)
            if identity not in tables:
                tables[identity] = {key: value for key, value in table.items() if key not in other}
                places.append(where)
            return list(tables).index(identity)

        main: Any = parse_model(table, "[model]", ModelTable)
        number_of(table, main, ModelTable, "[model]")
        rules = []
        for count, variant_table in enumerate(main.variants, start=1):
            where = f"[[model.variants]] number {count}"
            variant: Any = parse_model(variant_table, where, VariantTable)
            rules.append(Rule(variant.clients, number_of(variant_table, variant, VariantTable, where), where))
        return cls(tuple(tables.values()), tuple(places), tuple(rules))

    @staticmethod
    def resolved(table: Mapping[str, Any], write: Callable[[Settings], dict[str, Any]]) -> dict[str, Any]:
        """Return the table ``[model]`` with all defaults filled in, variants included, each as ``write`` writes it.

        Raises ExperimentError as :meth:`of` does.
        """
        main: Any = parse_model(table, "[model]", ModelTable)
        own = {key: value for key, value in write(main).items() if key != "variants"}
        variants = [
            write(parse_model(variant_table, f"[[model.variants]] number {count}", VariantTable))
            for count, variant_table in enumerate(main.variants, start=1)
        ]
        return own | ({"variants": variants} if variants else {})

    def build(self, task: TaskSpec) -> StackedModel:
        """Build the model of ``[model]``. Raises ExperimentError for one that does not fit the task."""
        return build(self.tables[0], task)

    @property
    def is_mixed(self) -> bool:
        """Whether there is more than one architecture."""
        return len(self.tables) > 1

    def numbers(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the position of each client's architecture in ``tables``."""
        return tuple(next((rule.number for rule in self.rules if rule.matches(name)), 0) for name in names)

    def check_variants(self, names: Sequence[str]) -> None:
        """Raise ExperimentError for a pattern without a client, and for a variant whose clients match earlier ones."""
        for position, rule in enumerate(self.rules):
            for pattern in rule.patterns:
                if not any(_matches(pattern, name) for name in names):
                    more = ", ..." if len(names) > _NAMES_SHOWN else ""
                    raise ExperimentError(
                        f"{rule.where}, clients: no client of this run is called, or matches, '{pattern}'; it has "
                        f"{', '.join(names[:_NAMES_SHOWN])}{more} ({len(names)} clients)"
                    )
            earlier = self.rules[:position]
            if all(any(first.matches(name) for first in earlier) for name in names if rule.matches(name)):
                raise ExperimentError(
                    f"{rule.where}: all its clients get the model of an earlier variant, because the first variant "
                    "that matches a client counts; put this one before, or remove it"
                )


def _matches(pattern: str, name: str) -> bool:
    # The name of a client may look like a pattern, e.g. 'ward [3]'.
    return name == pattern or fnmatchcase(name, pattern)
