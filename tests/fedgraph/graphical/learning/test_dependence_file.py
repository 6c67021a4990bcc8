import csv

import torch

from fedgraph.graphical.learning.dependence_file import write_dependencies


def test_pairs_come_from_the_strongest_to_the_weakest(tmp_path):
    strengths = torch.tensor([[0.0, 0.25, 0.0], [1.5, 0.0, 0.125], [0.0, 0.0, 0.0]])
    write_dependencies(("a", "b, c", "d"), strengths, tmp_path / "dependencies")
    lines = list(csv.reader((tmp_path / "dependencies.csv").open(newline="")))
    assert lines == [
        ["feature", "depends on", "strength"],
        ["b, c", "a", "1.5"],
        ["a", "b, c", "0.25"],
        ["b, c", "d", "0.125"],
    ]
    assert (tmp_path / "dependencies.png").read_bytes().startswith(b"\x89PNG")
