"""IPA, what both sides agree on: its settings (Gorbett, Shirazi, Ray; IEEE Big Data 2023)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedgraph.privacy.noise import NoiseSettings
from fedgraph.support.settings import Schedule, Settings


class IPASettings(Settings):
    """``[ipa]``; the paper trains with Adam at 0.001 whose moments are kept ([train] keep-optimizer = true).

    The keys order, moves_others and joins are for sequential turns.

    Attributes
    ----------
    power            : p of the distance ``sum |theta_i - theta_j|^p``: 1 for peers that differ, 2 for similar peers.
    lambda_alignment : weight of the distances: a number, or a schedule ``[[1, a], [r, b]]``, b from round r on.
    lambda_scale     : ``batch-sum``: weight relative to the loss summed over a minibatch, as in the paper;
                       ``batch-mean``: relative to its mean.
    weights          : c_j of a distance: a peer's share of all training ``examples``, or 1 for ``all-alike``.
    turns            : ``sequential``: one peer after the other, each from where the last one left all parameters;
                       ``simultaneous``: all at once, against the others as the last round left them, which stay.
    order            : of the turns: the ``ring`` of the peers' names, or a new ``random`` one in every round.
    neighbours_only  : align a peer with its neighbours in the client graph ([graph]) instead of all other peers.
    moves_others     : a turn moves the others' parameters too; otherwise only its own, the algorithm to the letter.
    initialisation   : ``own``: every peer starts from a model drawn for itself; ``same``: all from one.
    initial_weights  : as the ``model`` draws them, or ``kaiming-normal``, of standard deviation sqrt(2 / inputs), as in
                       the paper; biases are the model's.
    joins            : the round in which a peer enters, by name, with the parameters it starts from; until then it
                       takes no turn and no other peer aligns with it. Peers not named are there from the start.
    noise            : standard deviation of the Gaussian noise on a peer's own parameters before it shares them,
                       0.0005 in the paper. It guarantees nothing: it follows from the seed, which all nodes know, and
                       others' parameters, which a turn moves too, show what it learned.
    privacy          : noise with a privacy guarantee: the whole change of a turn, as one vector, is clipped and given
                       noise, and a peer is evaluated with what it shares. See ``python -m pydoc fedgraph.privacy``. A
                       turn is a release, and a round that is repeated after a stop another one: ``releases`` is at
                       least the number of rounds.
    """

    power: float = Field(default=1.0, ge=1)
    lambda_alignment: Schedule = 1.0
    lambda_scale: Literal["batch-sum", "batch-mean"] = "batch-sum"
    weights: Literal["examples", "all-alike"] = "examples"
    turns: Literal["sequential", "simultaneous"] = "sequential"
    order: Literal["ring", "random"] = "random"
    neighbours_only: bool = False
    moves_others: bool = True
    initialisation: Literal["own", "same"] = "own"
    initial_weights: Literal["model", "kaiming-normal"] = "model"
    joins: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    privacy: NoiseSettings | None = None

    @model_validator(mode="after")
    def _fit_together(self) -> IPASettings:
        if self.noise and self.privacy is not None:
            raise ValueError("give either noise or privacy, one of both")
        if self.joins and self.turns == "simultaneous":
            raise ValueError('joins are of turns one after the other: leave out turns = "simultaneous"')
        return self
