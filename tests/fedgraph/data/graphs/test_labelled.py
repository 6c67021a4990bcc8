"""Graphs that cannot be are refused, each with the client, what is wrong, and what to do."""

import numpy as np
import pytest
import torch

from fedgraph.data.graphs.labelled import LabelledGraphs
from fedgraph.support.errors import DataError

RING = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def raw(**changes):
    given = {"x": torch.ones(4, 3), "edge_index": RING, "y": torch.tensor([0, 1, 0, -1]), **changes}
    return {name: value for name, value in given.items() if value is not None}


def of(*graphs, level="node"):
    return LabelledGraphs.of(graphs, level, "client 'mercy' (mercy.pt)")


def mask(*places):
    return torch.isin(torch.arange(4), torch.tensor(places))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, "has no x, the features of its nodes.*torch.ones"),
        ({"edge_index": None}, "has no edge_index"),
        ({"edge_index": None, "adj_t": RING}, "has adj_t and no edge_index: leave out the transform ToSparseTensor"),
        ({"x": torch.ones(4)}, r"x is float32 \[4\]; it must be numbers \[nodes, features\]"),
        ({"x": torch.zeros(0, 3), "edge_index": RING[:, :0]}, "has no nodes: leave it out"),
        ({"x": torch.tensor([[0.0, 1, 2]] * 3 + [[0, np.nan, 1]])}, "1 node, first 3, are NaN or inf"),
        ({"edge_index": RING.float()}, r"edge_index is float32 \[2, 4\], and must be integers: .*long"),
        ({"edge_index": RING.t()}, r"it is \[2, edges\]: transpose it, edge_index.t\(\)"),
        ({"edge_index": RING + 1}, "an edge has the node 4, and there are 4 nodes, counted from 0: .*relabel_nodes"),
        ({"edge_index": RING - 1}, "an edge has the node -1"),
        ({"edge_weight": torch.ones(3)}, r"edge_weight is float32 \[3\], and there are 4 edges"),
        ({"edge_weight": torch.tensor([1.0, 1, 1, np.inf])}, "an edge weight is NaN or infinite"),
        ({"y": torch.ones(4)}, r"y is float32 \[4\], and classes must be integers from 0: y.long"),
        ({"y": torch.eye(4).long()}, "there is one class of each node: y.argmax"),
        (
            {"y": torch.tensor([1])},
            'y has 1 classes, and there are 4 nodes; .data. level = "graph" is for classes of whole',
        ),
        ({"train_mask": mask(0, 1), "test_mask": mask(1, 2)}, "1 nodes are in train_mask and test_mask.*drawn"),
        ({"train_mask": mask(0)[:3]}, "train_mask is bool .3.; it must be boolean, with 4 entries"),
        ({"train_mask": torch.ones(4, 10)}, "train_mask has 10 columns, one for each of several splits"),
        ({"y": np.array(["a"] * 4)}, "y is no tensor of numbers"),
    ],
)
def test_what_cannot_be(changes, message):
    with pytest.raises(DataError, match=rf"client 'mercy' \(mercy.pt\).*{message}"):
        of(raw(**changes))


def test_what_cannot_be_of_several_graphs_names_the_one():
    with pytest.raises(DataError, match=r"mercy\.pt.*, graph 1: .*node 9"):
        of(raw(), raw(edge_index=RING + 6))
    with pytest.raises(DataError, match="graph 0 and 2 .*graph 1"):
        of(raw(), raw(x=torch.ones(4, 2)))
    with pytest.raises(DataError, match='graph 0: .*level = "node"'):
        of(raw(), raw(), level="graph")
    with pytest.raises(DataError, match="mercy.pt. has no graphs"):
        of()


def test_what_is_read():
    weight = torch.arange(4)
    found = of(
        raw(x=np.arange(12).reshape(4, 3), edge_weight=weight[:, None], train_mask=mask(0), val_mask=mask(1).int()),
        raw(y=None, edge_attr=torch.ones(4, 2)),
    )
    assert found.graphs[0].x.dtype == torch.float32
    assert found.graphs[0].edge_weight.tolist() == [0, 1, 2, 3]
    assert found.labels.tolist() == [0, 1, 0, -1, -1, -1, -1, -1]
    assert {split: each.nonzero().flatten().tolist() for split, each in found.masks.items()} == {
        "train": [0], "validation": [1], "test": [],
    }  # fmt: skip
    assert found.left_out == ("edge_attr",)
    sparse = of(raw(x=torch.eye(4, 3).to_sparse(), y=torch.tensor([0, 1, -5, 1])))
    assert torch.equal(sparse.graphs[0].x, torch.eye(4, 3))
    assert sparse.labels.tolist() == [0, 1, -1, 1]
    one, two = (raw(y=torch.tensor([place]), train_mask=place == 0, test_mask=place == 1) for place in (0, 1))
    assert of(one, two, level="graph").masks["test"].tolist() == [False, True]
    graph, node = found.places
    assert graph.tolist() == [0] * 4 + [1] * 4
    assert node.tolist() == [0, 1, 2, 3] * 2


def test_edges_that_lead_one_way():
    assert of(raw()).one_way
    assert not of(raw(edge_index=torch.cat([RING, RING.flip(0)], 1))).one_way
    assert not of(raw(edge_index=RING[:, :0])).one_way


@pytest.mark.parametrize("kind", ["uint8", "uint16", "uint32", "uint64"])
def test_integers_without_a_sign_are_integers(kind):
    plain = of(raw())
    found = of(raw(edge_index=RING.numpy().astype(kind), y=np.array([0, 1, 0, 1], dtype=kind)))
    assert torch.equal(found.graphs[0].edge_index, plain.graphs[0].edge_index)
    assert found.labels.tolist() == [0, 1, 0, 1]


def test_several_graphs_in_one_are_to_be_a_list():
    with pytest.raises(DataError, match=r"y has 2 classes, and several graphs are joined in one.*to_data_list"):
        of(raw(y=torch.tensor([0, 1]), batch=torch.tensor([0, 0, 1, 1])), level="graph")
