"""How right the answers of graphical models are when little is known: against their own joint distribution, by counting
or enumeration, and against exact inference in the Bayesian networks whose rows they were trained on.

Chajewska, Shrivastava: Federated Learning with Neural Graphical Models, sections 2.2 and 2.4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
import typer
from rich.progress import track
from torch import Tensor

from fedgraph.data.encoding import Encoding, Scaling
from fedgraph.data.tables import BayesianNetwork, Variable
from fedgraph.graphical.inference import (
    FEW,
    KeptRows,
    SamplingSettings,
    conditional,
    draw,
    infer,
    posterior,
    relevant_to,
)
from fedgraph.graphical.learning import fit_ngm
from fedgraph.graphical.network import Network, NGMSettings
from fedgraph.simulations.fedngm.graphs import truth
from fedgraph.simulations.scripts import DATA, DataDir, Out, Page, ResultsFile, run
from fedgraph.support.errors import DataError
from fedgraph.support.randomness import generator

INSURANCE_LIKE = "insurance-like"
"""Not a file, but made: as many nodes and edges as the network "insurance", whose file is not there, and half of its
tables near-deterministic."""

NETWORKS = ("asia", "cancer", "earthquake", "survey", "sachs", "child", "alarm", "hailfinder", INSURANCE_LIKE)

_NODES, _EDGES = 27, 52
_MOST_STATES = 512
_NAME = "answers"


class Sizes(NamedTuple):
    """How much is drawn and asked.

    rows    : by which each model is trained, over the true moral graph.
    queries : with so many known each: of a random target, in rows drawn from the model.
    joint   : rows of the model's joint distribution among which queries are counted.
    least   : of them that have to go with what is known in a query; where there are fewer, the unknown features that
              the target depends on are enumerated, if that is possible.
    """

    rows: int = 10_000
    queries: int = 50
    joint: int = 400_000
    least: int = 4000


USUAL = Sizes()


class _Query(NamedTuple):
    """Of one feature, in one row of which other features are known: units ``[units]``, NaN for unknown."""

    target: str
    units: Tensor
    given: dict[str, int]


@dataclass(frozen=True)
class _Answers:
    """Probabilities of the target's categories by several ways; None where there is no such answer."""

    found: Tensor
    effective: float
    plugged_in: Tensor
    joint: Tensor | None
    counted: int
    truth: Tensor | None


_OF = ("network", "known")
_BY_JOINT = ("counted", "enumerated", "mean", "worst", "plug-in, mean", "plug-in, worst", "least sample", "warned")
_BY_TRUTH = ("possible", "mean", "worst", "plug-in, mean", "plug-in, worst")


def answers(
    data_dir: Path,
    networks: Sequence[str] = NETWORKS,
    known: Sequence[int] = (1, 2, 4, 0),
    sizes: Sizes = USUAL,
    seed: int = 0,
) -> Page:
    """Train a model of each network, and ask it.

    Parameters
    ----------
    data_dir : Path
        The data folder.
    networks : sequence of str
        Names in the folder ``graph-truth``, or ``insurance-like``, which is made from the seed.
    known : sequence of int
        Numbers of features known in a query; 0 stands for half of them.
    sizes : Sizes
        How much is drawn and asked.
    seed : int
        Seed of everything.
    """
    by_joint, by_truth = [], []
    for name in track(networks, "models"):
        asked = _Asked(insurance_like(seed) if name == INSURANCE_LIKE else truth(data_dir, name), sizes, seed)
        for count in known:
            found = [asked.answers(each) for each in asked.queries(count)]
            how_many = str(count or "half")
            by_joint.append((name, how_many, *_joint_line(found)))
            by_truth.append((name, how_many, *_truth_line(found)))
    tables = {
        "answers": pd.DataFrame(by_joint, columns=_OF + _BY_JOINT),
        "truth": pd.DataFrame(by_truth, columns=_OF + _BY_TRUTH),
    }
    title = "Conditional probabilities of neural graphical models (Chajewska, Shrivastava)"
    return Page(title, _text(sizes), tables, (seed,))


class _Asked:
    """A model of one network, and what it is asked."""

    def __init__(self, network: BayesianNetwork, sizes: Sizes, seed: int) -> None:
        self.truth, self.sizes, self.seed = network, sizes, seed
        encoding = Encoding(network.schema, Scaling())
        rows = encoding.encode(network.sample(sizes.rows, generator(seed, _NAME, "rows")).double().numpy())
        held_out = len(rows) // 10
        fit = fit_ngm(
            network.schema, network.moral_graph.adjacency, [rows[held_out:]], [rows[:held_out]], [_NAME],
            NGMSettings(), seed,
        )  # fmt: skip
        self.model: Network = fit.network
        self.parameters = fit.parameters
        self.kept = KeptRows.drawn(self.model, self.parameters, [_NAME], seed, SamplingSettings())
        self.joint = draw(self.model, self.parameters, sizes.joint, [_NAME], seed)[0]

    def queries(self, known: int) -> list[_Query]:
        """What is known is so in a row of the model's own, so that it is possible together."""
        schema, random = self.model.schema, generator(self.seed, _NAME, "queries", known)
        features = len(schema.features)
        rows = draw(self.model, self.parameters, self.sizes.queries, [_NAME], self.seed + 1)[0]
        found = []
        for row in rows:
            order = torch.randperm(features, generator=random).tolist()
            chosen = order[1 : 1 + (known or features // 2)]
            is_known = torch.zeros(features, dtype=torch.bool).index_fill(0, torch.tensor(chosen), True)
            units = row.masked_fill(~is_known[schema.unit_feature], torch.nan)
            given = {schema.names[place]: _code(row[schema.slices[schema.names[place]]]) for place in chosen}
            found.append(_Query(schema.names[order[0]], units, given))
        return found

    def answers(self, query: _Query) -> _Answers:
        """By all ways."""
        model, units = self.model, query.units[None, None]
        answer = conditional(model, self.parameters, units, [query.target], [_NAME], self.seed, kept=lambda: self.kept)
        one = model.probabilities(_placed(model, answer.mean, answer.units), query.target)[0, 0]
        plugged_in = model.probabilities(infer(model, self.parameters, units), query.target)[0, 0]
        joint, counted = self._joint(query)
        try:
            exact = posterior(self.truth, query.target, query.given).float()
        except DataError:
            exact = None
        return _Answers(one, float(answer.effective[0, 0]), plugged_in, joint, counted, exact)

    def _joint(self, query: _Query) -> tuple[Tensor | None, int]:
        """What rows of the joint distribution say, and how many; 0 rows where it was enumerated."""
        schema = self.model.schema
        unknown = query.units[self.model.first_units].isnan()
        wanted = torch.tensor([name == query.target for name in schema.names])
        relevant = relevant_to(self.model, wanted, unknown)
        known = relevant.known[schema.unit_feature]
        fitting = self.joint[(self.joint[:, known] == query.units[known]).all(1)]
        if len(fitting) >= self.sizes.least:
            return self.model.probabilities(fitting.mean(0), query.target), len(fitting)
        return self._enumerated(query, relevant.unknown), 0

    def _enumerated(self, query: _Query, unknown: Tensor) -> Tensor | None:
        """The stationary distribution of Gibbs sampling of the ``unknown`` features given all others."""
        schema = self.model.schema
        names = [schema.names[place] for place in unknown.nonzero()[:, 0].tolist()]
        sizes = [len(schema[name].categories) for name in names]
        if np.prod(sizes, dtype=float) > _MOST_STATES:
            return None
        codes = torch.tensor(list(product(*map(range, sizes))))
        rows = query.units.nan_to_num(0.0).repeat(len(codes), 1)
        for place, name in enumerate(names):
            rows[:, schema.slices[name]] = _as_units(codes[:, place], schema[name].width)
        conditionals = self.kept.conditionals(unknown)
        inputs = conditionals.scale.inputs(rows.T[None])
        sweep = torch.eye(len(codes), dtype=torch.float64)
        for part in conditionals.parts:
            said = torch.zeros_like(inputs)
            said[:, part.units] = part(inputs, shift=self.kept.shift)
            own = [schema.names[place] for place in part.features.tolist()]
            others = [place for place, name in enumerate(names) if name not in own]
            move = (codes[:, None, others] == codes[None, :, others]).all(2).double()
            for name in own:
                shares = self.model.probabilities(said.transpose(1, 2), name)[0].double()
                move *= shares[:, codes[:, names.index(name)]]
            sweep = sweep @ move
        for _ in range(20):
            sweep = sweep @ sweep
            sweep /= sweep.sum(1, keepdim=True)
        target = codes[:, names.index(query.target)]
        return torch.zeros(sizes[names.index(query.target)]).index_add_(0, target, sweep[0].float())


def insurance_like(seed: int) -> BayesianNetwork:
    """27 variables of 2 to 5 categories and 52 edges; every other table is near-deterministic."""
    random = np.random.default_rng([seed, _NODES, _EDGES])
    sizes = random.integers(2, 6, _NODES)
    parents: list[list[int]] = [[] for _ in range(_NODES)]
    while sum(map(len, parents)) < _EDGES:
        child = int(random.integers(1, _NODES))
        # From near before, so that influences go far in many steps.
        parent = int(random.integers(max(0, child - 8), child))
        if parent not in parents[child] and len(parents[child]) < 3:
            parents[child].append(parent)
    variables = {}
    for place in range(_NODES):
        shape = [int(sizes[parent]) for parent in parents[place]]
        concentration = 0.02 if parents[place] and place % 2 else 0.7
        table = random.dirichlet([concentration] * int(sizes[place]), int(np.prod(shape, dtype=int)))
        # Nothing is quite impossible.
        table = 0.998 * table + 0.002 / sizes[place]
        variables[f"v{place}"] = Variable(
            tuple(f"c{category}" for category in range(sizes[place])),
            tuple(f"v{parent}" for parent in parents[place]),
            torch.tensor(table).reshape([*shape, int(sizes[place])]),
        )
    return BayesianNetwork(variables)


def _joint_line(answers: list[_Answers]) -> tuple[object, ...]:
    """Under the headings ``_BY_JOINT``."""
    return (
        sum(each.counted > 0 for each in answers),
        sum(each.counted == 0 and each.joint is not None for each in answers),
        *_errors([(each.found, each.joint) for each in answers]),
        *_errors([(each.plugged_in, each.joint) for each in answers]),
        min(each.effective for each in answers),
        sum(each.effective < FEW for each in answers),
    )


def _truth_line(answers: list[_Answers]) -> tuple[object, ...]:
    """Under the headings ``_BY_TRUTH``."""
    return (
        sum(each.truth is not None for each in answers),
        *_errors([(each.found, each.truth) for each in answers]),
        *_errors([(each.plugged_in, each.truth) for each in answers]),
    )


def _errors(pairs: Sequence[tuple[Tensor, Tensor | None]]) -> tuple[float, float]:
    """Mean and largest, the error of an answer being the largest among the target's categories."""
    apart = [float((one - other).abs().max()) for one, other in pairs if other is not None]
    return (float(np.mean(apart)), max(apart)) if apart else (float("nan"), float("nan"))


def _code(units: Tensor) -> int:
    return int(units.argmax()) if len(units) > 1 else int(units[0])


def _as_units(codes: Tensor, width: int) -> Tensor:
    return codes[:, None].float() if width == 1 else torch.nn.functional.one_hot(codes, width).float()


def _placed(model: Network, values: Tensor, positions: Tensor) -> Tensor:
    """Values ``[..., positions]`` among all units."""
    return torch.zeros(*values.shape[:-1], len(model.unit_group)).index_copy(values.dim() - 1, positions, values)


def _text(sizes: Sizes) -> str:
    return (
        "Published at <https://arxiv.org/abs/2309.11680>.\n\n"
        "How far answers of a model are from its own joint distribution, and from exact inference in the network that "
        "its rows are from.\n\n"
        "{answers}\n\n"
        f"A model of each network is trained on {sizes.rows:,} rows over the true moral graph, and asked for the "
        "probabilities of one feature where others are known, as they are in rows drawn from the model itself. "
        f"`counted`: the answer is held against those of {sizes.joint:,} other rows of the model's joint "
        f"distribution that go with what is known around the target, where at least {sizes.least} do (their share "
        f"has a standard error of up to {0.5 / sizes.least**0.5:.3f}); `enumerated`: elsewhere, where it has at most "
        f"{_MOST_STATES} states, against the stationary distribution of the unknown features that are linked to the "
        "target. An error is the largest among the target's categories; `plug-in` stands for the fixed point of "
        "expectations (`infer`). `least sample`: the least effective sample size, `warned`: answers for "
        f"which it is below {FEW}.\n\n"
        "## Errors against the network that rows are from\n\n"
        "By exact inference, so that what the model has not learned counts too. `possible`: what is known is so in "
        "the true network.\n\n{truth}"
    )


def main(
    data_dir: DataDir = DATA,
    out: Out = Path("reproductions/fedngm-answers"),
    results: ResultsFile = None,
) -> None:
    """Ask models of Bayesian networks where little is known. It takes some 15 minutes on one core."""
    answers(data_dir).write(out, results)


if __name__ == "__main__":
    run(partial(typer.run, main))
