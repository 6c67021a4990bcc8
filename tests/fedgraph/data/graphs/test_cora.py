"""Cora's files as they are published, in communities: a small network of the same form."""

import numpy as np
import pytest

from fedgraph.data import open_source, parse_data
from fedgraph.data.graphs.cora import communities, read_citations
from fedgraph.support.errors import DataError

SUBJECTS = ("Neural_Networks", "Theory", "Rule_Learning")


def write(folder, groups=3, size=8):
    """Rings of papers, joined by one citation each; names as in the file are numbers, in another order."""
    papers = [f"{100 - number}" for number in range(groups * size)]
    lines = []
    for place, paper in enumerate(papers):
        words = [int(word == place % 4 or word == 4) for word in range(5)]
        lines.append("\t".join([paper, *map(str, words), SUBJECTS[place // size]]))
    pairs = []
    for group in range(groups):
        own = papers[group * size : (group + 1) * size]
        pairs += [(own[at], own[(at + step) % size]) for at in range(size) for step in (1, 2)]
    pairs += [(papers[0], papers[size]), (papers[size], papers[0]), (papers[0], papers[0]), (papers[1], "stranger")]
    (folder / "cora").mkdir()
    (folder / "cora" / "cora.content").write_text("\n".join(lines) + "\n")
    (folder / "cora" / "cora.cites").write_text("\n".join("\t".join(pair) for pair in pairs) + "\n")


def test_communities_are_the_clients(tmp_path):
    write(tmp_path)
    source = open_source(parse_data({"set": "cora", "clients": 3}), tmp_path)
    data = source.load(source.client_names())
    assert [source.labelled(name).labels.unique().tolist() for name in data.names] == [[2], [6], [5]]
    assert data.task.classes[2] == "Neural_Networks"
    graph = source.labelled(data.names[0]).graphs[0]
    assert graph.x[0].tolist() == [0.5, 0, 0, 0, 0.5]
    assert graph.edge_index.shape == (2, 2 * 16), "each citation once in each direction"
    assert source.given_graph().dense().tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert source.describe() == "Cora, 3 clients with a graph of 8 nodes each, classes of nodes"


def test_communities_are_dealt_out_and_divided_where_there_are_too_few():
    pairs = np.array([(5 * group + at, 5 * group + (at + 1) % 5) for group in range(4) for at in range(5)])
    two = communities(pairs, 20, 2, 1.0, 0)
    assert [len(part) for part in two] == [10, 10]
    assert all(len(set(part // 5)) == 2 for part in two), "communities stay whole"
    many = communities(pairs, 20, 9, 1.0, 0)
    assert sorted(np.concatenate(many).tolist()) == list(range(20))
    assert min(map(len, many)) > 0
    with pytest.raises(DataError, match="21 clients .*20"):
        communities(pairs, 20, 21, 1.0, 0)


def test_files_that_are_not_there_or_not_as_published(tmp_path):
    source = open_source(parse_data({"set": "cora"}), tmp_path)
    with pytest.raises(DataError, match=r"(?s)put it at .*cora/cora.content.*cora/cora.cites"):
        source.load(["client-00"])
    write(tmp_path)
    content, cites = tmp_path / "cora" / "cora.content", tmp_path / "cora" / "cora.cites"
    whole = content.read_text()
    for change, message in (
        (whole + "7\t0\t1\tTheory\n", "in each line a paper"),
        (whole.replace("Theory", "Alchemy"), "has the subject 'Alchemy'; they are Case_Based"),
        (whole.replace("100\t1", "100\tx"), "is not as published: could not convert"),
    ):
        content.write_text(change)
        with pytest.raises(DataError, match=message):
            read_citations(content, cites)
    content.write_text(whole)
    cites.write_text("1 2 3\n")
    with pytest.raises(DataError, match="'1 2 3'"):
        read_citations(content, cites)
