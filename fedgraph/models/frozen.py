"""A stacked model of which some tensors are not trained, such as an output layer that all clients have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fedgraph.models.base import Differentiated, StackedModel
from fedgraph.models.parameters import Layout
from fedgraph.support.errors import ExperimentError


class FrozenLayers:
    """The same model with the tensors that ``names`` match (names or shell patterns) as buffers of its layout.

    Training leaves them as they are, running statistics among them included. A row of this model holds the trained
    parameters first, so it is in another order than one of ``model``: see :meth:`wrapped` and :meth:`unwrapped`.

    Raises
    ------
    ExperimentError
        For a pattern that matches no tensor.
    """

    def __init__(self, model: StackedModel, names: Sequence[str]) -> None:
        self.model = model
        self.names = tuple(names)
        whole = model.layout
        for pattern in names:
            if not any(fnmatchcase(name, pattern) for name in whole.names):
                raise ExperimentError(
                    f"layers to freeze: no tensor of the model matches '{pattern}'; it has {', '.join(whole.names)}"
                )
        self.frozen = frozenset(name for name in whole.names if any(fnmatchcase(name, each) for each in names))
        shapes = dict(zip(whole.names, whole.shapes, strict=True))
        buffers = whole.buffers | self.frozen
        order = sorted(whole.names, key=lambda name: name in buffers)
        self.layout = Layout(tuple(order), tuple(shapes[name] for name in order), buffers)
        self._columns = torch.cat([whole.columns(whole.part([name])) for name in order])

    def wrapped(self, rows: Tensor) -> Tensor:
        """Rows ``[clients, parameters]`` of the model -> rows of this one."""
        return rows[:, self._columns]

    @property
    def draws(self) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.draws

    @property
    def native(self) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`; a gradient that is written out is that of all layers."""
        return self.model.native and not isinstance(self.model, Differentiated)

    def compiled(self) -> FrozenLayers:
        """The same layers of the compiled model frozen."""
        return FrozenLayers(self.model.compiled(), self.names)

    def initial(self, generator: torch.Generator) -> Tensor:
        """The initial row of the model, in the order of this one: ``[parameters]``."""
        return self.wrapped(self.model.initial(generator)[None])[0]

    def forward(
        self, state: Mapping[str, Tensor], inputs: Tensor, training: bool
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        outputs, changed = self.model.forward(state, inputs, training)
        return outputs, self._allowed(changed)

    @property
    def embedding_size(self) -> int:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.embedding_size

    @property
    def head_tensors(self) -> tuple[str, ...]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.head_tensors

    def embed(self, state: Mapping[str, Tensor], inputs: Tensor, training: bool) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        embeddings, changed = self.model.embed(state, inputs, training)
        return embeddings, self._allowed(changed)

    def represent(self, state: Mapping[str, Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.represent(state, inputs)

    def twin(self) -> nn.Module:
        """The model's twin, whose parameters do not know that they are frozen."""
        return self.model.twin()

    def _allowed(self, changed: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: value for name, value in changed.items() if name not in self.frozen}
