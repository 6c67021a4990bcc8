"""What [f3] preset fills in, and what is said otherwise."""

import pytest
from sklearn.base import clone

from fedgraph.algorithms.f3_settings import F3Settings
from fedgraph.fusion import FusionClassifier, FusionSettings
from fedgraph.support.errors import ExperimentError
from fedgraph.support.settings import parse


def test_the_practical_preset_fills_in_what_is_not_given():
    plain, practical = F3Settings(), parse(F3Settings, {"preset": "practical"}, "[f3]")
    assert parse(F3Settings, {"preset": "paper"}, "[f3]") == plain
    different = {name for name in F3Settings.model_fields if getattr(plain, name) != getattr(practical, name)}
    assert different == (FusionSettings.practical().keys() | {"preset"}) - {"members"}
    assert (practical.fusion, practical.scaling, practical.monitor) == ("ensemble", "owner", "auc")
    assert practical.owner_dropout == (0.0, 0.2)


@pytest.mark.parametrize("key", ["owner-dropout", "owner_dropout"])
def test_what_is_given_goes_before_the_preset(key):
    found = F3Settings.model_validate({"preset": "practical", "fusion": "concatenation", key: 0.3})
    assert (found.fusion, found.owner_dropout) == ("concatenation", 0.3)
    assert found.head == (32,)


def test_what_is_written_says_every_key_and_is_read_as_the_same():
    practical = F3Settings(preset="practical", hidden=5)
    written = practical.as_written()
    assert written["owner-dropout"] == [0.0, 0.2]
    assert written["hidden"] == 5
    assert parse(F3Settings, written, "[f3]") == practical
    # Without the word, the keys alone say the same.
    del written["preset"]
    assert parse(F3Settings, written, "[f3]") == practical.model_copy(update={"preset": "paper"})


@pytest.mark.parametrize(
    ("key", "value"), [("preset", "best"), ("owner-dropout", []), ("owner-dropout", [1.0]), ("owner-dropout", -0.1)]
)
def test_other_presets_and_shares_are_refused(key, value):
    with pytest.raises(ExperimentError, match=rf"\[f3\] {key}"):
        parse(F3Settings, {key: value}, "[f3]")


def test_the_classifier_takes_the_same_preset():
    classifier = clone(FusionClassifier(**FusionSettings.practical()))
    settings = F3Settings(preset="practical")
    assert all(getattr(classifier.settings, name) == getattr(settings, name) for name in FusionSettings.practical())
