import pytest
import torch

from fedgraph.algorithms import Algorithm, Answers, Clients, combined, filled, matrix, mixed, written
from fedgraph.algorithms.model_rows import ModelRows
from fedgraph.graph import ClientGraph
from fedgraph.models import Layout
from fedgraph.support.errors import ReplyError, RunError
from fedgraph.support.settings import Settings

CLIENTS = Clients(("a", "b"), torch.tensor([1, 3]), Layout(("w",), ((2,),)), ClientGraph.complete(["a", "b"]))


class Mean(Algorithm):
    def round(self, clients, state, number):
        answers = yield self.ask(clients, state)
        return {**state, "models": filled(state["models"], answers.average(answers.num_examples))}


class Doubled(Algorithm):
    """The default round, which asks all."""

    def aggregate(self, clients, state, answers):
        return 2 * answers.parameters


class NoGenerator(Mean):
    def round(self, clients, state, number):
        return state


class NoExchange(Mean):
    def round(self, clients, state, number):
        if number < 0:
            yield
        return state


class NoAsk(Mean):
    def round(self, clients, state, number):
        yield state["models"]


class NoState(Mean):
    def round(self, clients, state, number):
        yield self.ask(clients, state)


class OtherState(Mean):
    def round(self, clients, state, number):
        yield self.ask(clients, state)
        return {"model": state["models"]}


class LargerState(Mean):
    def round(self, clients, state, number):
        yield self.ask(clients, state)
        return {**state, "velocity": 0.0}


def run(kind, present=(0, 1), models=None):
    algorithm, places = kind(Settings()), torch.tensor(present)
    state = algorithm.init(CLIENTS, torch.zeros(2, 2) if models is None else models)
    begun, _ = algorithm.begin(CLIENTS, state, 1)
    theta = {"parameters": torch.tensor([[1.0, 2.0], [5.0, 6.0]])[places].to(state["models"].dtype)}
    names = tuple(CLIENTS.names[place] for place in present)
    answers = Answers(places, names, theta, CLIENTS.num_examples[places], None, torch.ones(len(names)).bool())
    try:
        algorithm.proceed(begun, answers)
    except StopIteration as end:
        return algorithm.after(state, end.value)
    raise AssertionError("one exchange is all")


def test_a_round():
    assert run(Mean)["models"].tolist() == [[4.0, 5.0]] * 2


def test_the_default_round_asks_all_and_writes_the_models_of_those_present():
    assert run(Doubled)["models"].tolist() == [[2.0, 4.0], [10.0, 12.0]]
    assert run(Doubled, present=(1,))["models"].tolist() == [[0.0, 0.0], [10.0, 12.0]]
    rows = ModelRows([{"w": torch.zeros(2, dtype=torch.float64)} for _ in "ab"])
    assert matrix(run(Doubled, present=(1,), models=rows)["models"]).tolist() == [[0.0, 0.0], [10.0, 12.0]]


def test_a_measurement_is_the_exchange_of_a_round_without_training():
    algorithm = Doubled(Settings())
    (ask,) = algorithm.evaluation(CLIENTS, {"models": torch.ones(2, 2)}, 3, ("test",))
    assert (ask.evaluates, ask.trains) == (("test",), False)
    assert torch.equal(ask.stacked["parameters"], torch.ones(2, 2))


def test_an_algorithm_without_mathematics_says_what_it_needs():
    with pytest.raises(RunError, match="aggregate, or a round"):
        Algorithm(Settings())


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (torch.zeros(2, 2), r"First\.init returned Tensor"),
        ({"velocity": 0.0}, r"First\.init .*without models"),
    ],
)
def test_what_is_no_first_state_is_explained(returned, words):
    class First(Doubled):
        def init(self, clients, models):
            return returned

    with pytest.raises(RunError, match=words):
        First(Settings()).first_state(CLIENTS, torch.zeros(2, 2))


class OfNeighbours(Doubled):
    def aggregate(self, clients, state, answers):
        return answers.graph.propagate(answers.parameters, hops=1)


class OfNothing(Doubled):
    def aggregate(self, clients, state, answers):
        return clients.initial.elsewhere


@pytest.mark.parametrize(("kind", "told"), [(OfNeighbours, True), (OfNothing, False)])
def test_a_round_that_looks_for_a_graph_where_none_is_given_is_told_how_to_need_one(kind, told):
    with pytest.raises(AttributeError, match="'NoneType' object has no attribute") as caught:
        run(kind)
    notes = getattr(caught.value, "__notes__", [])
    assert any(f"needs_graph = True in {kind.__name__}" in note for note in notes) == told


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (NoGenerator, "NoGenerator.round .*yields"),
        (NoExchange, r"NoExchange\.round .*Ask"),
        (NoAsk, "NoAsk.round yielded"),
        (NoState, "NoState.round .*NoneType"),
        (OtherState, r"OtherState\.round .*without models"),
        (LargerState, r"LargerState\.round .*velocity"),
    ],
)
def test_what_is_no_round_is_explained(kind, words):
    with pytest.raises(RunError, match=words):
        run(kind)


# ---- models as rows of a matrix


def rows(clients=3, **own):
    random = torch.Generator().manual_seed(0)
    models = [
        {
            "a": torch.randn(2, 3, generator=random),
            "half": torch.randn(4, generator=random).half(),
            "count": torch.tensor(place),
            "b": torch.randn((), generator=random),
        }
        for place in range(clients)
    ]
    return ModelRows(models, **own)


def test_columns_are_the_floating_point_arrays_in_their_order():
    models = rows()
    whole = matrix(models)
    assert whole.shape == models.shape == (3, 11)
    first = models.models[0]
    expected = torch.cat([first["a"].flatten(), first["half"].float(), first["b"][None]])
    assert torch.equal(whole[0], expected)
    assert torch.equal(models.columns(4, 9), whole[:, 4:9])
    assert torch.equal(matrix(models, torch.tensor([2, 0])), whole[[2, 0]])


def test_what_is_written_keeps_types_and_leaves_the_rest():
    models = rows()
    after = written(models, torch.tensor([1]), torch.arange(11.0)[None])
    assert after is models
    changed = models.models[1]
    assert torch.equal(changed["a"], torch.arange(6.0).reshape(2, 3))
    assert changed["half"].dtype == torch.float16
    assert changed["b"] == 10
    assert changed["count"] == 1
    assert torch.equal(matrix(models)[0], matrix(rows())[0])


@pytest.mark.parametrize("at_once", [1, 5, 12, 1 << 20])
def test_a_mixture_is_that_of_the_matrix_whatever_is_computed_at_once(monkeypatch, at_once):
    monkeypatch.setattr("fedgraph.algorithms.model_rows._AT_ONCE", at_once)
    weights = torch.rand(2, 2, generator=torch.Generator().manual_seed(1))
    whole, present, answers = matrix(rows()), torch.tensor([0, 2]), rows(2)
    expected = mixed(whole.clone(), present, matrix(answers), lambda part: weights @ part)
    found = mixed(rows(), present, answers, lambda part: weights @ part)
    torch.testing.assert_close(matrix(found), expected, rtol=1e-3, atol=1e-3)  # a part of it is half precision
    beside = mixed(rows(), present, matrix(answers), lambda part: weights @ part)
    assert torch.equal(matrix(beside), matrix(found))
    torch.testing.assert_close(combined(found, lambda part: part.mean(0)), matrix(found).mean(0))
    assert torch.equal(matrix(filled(found, whole[1])), matrix(rows())[1].expand(3, -1))


def test_arrays_of_ones_own_are_in_no_column_and_are_taken_over():
    models, answers = rows(own=["half"]), rows(2, own=["half"])
    assert models.layout.names == ("a", "b")
    answers.models[1]["half"].fill_(7)
    answers.models[1]["count"] = torch.tensor(99)
    models.take_over(torch.tensor([0, 2]), answers)
    assert models.models[2]["half"].tolist() == [7] * 4
    assert models.models[2]["count"] == 99
    assert torch.equal(matrix(models), matrix(rows(own=["half"])))


@pytest.mark.parametrize(
    "use",
    [
        lambda models: models + 1,
        lambda models: 0.5 * models,
        lambda models: torch.zeros(3, 11) - models,
        lambda models: models - torch.zeros(3, 11),
        lambda models: models @ torch.zeros(11, 2),
        lambda models: models[torch.tensor([0, 1])],
        list,
        torch.zeros_like,
        lambda models: torch.stack([models, models]),
        lambda models: models.mean(dim=0),
        lambda models: models.clone(),
    ],
)
def test_rows_that_are_taken_for_a_tensor_say_what_to_write(use):
    words = r"models of a Flower app are not a tensor.*matrix\(models\).*written\(.*mixed\(.*filled\("
    with pytest.raises((TypeError, AttributeError), match=words):
        use(rows())


def test_rows_lack_other_attributes_as_any_object_does():
    with pytest.raises(AttributeError, match="^'ModelRows' .*'weights'$"):
        _ = rows().weights


def test_double_precision_is_that_of_the_matrix():
    models = ModelRows([{"x": torch.ones(2, dtype=torch.float64), "y": torch.ones(1)}])
    assert matrix(models).dtype == torch.float64
    with pytest.raises(ReplyError, match="array 'z' is torch.complex64"):
        ModelRows([{"z": torch.ones(1, dtype=torch.complex64)}])
