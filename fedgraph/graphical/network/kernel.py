"""Training of masked networks as calls into C++, for float32 on a CPU: whole epochs, gradients, and losses.

Features of a masked network share no parameters or losses, so each can be trained separately for a whole epoch in a
core's cache. Results equal those of :mod:`fedgraph.graphical.network.rows` to float tolerance, and are bitwise
identical for any number of threads and any set of clients that are trained together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fedgraph.graphical.network.network import Network
from fedgraph.models.native import loader as native
from fedgraph.models.native.graphical_source import SOURCE
from fedgraph.support.threads import available_cores
from fedgraph.training import EPSILON, Optimiser

_KINDS = {"number": 0, "binary": 1, "categorical": 2}
_PER_THREAD = 1 << 12
"""Rows times tasks that justify one more thread."""


class _Training(ctypes.Structure):
    """``Training`` of the C++ source, where the fields are documented."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("clients", "groups", "units", "width", "layers")),
        ("parameters", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("weights", "biases")),
        *((name, ctypes.c_int64) for name in ("missing", "head", "last")),
        *((name, ctypes.c_void_p) for name in ("first", "kinds", "begin", "inputs")),
        *((name, ctypes.c_void_p) for name in ("mean", "deviation", "base", "slopes")),
        *((name, ctypes.c_int64) for name in ("rows", "columns")),
        *((name, ctypes.c_void_p) for name in ("table", "counts", "active", "models")),
        *((name, ctypes.c_int64) for name in ("threads", "steps", "batch")),
        *((name, ctypes.c_void_p) for name in ("places", "idle")),
        *((name, ctypes.c_double) for name in ("first_beta", "second_beta", "rate")),
        ("epsilon", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("means", "squares", "taken", "gradients", "losses")),
    )


library = native.OnFirstUse("networks", SOURCE, "the training of graphical networks", "[fedngm.ngm] compile")
"""``library()``: the compiled training; None where it cannot be compiled."""


def suits(network: Network, parameters: Tensor) -> bool:
    """Return whether C++ can train models ``parameters`` of this network, and its settings ask for compiled code.

    Not for ``path-norm`` networks, whose large products PyTorch computes as fast; nor for subclasses of
    :class:`fedgraph.graphical.network.network.Network`.
    """
    plain = type(network) is Network and network.masked
    wanted = network.settings.compile and parameters.dtype == torch.float32 and parameters.device.type == "cpu"
    return plain and wanted and library() is not None


class CompiledRows:
    """:class:`fedgraph.graphical.network.rows.Rows` in C++, and whole epochs of training; arguments as there."""

    def __init__(self, network: Network, buffers: dict[str, Tensor], tables: Sequence[Tensor]) -> None:
        units, clients = len(network.schema.unit_feature), len(tables)
        self._network, self._fixed = network, _Fixed(network)
        self._lengths = torch.tensor([len(table) for table in tables])
        columns, most = tables[0].shape[1], int(self._lengths.max())
        self._table = torch.full((clients, columns, most), torch.nan)
        for place, table in enumerate(tables):
            self._table[place, :, : len(table)] = table.T
        first = network.first_units
        missing = self._table[:, first].isnan()
        counted = ~(missing | self._table[:, columns - units + first].isnan())
        self._counts = counted.sum(2)
        #: Rows with at least one target, ``[clients, rows]``.
        self._tells = counted.any(1)
        missing &= torch.arange(most) < self._lengths[:, None, None]
        self._begin, self._inputs = _inputs(network, missing.any(2))
        self._mean, self._deviation = buffers["mean"].contiguous(), buffers["deviation"].contiguous()
        self._base = network.unlearned(buffers).contiguous()

    @property
    def counts(self) -> Tensor:
        """See :class:`fedgraph.graphical.network.rows.Rows`."""
        return self._counts

    def losses(self, trained: Tensor) -> Tensor:
        """See :class:`fedgraph.graphical.network.rows.Rows`."""
        found = torch.zeros(len(trained), self._network.groups, dtype=torch.float64)
        self._call(trained, losses=found)
        return (found / self._counts.clamp(min=1)).float()

    def gradient(self, trained: Tensor, places: Tensor | None) -> tuple[Tensor, Tensor]:
        """See :class:`fedgraph.graphical.network.rows.Rows`."""
        places = None if places is None else places[None]
        found = torch.zeros_like(trained)
        self._call(trained, places, gradients=found)
        return found, self._idle(places)[0]

    def train(self, optimiser: Optimiser, trained: Tensor, places: Tensor | None, active: Tensor) -> None:
        """Take a step of Adam for each minibatch, in place.

        places : the rows of each, int64 ``[steps, clients, batch]``; None: one of all rows.
        active : clients that are trained, bool ``[clients]``; others do not change.
        """
        idle = self._idle(places)
        first, second = optimiser.settings.betas
        self._call(
            trained,
            places,
            {"first_beta": first, "second_beta": second, "rate": optimiser.learning_rate},
            active=active,
            idle=idle,
            means=optimiser.state["first-moment"],
            squares=optimiser.state["second-moment"],
            taken=optimiser.state["step"],
        )
        optimiser.state["step"] += (~idle & active).sum(0)

    def _idle(self, places: Tensor | None) -> Tensor:
        """Return which clients have nothing to learn from in a minibatch, bool ``[steps, clients]``."""
        if places is None:
            return ~self._tells.any(1)[None]
        clients = torch.arange(len(self._tells))[:, None]
        return ~(self._tells[clients, places] & (places >= 0)).any(2)

    def _call(
        self, trained: Tensor, places: Tensor | None = None, numbers: dict[str, float] | None = None, **more: Tensor
    ) -> None:
        compiled = library()
        assert compiled is not None
        fixed, clients = self._fixed, len(self._table)
        # C++ only sees addresses.
        if trained.shape != (clients, fixed.parameters) or trained.dtype != torch.float32:
            raise ValueError(f"models {tuple(trained.shape)} do not fit {(clients, fixed.parameters)}")
        if places is not None:
            if places.dim() != 3 or places.shape[1] != clients or places.dtype != torch.int64:
                raise ValueError(f"minibatches {tuple(places.shape)} do not fit {clients} clients")
            more["places"] = places.contiguous()
        steps, batch = (1, self._table.shape[2]) if places is None else (len(places), places.shape[2])
        given = {
            "active": torch.ones(clients, dtype=torch.bool),
            **fixed.tensors,
            "begin": self._begin,
            "inputs": self._inputs,
            "mean": self._mean,
            "deviation": self._deviation,
            "base": self._base,
            "table": self._table,
            "counts": self._lengths,
            "models": trained,
            **more,
        }
        structure = _Training(
            **fixed.sizes,
            **(numbers or {}),
            clients=clients,
            columns=self._table.shape[1],
            rows=self._table.shape[2],
            steps=steps,
            batch=batch,
            epsilon=EPSILON,
            threads=min(available_cores(), 1 + clients * self._network.groups * steps * batch // _PER_THREAD),
            **{name: _address(name, tensor) for name, tensor in given.items()},
        )
        if compiled.train_network(ctypes.byref(structure)):
            raise MemoryError("out of memory while training graphical networks; lower hidden")


class _Fixed:
    """The part of the arguments of the C++ source that is the same for any clients of a network.

    sizes, tensors : fields of ``Training``.
    """

    def __init__(self, network: Network) -> None:
        settings, layout, features = network.settings, network.layout, network.schema.features
        start = dict(zip(layout.names, accumulate(layout.sizes, initial=0), strict=False))
        hidden = [f"hidden.{layer}" for layer in range(settings.layers)]
        numbers = settings.loss == "squared"
        kinds = ["number" if each.is_scaled or numbers else each.kind for each in features]
        units = torch.tensor([len(network.schema.unit_feature)])
        self.parameters = layout.num_trainable
        self.sizes: dict[str, Any] = {
            "groups": network.groups,
            "units": int(units),
            "width": settings.width,
            "layers": settings.layers,
            "parameters": layout.num_trainable,
            "missing": start["missing.weight"],
            "head": start["head.weight"],
            "last": start["head.bias"],
        }
        self.tensors = {
            "weights": torch.tensor([start[f"{name}.weight"] for name in hidden]),
            "biases": torch.tensor([start[f"{name}.bias"] for name in hidden]),
            "first": torch.cat([network.first_units, units]),
            "kinds": torch.tensor([_KINDS[kind] for kind in kinds]),
            "slopes": network.heads.slopes[network.first_units].contiguous(),
        }


def _address(name: str, tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous")
    return tensor.data_ptr()


def _inputs(network: Network, sometimes_missing: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inputs of each client's groups: where they begin, int64 ``[clients * groups + 1]``, and the inputs.

    These are units of neighbours, and the number of units plus that of a feature for its flag, where a client has rows
    without it (bool ``[clients, features]``).
    """
    clients, features = sometimes_missing.shape
    graphs = network.adjacency.expand(clients, features, features)
    seen = torch.cat([graphs[..., network.schema.unit_feature], graphs & sometimes_missing[:, None]], 2).flatten(0, 1)
    begin = torch.nn.functional.pad(seen.sum(1).cumsum(0), (1, 0))
    return begin, seen.nonzero()[:, 1].contiguous()
