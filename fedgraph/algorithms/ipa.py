"""IPA, iterative parameter alignment: peers keep their own models, which training pulls together.

Gorbett, Shirazi, Ray: Cross-Silo Federated Learning Across Divergent Domains with Iterative Parameter Alignment (IEEE
Big Data 2023), algorithm 1.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from fedgraph.algorithms.algorithm import Algorithm
from fedgraph.algorithms.exchange import Ask, Clients, Round, State
from fedgraph.algorithms.model_rows import Models, matrix, written
from fedgraph.privacy.noise import NoiseSettings, privacy_facts
from fedgraph.support.errors import ExperimentError
from fedgraph.support.randomness import generator
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
    turns            : ``sequential``: one peer after the other, each continuing with all parameters of the last one;
                       ``simultaneous``: all at once, with the others fixed as of the last round.
    order            : of the turns: the ``ring`` of the peers' names, or a new ``random`` one in every round.
    neighbours_only  : align a peer with its neighbours in the client graph ([graph]) instead of all other peers.
    moves_others     : a turn moves the others' parameters too; otherwise only its own, as in the published algorithm.
    initialisation   : ``own``: every peer draws its own initial model; ``same``: all start from one.
    initial_weights  : as the ``model`` draws them, or ``kaiming-normal``, of standard deviation sqrt(2 / inputs), as in
                       the paper; biases are the model's.
    joins            : by name, the round in which a peer joins with its initial parameters; until then it takes no turn
                       and no other peer aligns with it. Other peers are present from the start.
    noise            : standard deviation of the Gaussian noise on a peer's own parameters before it shares them,
                       0.0005 in the paper. It guarantees no privacy: it follows from the seed, which all nodes know,
                       and others' parameters, which a turn moves too, reveal what it learned.
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
            raise ValueError("give either noise or privacy, not both")
        if self.joins and self.turns == "simultaneous":
            raise ValueError('joins need sequential turns: leave out turns = "simultaneous"')
        return self


class IPA(Algorithm[IPASettings]):
    """Passes theta*, the parameters of all peers, from one peer to the next.

    A round is one turn of every peer, each in its own exchange. A peer is evaluated right after its turn, as in the
    paper, and again at the end, as the turns of others move it. The parameters of an absent peer stay in theta*, moved
    by the turns of others; a peer that joins late enters with its own. With simultaneous turns a round is one exchange.
    Raises ExperimentError for fewer than two clients, unknown clients in ``joins``, or settings that the run cannot
    follow.
    """

    name = "ipa"
    title = "Iterative parameter alignment: peers keep different models and pull them together as they train"
    needs = "two clients at least; [train] keep-optimizer = true for the paper's Adam"
    paper = "https://arxiv.org/abs/2311.04818"
    default_client = "fedgraph.clients.ipa:IPAClient"
    # Turns have no aggregation that a defence could precede.
    defences = ()

    @classmethod
    def uses_graph(cls, settings: IPASettings) -> bool:
        """See :class:`Algorithm`."""
        return settings.neighbours_only

    def check(self, clients: Clients) -> None:
        """See :class:`Algorithm`."""
        settings = self.settings
        if settings.neighbours_only and clients.graph is None:
            raise ExperimentError("[ipa] neighbours-only needs a client graph: give the experiment a [graph] source")
        if len(clients) < 2:
            raise ExperimentError("IPA aligns peers with each other and needs at least two clients")
        unknown_names = sorted(set(settings.joins) - set(clients.names))
        if unknown_names:
            raise ExperimentError(
                f"[ipa] joins: there is no client {', '.join(unknown_names)} in this experiment's data"
            )
        if bool((self.joins(clients) > 1).all()):
            raise ExperimentError("[ipa] joins: no peer is present in the first round; let one start it")
        if settings.privacy is not None:
            self._check_privacy(clients, settings.privacy)

    def _check_privacy(self, clients: Clients, privacy: NoiseSettings) -> None:
        """Raise ExperimentError for more turns than releases, and for metrics of clients' own data, without noise."""
        rounds, own = clients.facts.rounds, clients.facts.own_splits
        if rounds is not None and privacy.releases < rounds:
            raise ExperimentError(
                f"[ipa] privacy: {rounds} rounds are as many releases of a peer, but releases = {privacy.releases}; "
                f"set it to {rounds} or more, for rounds that are repeated after a stop"
            )
        if own:
            raise ExperimentError(
                f"[ipa] privacy: metrics of clients' own data ({', '.join(own)}) would leave without noise; evaluate "
                'on shared data ([evaluation] splits = ["test"] with [data] test = "shared", and for tables scaling = '
                '"none", as each client\'s own scale tells of its data), or not at all (splits = [])'
            )

    def init(self, clients: Clients, models: Models) -> State:
        """Draw a model for each peer, or one for all."""
        names, settings = clients.names, self.settings
        all_clients = torch.arange(len(clients))
        if settings.initialisation == "own" and clients.initial is not None:
            models = written(models, all_clients, clients.drawn_models())
        if settings.initial_weights == "kaiming-normal":
            keys = names if settings.initialisation == "own" else ("",) * len(names)
            drawn = [self._kaiming(clients, row, key) for row, key in zip(matrix(models), keys, strict=True)]
            models = written(models, all_clients, torch.stack(drawn))
        return {"models": models}

    def _kaiming(self, clients: Clients, row: Tensor, key: str) -> Tensor:
        """Redraw the weights with at least two dimensions of a model ``[parameters]`` (He et al. 2015)."""
        random, state = generator(clients.seed, "initial weights", key), clients.layout.row_state(row)
        for name, value in state.items():
            if value.dim() > 1 and name not in clients.layout.buffers:
                state[name] = torch.randn(value.shape, generator=random) * math.sqrt(2 / value[0].numel())
        return clients.layout.row(state)

    def round(self, clients: Clients, state: State, number: int) -> Round:
        """Run a turn of every peer, or one exchange in which each aligns with all others as of the last round."""
        models, width = matrix(state["models"]), clients.layout.num_parameters
        if self.settings.turns == "simultaneous":
            stacked = {"parameters": state["models"], "weights": self.weights(clients, number)}
            answers = yield Ask(stacked, {"peers": models}, models=("peers",))
            return {**state, "models": written(state["models"], answers.positions, answers.parameters)}
        models, known = models.clone(), self.known(clients)
        for position in self.order(clients, number):
            weights = self.weights(clients, number)[position]
            peers = weights.nonzero().flatten()
            present = (weights[known[position]] != 0).float()
            # A turn also returns the parameters of the peers that are aligned with.
            others: dict[str, tuple[int, ...]] = {"others": (len(peers), width)} if self.moves_after_evaluation else {}
            answer = yield Ask(
                {"parameters": models},
                {"others": models[peers], "weights": weights[peers], "there": present},
                {"parameters": (width,), **others},
                to=torch.tensor([position]),
                models=("others",),
            )
            if len(answer.positions):
                models[position] = answer.parameters[0]
                if others:
                    models[peers] = matrix(answer.tensors["others"])[0]
        return {**state, "models": written(state["models"], torch.arange(len(clients)), models)}

    def joins(self, clients: Clients) -> Tensor:
        """Return the round in which each peer enters, int64 ``[peers]``."""
        return torch.tensor([self.settings.joins.get(name, 1) for name in clients.names])

    def known(self, clients: Clients) -> Tensor:
        """Return which peers each peer may align with, bool ``[peers, peers]``."""
        known = ~torch.eye(len(clients), dtype=torch.bool)
        if self.settings.neighbours_only:
            assert clients.graph is not None
            known &= clients.graph.dense() != 0
        return known

    def weights(self, clients: Clients, number: int) -> Tensor:
        """Return c_ij with which peer i aligns with peer j, ``[peers, peers]``; 0 for itself and unknown peers."""
        present = (self.joins(clients) <= number).float()
        counts = clients.num_examples * present
        share = counts / counts.sum() if self.settings.weights == "examples" else present
        return share * self.known(clients)

    def order(self, clients: Clients, number: int) -> list[int]:
        """Return the order of turns, as positions of the peers that have joined."""
        peers = (self.joins(clients) <= number).nonzero().flatten()
        if self.settings.order == "ring":
            return peers.tolist()
        random = generator(clients.seed, "order of peers", number)
        return peers[torch.randperm(len(peers), generator=random)].tolist()

    @property
    def evaluates(self) -> Literal["before", "after"]:
        """``after`` for sequential turns: a peer is evaluated right after its turn, as in the paper."""
        return "after" if self.settings.turns == "sequential" else "before"

    @property
    def moves_after_evaluation(self) -> bool:
        """Whether the turns of other peers move a peer after its own."""
        return self.evaluates == "after" and self.settings.moves_others

    def facts(self, clients: Clients, state: State) -> dict[str, Any]:
        """Return the privacy guarantee of the noise."""
        return dict(privacy_facts(self.settings.privacy))
