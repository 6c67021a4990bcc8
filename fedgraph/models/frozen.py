"""A stacked model with frozen tensors, such as an output layer that all clients share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fedgraph.models.base import Differentiated, StackedModel
from fedgraph.models.graphs.table import GraphTable
from fedgraph.models.parameters import Layout
from fedgraph.support.errors import ExperimentError


class FrozenLayers(StackedModel):
    """A model in which tensors that match ``names`` are frozen, including running statistics.

    A row of this model contains the trained parameters first, so its order differs from that of ``model``: see
    :meth:`wrapped`. Raises ExperimentError for a pattern without a matching tensor.

    Parameters
    ----------
    model : StackedModel
        The model.
    names : sequence of str
        Names or shell patterns of tensors.
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
        self._layout = Layout(tuple(order), tuple(shapes[name] for name in order), buffers)
        self._columns = torch.cat([whole.columns(whole.part([name])) for name in order])

    def wrapped(self, rows: Tensor) -> Tensor:
        """Convert rows ``[clients, parameters]`` of the model to rows of this one."""
        return rows[:, self._columns]

    @property
    def layout(self) -> Layout:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self._layout

    @property
    def draws(self) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.draws

    @property
    def draws_apart(self) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.draws_apart

    @property
    def draws_hashed(self) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.draws_hashed

    @property
    def draws_padded(self) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.draws_padded

    @property
    def sequential(self) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.sequential

    @property
    def library(self) -> object | None:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.library

    @property
    def native(self) -> bool:
        """Whether the model is native; not if it computes its gradient, which would include frozen layers."""
        return self.model.native and not isinstance(self.model, Differentiated)

    @property
    def least_examples(self) -> int:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.least_examples

    def mixes_examples(self, training: bool) -> bool:
        """See :class:`fedgraph.models.base.StackedModel`."""
        return self.model.mixes_examples(training)

    def compiled(self) -> FrozenLayers:
        """Freeze the same layers of the compiled model."""
        return FrozenLayers(self.model.compiled(), self.names)

    def with_graphs(self, graphs: GraphTable) -> FrozenLayers:
        """Freeze the same layers of the model for examples of these graphs."""
        return FrozenLayers(self.model.with_graphs(graphs), self.names)

    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw the initial row of the model, ``[parameters]``, in the order of this one."""
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
        """Return the model's twin, in which no parameter is frozen."""
        return self.model.twin()

    def _allowed(self, changed: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return {name: value for name, value in changed.items() if name not in self.frozen}
