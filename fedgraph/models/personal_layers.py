"""Models with some layers that are shared and others that stay with their client.

Private last layers: FedPer (Arivazhagan et al. 2019). Private representations: LG-FedAvg (Liang et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    """Division of a model's columns into a shared and a personal part.

    Attributes
    ----------
    whole, shared, personal : Layout
        Of the model and of its two parts.
    """

    whole: Layout
    shared: Layout
    personal: Layout

    @classmethod
    def of(cls, whole: Layout, patterns: Sequence[str]) -> PersonalLayers:
        """Divide ``whole`` by the patterns of ``personal-layers``.

        Raises
        ------
        ExperimentError
            For a pattern that matches no tensor, and when nothing is left to share.
        """
        kept: set[str] = set()
        for pattern in patterns:
            negated = pattern.startswith("!")
            matching = {name for name in whole.names if fnmatchcase(name, pattern.removeprefix("!")) != negated}
            if not matching:
                raise ExperimentError(
                    f"personal-layers: no tensor of the model matches '{pattern}'; it has {', '.join(whole.names)}"
                )
            kept |= matching
        if len(kept) == len(whole.names):
            raise ExperimentError(
                f"personal-layers {list(patterns)} leaves nothing to share: every tensor of the model would stay with "
                'its client; use the method "local" for that'
            )
        return cls(whole, whole.part(set(whole.names) - kept), whole.part(kept))

    def split(self, models: Tensor) -> tuple[Tensor, Tensor]:
        """Split models ``[clients, parameters]`` into their shared and their personal columns."""
        if not self.personal.names:
            return models, models[:, :0]
        return models[:, self.whole.columns(self.shared)], models[:, self.whole.columns(self.personal)]

    def join(self, shared: Tensor, personal: Tensor) -> Tensor:
        """Join the two parts; the inverse of :meth:`split`."""
        if not self.personal.names:
            return shared
        models = shared.new_empty(len(shared), self.whole.num_parameters)
        models[:, self.whole.columns(self.shared)] = shared
        models[:, self.whole.columns(self.personal)] = personal
        return models

    @property
    def shared_trainable(self) -> Tensor | slice:
        """The shared columns among a model's leading ``num_trainable`` columns."""
        if not self.personal.names:
            return slice(0, self.whole.num_trainable)
        columns = self.whole.columns(self.shared)
        return columns[torch.arange(len(columns)) < self.shared.num_trainable]
