import torch

from fedgraph.data.tables.bif import parse_bif
from fedgraph.graph.feature_graph import FeatureGraph
from fedgraph.graphical.recovery.structure_search import as_categories, moral_graph_by_search
from fedgraph.support.randomness import generator

LAWN = """network lawn { }
variable rain { type discrete [ 2 ] { yes, no }; }
variable sprinkler { type discrete [ 2 ] { on, off }; }
variable grass { type discrete [ 3 ] { dry, damp, wet }; }
variable news { type discrete [ 2 ] { good, bad }; }
probability ( rain ) { table 0.4, 0.6; }
probability ( sprinkler ) { table 0.5, 0.5; }
probability ( news ) { table 0.5, 0.5; }
probability ( grass | rain, sprinkler ) {
  (yes, on) 0.02, 0.08, 0.9;
  (yes, off) 0.1, 0.8, 0.1;
  (no, on) 0.2, 0.7, 0.1;
  (no, off) 0.9, 0.08, 0.02;
}
"""


def test_units_become_categories():
    nan = torch.nan
    units = torch.tensor(
        [
            [0.1, 0, 1, 0, 0, nan],
            [0.2, 1, 0, 1, 0, nan],
            [0.3, 1, nan, nan, nan, nan],
            [0.4, nan, 0, 1, 0, nan],
            [0.5, 1, 0, 0, 1, nan],
            [nan, 0, 0, 1, 0, nan],
        ]
    )
    found = as_categories(units, torch.tensor([0, 1, 2, 2, 2, 3]), 4, 2)
    assert found[:, 0].tolist() == [0, 0, 0, 1, 1, 0], "at the median 0.3; the gap is the commonest"
    assert found[:, 1].tolist() == [0, 1, 1, 1, 1, 0]
    assert found[:, 2].tolist() == [0, 1, 1, 1, 2, 1]
    assert found[:, 3].tolist() == [0] * 6
    thirds = as_categories(torch.arange(9.0)[:, None], torch.tensor([0]), 1, 3)
    assert thirds[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_parents_of_one_child_are_found_and_linked():
    network = parse_bif(LAWN)
    rows = network.sample(2000, generator(0, "lawn"))
    units = torch.cat([rows[:, :2], torch.nn.functional.one_hot(rows[:, 2], 3), rows[:, 3:]], 1).float()
    names = tuple(network.variables)
    found = moral_graph_by_search(names, units, torch.tensor([0, 1, 2, 2, 2, 3]), 3)
    assert found == network.moral_graph
    assert found == FeatureGraph(names, (("rain", "sprinkler"), ("rain", "grass"), ("sprinkler", "grass")))
