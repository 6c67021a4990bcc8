import numpy as np
import pytest
import torch

from fedgraph.fusion.alignment import HardAlignment, NoAlignment, SoftAlignment, sinkhorn
from fedgraph.support.errors import ExperimentError

SIZES = torch.tensor([3, 5, 4])


def random(seed=0):
    return torch.Generator().manual_seed(seed)


def embeddings(sizes=SIZES, size=5, batch=7):
    values = torch.randn(batch, len(sizes), size, generator=random(1))
    return values * (torch.arange(size) < sizes[:, None])


def knopp(start, iterations):
    """Eq. 21 as it is written, of one matrix."""
    r = np.ones(len(start))
    for _ in range(iterations):
        c = 1 / (start.T @ r)
        r = 1 / (start @ c)
    return np.diag(r) @ start @ np.diag(c)


def test_soft_alignment_multiplies_each_owner_by_its_own_matrix():
    alignment = SoftAlignment(SIZES, 5, 2, random())
    values = embeddings()
    out = alignment(values)
    assert out.shape == (7, 3, 2)
    for sample in range(7):
        for owner in range(3):
            expected = alignment.matrices()[owner].detach().numpy() @ values[sample, owner].numpy()
            np.testing.assert_allclose(out[sample, owner].detach().numpy(), expected, atol=1e-6)


def test_soft_matrices_start_xavier_uniform_over_the_own_size_and_never_use_more():
    alignment = SoftAlignment(torch.tensor([4, 100]), 100, 50, random())
    first, second = alignment.matrices().detach()
    for matrix, size in ((first[:, :4], 4), (second, 100)):
        bound = (6 / (size + 50)) ** 0.5
        assert 0.95 * bound < matrix.abs().max() <= bound
    assert (first[:, 4:] == 0).all()
    alignment(embeddings(torch.tensor([4, 100]), 100)).square().sum().backward()
    assert (alignment.matrix.grad[0, :, 4:] == 0).all()
    assert (alignment.matrix.grad[0, :, :4] != 0).any()


@pytest.mark.parametrize("kind", [SoftAlignment, HardAlignment])
def test_matrices_are_parameters_on_another_device_too_and_can_be_frozen(kind):
    sizes = torch.tensor([4, 4])
    moved = kind(sizes, 4, 4, random()).to("meta")
    assert [each.device.type for each in moved.parameters()] == ["meta"]
    assert all(each.requires_grad for each in moved.parameters())
    frozen = kind(sizes, 4, 4, random(), trained=False)
    assert not any(each.requires_grad for each in frozen.parameters())
    assert torch.equal(frozen.matrix, kind(sizes, 4, 4, random()).matrix)


def test_hard_alignment_is_sinkhorn_knopp_on_squares():
    alignment = HardAlignment(torch.tensor([6, 6]), 6, 6, random(), iterations=10)
    for own, matrix in zip(alignment.matrix.detach().double().numpy(), alignment.matrices(), strict=True):
        np.testing.assert_allclose(matrix.detach().numpy(), knopp(own * own, 10), rtol=1e-4, atol=1e-6)


def test_hard_alignment_by_sigmoid_at_a_mild_temperature_is_the_formula_and_at_a_low_one_does_not_overflow():
    mild = HardAlignment(torch.tensor([6]), 6, 6, random(), "sigmoid", 10, 0.5)
    start = np.exp(1 / (1 + np.exp(-mild.matrix[0].detach().double().numpy())) / 0.5)
    np.testing.assert_allclose(mild.matrices()[0].detach().numpy(), knopp(start, 10), rtol=1e-4)
    cold = HardAlignment(torch.tensor([6]), 6, 6, random(), "sigmoid", 10, 0.01)
    with torch.no_grad():
        cold.matrix.copy_(6 * torch.eye(6))
    assert not torch.isfinite((cold.matrix.sigmoid() / 0.01).exp()).all(), "what is avoided"
    torch.testing.assert_close(cold.matrices()[0], torch.eye(6), atol=1e-4, rtol=0)
    cold(embeddings(torch.tensor([6]), 6)).sum().backward()
    assert cold.matrix.grad.isfinite().all()


def test_zeros_in_the_squared_matrix_do_no_harm():
    alignment = HardAlignment(torch.tensor([3]), 3, 3, random())
    with torch.no_grad():
        alignment.matrix.copy_(torch.eye(3)[[1, 2, 0]])
    torch.testing.assert_close(alignment.matrices()[0], torch.eye(3)[[1, 2, 0]], atol=1e-5, rtol=0)
    alignment.matrices().square().sum().backward()
    assert alignment.matrix.grad.isfinite().all()


def test_rows_sum_to_one_and_more_steps_bring_columns_nearer():
    log_start = torch.randn(4, 5, 5, generator=random())
    off = []
    for iterations in (1, 20):
        matrix = sinkhorn(log_start, iterations).exp()
        torch.testing.assert_close(matrix.sum(-1), torch.ones(4, 5))
        off.append(float((matrix.sum(-2) - 1).abs().max()))
    assert off[1] < 1e-3 < 1e-2 < off[0]


@pytest.mark.parametrize("parameterisation", ["square", "sigmoid"])
@pytest.mark.parametrize(("sizes", "aligned"), [([3, 4], 4), ([4, 4], 3)])
def test_a_permutation_of_different_sizes_is_refused(parameterisation, sizes, aligned):
    with pytest.raises(ExperimentError, match="'hard' permutes.*use alignment = 'soft'"):
        HardAlignment(torch.tensor(sizes), 4, aligned, random(), parameterisation)


def test_no_alignment_changes_nothing_and_has_nothing_to_learn():
    alignment = NoAlignment(3, 5)
    values = embeddings()
    assert alignment(values) is values
    assert not list(alignment.parameters())
    assert torch.equal(alignment.matrices(), torch.eye(5).expand(3, 5, 5))


def test_hard_alignment_may_cost_the_mean_entropy_of_its_rows():
    alignment = HardAlignment(torch.full((3,), 5), 5, 5, random(), entropy=0.5)
    rows = alignment.matrices().detach().double().numpy()
    assert float(alignment.penalty().detach()) == pytest.approx(-0.5 * (rows * np.log(rows)).sum(-1).mean(), rel=1e-4)
    assert HardAlignment(torch.full((3,), 5), 5, 5, random()).penalty() == 0.0
    assert SoftAlignment(SIZES, 5, 5, random()).penalty() == NoAlignment(3, 5).penalty() == 0.0
