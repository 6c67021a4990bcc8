import torch

from fedgraph.fusion.layers import EmbeddingScaling

SIZES = torch.tensor([4, 4, 2, 3])


def samples(number=200):
    """Of four owners; the third and the fourth are filled up from two and three numbers, and one number is constant."""
    random = torch.Generator().manual_seed(5)
    embeddings = 3 + torch.tensor([0.1, 1.0, 20.0, 1.0])[:, None] * torch.randn(number, 4, 4, generator=random)
    embeddings *= torch.arange(4) < SIZES[:, None]
    embeddings[:, 1, 0] = 7
    present = torch.rand(number, 4, generator=random) > 0.2
    return embeddings * present[..., None], present


def scaling(embeddings, present):
    found = EmbeddingScaling(SIZES, 4)
    found.fit(embeddings, present)
    return found


def test_samples_that_are_there_get_mean_0_and_a_mean_variance_of_1():
    embeddings, present = samples()
    scaled = scaling(embeddings, present)(embeddings, present)
    assert not scaled[~present].any()
    for owner, size in enumerate(SIZES.tolist()):
        own = embeddings[present[:, owner], owner, :size]
        expected = (own - own.mean(0)) / own.var(0, correction=0).mean().sqrt()
        found = scaled[present[:, owner], owner]
        torch.testing.assert_close(found[:, :size], expected, atol=1e-4, rtol=1e-4)
        assert not found[:, size:].any()


def test_owners_that_are_never_there_or_always_the_same_are_0():
    embeddings, present = samples()
    present[:, 0] = False
    embeddings[:, 3] = torch.tensor([1.0, 2.0, 3.0, 0.0])
    everybody = scaling(embeddings, present)(embeddings, torch.ones_like(present))
    assert everybody.isfinite().all()
    assert not everybody[:, [0, 3]].any()
    assert everybody[:, [1, 2]].any()


def test_it_travels_with_the_weights():
    embeddings, present = samples()
    found, again = scaling(embeddings, present), EmbeddingScaling(SIZES, 4)
    again.load_state_dict(found.state_dict())
    assert torch.equal(again(embeddings, present), found(embeddings, present))
