"""Recovered graphs against true ones, small enough for a test."""

from __future__ import annotations

import pytest
import torch

from fedgraph.simulations.fedngm import graphs
from fedgraph.support.errors import ExperimentError


@pytest.mark.slow
def test_graphs_of_small_networks(data_dir):
    if not (data_dir / "graph-truth").is_dir():
        pytest.skip("no graph-truth in the data folder")
    sizes = graphs.Sizes(features=7, rows=1000, chain=4, chain_rows=1500)
    tables = graphs.graphs(data_dir, [0, 1], ["cancer", "asia"], sizes).tables
    assert tables["networks"].to_numpy().tolist() == [["cancer", 5, 4, 5], ["asia", 8, 8, 10]]
    moral = tables["moral-graph"].set_index(["network", "method", "graph"])
    assert len(moral) == 3 * (4 + 3 + 4 + 1)
    own, union, votes = (moral.loc["asia", "graphical-lasso", how] for how in ("own", "union", "votes"))
    assert union["recall"] >= votes["recall"]
    assert votes["precision"] > 0.8
    assert own["F1"] > 0.6
    assert (own["seeds"], moral.loc["cancer", "ges", "own"]["seeds"]) == ("0", "0 1")
    assert moral.loc["asia", "ges", "pooled"]["SHD"] <= 2
    every = [moral.loc[name, "uglad", "own"]["SHD"] for name in ("cancer", "asia", "mean")]
    assert every[2] == pytest.approx(sum(every[:2]) / 2)
    assert tables["skeleton"].loc[0].tolist() != tables["moral-graph"].loc[0].tolist()
    assert (tables["chain"]["F1"] > 0.9).all()
    assert graphs.RELEASED_F1 < 0.9


def test_an_unknown_network_is_refused(tmp_path):
    (tmp_path / "graph-truth").mkdir()
    (tmp_path / "graph-truth" / "alarm.bif.gz").touch()
    with pytest.raises(ExperimentError, match="no network 'azia' in .*; there are alarm"):
        graphs.graphs(tmp_path, [0], ["azia"])


def test_scores_are_means_over_seeds_of_each_network_and_over_networks():
    scores = {"small": torch.tensor([[1.0, 0.5, 0.6, 2], [1, 1, 0.8, 4]]), "large": torch.tensor([[0, 0, 0.1, 9.0]])}
    found = graphs._summarised(scores, {"small": (3, 4), "large": (3,)})
    assert found["small"] == (1.0, 0.75, pytest.approx(0.7), 3.0, pytest.approx(0.1414, abs=1e-4), "3 4")
    assert found["large"] == (0.0, 0.0, pytest.approx(0.1), 9.0, None, "3")
    assert found["mean"] == (0.5, 0.375, pytest.approx(0.4), 6.0, None, "3 4")
    del scores["large"]
    assert list(graphs._summarised(scores, {"small": (3, 4)})) == ["small"]


def test_neighbours_in_the_chain_are_correlated():
    rows = graphs._chain(4, 20_000, seed=0)
    torch.testing.assert_close(rows.mean(0), torch.full((4,), 0.5), atol=0.005, rtol=0)
    torch.testing.assert_close(rows.std(0), torch.full((4,), 0.1), atol=0.003, rtol=0)
    apart = torch.arange(4)[:, None] - torch.arange(4)
    torch.testing.assert_close(torch.corrcoef(rows.T), 0.8 ** apart.abs().float(), atol=0.02, rtol=0)
