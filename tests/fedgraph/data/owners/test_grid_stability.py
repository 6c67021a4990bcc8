"""Grids of four participants: which of them are stable, against published numbers and against the delayed equation."""

import numpy as np
import pytest
import torch

from fedgraph.data import open_source, parse_data
from fedgraph.data.owners.grid_stability import (
    AVERAGING,
    CONSUMPTION,
    COUPLING,
    DAMPING,
    ELASTICITIES,
    PARTICIPANTS,
    REACTION_TIMES,
    GridStabilitySettings,
    GridStabilitySource,
    unstable_roots,
)
from fedgraph.support.errors import DataError

# Rows 1 to 6 of Electrical Grid Stability Simulated Data (Arzamasov 2018; UCI, CC BY 4.0): tau, p, g, and the largest
# real part of the roots of the characteristic equation.
PUBLISHED = np.fromstring(
    """
    2.95906002455997 3.07988520422811 8.38102539191882 9.78075443222607
    3.76308477206316 -0.782603630987543 -1.25739482758732 -1.7230863114883
    0.650456460887227 0.859578105752345 0.887444920638513 0.958033987602737 0.055347489172775
    9.3040972346785 4.90252411201167 3.04754072762177 1.36935735529605
    5.06781210427845 -1.94005842705193 -1.87274168559721 -1.25501199162931
    0.41344056837935 0.862414076352903 0.562139050527675 0.781759910653126 -0.005957464326037
    8.97170690932022 8.84842842134833 3.04647874898866 1.21451813833956
    3.40515818001095 -1.20745559234302 -1.27721014673295 -0.92049244093498
    0.163041039311334 0.766688656526962 0.839444015400588 0.109853244952427 0.003470879048389
    0.716414776295121 7.66959964406565 4.48664083058949 2.34056298396795
    3.96379106326633 -1.02747330413905 -1.9389441526466 -0.997373606480681
    0.446208906537321 0.976744082924302 0.929380522872661 0.36271777426931 0.028870543444887
    3.13411155161342 7.60877161603408 4.94375930178099 9.85757326996638
    3.52581081652096 -1.12553095451115 -1.84597485447561 -0.554305007534195
    0.797109525792467 0.455449947148291 0.656946658473716 0.820923486481631 0.049860373483706
    6.99920870915215 9.10924671643764 3.7840659093988 4.26778760341917
    4.42966882280625 -1.85713917685067 -0.670396827477973 -1.90213281847761
    0.261792854117035 0.07792967216865 0.542883858522323 0.469931041283024 -0.01738490693393
    """,
    sep=" ",
).reshape(6, 13)


def test_the_largest_real_parts_are_the_published_ones():
    delay, power, elasticity, largest = np.split(PUBLISHED, [4, 8, 12], axis=1)
    for row, real in enumerate(largest[:, 0]):
        grid = delay[[row]], power[[row]], elasticity[[row]]
        assert unstable_roots(*grid, right_of=real - 1e-8)[0] > 0
        assert unstable_roots(*grid, right_of=real + 1e-8)[0] == 0
    assert (unstable_roots(delay, power, elasticity) > 0).tolist() == (largest[:, 0] > 0).tolist()


def swing(delay, power, elasticity, seconds=200.0, step=0.01):
    """The largest deviation of a frequency in the last part of a simulation, by that in an earlier part."""
    lines = np.zeros((4, 4))
    lines[0, 1:] = lines[1:, 0] = COUPLING
    lag, window = np.rint(delay / step).astype(int), round(AVERAGING / step)
    past = lag.max() + window
    angle = np.zeros((past + round(seconds / step), 4))
    angle[:past] = np.concatenate([[0.0], np.arcsin(power[1:] / COUPLING)])  # the state of equal frequency
    velocity, speeds = np.array([0.01, 0.0, 0.0, -0.01]), []
    place = np.arange(4)
    for now in range(past, len(angle)):
        at = angle[now - 1]
        price = elasticity / AVERAGING * (angle[now - 1 - lag, place] - angle[now - 1 - lag - window, place])
        pull = (lines * np.sin(at[None] - at[:, None])).sum(1)
        velocity = velocity + step * (power + pull - DAMPING * velocity - price)
        angle[now] = at + step * velocity
        speeds.append(np.abs(velocity - velocity.mean()).max())
    half = len(speeds) // 2
    return max(speeds[-half // 2 :]) / max(speeds[half // 2 : half])


def test_disturbances_of_unstable_grids_grow_and_those_of_stable_ones_die():
    delay, power, elasticity, _ = np.split(PUBLISHED, [4, 8, 12], axis=1)
    grown = [swing(delay[row], power[row], elasticity[row]) for row in (0, 4, 5)]
    assert grown[0] > 2
    assert grown[1] > 2
    assert grown[2] < 0.5


def test_what_each_participant_knows():
    data = GridStabilitySource(GridStabilitySettings(samples=400, scaling="none")).load_owners(PARTICIPANTS)
    assert [task.features for task in data.tasks] == [("reaction-time", "power", "elasticity")] * 4
    delay, power, elasticity = torch.stack(data.inputs).unbind(2)
    assert torch.allclose(power[0], -power[1:].sum(0), atol=1e-5)
    for values, (low, high) in (
        (delay, REACTION_TIMES),
        (-power[1:], CONSUMPTION),
        (elasticity, ELASTICITIES),
    ):
        assert values.min() >= low - 1e-6
        assert values.max() <= high + 1e-6
        assert values.std() == pytest.approx((high - low) / 12**0.5, rel=0.1)
    assert data.tasks[0].classes == ("stable", "unstable")
    assert data.labels.float().mean().item() == pytest.approx(0.638, abs=0.07), "as at UCI"


def test_data_follow_from_the_seed_and_labels_from_the_numbers(tmp_path):
    settings = {"set": "grid-stability", "samples": 100, "scaling": "none"}
    first, again, other = (
        open_source(parse_data({**settings, "seed": seed}), tmp_path).load_owners(PARTICIPANTS) for seed in (0, 0, 1)
    )
    assert torch.equal(first.labels, again.labels)
    assert all(torch.equal(*pair) for pair in zip(first.inputs, again.inputs, strict=True))
    assert not torch.equal(first.inputs[1], other.inputs[1])
    delay, power, elasticity = torch.stack(first.inputs).double().permute(2, 1, 0).numpy()
    assert first.labels.tolist() == (unstable_roots(delay, power, elasticity) > 0).tolist()


def test_the_grid_is_a_star_and_may_be_one_client():
    graph = GridStabilitySource(GridStabilitySettings()).given_graph()
    assert graph.dense()[0].tolist() == [0, 1, 1, 1]
    assert graph.dense()[1:, 1:].sum() == 0
    apart = GridStabilitySource(GridStabilitySettings(samples=50)).load_owners(PARTICIPANTS)
    together = GridStabilitySource(GridStabilitySettings(samples=50, together=True))
    assert together.client_names() == ["grid"]
    assert together.given_graph() is None
    data = together.load_owners(["grid"])
    assert torch.equal(data.inputs[0], torch.cat(apart.inputs, 1))
    assert data.tasks[0].features[3] == "consumer-1 reaction-time"


def test_more_power_than_a_line_carries_is_refused():
    with pytest.raises(DataError, match="9 .*8$"):
        unstable_roots(np.ones((1, 4)), np.array([[9.0, -9.0, 0.0, 0.0]]), np.ones((1, 4)))
