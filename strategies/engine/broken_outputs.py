"""Warnings about clients whose models have non-finite outputs and thus no metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from itertools import groupby

import torch
from torch import Tensor

from fedgraph.federation import Federation
from fedgraph.support.errors import quoted

log = logging.getLogger("fedgraph")

_ADVICE = "If training has diverged, a smaller learning rate or [train] clip-norm helps"


def note_broken(
    federation: Federation,
    positions: Tensor,
    metrics: Mapping[str, Tensor],
    server_round: int,
    noted: dict[str, int],
) -> None:
    """Add clients whose metrics of a split are all NaN to ``noted``, with the round, and warn about them.

    Nodes report NaN for a model with NaN or infinite outputs, and without any target. The latter happens to forecasts:
    a client that has metrics of another split has no readings to compare with, which the description of the data says.

    Parameters
    ----------
    positions : positions of the evaluated clients, int64 ``[present]``.
    metrics : by ``<split>/<metric>``, ``[present]``.
    server_round : rounds of training of their models.
    noted : by client, the first such round.
    """
    broken = torch.zeros(len(positions), dtype=torch.bool)
    measured = broken.clone()
    for split in dict.fromkeys(name.partition("/")[0] for name in metrics):
        values = torch.stack([row for name, row in metrics.items() if name.startswith(f"{split}/")])
        counts = federation.num_examples.get(split)
        present = torch.ones_like(broken) if counts is None else counts[positions] > 0
        broken |= values.isnan().all(0) & present
        measured |= values.isfinite().any(0)
    if federation.task.kind == "forecast":
        broken &= ~measured
    names = [federation.names[place] for place in positions[broken].tolist()]
    new = [name for name in names if name not in noted]
    noted.update(dict.fromkeys(new, server_round))
    if new:
        log.warning("%s", _words(new, server_round, federation))


def notes_of(noted: Mapping[str, int], federation: Federation) -> list[str]:
    """Return a sentence for each round in ``noted``, for the notes of a run."""
    in_order = sorted(noted.items(), key=lambda item: (item[1], item[0]))
    rounds = groupby(in_order, key=lambda item: item[1])
    return [_words([name for name, _ in members], number, federation) for number, members in rounds]


def _words(names: list[str], server_round: int, federation: Federation) -> str:
    # Windows may have no reading; other examples always have a target.
    why = ", or no reading of a split is known" if federation.task.kind == "forecast" else ""
    return (
        f"after round {server_round}, outputs of the model are NaN or infinite for {quoted(names)}{why}; their metrics "
        f'are "-". {_ADVICE}'
    )
