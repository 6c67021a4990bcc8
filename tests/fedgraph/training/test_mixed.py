"""Clients of several architectures on one node get what each architecture's own cohort gives, bit for bit."""

import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedgraph.data.base import CohortData
from fedgraph.data.examples import ExampleSplit, row_table
from fedgraph.models import build
from fedgraph.models.architectures import Architectures
from fedgraph.models.base import TaskSpec
from fedgraph.models.choice import ModelChoice
from fedgraph.support.errors import RunError
from fedgraph.training.cohort import Cohort, TrainSettings
from fedgraph.training.mixed import JoinedSplit, MixedCohort, load_cohort

TASK = TaskSpec("forecast", (5, 1), (3,), step_minutes=5)
NAMES = ("a", "b", "c", "d", "e")
SIZES = {"a": 11, "b": 4, "c": 7, "d": 1, "e": 13}
LARGE, SMALL = {"name": "mlp", "hidden": [9]}, {"name": "mlp", "hidden": [2, 2]}
GROUPS = {0: ("b", "d", "e"), 1: ("a", "c")}
TABLE = {**LARGE, "variants": [{**SMALL, "clients": ["[ac]"]}]}
MODELS = {number: build(table, TASK) for number, table in ((0, LARGE), (1, SMALL))}

TABLES = [
    {"learning-rate": 0.1, "batch-size": 3, "local-epochs": 2},
    {"learning-rate": 0.1, "batch-size": 3, "momentum": 0.9, "keep-optimizer": True},
    {"optimizer": "adam", "batch-size": 4, "local-steps": 3, "keep-optimizer": True, "block-size": 1},
]


class Source:
    """Each client has random examples of its own, which do not depend on who else is loaded."""

    def __init__(self):
        self.loaded = []

    def load(self, names):
        self.loaded.append(tuple(names))
        inputs, targets = [], []
        for name in names:
            random = torch.Generator().manual_seed(ord(name))
            inputs.append(torch.randn(SIZES[name], 5, 1, generator=random))
            targets.append(torch.randn(SIZES[name], 3, generator=random))
        every = np.arange(sum(map(len, inputs)))
        table = row_table(np.split(every, np.cumsum([len(own) for own in inputs])[:-1]))
        split = ExampleSplit(torch.cat(inputs), torch.cat(targets), table)
        scale = torch.tensor([float(ord(name)) for name in names])
        return CohortData(tuple(names), TASK, {"train": split, "test": split}, scale - 96, scale / 97)


def mixed(table=TABLES[0], names=NAMES, model=TABLE, source=None):
    return load_cohort(ModelChoice.of(model), source or Source(), names, TrainSettings(**table), seed=1)


def alone(number, table):
    return Cohort(MODELS[number], Source().load(GROUPS[number]), TrainSettings(**table), seed=1)


def start():
    """Random models, a row for each client, zero behind its own parameters."""
    rows = torch.zeros(len(NAMES), MODELS[0].layout.num_parameters)
    for number, members in GROUPS.items():
        size = MODELS[number].layout.num_parameters
        values = torch.randn(len(members), size, generator=torch.Generator().manual_seed(number)) / 3
        rows[positions(members), :size] = values
    return rows


def positions(members):
    return [NAMES.index(name) for name in members]


def own(rows, number):
    return rows[positions(GROUPS[number]), : MODELS[number].layout.num_parameters]


def check_padding(rows):
    size = MODELS[1].layout.num_parameters
    assert size < rows.shape[1]
    assert (rows[positions(GROUPS[1]), size:] == 0).all()


def test_groups_are_loaded_apart_and_one_architecture_is_a_plain_cohort():
    source = Source()
    cohort = mixed(source=source)
    assert isinstance(cohort, MixedCohort)
    assert source.loaded == [("b", "d", "e"), ("a", "c")]
    source = Source()
    assert type(mixed(model=LARGE, source=source)) is Cohort
    assert source.loaded == [NAMES]
    same = {**LARGE, "variants": [{**LARGE, "clients": ["a"]}]}
    assert type(mixed(model=same)) is Cohort


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_training_equals_separate_cohorts_bit_for_bit(table):
    cohort, rows = mixed(table), start()
    kept = rows.clone()
    first = cohort.train(rows, 1)
    second = cohort.train(first.parameters, 2, optimizer_state=first.optimizer_state)
    assert torch.equal(rows, kept)
    check_padding(second.parameters)
    for number, members in GROUPS.items():
        single = alone(number, table)
        before = single.train(own(rows, number), 1)
        after = single.train(before.parameters, 2, optimizer_state=before.optimizer_state)
        for result, expected in ((first, before), (second, after)):
            assert torch.equal(own(result.parameters, number), expected.parameters)
            for name in ("loss", "steps", "num_examples"):
                assert torch.equal(getattr(result, name)[positions(members)], getattr(expected, name))
            assert set(result.optimizer_state) == set(expected.optimizer_state)
            for name, value in expected.optimizer_state.items():
                moments = result.optimizer_state[name][positions(members)]
                if value.dim() == 2:
                    assert (moments[:, value.shape[1] :] == 0).all()
                    moments = moments[:, : value.shape[1]]
                assert torch.equal(moments, value)
        assert not torch.equal(own(second.parameters, number), own(first.parameters, number))


def test_moments_make_a_difference_and_are_checked():
    cohort, rows = mixed(TABLES[1]), start()
    first = cohort.train(rows, 1)
    with_moments = cohort.train(first.parameters, 2, optimizer_state=first.optimizer_state)
    assert not torch.equal(cohort.train(first.parameters, 2).parameters, with_moments.parameters)
    with pytest.raises(RunError, match="kept optimiser state"):
        cohort.train(rows, 2, optimizer_state={"momentum": torch.zeros(5, 7)})


def test_evaluation_and_predictions_equal_separate_cohorts_bit_for_bit():
    cohort, rows = mixed(), start()
    metrics = cohort.evaluate(rows, "test", horizons=(3,))
    predictions = cohort.predict(rows, "test")
    assert predictions.shape == (5, 13, 3)
    for number, members in GROUPS.items():
        single = alone(number, TABLES[0])
        expected = single.evaluate(own(rows, number), "test", horizons=(3,))
        assert list(metrics) == list(expected)
        assert "mae-15min" in metrics
        for name, values in expected.items():
            assert torch.equal(metrics[name][positions(members)], values)
        outputs = single.predict(own(rows, number), "test")
        mine = predictions[positions(members)]
        assert torch.equal(mine[:, : outputs.shape[1]].nan_to_num(-9), outputs.nan_to_num(-9))
        assert mine[:, outputs.shape[1] :].isnan().all()
    batched = cohort.evaluate(rows, "test", batch_size=2)
    torch.testing.assert_close(batched["mae"], metrics["mae"])
    torch.testing.assert_close(cohort.predict(rows, "test", batch_size=2), predictions, equal_nan=True)


def test_the_order_of_the_clients_does_not_matter():
    order = [3, 0, 4, 2, 1]
    names, rows = tuple(NAMES[i] for i in order), start()
    settings = TABLES[1] | {"block-size": 1}
    straight, shuffled = mixed(settings).train(rows, 1), mixed(settings, names).train(rows[order], 1)
    assert torch.equal(shuffled.parameters, straight.parameters[order])
    assert torch.equal(shuffled.loss, straight.loss[order])
    assert torch.equal(shuffled.optimizer_state["momentum"], straight.optimizer_state["momentum"][order])


def test_a_gradient_term_is_asked_for_rows_of_the_node():
    rows, seen = start(), set()
    pulls = torch.randn(rows.shape, generator=torch.Generator().manual_seed(3))

    def term(parameters, clients, batch_weight):
        pull = pulls[clients, : parameters.shape[1]]
        seen.update((NAMES[int(row)], parameters.shape[1]) for row in torch.arange(len(NAMES))[clients])
        assert pull.shape == parameters.shape
        assert batch_weight.shape == (len(parameters),)
        return pull

    for block_size in (None, 1, 2):
        table = TABLES[0] | ({"block-size": block_size} if block_size else {})
        got = mixed(table).train(rows, 1, term).parameters
        check_padding(got)
        for number, members in GROUPS.items():
            local = pulls[positions(members)]
            expected = alone(number, table).train(
                own(rows, number), 1, lambda v, clients, weight, local=local: local[clients, : v.shape[1]]
            )
            assert torch.equal(own(got, number), expected.parameters)
    sizes = {name: MODELS[number].layout.num_parameters for number, members in GROUPS.items() for name in members}
    assert seen == set(sizes.items())


def test_a_group_without_a_metric_gets_nan(monkeypatch):
    honest = Cohort.evaluate

    def evaluate(self, *arguments, **named):
        result = honest(self, *arguments, **named)
        return result | ({"auc": result["mae"] + 1} if self.data.names == GROUPS[1] else {})

    monkeypatch.setattr(Cohort, "evaluate", evaluate)
    metrics = mixed().evaluate(start(), "test")
    assert metrics["auc"].isnan().tolist() == [False, True, False, True, True]
    assert torch.equal(metrics["auc"][[0, 2]], metrics["mae"][[0, 2]] + 1)


def test_a_node_with_a_single_architecture_of_several_speaks_in_rows_of_the_common_width():
    cohort, rows = mixed(TABLES[1], names=GROUPS[1]), start()[positions(GROUPS[1])]
    assert cohort.model.layout.num_trainable == rows.shape[1]
    got = cohort.train(rows, 1)
    size = MODELS[1].layout.num_parameters
    assert torch.equal(got.parameters[:, :size], alone(1, TABLES[1]).train(rows[:, :size], 1).parameters)
    assert (got.parameters[:, size:] == 0).all()
    assert got.optimizer_state["momentum"].shape == rows.shape


def test_data_is_that_of_all_clients_in_their_order():
    data, whole = mixed().data, Source().load(NAMES)
    assert (data.names, data.task, data.label_counts) == (whole.names, whole.task, None)
    assert torch.equal(data.mean, whole.mean)
    assert torch.equal(data.std, whole.std)
    split, expected = data.splits["train"], whole.splits["train"]
    assert isinstance(split, JoinedSplit)
    assert torch.equal(split.num_examples, expected.num_examples)
    indices = torch.tensor([[0, 2, -1], [1, 0, 3], [6, 5, 4], [0, -1, -1], [12, 0, 1]])
    chosen = [slice(0, 5), slice(1, 4), slice(0, 1), slice(3, 5), torch.tensor([4, 0, 3]), torch.tensor([2, 0])]
    for clients in chosen:
        part, wanted = split.select(clients), expected.select(clients)
        assert torch.equal(part.num_examples, wanted.num_examples)
        assert torch.equal(part.select(slice(0, 1)).num_examples, wanted.num_examples[:1])
        own = indices[clients]
        for few in range(1, len(own) + 1):
            for mine, theirs in zip(part.batch(own[:few]), wanted.batch(own[:few]), strict=True):
                assert torch.equal(mine, theirs)
    moved = split.to(torch.device("cpu")).batch(indices)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(moved, expected.batch(indices), strict=True))


def test_groups_and_untrained_clients_of_all_architectures():
    class Grouped(Source):
        def load(self, names):
            words = tuple(f"group of {name}" for name in names)
            return replace(super().load(names), groups=words, untrained=tuple(name for name in names if name in "cd"))

    data = mixed(source=Grouped()).data
    assert data.groups == tuple(f"group of {name}" for name in NAMES)
    assert data.untrained == ("c", "d")
    assert (mixed().data.groups, mixed().data.untrained) == (None, ())


def test_label_counts_of_all_groups():
    class Labelled(Source):
        def load(self, names):
            data = super().load(names)
            object.__setattr__(data, "label_counts", torch.tensor([[ord(name), 0] for name in names]))
            return data

    assert mixed(source=Labelled()).data.label_counts[:, 0].tolist() == [ord(name) for name in NAMES]


def test_what_all_groups_tell_of_their_scale():
    class Telling(Source):
        def load(self, names):
            moments = torch.tensor([[ord(name)] * 4 for name in names], dtype=torch.float64)
            return replace(super().load(names), moments=moments)

    assert mixed(source=Telling()).data.moments[:, 3].tolist() == [ord(name) for name in NAMES]
    assert mixed().data.moments is None


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, inputs):
        return self.last(self.norm(inputs.flatten(1)))


def test_running_statistics_of_one_group_stay_with_it(monkeypatch):
    module = types.ModuleType("their_normed_model")
    module.Model = Normed
    monkeypatch.setitem(sys.modules, "their_normed_model", module)
    own_model = {"name": "their_normed_model:Model"}
    choice = ModelChoice.of({**LARGE, "variants": [{**own_model, "clients": ["[ac]"]}]})
    architectures = Architectures.of(choice, TASK, NAMES)
    rows = architectures.repeated(architectures.initial(0))
    cohort = load_cohort(choice, Source(), NAMES, TrainSettings(**TABLES[1]), seed=1)
    got = cohort.train(rows, 1)
    model = build(own_model, TASK)
    size, trainable = model.layout.num_parameters, model.layout.num_trainable
    assert trainable < size
    single = Cohort(model, Source().load(GROUPS[1]), TrainSettings(**TABLES[1]), seed=1)
    expected = single.train(rows[positions(GROUPS[1]), :size], 1)
    assert torch.equal(got.parameters[positions(GROUPS[1]), :size], expected.parameters)
    assert (got.parameters[positions(GROUPS[1]), size:] == 0).all()
    moments = got.optimizer_state["momentum"][positions(GROUPS[1])]
    assert torch.equal(moments[:, :trainable], expected.optimizer_state["momentum"])
    assert (moments[:, trainable:] == 0).all()
    again = cohort.train(got.parameters, 2, optimizer_state=got.optimizer_state)
    repeated = single.train(expected.parameters, 2, optimizer_state=expected.optimizer_state)
    assert torch.equal(again.parameters[positions(GROUPS[1]), :size], repeated.parameters)


def test_parameters_of_another_width_are_refused():
    for call in (lambda rows: mixed().train(rows, 1), lambda rows: mixed().evaluate(rows, "test")):
        with pytest.raises(RunError, match=r"shape \(5, 82\), but 5 clients, whose largest model has 84"):
            call(start()[:, 2:])
