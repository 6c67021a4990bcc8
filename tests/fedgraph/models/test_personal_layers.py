import pytest
import torch

from fedgraph.models.parameters import Layout
from fedgraph.models.personal_layers import PersonalLayers
from fedgraph.support.errors import ExperimentError

STATE = {
    "body.weight": torch.zeros(2, 3), "body.mean": torch.zeros(2), "head.weight": torch.zeros(1, 2),
    "head.bias": torch.zeros(1), "head.mean": torch.zeros(1),
}  # fmt: skip
WHOLE = Layout.of(STATE, buffers=["body.mean", "head.mean"])


def stacked(clients=4):
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(clients, *value.shape, generator=random) for name, value in STATE.items()}


@pytest.mark.parametrize(
    ("patterns", "personal"),
    [
        (["head.*"], {"head.weight", "head.bias", "head.mean"}),
        (["!head.*"], {"body.weight", "body.mean"}),
        (["*.mean", "head.bias"], {"body.mean", "head.mean", "head.bias"}),
        ([], set()),
    ],
)
def test_names_of_the_parts(patterns, personal):
    layers = PersonalLayers.of(WHOLE, patterns)
    assert set(layers.personal.names) == personal
    assert set(layers.shared.names) == set(STATE) - personal
    # Within each part what is trained comes first, as in every layout.
    for part in (layers.shared, layers.personal):
        assert part.buffers == {name for name in part.names if name.endswith("mean")}
        kinds = [name in part.buffers for name in part.names]
        assert kinds == sorted(kinds)
        assert part.num_trainable == sum(STATE[name].numel() for name in part.names if name not in part.buffers)


@pytest.mark.parametrize("patterns", [["head.*"], ["!head.*"], ["body.mean", "head.bias"], []], ids=str)
def test_parts_hold_the_tensors_of_their_names_and_join_again(patterns):
    layers, tensors = PersonalLayers.of(WHOLE, patterns), stacked()
    models = WHOLE.flatten(tensors)
    shared, personal = layers.split(models)
    for part, layout in ((shared, layers.shared), (personal, layers.personal)):
        assert part.shape == (4, layout.num_parameters)
        for name, value in layout.unflatten(part).items():
            assert torch.equal(value, tensors[name])
    assert torch.equal(layers.join(shared, personal), models)


@pytest.mark.parametrize("patterns", [["head.*"], ["!head.*"], ["head.bias"], []], ids=str)
def test_columns_of_what_is_trained_and_shared(patterns):
    """A gradient has the trained columns of a whole model; what the server sends begins with the shared ones."""
    layers = PersonalLayers.of(WHOLE, patterns)
    models = WHOLE.flatten(stacked())
    trained = models[:, : WHOLE.num_trainable][:, layers.shared_trainable]
    assert torch.equal(trained, layers.split(models)[0][:, : layers.shared.num_trainable])
    assert trained.shape[1] == layers.shared.num_trainable


def test_nothing_private_costs_no_copy():
    layers, models = PersonalLayers.of(WHOLE, []), WHOLE.flatten(stacked())
    shared, personal = layers.split(models)
    assert shared is models
    assert layers.join(shared, personal) is models
    assert layers.shared_trainable == slice(0, WHOLE.num_trainable)


def test_patterns_that_do_not_fit():
    with pytest.raises(ExperimentError, match=r"'tail\.\*'; .*body\.weight"):
        PersonalLayers.of(WHOLE, ["head.*", "tail.*"])
    with pytest.raises(ExperimentError, match=r"\['!x\*'\] .*\"local\""):
        PersonalLayers.of(WHOLE, ["!x*"])
