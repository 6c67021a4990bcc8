"""Cold start: some clients of a data set of series have only the last readings of the training part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from fedgraph.support.errors import DataError
from fedgraph.support.randomness import derive_seed
from fedgraph.support.settings import Settings

ColdScale = Literal["own", "graph", "everybody"]

INFERRED = {"graph": "over the client graph", "everybody": "from all other clients"}
"""How scales of ``cold-scale`` are inferred, in words."""


class ColdStartSettings(Settings):
    """Which clients start cold, and with how many readings; part of the settings of every data set of series.

    A cold client has no reading before the last ``cold_steps`` steps of the training part, for examples or scaling.
    Validation and test examples are unaffected. Results are reported for the groups ``cold`` and ``warm``, instead of
    the groups of the data.

    cold_share   : share of the clients that are cold, drawn from their names; 0 = none.
    cold_clients : the cold clients by name, instead of a share.
    cold_seed    : draws the clients of the share.
    cold_steps   : how many of the last steps of the training part a cold client has.
    cold_trains  : false = cold clients have no training examples; the last steps are only for their scaling.
    cold_scale   : the mean and deviation that scale a cold client's readings. ``own``: those of its last steps, which
                   may be an unusual day. ``graph``: those of a whole training part, inferred from its neighbours on the
                   client graph; ``everybody``: inferred from all other clients. For these two every client sends the
                   server its mean and deviation over the last steps and over all, and receives the inferred ones.
    """

    cold_share: float = Field(0.0, ge=0.0, lt=1.0)
    cold_clients: tuple[str, ...] | None = None
    cold_seed: int = 0
    cold_steps: int = Field(288, ge=1)
    cold_trains: bool = True
    cold_scale: ColdScale = "own"

    @model_validator(mode="after")
    def _share_or_names(self) -> ColdStartSettings:
        if self.cold_share and self.cold_clients is not None:
            raise ValueError("give `cold-share` or `cold-clients`, not both")
        return self


def cold_scale(data: Settings) -> ColdScale:
    """Return ``cold-scale`` of a ``[data]`` table; ``own`` for data sets other than series."""
    return data.cold_scale if isinstance(data, ColdStartSettings) else "own"


def cold_clients(settings: ColdStartSettings, names: Sequence[str]) -> frozenset[str]:
    """Return the cold clients among ``names``, all clients of the data set, in any order.

    The clients of a larger share include those of a smaller one. Raises DataError for unknown names, and for a share
    that is less than one client.
    """
    if settings.cold_clients is not None:
        unknown = [name for name in settings.cold_clients if name not in set(names)]
        if unknown:
            raise DataError(f"`cold-clients` names unknown clients: {', '.join(unknown[:5])} (of {len(names)} clients)")
        return frozenset(settings.cold_clients)
    count = round(settings.cold_share * len(names))
    if settings.cold_share and not count:
        raise DataError(
            f"`cold-share` {settings.cold_share:g} of {len(names)} clients is less than one client; use a larger share"
        )
    drawn = sorted(names, key=lambda name: derive_seed(settings.cold_seed, "cold-start", name))
    return frozenset(drawn[:count])


def check_cold_steps(settings: ColdStartSettings, train_steps: int, window: int) -> None:
    """Raise DataError unless the steps of a cold client lie in the training part and hold a window.

    ``train_steps`` is the length of the training part, ``window`` that of one example, both in time steps.
    """
    if settings.cold_steps > train_steps:
        raise DataError(
            f"`cold-steps` is {settings.cold_steps}, but the training part has only {train_steps} time steps; "
            "use fewer cold steps"
        )
    if settings.cold_trains and settings.cold_steps < window:
        raise DataError(
            f"`cold-steps` is {settings.cold_steps}, too few for one window of {window} steps; use more, or "
            "`cold-trains = false`"
        )


def describe_cold(settings: ColdStartSettings, names: Sequence[str]) -> str:
    """Describe the cold clients among all clients ``names``, for reports; empty if there are none."""
    count = len(cold_clients(settings, names))
    if not count:
        return ""
    last = f"the last {settings.cold_steps:,} steps of training readings"
    if settings.cold_scale not in INFERRED:
        return (
            f"{count} cold with {last}" if settings.cold_trains else f"{count} cold, scaled by {last} but never trained"
        )
    trained = "" if settings.cold_trains else "never trained, "
    return f"{count} cold with {last}, {trained}their scale inferred {INFERRED[settings.cold_scale]}"
