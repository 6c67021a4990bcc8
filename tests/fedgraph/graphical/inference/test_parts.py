"""What answers are made of."""

import pytest
import torch

from fedgraph.graphical.inference.full_conditionals import FullConditionals, SharedNoise
from fedgraph.graphical.inference.kept_rows import KeptRows
from fedgraph.graphical.inference.particles import Cloud, systematic
from fedgraph.graphical.inference.relevance import relevant_to
from fedgraph.graphical.inference.sampling import SamplingSettings
from fedgraph.graphical.network.network import Network
from fedgraph.graphical.network.parts import colour_classes
from fedgraph.graphical.network.settings import NGMSettings

GRAPH = torch.tensor([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]]).bool()


def test_what_is_relevant_ends_at_what_is_known(numbers, chain_graph):
    """A chain of 6: x1 is asked for, x0 and x3 are known."""
    network = Network(numbers(6), chain_graph(6), NGMSettings(hidden=2))
    unknown = torch.tensor([[False, True, True, False, True, False], [True] * 6])
    wanted = torch.tensor([False, True, False, False, False, False]).expand(2, -1)
    found = relevant_to(network, wanted, unknown)
    assert found.unknown.tolist() == [[False, True, True, False, False, False], [True] * 6]
    assert found.known.tolist() == [[True, False, False, True, False, False], [False] * 6]
    everything = relevant_to(
        Network(numbers(6), chain_graph(6), NGMSettings(architecture="path-norm")), wanted, unknown
    )
    assert torch.equal(everything.unknown, unknown)
    assert torch.equal(everything.known, ~unknown)


def test_the_likelihood_of_what_is_known_is_that_of_the_full_conditionals(mixed):
    """Of numbers but for their own squares, which say nothing about the kept rows."""
    schema, rows = mixed(200)
    network = Network(schema, GRAPH, NGMSettings(hidden=6))
    start = network.initial(torch.Generator().manual_seed(1))[None]
    parameters = network.with_buffer(network.with_moments(start, rows[None]), "residual", torch.full((1, 6), 0.02))
    kept = KeptRows.drawn(network, parameters, ["a"], 0, SamplingSettings(kept=300))
    asked = rows[None, :20].clone()
    asked[0, 0, 0], asked[0, 1, 0], asked[0, 2, 5] = 9.0, -9.0, 0.0
    for some in colour_classes(GRAPH):
        chosen = torch.zeros(1, 20, 4, dtype=torch.bool)
        chosen[..., some] = True
        found = kept.log_likelihood(asked, chosen)
        conditionals = FullConditionals(network, parameters, None, bounded=True)
        wanted = torch.zeros(1, 20, 300)
        units = kept.units.transpose(1, 2)
        for part in conditionals.parts:
            own = torch.isin(part.features[part.owner], some)
            if own.any():
                predicted = part(conditionals.scale.inputs(units), shift=kept.shift)
                for row in range(20):
                    values = asked[:, row, part.units, None].expand(-1, -1, 300)
                    wanted[:, row] += conditionals.log_likelihood(part, predicted, values)[:, own].sum(1)
        apart = found - wanted
        assert torch.allclose(apart - apart[..., :1], torch.zeros_like(apart), atol=2e-2)


def test_places_are_drawn_by_their_weights_at_even_distances():
    weights = torch.tensor([[[0.5, 0.0, 0.25, 0.25]]])
    assert systematic(weights, 8, torch.tensor([[0.3]])).tolist() == [[[0, 0, 0, 0, 2, 2, 3, 3]]]
    assert systematic(weights, 1, torch.tensor([[0.99]])).tolist() == [[[3]]]
    starts = torch.rand(1, 4000, generator=torch.Generator().manual_seed(0))
    drawn = systematic(torch.tensor([0.1, 0.6, 0.3]).expand(1, 4000, 3), 1, starts)
    assert torch.allclose(drawn.flatten().bincount() / 4000, torch.tensor([0.1, 0.6, 0.3]), atol=0.03)


def test_the_effective_sample_size_is_that_of_clusters():
    """Of 1,000 rows from 100 kept ones: if all from one are alike, 100; if they are as different as others, 1,000."""
    ancestors = torch.arange(100).repeat(10)[None, None].expand(1, 3, -1).clone()
    random = torch.Generator().manual_seed(0)
    alike = torch.rand(100, generator=random).repeat(10)
    own = torch.rand(1000, generator=random)
    ancestors[0, 2] = torch.tensor([1, 2, 2, 3]).repeat(250)
    values = torch.stack([alike, own, own])[None, ..., None]
    found = Cloud(torch.zeros(1, 1, 3000), ancestors).effective(values)[0]
    assert float(found[0]) == pytest.approx(100)
    assert 700 < float(found[1]) <= 1000
    assert float(found[2]) == pytest.approx(16 / 6)
    assert Cloud(torch.zeros(1, 1, 3000), ancestors).effective(torch.full_like(values, 0.3))[0, 0] == 1000


def test_shared_noise_is_the_same_for_all_rows_asked():
    noise = SharedNoise([torch.Generator().manual_seed(0)], (3, 2), 5)
    for found in (noise.normal(torch.tensor([2, 0]), 15), noise.uniform(torch.tensor([1]), 15)):
        assert torch.equal(found[..., :5], found[..., 5:10])
        assert torch.equal(found[..., :5], found[..., 10:])
        assert len(found.unique()) == found.shape[1] * 5
