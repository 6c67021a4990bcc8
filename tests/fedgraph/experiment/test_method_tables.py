"""The resolved experiment of every method says every key, so that no default can change what it is."""

import tomllib

import flwr.serverapp.strategy as flower
import pytest
from flwr.serverapp.strategy import FedAvg, Strategy

from fedgraph.algorithms import Algorithm
from fedgraph.experiment import NODE_MINIMA, built_ins, constructor_arguments, load_experiment, parse_experiment
from fedgraph.models import MODELS, parse_model
from fedgraph.support.settings import UNSET, Settings, parse, with_nulls

NEEDED = {"f3-inference": {"run": "x"}, "f3-forecast-inference": {"run": "x"}, "f3-secret": {"run": "x"}}
BUILT_IN = {name: kind for name, kind in built_ins().items() if hasattr(kind, "settings_type")}
STOCK = {
    name: kind
    for name, kind in vars(flower).items()
    if isinstance(kind, type) and issubclass(kind, Strategy) and kind is not Strategy and "Privacy" not in name
}
ARGUMENTS = {"QFedAvg": {"client-learning-rate": 0.1}}


class OwnInner(Settings):
    """A table within the own one."""

    width: int = 3
    depth: int | None = None


class OwnSettings(Settings):
    """Of a strategy of one's own."""

    step: float = 0.5
    most: int | None = None
    inner: OwnInner = OwnInner()
    several: tuple[OwnInner, ...] = (OwnInner(width=4), OwnInner())


class Own(Algorithm[OwnSettings]):
    """A strategy of one's own."""


class OwnStock(FedAvg):
    """A stock strategy of one's own, with another default than the class it extends."""

    def __init__(self, step: float = 0.5, tags: tuple = ("a", "b"), more: object = None, **named) -> None:
        named.setdefault("fraction_train", 0.5)
        super().__init__(**named)
        self.step = step


class Fixed(FedAvg):
    """One that fixes an argument of the class it extends, and hands on the others."""

    def __init__(self, step: float = 0.5, **named) -> None:
        super().__init__(fraction_train=0.25, **named)
        self.step = step


class Alone(FedAvg):
    """One that hands nothing on."""

    def __init__(self, step: float = 0.5) -> None:
        super().__init__(fraction_train=0.25)
        self.step = step


def tables(head, own_models=False, **more):
    model = {} if own_models else {"model": {"name": "mlp"}}
    return {"experiment": head, "data": {"set": "digits"}, **model, **more}


def written(experiment):
    return tomllib.loads(experiment.as_toml())


def assert_no_default_is_used(value):
    """Every field of the settings, and of those within, was given."""
    if isinstance(value, Settings):
        assert value.model_fields_set == set(type(value).model_fields), type(value).__name__
        for name in type(value).model_fields:
            assert_no_default_is_used(getattr(value, name))
    elif isinstance(value, (list, tuple)):
        for each in value:
            assert_no_default_is_used(each)


def assert_reads_back(experiment, kind):
    """What is written has every key and no default, and is the same experiment when it is written again."""
    name, found = experiment.method.name, written(experiment)
    own = found.get(name, {})
    assert set(kind.keys()) <= {*own, *own.get(UNSET, ())}
    assert_no_default_is_used(parse(kind, own, f"[{name}]"))
    again = parse_experiment(found)
    for table in ("experiment", "data", "train", "graph", "evaluation", "clients", "defence", "output"):
        assert_no_default_is_used(getattr(again, table))
    assert again.as_toml() == experiment.as_toml()
    assert again.as_dict() == experiment.as_dict()


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_key_of_a_built_in_method_is_written(name):
    kind = BUILT_IN[name]
    experiment = parse_experiment(tables({"method": name}, kind.own_models, **{name: NEEDED.get(name, {})}))
    assert_reads_back(experiment, kind.settings_type)


def test_every_key_of_a_strategy_of_ones_own_is_written():
    head = {"strategy": f"{__name__}:Own"}
    experiment = parse_experiment(tables(head, Own={"step": 0.25, "inner": {"depth": 2}}))
    assert_reads_back(experiment, OwnSettings)
    assert written(experiment)["Own"] == {
        "step": 0.25,
        "inner": {"width": 3, "depth": 2},
        "several": [{"width": 4, "unset": ["depth"]}, {"width": 3, "unset": ["depth"]}],
        "unset": ["most"],
    }


@pytest.mark.parametrize("name", ["fedavg", "fedprox", *STOCK])
def test_plain_arguments_of_a_stock_strategy_are_written(name):
    known = {**built_ins(), **STOCK}[name]
    head = {"strategy": f"flwr.serverapp.strategy:{name}"} if name in STOCK else {"method": name}
    given = ARGUMENTS.get(name, {})
    experiment = parse_experiment(tables(head, **{name: given}))
    found = written(experiment)
    minima = {argument.replace("_", "-") for argument in NODE_MINIMA}
    plain = {
        key: given.get(key, default)
        for key, default in constructor_arguments(known).items()
        if key not in minima and isinstance(given.get(key, default), (bool, int, float, str))
    }
    assert {"fraction-train"} <= set(plain)
    assert found[name] == plain
    assert parse_experiment(found).as_toml() == experiment.as_toml()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("OwnStock", {}, {"step": 0.5, "tags": ["a", "b"], "fraction-train": 0.5, "fraction-evaluate": 1.0}),
        ("OwnStock", {"fraction-train": 0.75}, {"fraction-train": 0.75, "step": 0.5}),
        ("OwnStock", {"min-available-nodes": 3}, {"min-available-nodes": 3}),
    ],
)
def test_arguments_have_the_values_that_the_strategy_has(name, given, expected):
    found = written(parse_experiment(tables({"strategy": f"{__name__}:{name}"}, **{name: given})))[name]
    assert found.items() >= expected.items()
    assert vars(OwnStock(**{key.replace("-", "_"): value for key, value in found.items()})).keys()


@pytest.mark.parametrize(("name", "more"), [("Alone", set()), ("Fixed", {"fraction-evaluate", "weighted-by-key"})])
def test_arguments_that_cannot_be_given_are_not_written(name, more):
    found = written(parse_experiment(tables({"strategy": f"{__name__}:{name}"})))[name]
    assert {"step", *more} <= set(found)
    assert "fraction-train" not in found


@pytest.mark.parametrize("inner", ["flwr.serverapp.strategy:FedAdam", {"name": "flwr.serverapp.strategy:FedAdam"}])
def test_arguments_of_a_strategy_that_is_wrapped_are_written(inner):
    name = "DifferentialPrivacyServerSideFixedClipping"
    given = {"strategy": inner, "noise-multiplier": 0.5, "clipping-norm": 2.0, "num-sampled-clients": 3}
    experiment = parse_experiment(tables({"strategy": f"flwr.serverapp.strategy:{name}"}, **{name: given}))
    found = written(experiment)[name]
    assert found.items() >= {key: value for key, value in given.items() if key != "strategy"}.items()
    assert found["strategy"].items() >= {"name": "flwr.serverapp.strategy:FedAdam", "eta": 0.1, "beta-1": 0.9}.items()
    assert parse_experiment(written(experiment)).as_toml() == experiment.as_toml()


@pytest.mark.parametrize("name", [*MODELS, "torch.nn:Linear"])
def test_every_key_of_a_model_and_of_its_variants_is_written(name):
    variants = [{"clients": ["a"], "name": "mlp", "hidden": [2]}]
    given = tables({"method": "f3"}) | {"model": {"name": name, "variants": variants}}
    found = written(parse_experiment(given))["model"]
    assert_no_default_is_used(parse_model({key: value for key, value in found.items() if key != "variants"}))
    (variant,) = found["variants"]
    assert variant.pop("clients") == ["a"]
    assert_no_default_is_used(parse_model(variant))


def test_nodes_are_told_every_key(digits_tables):
    import json

    from fedgraph.training import TrainSettings

    part = json.loads(parse_experiment(digits_tables).client_part({}))
    assert_no_default_is_used(parse(TrainSettings, part["train"], "[train]"))
    assert_no_default_is_used(parse_model(part["model"]))


def test_a_key_that_is_unset_can_be_given(digits_tables, tmp_path):
    file = tmp_path / "experiment.toml"
    file.write_text(parse_experiment(digits_tables).as_toml())
    assert load_experiment(file).train.clip_norm is None
    assert load_experiment(file, "train.clip-norm=2.0").train.clip_norm == 2.0


def test_what_is_given_counts_before_what_is_unset():
    assert with_nulls({"a": 1, "unset": ["a", "b"]}) == {"a": 1, "b": None}
