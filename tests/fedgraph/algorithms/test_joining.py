import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgraph.algorithms.joining import join
from fedgraph.fusion import JoinedSamples
from fedgraph.messages.embeddings import EmbedReply
from fedgraph.support.errors import DataError, IdentityError
from fedgraph.support.files import load_state, save_state

CLASSES = ("x", "y", "z")
SIZES = {"a": 3, "b": 1, "c": 4, "d": 2, "e": 3, "f": 1}


def label_of(key):
    return int(key) % 3


def split_of(key):
    return int(key) % 3


def embedding_of(owner, key):
    return [10.0 * ord(owner) + int(key) + place / 8 for place in range(SIZES[owner])]


def prediction_of(owner, key):
    return [ord(owner) / 128, int(key) / 128, 0.25]


def answer(has, garbage=0.0, **changes):
    """The answer of a node for owners with the keys that they have; ``garbage`` where it has nothing to say."""
    owners = tuple(has)
    keys = tuple(sorted(set().union(*has.values())))
    size = max(SIZES[name] for name in owners)
    embeddings = torch.full((len(owners), len(keys), size), garbage)
    predictions = torch.full((len(owners), len(keys), 3), garbage)
    present = torch.zeros(len(owners), len(keys), dtype=torch.bool)
    for row, name in enumerate(owners):
        for column, key in enumerate(keys):
            if key in has[name]:
                present[row, column] = True
                embeddings[row, column, : SIZES[name]] = torch.tensor(embedding_of(name, key))
                predictions[row, column] = torch.tensor(prediction_of(name, key))
    whole = EmbedReply(
        clients=owners,
        partition=None,
        data=f"data of {owners[0]}",
        classes=CLASSES,
        keys=keys,
        split=torch.tensor([split_of(key) for key in keys], dtype=torch.int8),
        labels=torch.tensor([label_of(key) for key in keys]),
        present=present,
        sizes=torch.tensor([SIZES[name] for name in owners]),
        embeddings=embeddings,
        predictions=predictions,
        fingerprints=tuple(f"model of {name}" for name in owners),
    )
    return replace(whole, **changes)


HAS = {"a": {"01", "02", "05"}, "b": {"02", "03"}, "c": {"01", "02", "03", "04", "05"}, "d": {"09"}}


@settings(max_examples=60, derandomize=True)
@given(
    has=st.dictionaries(
        st.sampled_from("abcd"), st.sets(st.integers(0, 9).map(lambda n: f"{n:02d}"), min_size=1), min_size=1
    ),
    seed=st.integers(0, 10**6),
    garbage=st.sampled_from([0.0, 7.0]),
)
def test_samples_are_joined_by_key_however_owners_are_dealt_out(has, seed, garbage):
    draw = random.Random(seed)
    owners = draw.sample(sorted(has), len(has))
    nodes = {}
    for owner in owners:
        nodes.setdefault(draw.randrange(3), {})[owner] = has[owner]
    joined, absent = join({node: answer(some, garbage) for node, some in nodes.items()})
    keys = sorted(set().union(*has.values()))
    assert joined.owners == tuple(sorted(has))
    assert joined.keys == tuple(keys)
    assert joined.classes == CLASSES
    assert absent == {}
    size = max(SIZES[owner] for owner in has)
    assert joined.embeddings.shape == (len(keys), len(has), size)
    for row, key in enumerate(keys):
        assert (joined.split[row], joined.labels[row]) == (split_of(key), label_of(key))
        for column, owner in enumerate(sorted(has)):
            held = key in has[owner]
            assert joined.present[row, column] == held
            wanted = embedding_of(owner, key) + [0.0] * (size - SIZES[owner]) if held else [0.0] * size
            assert joined.embeddings[row, column].tolist() == wanted
            predicted = prediction_of(owner, key) if held else [0.0] * 3
            assert joined.predictions[row, column].tolist() == predicted
    assert joined.sizes.tolist() == [SIZES[owner] for owner in sorted(has)]
    assert joined.fingerprints == tuple(f"model of {owner}" for owner in sorted(has))


def test_a_node_without_owners_has_no_say():
    joined, _ = join({1: answer(HAS), 2: EmbedReply.empty((0, 2))})
    assert joined.owners == ("a", "b", "c", "d")


def test_nobody_is_refused():
    with pytest.raises(IdentityError, match="no owner sent anything usable"):
        join({1: EmbedReply.empty(None)})
    with pytest.raises(IdentityError, match="no owner sent anything usable"):
        join({})
    spoilt = answer({"a": {"01"}})
    with pytest.raises(IdentityError, match=r"usable \(a: its embeddings hold NaN"):
        join({1: replace(spoilt, embeddings=spoilt.embeddings * torch.nan)})


def test_other_classes_are_refused_with_the_owners():
    with pytest.raises(DataError, match="'a' and 'b' .*x, y, z .*x, z, y"):
        join({1: answer({"a": {"01"}}), 2: answer({"b": {"01"}}, classes=("x", "z", "y"))})


@pytest.mark.parametrize(("name", "word"), [("labels", "label"), ("split", "split")])
def test_nodes_that_disagree_on_a_sample_are_refused_with_its_key(name, word):
    other = answer({"b": {"02", "03", "05"}})
    values = getattr(other, name).clone()
    values[1] = (values[1] + 1) % 3
    with pytest.raises(DataError, match=f"disagree on the {word} of sample '03'.*split-seed"):
        join({1: answer({"a": {"01", "03"}}), 2: replace(other, **{name: values})})
    assert join({1: answer({"a": {"01"}}), 2: replace(other, **{name: values})})[0].keys == ("01", "02", "03", "05")


def saying(has, name, key, value):
    """The answer of a node that says something else of one of its samples."""
    whole = answer(has)
    values = getattr(whole, name).clone()
    values[whole.keys.index(key)] = value
    return replace(whole, **{name: values})


@pytest.mark.parametrize(("name", "word"), [("labels", "label"), ("split", "split")])
def test_in_a_tolerant_run_who_contradicts_most_owners_is_left_out(name, word):
    nodes = {
        1: answer({"a": {"01", "03"}}),
        2: saying({"b": {"02", "03", "05"}, "d": {"02", "05"}}, name, "03", 1),
        3: answer({"c": {"01", "02", "03"}}),
    }
    with pytest.raises(DataError, match=f"disagree on the {word} of sample '03'"):
        join(nodes)
    joined, absent = join(nodes, tolerant=True)
    assert set(absent) == {"b"}, "d has not the sample on which its node is wrong"
    assert f"contradicts most owners on the {word} of 1 samples, such as '03'" in absent["b"]
    expected, _ = join({1: nodes[1], 2: answer({"d": {"02", "05"}}), 3: nodes[3]})
    for key, value in expected.state().items():
        found = joined.state()[key]
        assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value, key
    assert join({1: nodes[1], 3: nodes[3]}, tolerant=True)[1] == {}


def test_all_owners_of_a_node_that_have_the_sample_are_left_out():
    nodes = {
        1: saying({"a": {"01", "03"}, "b": {"03"}}, "labels", "03", 1),
        2: answer({"c": {"03"}, "d": {"01", "03"}}),
    }
    with pytest.raises(DataError, match="disagree .*'03'"):
        join(nodes)
    assert join(nodes, tolerant=True)[0].keys == ("01",), "two against two: nobody knows the label of 03"
    more = {**nodes, 3: answer({"e": {"03"}})}
    assert set(join(more, tolerant=True)[1]) == {"a", "b"}
    columns, _ = join(more, ("a", "b", "c", "d", "e"), tolerant=True)
    assert columns.present.any(0).tolist() == [False, False, True, True, True]


def test_a_node_has_one_say_however_many_owners_it_speaks_for():
    nodes = {1: saying({name: {"01", "03"} for name in "abc"}, "labels", "03", 1)}
    nodes |= {2: answer({"d": {"01", "03"}}), 3: answer({"e": {"03"}})}
    assert set(join(nodes, tolerant=True)[1]) == {"a", "b", "c"}
    del nodes[3]
    assert set(join(nodes, tolerant=True)[1]) == {"d"}, "one node against one: three owners against one"


def test_who_is_wrong_most_often_has_no_say_any_more():
    """Of sample 05 c and a have equal votes; but a is wrong of 01, 02 and 07 as well."""
    wrong = answer({"a": {"01", "02", "05", "07"}, "e": {"07"}})
    wrong = replace(wrong, labels=(wrong.labels + 1) % 3)
    nodes = {1: wrong, 2: answer({"b": {"01", "02"}, "c": {"01", "02", "05"}}), 3: answer({"d": {"02", "07"}})}
    joined, absent = join({**nodes, 4: answer({"f": {"07"}})}, tolerant=True)
    assert set(absent) == {"a", "e"}
    assert "label of 3 samples, such as '01'" in absent["a"]
    assert joined.labels.tolist() == [label_of(key) for key in joined.keys]


def test_new_samples_have_no_label_to_disagree_on():
    new = {"split": torch.tensor([3], dtype=torch.int8), "labels": torch.tensor([-1])}
    nodes = {1: answer({"a": {"03"}}, **new), 2: answer({"b": {"03"}}, **new)}
    assert join(nodes, tolerant=True)[1] == {}
    nodes[3] = answer({"c": {"03"}})
    assert set(join(nodes, tolerant=True)[1]) == {"c"}


def test_a_sample_that_is_new_to_one_node_only_is_refused():
    new = {"split": torch.tensor([3], dtype=torch.int8), "labels": torch.tensor([-1])}
    with pytest.raises(DataError, match="disagree .*'03'"):
        join({1: answer({"a": {"03"}}), 2: answer({"b": {"03"}}, **new)})
    both, _ = join({1: answer({"a": {"03"}}, **new), 2: answer({"b": {"03"}}, **new)})
    assert (both.labels.tolist(), both.of_split("new").tolist()) == ([-1], [0])


def spoilt():
    """Owner c, whose embeddings are the longest and who alone has some samples, sends NaN in one place."""
    whole = answer({"b": HAS["b"], "c": HAS["c"]})
    embeddings = whole.embeddings.clone()
    embeddings[1, 0, 0] = torch.nan
    return {1: answer({"a": HAS["a"]}), 2: replace(whole, embeddings=embeddings)}


def test_an_owner_with_nan_is_left_out_as_if_it_were_not_there():
    joined, absent = join(spoilt())
    wanted, _ = join({1: answer({"a": HAS["a"]}), 2: answer({"b": HAS["b"]})})
    assert joined.owners == ("a", "b")
    assert list(absent) == ["c"]
    assert "NaN" in absent["c"]
    assert joined.keys == wanted.keys == ("01", "02", "03", "05")
    for name in ("split", "labels", "embeddings", "present", "predictions", "sizes"):
        assert torch.equal(getattr(joined, name), getattr(wanted, name)), name


def test_columns_for_owners_that_must_have_one():
    joined, absent = join(spoilt(), owners=("c", "a", "zoe"))
    assert joined.owners == ("c", "a", "zoe")
    assert set(absent) == {"c", "zoe"}
    assert absent["zoe"] == "no answer"
    assert joined.keys == ("01", "02", "05"), "what only b has is of no use"
    assert joined.present.tolist() == [[False, True, False]] * 3
    assert joined.fingerprints == ("", "model of a", "")
    assert joined.sizes.tolist() == [0, 3, 0]
    assert joined.embeddings[:, 1].tolist() == [embedding_of("a", key) for key in joined.keys]
    assert not joined.embeddings[:, [0, 2]].any()
    with pytest.raises(IdentityError, match="no owner sent anything usable"):
        join(spoilt(), owners=("c", "zoe"))


def test_what_a_graph_of_owners_may_be_built_from():
    joined, _ = join({1: answer({"a": HAS["a"], "b": HAS["b"]}), 4: answer({"c": HAS["c"]})})
    assert joined.names == ("a", "b", "c")
    # Keys divisible by 3 are for training and are of class x.
    assert joined.label_counts.tolist() == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert joined.task.classes == CLASSES


def test_without_an_owner_its_column_is_empty_and_what_it_alone_has_is_gone():
    joined, _ = join({1: answer({"a": {"01", "02"}, "b": {"02", "03"}})})
    left = joined.without({"b": "lost"})
    assert (left.owners, left.keys) == (("a", "b"), ("01", "02"))
    assert left.present.tolist() == [[True, False], [True, False]]
    assert not left.embeddings[:, 1].any()
    assert not left.predictions[:, 1].any()
    assert torch.equal(left.embeddings[:, 0], joined.embeddings[:2, 0])


def test_what_is_saved_is_read_back(tmp_path):
    joined, _ = join(spoilt())
    save_state(tmp_path / "x", joined.state())
    again = JoinedSamples.of_state(load_state(tmp_path / "x"))
    for name, value in vars(joined).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(again, name), value), name
            assert getattr(again, name).dtype == value.dtype, name
        else:
            assert getattr(again, name) == value, name


def unlabelled(owner, keys):
    """The answer of a node with new samples of any names."""
    one = torch.ones(1, len(keys), 1)
    return EmbedReply(
        (owner,), None, "", CLASSES, keys, torch.full((len(keys),), 3, dtype=torch.int8), torch.full((len(keys),), -1),
        one[..., 0] > 0, torch.tensor([1]), one, one.expand(-1, -1, 3) / 3, ("",),
    )  # fmt: skip


def test_keys_that_differ_little_are_not_taken_for_one_another():
    keys = ("", "k", "k\0", "k\0\0", "k ", "ké", "ke\u0301", "k" * 9999)
    joined, _ = join({1: unlabelled("a", tuple(sorted(keys))), 2: unlabelled("b", ("k\0", "k" * 9999))})
    assert set(joined.keys) == set(keys)
    assert [key for key, held in zip(joined.keys, joined.present[:, 1].tolist(), strict=True) if held] == [
        "k\0", "k" * 9999
    ]  # fmt: skip


def test_one_long_embedding_does_not_fill_the_memory():
    keys = tuple(f"{number:05d}" for number in range(5000))
    liar = unlabelled("liar", keys[:1])
    liar = replace(liar, sizes=torch.tensor([1 << 20]), embeddings=torch.ones(1, 1, 1 << 20))
    with pytest.raises(DataError, match="'liar' .*1048576"):
        join({1: unlabelled("a", keys), 2: liar})


def test_without_the_predictions_of_a_node_there_are_none():
    silent = answer({"b": HAS["b"]})
    silent = replace(silent, predictions=silent.predictions[..., :0])
    assert join({1: answer({"a": HAS["a"]}), 2: silent})[0].predictions.shape == (4, 2, 0)
    assert join({1: answer({"a": HAS["a"]}), 2: EmbedReply.empty(None)})[0].predictions.shape == (3, 1, 3)


def test_an_owner_without_embeddings_is_left_out_where_they_were_asked_for():
    silent = answer({"b": HAS["b"]}, sizes=torch.tensor([0]))
    nodes = {1: answer({"a": HAS["a"]}), 2: silent}
    assert join(nodes)[1] == {"b": "it sent no embeddings"}
    assert join(nodes, embedded=False)[0].owners == ("a", "b")
