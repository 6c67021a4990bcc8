import csv
import io
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedgraph.runs.reports.peer_comparison import MEASURES, PeerComparison
from fedgraph.support.errors import FedgraphError, RunError

quick = settings(max_examples=40, derandomize=True)
shapes = st.tuples(st.integers(2, 6), st.integers(1, 9), st.integers(2, 4))
peers = shapes.flatmap(
    lambda shape: st.tuples(
        arrays(np.int64, shape[:2], elements=st.integers(0, shape[2] - 1)),
        arrays(np.int64, shape[1], elements=st.integers(0, shape[2] - 1)),
    )
)


def compared(predicted, targets, models=None):
    names = tuple(f"peer {number}" for number in range(len(predicted)))
    models = torch.zeros(len(predicted), 1) if models is None else models
    return PeerComparison.of(names, models, torch.as_tensor(predicted), torch.as_tensor(targets))


@pytest.fixture
def four():
    """Four peers, 30 parameters, 50 examples of 3 classes; and the same in NumPy."""
    draw = torch.Generator().manual_seed(0)
    models = torch.randn(4, 30, generator=draw)
    targets = torch.randint(3, (50,), generator=draw)
    predicted = torch.where(torch.rand(4, 50, generator=draw) < 0.6, targets, torch.randint(3, (4, 50), generator=draw))
    return compared(predicted.int(), targets.int(), models), models.double().numpy(), predicted.numpy(), targets.numpy()


def test_every_pair_by_hand(four):
    comparison, theta, f, y = four
    for i, j in itertools.product(range(4), repeat=2):
        by_hand = {
            "l1": np.abs(theta[i] - theta[j]).sum(),
            "l2": np.sqrt(((theta[i] - theta[j]) ** 2).sum()),
            "hamming": (f[i] != f[j]).sum(),
            "both-right": ((f[i] == y) & (f[j] == y)).sum(),
            "both-wrong": ((f[i] != y) & (f[j] != y)).sum(),
        }
        assert set(by_hand) == set(MEASURES)
        for measure, value in by_hand.items():
            assert comparison.matrix(measure)[i, j].item() == pytest.approx(value, rel=1e-12, abs=1e-12), measure


def test_means_are_over_pairs_without_the_diagonal(four):
    comparison, theta, f, _ = four
    pairs = list(itertools.combinations(range(4), 2))
    summary = comparison.summary()
    assert set(summary) == {"l1", "l2", "hamming", "both-right", "both-wrong", "examples"}
    assert summary["l1"] == pytest.approx(np.mean([np.abs(theta[i] - theta[j]).sum() for i, j in pairs]))
    assert summary["hamming"] == pytest.approx(np.mean([(f[i] != f[j]).sum() for i, j in pairs]))
    assert summary["examples"] == 50


@quick
@given(peers)
def test_who_agrees_and_who_is_right(drawn):
    predicted, targets = drawn
    comparison = compared(predicted, targets)
    examples, agreements = len(targets), (predicted[:, None] == predicted[None]).sum(2)
    hamming, right, wrong = (comparison.matrix(measure).numpy() for measure in ("hamming", "both-right", "both-wrong"))
    for measure in MEASURES:
        assert torch.equal(comparison.matrix(measure), comparison.matrix(measure).T)
    assert (hamming + agreements == examples).all()
    assert (hamming.diagonal() == 0).all()
    assert (right.diagonal() + wrong.diagonal() == examples).all()
    # Where exactly one is right they differ; where both are wrong they may.
    assert (examples - right - wrong <= hamming).all()
    assert (hamming <= examples - right).all()
    if max(predicted.max(), targets.max()) < 2:
        assert (hamming == examples - right - wrong).all(), "of two classes there is one wrong one"


def test_models_that_diverged_have_a_distance():
    models = torch.tensor([[3e38, 0.0], [-3e38, 0.0], [0.0, 0.0]])
    comparison = compared(torch.zeros(3, 2).long(), torch.zeros(2).long(), models)
    assert comparison.l1[0, 1].item() == pytest.approx(6e38)
    assert comparison.l2[0, 2].item() == pytest.approx(3e38)


def test_files_are_read_back(four, tmp_path):
    comparison = four[0]
    comparison.write(tmp_path / "peers.npz")
    again = PeerComparison.read(tmp_path / "peers.npz")
    assert (again.names, again.examples) == (comparison.names, comparison.examples)
    assert all(torch.equal(again.matrix(measure), comparison.matrix(measure)) for measure in MEASURES)
    lines = list(csv.DictReader(io.StringIO((tmp_path / "peers.csv").read_text())))
    pairs = list(itertools.combinations(range(4), 2))
    assert [(line["peer"], line["other"]) for line in lines] == [(f"peer {i}", f"peer {j}") for i, j in pairs]
    for measure in MEASURES:
        found = [float(line[measure]) for line in lines]
        assert found == [comparison.matrix(measure)[i, j].item() for i, j in pairs]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": ["a", "b", "c"]}, r"l1 must have shape \[3, 3\] and type torch.float64; got \[2, 2\]"),
        ({"names": ["a", "a"]}, "peers with distinct names"),
        ({"examples": 0}, "at least one example"),
        ({"l2": np.array([[0.0, np.nan], [np.nan, 0.0]])}, "l2 must be symmetric, finite and nonnegative"),
        ({"l1": np.array([[0.0, 1.0], [2.0, 0.0]])}, "l1 must be symmetric"),
        ({"hamming": np.array([[0, -1], [-1, 0]])}, "hamming must be symmetric, finite and nonnegative"),
        ({"hamming": np.array([[0.0, 1.0], [1.0, 0.0]])}, "hamming must have shape .* and type torch.int64"),
        ({"both-right": np.array([[3, 4], [4, 3]])}, "both-right must not exceed the 3 examples"),
        ({"both-wrong": None}, "both-wrong"),
        ({"names": np.array([{}, {}], dtype=object)}, "allow_pickle"),
    ],
)
def test_a_file_that_is_none_is_refused_by_name(change, message, tmp_path):
    counts = np.array([[0, 1], [1, 0]])
    content = {
        "names": ["a", "b"], "examples": 3, "l1": counts.astype(float), "l2": counts.astype(float),
        "hamming": counts, "both-right": counts, "both-wrong": counts,
    }  # fmt: skip
    path = tmp_path / "peers.npz"
    np.savez(path, **content)
    PeerComparison.read(path)
    np.savez(path, **{key: value for key, value in {**content, **change}.items() if value is not None})
    with pytest.raises(RunError, match=rf"peers.npz is not a comparison of peers \(.*{message}"):
        PeerComparison.read(path)


def test_a_file_that_is_damaged_or_missing(tmp_path):
    (tmp_path / "peers.npz").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(RunError, match="peers.npz is not a comparison of peers"):
        PeerComparison.read(tmp_path / "peers.npz")
    with pytest.raises(RunError, match="no file .*compare-peers = true"):
        PeerComparison.read(tmp_path / "none.npz")


def test_what_does_not_fit():
    with pytest.raises(FedgraphError, match="at least two peers"):
        compared([[1, 2]], [1, 2])
    with pytest.raises(FedgraphError, match=r"models \[2, 1\], predictions \[2, 3\], targets \[2\]"):
        compared([[1, 2, 3], [1, 2, 3]], [1, 2])
