"""Models with some layers that are shared, others that stay with their client, and frozen ones that all have.

Private last layers: FedPer (Arivazhagan et al. 2019). Private representations: LG-FedAvg (Liang et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from fedgraph.models.parameters import Layout
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import Settings


class PersonalLayersSettings(Settings):
    """Keys of a method that can leave some layers with the clients.

    Attributes
    ----------
    personal_layers : names or shell patterns of tensors that never leave their client, e.g. ``["head.*"]``; a pattern
                      that begins with ``!`` stands for all tensors that it does not match. ``[]``: all are shared.
    """

    personal_layers: tuple[str, ...] = ()


@dataclass(frozen=True)
class PersonalLayers:
    """Division of a model's columns into a shared and a personal part, and a fixed one.

    Attributes
    ----------
    whole, shared, personal : Layout
        Of the model and of its parts.
    fixed : Layout
        Frozen layers that nodes are sent once, and that are in neither part; empty where they are shared like others.
    """

    whole: Layout
    shared: Layout
    personal: Layout
    fixed: Layout = field(default_factory=lambda: Layout((), ()))

    @classmethod
    def of(cls, whole: Layout, patterns: Sequence[str], fixes_frozen: bool = False) -> PersonalLayers:
        """Divide ``whole`` by the patterns of ``personal-layers``.

        With ``fixes_frozen`` those frozen layers that are not personal are the fixed part. Raises ExperimentError for a
        pattern that matches no tensor, and when nothing is left to share.
        """
        kept: set[str] = set()
        for pattern in patterns:
            negated = pattern.startswith("!")
            matching = {name for name in whole.names if fnmatchcase(name, pattern.removeprefix("!")) != negated}
            if not matching:
                within = any(name.startswith(f"{pattern.removeprefix('!')}.") for name in whole.names)
                hint = f"; '{pattern}.*' is what begins with it" if within else ""
                raise ExperimentError(
                    f"personal-layers: no tensor of the model matches '{pattern}'{hint}; it has "
                    f"{', '.join(whole.names)}"
                )
            kept |= matching
        fixed = whole.frozen - kept if fixes_frozen and whole.num_trainable else frozenset()
        if len(kept) + len(fixed) == len(whole.names):
            raise ExperimentError(
                f"personal-layers {list(patterns)} leaves nothing to share: every tensor of the model would stay with "
                'its client; use the method "local" for that'
            )
        shared = whole.part(set(whole.names) - kept - fixed) if kept or fixed else whole
        return cls(whole, shared, whole.part(kept), whole.part(fixed))

    def split(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Split models ``[clients, parameters]`` into their shared and their personal columns."""
        if self._all_shared:
            return models, models[:, :0]
        columns = self._columns(models)
        shared, personal = (
            [columns[name] for name in part.names] or [models[:, :0]] for part in (self.shared, self.personal)
        )
        return torch.cat(shared, dim=1), torch.cat(personal, dim=1)

    def join(self, shared: Tensor, personal: Tensor, fixed: Tensor | None = None) -> Tensor:
        """Join the two parts, and the fixed one ``[numbers]``; the inverse of :meth:`split`."""
        if self._all_shared:
            return shared
        models = shared.new_empty(len(shared), self.whole.num_parameters)
        columns = self._columns(models)
        parts = [(self.shared, shared), (self.personal, personal)]
        for part, rows in [*parts, *([] if fixed is None else [(self.fixed, fixed[None])])]:
            for name, values in zip(part.names, rows.split(part.sizes, dim=1), strict=True):
                columns[name].copy_(values)
        return models

    def fixed_of(self, models: Tensor) -> Tensor:
        """Return the fixed columns of models ``[clients, parameters]``."""
        columns = self._columns(models)
        return torch.cat([columns[name] for name in self.fixed.names] or [models[:, :0]], dim=1)

    @property
    def _all_shared(self) -> bool:
        return not self.personal.names and not self.fixed.names

    def _columns(self, models: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.whole.names, models.split(self.whole.sizes, dim=1), strict=True))

    @property
    def shared_trainable(self) -> Tensor | slice:
        """The shared columns among a model's leading ``num_trainable`` columns."""
        if not self.personal.names:
            return slice(0, self.whole.num_trainable)
        columns = self.whole.columns(self.shared)
        return columns[torch.arange(len(columns)) < self.shared.num_trainable]
